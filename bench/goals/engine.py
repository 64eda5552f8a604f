"""A message of a batch of 1,000 in the engine, with the CRC of the whole record, without the log's write."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench import engine, limits
from bench.report import Report

COST_US_MAX: Final = 1.5
COPIES: Final = 3


async def measure(report: Report, directory: Path, *, quick: bool) -> None:
    """The cost of an append, beside COPIES copies of a record: the goal is the longer of both."""
    del quick  # it takes a second
    cost = engine.append_cost(directory / "engine")
    copied = limits.memcpy_bytes_per_second()
    copies_us = COPIES * cost.record_size / copied * 1e6
    name = f"engine, batches of {engine.BATCH:,}"
    report.add("memory: copy", copied / 1e9, "GB/s")
    report.add(f"{name}: a message with its CRC", cost.with_crc_us, "us")
    report.add(
        f"{name}: the same without the write",
        cost.without_write_us,
        "us",
        at_most=max(COST_US_MAX, copies_us),
    )
