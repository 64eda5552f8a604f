"""All of `make bench-pipeline`, in one Spark session on `local[2]`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench import limits
from bench.pipeline.decode import measure_decode
from bench.pipeline.log_files import SEGMENT_SIZE, write_log
from bench.pipeline.scans import measure_scans
from bench.report import Report
from trovemq_spark.session import make_session

SEGMENTS: Final = 8


def measure_all(report: Report, directory: Path, *, quick: bool = False) -> None:
    """Writes a log below `directory` and measures with it."""
    memory = limits.memcpy_bytes_per_second()
    report.add("memory: copy", memory / 1e9, "GB/s")
    store = directory / "store"
    segments = 2 if quick else SEGMENTS
    count = write_log(store, segments)
    report.add("the log", segments * SEGMENT_SIZE / 1e6, "MB")
    report.add("the log: records", count, "")
    measure_decode(report, store, memory_bytes_per_second=memory)
    session = make_session("bench", settings={"spark.local.dir": str(directory / "spark")})
    try:
        measure_scans(report, session, store, rounds=2 if quick else 5)
    finally:
        session.stop()
