"""All of `make bench-pipeline`: most of it in one Spark session on `local[2]`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench import limits
from bench.pipeline.archives import measure_archive
from bench.pipeline.decode import measure_decode
from bench.pipeline.kafka_source import connector_settings, measure_kafka
from bench.pipeline.log_files import SEGMENT_SIZE, write_log
from bench.pipeline.rebuilds import measure_rebuild
from bench.pipeline.scans import measure_scans
from bench.pipeline.searches import measure_search
from bench.report import Report
from trovemq_spark.session import make_session

SEGMENTS: Final = 8
SEARCHED_ROWS: Final = 10_000_000


def measure_all(report: Report, directory: Path, *, quick: bool = False) -> None:
    """Makes its logs and archives below `directory`; the search has no Spark."""
    memory = limits.memcpy_bytes_per_second()
    report.add("memory: copy", memory / 1e9, "GB/s")
    store = directory / "store"
    segments, rounds = (2, 2) if quick else (SEGMENTS, 5)
    count = write_log(store, segments)
    report.add("the log", segments * SEGMENT_SIZE / 1e6, "MB")
    report.add("the log: records", count, "")
    measure_decode(report, store, memory_bytes_per_second=memory)
    kafka = connector_settings(report, directory)
    session = make_session("bench", settings={"spark.local.dir": str(directory / "spark"), **kafka})
    try:
        measure_scans(report, session, store, rounds=rounds)
        measure_archive(report, session, store, directory, rounds=min(rounds, 3))
        measure_rebuild(report, session, directory, rounds=min(rounds, 3), segments=segments)
        if kafka:
            measure_kafka(report, session, directory, quick=quick)
    finally:
        session.stop()
    measure_search(report, directory, SEARCHED_ROWS // (10 if quick else 1))
