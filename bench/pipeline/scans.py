"""Reading a log through Spark, beside one process that decodes it alone; narrowing and push-down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from bench.pipeline.decode import by_columns
from bench.pipeline.log_files import TOPICS
from bench.report import Report
from trovemq_spark.log.segments import LogDirectory
from trovemq_spark.table.schema import column_names

ROUNDS: Final = 5


def interleaved(variants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median seconds of each, after one round that does not count; every round runs each once."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(rounds + 1):
        for name, work in variants.items():
            started = perf_counter()
            work()
            if round_number:
                seconds[name].append(perf_counter() - started)
    return {name: median(times) for name, times in seconds.items()}


def noop(frame: DataFrame) -> None:
    """Makes every row and drops it."""
    frame.write.format("noop").mode("overwrite").save()


def measure_scans(report: Report, session: SparkSession, store: Path, *, rounds: int = ROUNDS) -> None:
    """`store`: segments by log_files.write_log."""
    log = LogDirectory.open(str(store))
    size = sum(segment.size for segment in log.segments)

    def table(**options: str) -> DataFrame:
        return session.read.format("trovemq-log").options(path=str(store), **options).load()

    def plain() -> None:
        for file in log.segments:
            by_columns(log.open_segment(file).file.view(), file.start, column_names(), check_crc=True)

    one_topic = f"topic = 'topic{TOPICS // 2:02}'"

    def filtered(pushdown: str) -> None:
        noop(table(pushdown=pushdown).filter(one_topic))

    seconds = interleaved(
        {
            "plain": plain,
            "all": lambda: noop(table()),
            "count": lambda: table().count(),
            "narrow": lambda: table(columns="queueId").count(),
            "two": lambda: noop(table(columns="topic,body")),
            "pushed": lambda: filtered("true"),
            "unpushed": lambda: filtered("false"),
        },
        rounds,
    )
    report.add("plain decode of the log, one core, CRC checked", size / seconds["plain"] / 1e6, "MB/s")
    report.add("Spark, all columns into nothing", size / seconds["all"] / 1e6, "MB/s")
    report.add("Spark / plain decode", seconds["plain"] / seconds["all"], "x", at_least=0.6)
    report.add("Spark, topic and body into nothing", size / seconds["two"] / 1e6, "MB/s")
    report.add("Spark, count", size / seconds["count"] / 1e6, "MB/s")
    report.add(
        "Spark, count: narrowed to one column / all", seconds["count"] / seconds["narrow"], "x", at_least=1.7
    )
    report.add(
        "Spark, one topic of 16: pushed down / not",
        seconds["unpushed"] / seconds["pushed"],
        "x",
        at_least=1.7,
    )
