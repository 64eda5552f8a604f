"""The decoder without Spark: columns by NumPy and Arrow, beside a plain loop with `struct`.

All give every column of the table (table/schema.py) of every record. The plain loop is the obvious one: it
unpacks the header, slices body and topic, splits the properties. It is measured twice: where its rows are
Python tuples that are dropped, and where they become the Arrow columns that Spark takes.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from struct import Struct
from time import perf_counter
from typing import Any, Final

import pyarrow as pa

from bench.report import Report
from trovemq_proto.records import scan_run
from trovemq_spark.log.scan import RUN_BYTES_MAX, read_ahead
from trovemq_spark.table.columns import arrow_batch
from trovemq_spark.table.schema import arrow_schema, column_names

ROUNDS: Final = 7
_BATCH_ROWS: Final = 4096
_HEADER: Final = Struct(">iiiiiqqiq8sq8siqi")
_RUN_BYTES: Final = RUN_BYTES_MAX


def by_columns(data: memoryview, start: int, names: Sequence[str], *, check_crc: bool = False) -> int:
    """Decodes a segment; the number of records."""
    count = position = 0
    while True:
        if check_crc or "body" in names:
            read_ahead(data, position, _RUN_BYTES)
        records, position, _ = scan_run(
            data,
            position,
            len(data),
            physical_offset_of_data=start,
            check_crc=check_crc,
            bytes_max=_RUN_BYTES,
        )
        if not len(records):
            return count
        count += arrow_batch(records, names).num_rows


def by_struct(data: memoryview, start: int) -> int:
    """The same rows, one after another, as tuples."""
    return sum(1 for _ in _rows(data))


def by_struct_to_arrow(data: memoryview, start: int) -> int:
    """The same rows as Arrow batches of the same size."""
    schema = arrow_schema([name for name in column_names() if name != "brokerName"])
    rows, count = _rows(data), 0
    while chunk := list(islice(rows, _BATCH_ROWS)):
        columns = zip(*chunk, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        count += pa.RecordBatch.from_arrays(arrays, schema=schema).num_rows
    return count


def _rows(data: memoryview) -> Iterator[tuple[Any, ...]]:
    position = 0
    while position + _HEADER.size < len(data):
        fields = _HEADER.unpack_from(data, position)
        size, body_size = fields[0], fields[14]
        if fields[1] != 0xDAA320A7 - (1 << 32):
            return
        body_at = position + _HEADER.size
        topic_at = body_at + body_size + 1
        properties_at = topic_at + data[topic_at - 1] + 2
        properties = {}
        for pair in str(data[properties_at : position + size], "utf-8").split("\x02"):
            name, _, value = pair.partition("\x01")
            if name and value:
                properties[name] = value
        properties.pop("__CRC32#", None)
        yield (
            str(data[topic_at : properties_at - 2], "utf-8"),
            fields[3],
            fields[5],
            fields[6],
            size,
            properties.get("KEYS"),
            properties.get("TAGS"),
            properties.get("UNIQ_KEY"),
            (fields[11] + fields[6].to_bytes(8)).hex().upper(),
            bytes(data[body_at : body_at + body_size]),
            list(properties.items()),
            fields[8] * 1000,
            fields[10] * 1000,
        )
        position += size


def measure_decode(report: Report, store: Path, *, memory_bytes_per_second: float) -> None:
    """Adds the figures of one core: medians of interleaved rounds over the first segment."""
    path = min((store / "commitlog").iterdir())
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    names = column_names()
    decoders: dict[str, Callable[[], int]] = {
        "plain struct loop, rows as tuples": lambda: by_struct(data, 0),
        "plain struct loop, rows to Arrow": lambda: by_struct_to_arrow(data, 0),
        "all columns": lambda: by_columns(data, 0, names),
        "all columns, with the CRC checked": lambda: by_columns(data, 0, names, check_crc=True),
        "topic and queueId": lambda: by_columns(data, 0, ["topic", "queueId"]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in decoders}
    counts = set()
    for _ in range(ROUNDS):
        for name, decode in decoders.items():
            started = perf_counter()
            counts.add(decode())
            seconds[name].append(perf_counter() - started)
    assert len(counts) == 1, f"every decoder reads every record: {counts}"
    (count,) = counts
    for name, times in seconds.items():
        goal: dict[str, float] = {}
        if name == "all columns" and memory_bytes_per_second >= 10e9:
            goal = {"at_least": 1200.0}
        report.add(f"decode, one core, {name}", len(data) / median(times) / 1e6, "MB/s", **goal)
        report.add(f"decode, one core, {name}: records", count / median(times) / 1e3, "k/s")
    ours = median(seconds["all columns"])
    report.add(
        "decode: all columns / plain struct loop to Arrow",
        median(seconds["plain struct loop, rows to Arrow"]) / ours,
        "x",
        at_least=3.0,
    )
    tuples = median(seconds["plain struct loop, rows as tuples"])
    report.add("decode: all columns / plain struct loop to tuples", tuples / ours, "x")
