"""Bodies that inflate to much: an archive and a search use bounded memory for them, and keep all."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.log_files import LogFiles
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import RecordBatch, encode_record
from trovemq_proto.records.layout import SYS_FLAG_COMPRESSED
from trovemq_spark.archive.manifest import FILES
from trovemq_spark.archive.parquet_files import FileLayout
from trovemq_spark.archive.segment_rows import chunk_rows
from trovemq_spark.archive.segment_task import FAILFAST, SegmentTask, archive_segment
from trovemq_spark.job import NoProgress
from trovemq_spark.jobs.search import SearchArguments, run
from trovemq_spark.log.segments import LogDirectory
from trovemq_spark.search import pieces
from trovemq_spark.search.question import Question
from trovemq_spark.table.columns import arrow_batch

MIB = 1 << 20


def records_of(source: random.Random, count: int) -> tuple[RecordBatch, list[bytes | None]]:
    """Records in any state of compression, and their bodies; None: it does not inflate."""
    parts, bodies = [], []
    for number in range(count):
        body: bytes | None = bytes([number % 256]) * source.choice((0, 1, 40, 300, 1000))
        kind = source.choice(("plain", "compressed", "broken"))
        stored = {"plain": body, "compressed": zlib.compress(body or b""), "broken": b"no stream"}[kind]
        flag = 0 if kind == "plain" else SYS_FLAG_COMPRESSED
        parts.append(encode_record("t", stored or b"", sys_flag=flag, queue_offset=number))
        bodies.append(None if kind == "broken" else body)
    return RecordBatch.split(b"".join(parts)), bodies


@pytest.mark.parametrize("seed", range(12))
def test_rows_in_any_order_come_in_it_in_chunks_that_inflate_to_no_more(seed: int) -> None:
    source = random.Random(seed)
    batch, bodies = records_of(source, source.choice((1, 2, 30)))
    order = np.array(source.sample(range(len(batch)), len(batch)) if seed % 3 else range(len(batch)))
    limit = source.choice((1, 500, 1 << 30))
    found: list[tuple[int, bytes | None]] = []
    chunks = list(
        chunk_rows(
            batch.data, batch.positions[order], batch.sizes[order], ["queueOffset", "body", "sysFlag"], limit
        )
    )
    for chunk in chunks:
        columns = [chunk.rows.column(name).to_pylist() for name in ("queueOffset", "body", "sysFlag")]
        assert chunk.positions.tolist() == batch.positions[columns[0]].tolist()
        assert sorted(chunk.errors) == [row for row, body in enumerate(columns[1]) if body is None]
        inflated = [len(body or b"") for _, body, flag in zip(*columns, strict=True) if flag]
        assert sum(inflated) <= limit or len(inflated) == 1
        found += zip(columns[0], columns[1], strict=True)
    assert found == [(number, bodies[number]) for number in order.tolist()]
    assert len(chunks) == 1 or limit < 1 << 30


def bombs(store: Path) -> LogDirectory:
    """40 MiB of bodies in some 40 KiB of log, out of the order of their queue; one is not a stream."""
    log = LogFiles(store, segment_size=1 << 18)
    for number in range(40):
        body = zlib.compress(bytes([number]) * MIB)
        log.append("t", body, sys_flag=SYS_FLAG_COMPRESSED, queue_offset=39 - number)
    log.append("t", b"no stream", sys_flag=SYS_FLAG_COMPRESSED, queue_offset=40)
    return LogDirectory.open(str(store))


@pytest.mark.slow
def test_a_row_group_is_bounded_by_what_its_bodies_inflate_to(tmp_path: Path) -> None:
    """It was bounded by their stored size: gigabytes in a task, of a few megabytes of log."""
    log = bombs(tmp_path / "store")
    task = SegmentTask(
        str(tmp_path / "store"),
        log,
        log.segments[0],
        str(tmp_path / "out"),
        0,
        is_last=True,
        layout=FileLayout(row_group_bytes=4 * MIB, compression="none"),
    )
    (entry,) = archive_segment(task).entries
    with pq.ParquetFile(tmp_path / "out" / entry.file) as file:
        groups = [
            file.read_row_group(number, ["queueOffset", "body"]) for number in range(file.num_row_groups)
        ]
    sizes = [[len(body or b"") for body in group["body"].to_pylist()] for group in groups]
    assert all(sum(group) <= 4 * MIB for group in sizes)
    assert len(groups) == 10
    rows = [row for group in groups for row in group.to_pylist()]
    assert [row["queueOffset"] for row in rows] == list(range(41))
    assert [row["body"] for row in rows] == [*(bytes([39 - i]) * MIB for i in range(40)), None]
    failing = SegmentTask(
        task.store,
        log,
        task.file,
        str(tmp_path / "failed"),
        0,
        is_last=True,
        mode=FAILFAST,
        layout=task.layout,
    )
    with pytest.raises(TroveError, match=errors.RECORD_DAMAGED.symbol):
        archive_segment(failing)
    assert not list((tmp_path / "failed" / FILES).iterdir())


@pytest.mark.slow
def test_a_search_inflates_a_bounded_number_of_bodies_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's bodies were inflated together, and those of all its answers."""
    log = bombs(tmp_path)
    largest: list[int] = []

    def measured(*arguments: Any, **options: Any) -> pa.RecordBatch:
        rows = arrow_batch(*arguments, **options)
        largest.append(rows.nbytes)
        return rows

    monkeypatch.setattr(pieces, "arrow_batch", measured)
    (segment,) = log.segments
    piece = pieces.SegmentPiece(log, segment, segment.start, segment.end)
    batches = list(piece.find(Question(body_text="\x07")))
    reported = [row for batch in batches for row in batch.to_pylist()]
    assert [row["damage"] is None for row in reported].count(False) == 1
    assert [row["body"] for row in reported if row["damage"] is None] == [b"\7" * MIB]
    assert 3 * MIB < max(largest) < 5 * MIB
    report = run(None, SearchArguments(store=str(tmp_path), topic="t"), NoProgress())
    assert report.facts["rowCount"] == 41
    assert max(largest) < 5 * MIB
