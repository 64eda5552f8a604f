"""NumPy is an extra: a client without it sends and reads the same, one record after the other."""

from __future__ import annotations

import zlib
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import trovemq.fetched
from trovemq._common import numpy_extra
from trovemq._consume import puller
from trovemq._consume.fetch_plan import _from, _until
from trovemq._produce import unique_keys
from trovemq._produce.columns import columns_of, split_columns
from trovemq.fetched import FetchedBatch
from trovemq.receipts import AppendOutcome, BatchReceipt, Duplicate, FrameReceipt
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import encode_record
from trovemq_proto.records.layout import SYS_FLAG_COMPRESSED


@pytest.fixture
def no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (trovemq.fetched, numpy_extra, unique_keys):
        monkeypatch.setattr(module, "has_numpy", lambda: False)


def batch_of(count: int, offsets: Any = None) -> FetchedBatch:
    records = [
        encode_record("orders", b"x" * i, queue_offset=i, physical_offset=i, properties={"KEYS": f"k{i}"})
        for i in range(count)
    ]
    return FetchedBatch(b"".join(records), count, 0, count, offsets)


def contents(batch: FetchedBatch) -> tuple[Any, ...]:
    messages = list(batch.messages())
    return len(batch), batch.body_nbytes, [bytes(body) for body in batch.bodies()], messages, batch.split()


@pytest.fixture
def always_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trovemq.fetched, "has_few_records", lambda _: False)


@pytest.mark.usefixtures("always_columns")
@pytest.mark.parametrize("count", [0, 1, 9])
def test_a_batch_reads_the_same(count: int, request: pytest.FixtureRequest) -> None:
    batches = [batch_of(count), batch_of(count, array("q", range(10, 10 + count)))]
    expected = [contents(batch) for batch in batches]
    request.getfixturevalue("no_numpy")
    assert [contents(batch) for batch in batches] == expected


def test_a_few_messages_are_read_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(trovemq.fetched, "has_numpy", lambda: asked.append("numpy"))
    assert len(contents(batch_of(9))[3]) == 9
    assert not asked


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.asyncio
async def test_a_live_readers_first_messages_waited_for_an_import(
    follow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of a second, in which a hundred messages came: NumPy is imported before the first request."""
    asked: list[str] = []
    monkeypatch.setattr(puller, "has_numpy", lambda: asked.append("numpy"))

    def no_route(*_: object) -> None:
        raise TroveError(errors.TOPIC_NOT_FOUND)

    pool: Any = SimpleNamespace(routes=SimpleNamespace(broker_of_queue=no_route))
    request = puller.PullRequest("orders", 0, 0, 1 << 20, (), 3, follow, 100, None)
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        await anext(puller.Puller(pool, request).batches())
    assert asked == (["numpy"] if follow else [])


@pytest.mark.usefixtures("no_numpy")
def test_a_part_of_a_batch_needs_no_numpy() -> None:
    for batch in (batch_of(9), batch_of(9, np.arange(9))):
        assert [message.queue_offset for message in _from(batch, 4).messages()] == [4, 5, 6, 7, 8]
        assert [message.queue_offset for message in _until(batch, 4).messages()] == [0, 1, 2, 3]
        assert not _from(batch, 9).data


@pytest.mark.usefixtures("no_numpy")
def test_bytes_that_are_no_records_are_refused() -> None:
    with pytest.raises(TroveError, match="BATCH_ILLEGAL"):
        len(FetchedBatch(b"x" * 200, 1, 0, 1))


@pytest.mark.usefixtures("no_numpy")
def test_a_column_says_what_to_install() -> None:
    outcome = AppendOutcome(1, "PUT_OK", None, 7, 1000, 2, 5, "disk", bytes(8), "a")
    receipt = BatchReceipt([FrameReceipt("orders", 0, [100, 110], ["a", "b"], outcome)])
    assert [each.physical_offset for each in receipt] == [1000, 1100]
    assert receipt[1].queue_offset == 8
    for column in ("queue_ids", "queue_offsets", "physical_offsets", "duplicates"):
        with pytest.raises(ImportError, match=r"pip install 'trovemq\[numpy\]'"):
            getattr(receipt, column)


@pytest.mark.usefixtures("no_numpy")
def test_unique_keys_are_texts() -> None:
    keys = unique_keys.next_unique_keys(20)
    assert isinstance(keys, list)
    assert len(set(keys)) == 20
    assert {len(key) for key in keys} == {34}


def test_the_columns_of_a_receipt_name_the_message_that_is_a_duplicate() -> None:
    outcome = AppendOutcome(
        1, "PUT_OK", None, 7, 1000, 3, 5, "disk", bytes(8), "a", (Duplicate(1, 4, 2, 50, 3),)
    )
    receipt = BatchReceipt([FrameReceipt("orders", 0, [100, 110, 120], ["a", "b", "c"], outcome)])
    assert receipt.queue_ids.tolist() == [0, 4, 0]
    assert receipt.queue_offsets.tolist() == [7, 2, 8]
    assert receipt.physical_offsets.tolist() == [1000, 50, 1100]
    assert receipt.duplicates.tolist() == [False, True, False]
    assert [each.physical_offset for each in receipt] == receipt.physical_offsets.tolist()
    assert receipt[2].queue_offset == 8
    assert receipt.queue_offsets.dtype == np.int64


def test_a_batch_is_cut_into_frames_of_the_allowed_size() -> None:
    columns = columns_of([b"x" * 100] * 20, None, None, None, None)
    parts = list(split_columns(columns, 2_000))
    assert [body for part in parts for body in part.bodies] == columns.bodies
    assert all(part.size <= 2_000 for part in parts)
    assert len(parts) > 1


def test_a_compressed_body_is_inflated(request: pytest.FixtureRequest) -> None:
    body, flag = zlib.compress(b"y" * 1000), SYS_FLAG_COMPRESSED
    batch = FetchedBatch(encode_record("orders", body, sys_flag=flag) * 5, 5, 0, 5)
    expected = [bytes(each) for each in batch.bodies()]
    request.getfixturevalue("no_numpy")
    assert [bytes(each) for each in batch.bodies()] == expected == [b"y" * 1000] * 5
