"""Rows of fetched records: cut as requested, with the queue's own offsets, and damaged ones in each mode."""

from __future__ import annotations

import logging
import zlib
from typing import Any

import numpy as np
import pytest

from trovemq import FetchedBatch
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import encode_record
from trovemq_proto.records.layout import SYS_FLAG_COMPRESSED
from trovemq_spark.sources import live_fetch
from trovemq_spark.sources.live_client import Cluster
from trovemq_spark.sources.live_fetch import FetchSettings, RowMaker
from trovemq_spark.sources.live_ranges import QueueRange
from trovemq_spark.sources.offsets import Queue

QUEUE = Queue("t", "b1", 3)
NAMES = ("topic", "brokerName", "queueId", "queueOffset", "body", "damage")


def maker(mode: str, names: tuple[str, ...] = NAMES, batch_rows: int = 2) -> RowMaker:
    settings = FetchSettings(Cluster("127.0.0.1:1", 0), names, (), batch_rows, 0, 0, True, mode)
    return RowMaker(QueueRange(QUEUE, 0, 100), settings)


def fetched(bodies: list[bytes], *, wrong: int | None = None, damaged: tuple[int, ...] = ()) -> FetchedBatch:
    """Records that say queue offset 0, at the offsets 10, 11, …; the body `wrong` does not decompress."""
    records = [
        encode_record("t", body, queue_id=3, sys_flag=SYS_FLAG_COMPRESSED if i == wrong else 0)
        for i, body in enumerate(bodies)
    ]
    offsets = np.arange(10, 10 + len(bodies), dtype=np.int64)
    return FetchedBatch(b"".join(records), 20, 0, 100, queue_offsets=offsets, damaged_offsets=damaged)


def rows(rows_of: RowMaker, batch: FetchedBatch) -> list[dict[str, Any]]:
    tables = list(rows_of.of(batch))
    assert all(0 < table.num_rows <= 2 for table in tables)
    rows_of.finish()
    return [row for table in tables for row in table.to_pylist()]


def test_rows_are_cut_and_have_the_offsets_of_their_queue() -> None:
    bodies = [b"a", b"b", b"c", b"d", b"e"]
    assert rows(maker("failfast"), fetched(bodies)) == [
        dict(zip(NAMES, ("t", "b1", 3, 10 + i, body, None), strict=True)) for i, body in enumerate(bodies)
    ]


def test_a_body_that_does_not_decompress(caplog: pytest.LogCaptureFixture) -> None:
    batch = fetched([b"a", b"b", b"not compressed", b"d"], wrong=2)
    with pytest.raises(TroveError, match="topic t, broker b1, queue 3, offset 12") as failed:
        rows(maker("failfast"), batch)
    assert failed.value.spec is errors.RECORD_DAMAGED
    shown = rows(maker("permissive"), batch)
    assert [(row["queueOffset"], row["body"]) for row in shown] == [
        (10, b"a"), (11, b"b"), (12, None), (13, b"d")
    ]  # fmt: skip
    assert [row["damage"] is None for row in shown] == [True, True, False, True]
    assert "RECORD_DAMAGED" in shown[2]["damage"]
    narrow = rows(maker("permissive", ("body",)), batch)
    assert [row["body"] for row in narrow] == [b"a", b"b", None, b"d"]
    with caplog.at_level(logging.WARNING):
        assert [row["body"] for row in rows(maker("dropmalformed"), batch)] == [b"a", b"b", b"d"]
    assert "topic t, broker b1, queue 3: 1 damaged records are left out" in caplog.text


@pytest.mark.parametrize("mode", ["permissive", "dropmalformed"])
def test_bodies_that_inflate_to_much_are_cut_and_keep_their_offsets(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_fetch, "INFLATED_BYTES_MAX", 25)
    sizes = [10, 10, 10, None, 60, 0, 20, None, 1]
    records = [
        encode_record(
            "t", b"none" if size is None else zlib.compress(b"x" * size), sys_flag=SYS_FLAG_COMPRESSED
        )
        for size in sizes
    ]
    offsets = np.array([3, 5, 6, 7, 9, 10, 11, 12, 20], np.int64)
    batch = FetchedBatch(b"".join(records), 21, 0, 100, queue_offsets=offsets)
    tables = list(maker(mode, batch_rows=100).of(batch))
    found = [(row["queueOffset"], row["body"]) for table in tables for row in table.to_pylist()]
    assert found == [
        (offset, None if size is None else b"x" * size)
        for offset, size in zip(offsets.tolist(), sizes, strict=True)
        if size is not None or mode == "permissive"
    ]
    totals = [sum(len(body or b"") for body in table.column("body").to_pylist()) for table in tables]
    assert totals == [20, 10, 60, 21]


def test_a_record_that_the_broker_cannot_read(caplog: pytest.LogCaptureFixture) -> None:
    batch = fetched([b"a"], damaged=(14, 17))
    with pytest.raises(TroveError, match=r"queue 3: .* queue offset 14; set mode=permissive") as failed:
        rows(maker("failfast"), batch)
    assert failed.value.spec is errors.RECORD_DAMAGED
    shown = rows(maker("permissive"), batch)
    assert sorted((row["queueOffset"], row["body"], bool(row["damage"])) for row in shown) == [
        (10, b"a", False), (14, None, True), (17, None, True)
    ]  # fmt: skip
    with caplog.at_level(logging.WARNING):
        assert len(rows(maker("dropmalformed"), batch)) == 1
    assert "2 damaged records are left out" in caplog.text
