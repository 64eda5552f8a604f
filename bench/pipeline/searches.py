"""Looking a message up in an archive of many rows, beside reading all of it.

The archive is made without a log: generated rows through the archive's own writer, committed by its manifest.
One key is in WANTED_ROWS rows that are spread over all files, so that no file can be left out for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bench.report import Report
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import encode_offset_msg_id, pack_host
from trovemq_spark.archive.manifest import Manifest
from trovemq_spark.archive.parquet_files import ROW_GROUP_ROWS_DEFAULT, TABLE_COLUMNS, ParquetFile
from trovemq_spark.job import NoProgress
from trovemq_spark.jobs.search import SearchArguments, run
from trovemq_spark.search.answer import Answer
from trovemq_spark.search.pieces import FilePiece
from trovemq_spark.search.reading import Reading
from trovemq_spark.table.schema import PROPERTIES_TYPE, TIMESTAMP, arrow_schema

ROWS: Final = 10_000_000
FILES: Final = 32
WANTED_ROWS: Final = 100
WANTED_KEY: Final = "wanted"
ROUNDS: Final = 5
_QUEUES: Final = 8
_RECORD_SIZE: Final = 300
_FIRST_MS: Final = 1_700_006_400_000
_HOST: Final = pack_host("127.0.0.1:8081")
_BODY: Final = b"a small body, of a reading or a click"


def make_archive(archive: Path, rows: int) -> None:
    """FILES files of one day; row i has the message id AC…i, and every rows/WANTED_ROWS-th the wanted key."""
    entries = []
    with Manifest.writing(archive, "bench") as manifest:
        for number in range(FILES):
            topic = f"topic{number:02}"
            mine = np.arange(rows * number // FILES, rows * (number + 1) // FILES)
            date = datetime.fromtimestamp(_FIRST_MS / 1000, UTC).date().isoformat()
            with ParquetFile(manifest.place, topic, date) as file:
                for batch in _batches(topic, mine, wanted_every(rows)):
                    file.write(batch)
                entries.append(file.close())
        manifest.commit(entries, job="bench")


def wanted_every(rows: int) -> int:
    """Odd, so that the wanted rows lie in all queues."""
    return rows // WANTED_ROWS | 1


def message_id(row: int) -> str:
    return f"AC{row:030d}"


def offset_msg_id(row: int) -> str:
    return encode_offset_msg_id(_HOST, PhysicalOffset(row * _RECORD_SIZE))


def _batches(topic: str, rows: NDArray[np.int64], every: int) -> Iterator[pa.RecordBatch]:
    """In the order of an archive: by queue, then queue offset."""
    order = np.lexsort((rows, rows % _QUEUES))
    rows = rows[order]
    for first in range(0, len(rows), ROW_GROUP_ROWS_DEFAULT):
        yield _batch(topic, rows[first : first + ROW_GROUP_ROWS_DEFAULT], every)


def _batch(topic: str, rows: NDArray[np.int64], every: int) -> pa.RecordBatch:
    count = len(rows)
    digits = pc.utf8_lpad(pa.array(rows).cast(pa.string()), 30, "0")
    message_ids = pc.binary_join_element_wise("AC", digits, "")
    own_keys = pc.binary_join_element_wise("key", pa.array(rows).cast(pa.string()), "")
    is_wanted = pa.array(rows % every == every // 2)
    keys = pc.if_else(is_wanted, pc.binary_join_element_wise(own_keys, WANTED_KEY, " "), own_keys)
    places = rows * _RECORD_SIZE
    hexadecimal = places.astype(">i8").tobytes().hex().upper()
    host = _HOST.hex().upper()
    ids = pa.array([host + hexadecimal[16 * i : 16 * i + 16] for i in range(count)])
    names = pa.array(["KEYS", "UNIQ_KEY"] * count)
    values = pc.choose(pa.array([0, 1] * count), keys.take(_twice(count)), message_ids.take(_twice(count)))
    times = pa.array((_FIRST_MS + rows // 200) * 1000).cast(TIMESTAMP)
    made = {
        "topic": pa.repeat(pa.scalar(topic), count),
        "queueId": pa.array((rows % _QUEUES).astype(np.int32)),
        "queueOffset": pa.array(rows // _QUEUES),
        "physicalOffset": pa.array(places),
        "size": pa.array(np.full(count, _RECORD_SIZE, np.int32)),
        "keys": keys,
        "tags": pa.repeat(pa.scalar("tag"), count),
        "messageId": message_ids,
        "offsetMsgId": ids,
        "body": pa.repeat(pa.scalar(_BODY), count),
        "properties": pa.MapArray.from_arrays(
            pa.array(np.arange(count + 1, dtype=np.int32) * 2), names, values, PROPERTIES_TYPE
        ),
        "bornTimestamp": times,
        "storeTimestamp": times,
        "storeHost": pa.repeat(pa.scalar("127.0.0.1:8081"), count),
        "bornHost": pa.repeat(pa.scalar("127.0.0.1:8081"), count),
    }
    schema = arrow_schema(TABLE_COLUMNS)
    arrays = [made.get(field.name, pa.nulls(count, field.type)) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _twice(count: int) -> pa.Array:
    return pa.array(np.repeat(np.arange(count), 2))


def _rows_by_scan(archive: Path, arguments: SearchArguments) -> int:
    """The same question to every row: nothing is left out by a filter."""
    manifest = Manifest.open(archive)
    answer = Answer(arguments.limit, newest_first=True)
    reading = Reading(None, arguments.question(), arguments.limit, newest_first=True)
    reading.add("archive", [FilePiece(manifest.place, entry.file, entry.bytes) for entry in manifest.files()])
    reading.run(answer, NoProgress())
    return int(answer.table().num_rows)


def measure_search(report: Report, directory: Path, rows: int = ROWS) -> None:
    """Makes an archive of `rows` rows below `directory`; medians of warm look-ups in it."""
    archive = directory / "searched"
    started = perf_counter()
    make_archive(archive, rows)
    report.add("the searched archive: rows", rows, "")
    report.add("the searched archive: writing it", rows / (perf_counter() - started) / 1e3, "k rows/s")
    middle = rows // 2 + 1
    every = wanted_every(rows)
    wanted = len(range(every // 2, rows, every))
    asked: dict[str, tuple[SearchArguments, int]] = {
        f"one key, of {wanted} rows in all files": (
            SearchArguments(archive=str(archive), key=WANTED_KEY, limit=2 * WANTED_ROWS),
            wanted,
        ),
        "a message id": (SearchArguments(archive=str(archive), message_id=message_id(middle)), 1),
        "an offsetMsgId": (SearchArguments(archive=str(archive), offset_msg_id=offset_msg_id(middle)), 1),
        "a key that is not there": (SearchArguments(archive=str(archive), key="nowhere"), 0),
    }
    seconds: dict[str, list[float]] = {name: [] for name in asked}
    for round_number in range(ROUNDS + 1):
        for name, (arguments, expected) in asked.items():
            started = perf_counter()
            facts = run(None, arguments, NoProgress()).facts
            if round_number:
                seconds[name].append(perf_counter() - started)
            assert (facts["rowCount"], facts["complete"]) == (expected, True), name
    for name, times in seconds.items():
        report.add(f"search, warm: {name}", median(times), "s", at_most=2.0)
    key_arguments, expected = next(iter(asked.values()))
    started = perf_counter()
    assert _rows_by_scan(archive, key_arguments) == expected
    scan = perf_counter() - started
    report.add("search: the same key by reading all rows", scan, "s")
    report.add("search: reading all rows / by the filters", scan / median(next(iter(seconds.values()))), "x")
