"""Messages of a Consume stream say the same as those by RocketMQ's protocol, and are read when asked for."""

from __future__ import annotations

import copy
import dataclasses
import gc
import weakref
import zlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.rocketmq_received import received_message
from trovemq._consume import record_spans
from trovemq._consume.inbox import Inbox
from trovemq._consume.streamed import StreamedBatch, StreamedMessage
from trovemq._wire.consumer import Run
from trovemq.received import NO_SETTLEMENT, ReceivedFields
from trovemq_broker.groups.delivery.request import Delivered
from trovemq_broker.server.wire.rocketmq_messages import received
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.receipts import handle_of
from trovemq_proto.records import encode_record
from trovemq_proto.rocketmq.v2 import service_pb2

RECEIPT = "0.3.7.18bcfe5dd30.1.4a1bf138"
NAMES = (
    *("UNIQ_KEY", "KEYS", "TAGS", "__SHARDINGKEY", "BORN_TIMESTAMP", "TIMER_DELIVER_MS", "TIMER_OUT_MS"),
    *("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID", "__PRIORITY", "_SYS_MSG_PRIORITY_"),
    *("TROVEMQ_PRODUCER", "__RMQ.TRANSIENT.x", "own", "größe", "RECONSUME_TIME", "DELAY", "__BORNHOST"),
)
VALUES = ("", "7", "1700000000123", "4 x", "a b", "%DLQ%g", "9" * 16, "-3", "ü", "01AA")
PROPERTIES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), max_size=8)


def stored(number: int, body: bytes, properties: dict[str, str], **header: Any) -> bytes:
    return encode_record(
        "orders",
        body,
        queue_id=3,
        queue_offset=10 + number,
        physical_offset=4_096 + number,
        properties={name: value for name, value in properties.items() if value},
        born_timestamp=1_700_000_000_001,
        store_timestamp=1_700_000_000_002,
        store_host=bytes([10, 0, 0, 1, 0, 0, 0x1F, 0x91]),
        **header,
    )


def batch_of(runs: list[Run], records: list[bytes] | memoryview) -> StreamedBatch:
    return StreamedBatch(
        runs,
        records if isinstance(records, memoryview) else memoryview(b"".join(records)),
        topic="orders",
        broker="broker-a",
        poll=1,
        lease_end=None,
        settlement=NO_SETTLEMENT,
    )


def messages(records: list[bytes]) -> list[tuple[StreamedMessage, TroveError | None]]:
    made = batch_of([Run(3, 10, len(records), 2, RECEIPT)], records)
    return [(made.message(number), made.unreadable.get(number)) for number in range(len(records))]


def content(message: ReceivedFields) -> dict[str, object]:
    """Without the reason of a dead letter: RocketMQ's protocol has none."""
    names = {one.name for one in fields(ReceivedFields)} - {"dead_letter_reason"}
    return {name: getattr(message, name) for name in names}


def by_rocketmqs_protocol(number: int, record: bytes) -> ReceivedFields:
    one = Delivered(memoryview(record), "orders", QueueId(3), QueueOffset(10 + number), 2, "H", EpochMs(0))
    response = service_pb2.ReceiveMessageResponse.FromString(received(one))
    return received_message(response.message, "broker-a")


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.binary(max_size=40), PROPERTIES, st.integers(0, 2)), min_size=1, max_size=6),
    st.booleans(),
)
@example([(b"x", dict.fromkeys(NAMES, "7"), 0)], True)
def test_each_field_is_that_of_rocketmqs_protocol(
    sent: list[tuple[bytes, dict[str, str], int]], columns: bool
) -> None:
    records = [
        stored(number, body, properties, reconsume_times=times)
        for number, (body, properties, times) in enumerate(sent)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_spans, "has_few_records", lambda _: not columns)
        made = messages(records)
    for number, (message, error) in enumerate(made):
        assert error is None
        assert content(message) == content(by_rocketmqs_protocol(number, records[number]))
        assert message.receipt_handle == handle_of(RECEIPT, 10 + number)
        assert message.nbytes == len(records[number])
        assert message.place == ("broker-a", 4_096 + number)


@pytest.mark.parametrize("at", [7, 90])
@pytest.mark.parametrize("columns", [False, True])
def test_records_that_cannot_be_read_cost_no_other_message(
    monkeypatch: pytest.MonkeyPatch, columns: bool, at: int
) -> None:
    """A flipped bit of the magic code, one of the body, and a body that does not inflate."""
    monkeypatch.setattr(record_spans, "has_few_records", lambda _: not columns)
    damaged = bytearray(stored(1, b"damaged", {}))
    damaged[at] ^= 1
    records = [
        stored(0, b"right", {}),
        bytes(damaged),
        stored(2, zlib.compress(b"small"), {}, sys_flag=1),
        stored(3, b"no stream", {}, sys_flag=1),
    ]
    made = messages(records)
    assert [error is None for _, error in made] == [True, False, True, False]
    assert [message.body for message, _ in made] == [b"right", b"", b"small", b""]
    assert [message.queue_offset for message, _ in made] == [10, 11, 12, 13]
    assert made[1][0].message_id == ""


def test_without_numpy_records_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [stored(number, b"x" * 2_000, {}) for number in range(20)]
    with_columns = [content(message) for message, _ in messages(records)]
    monkeypatch.setattr(record_spans, "has_numpy", lambda: False)
    assert [content(message) for message, _ in messages(records)] == with_columns


def test_records_that_are_not_those_of_the_runs_are_refused() -> None:
    with pytest.raises(TroveError, match="BATCH_ILLEGAL"):
        batch_of([Run(3, 10, 2, 1, RECEIPT)], [stored(0, b"one", {})])
    with pytest.raises(TroveError, match="BATCH_ILLEGAL"):
        messages([b"no record"])


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_a_batch_hands_out_each_message_as_it_makes_it_alone(
    spread: list[tuple[int, int]], alike: bool, columns: bool
) -> None:
    runs = [
        Run(number, first, count, 1 + number, f"{RECEIPT}{number}")
        for number, (first, count) in enumerate(spread)
    ]
    count = sum(run.count for run in runs)
    records = [stored(number, b"x" * (9 if alike else number), {"own": "1"}) for number in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_spans, "has_few_records", lambda _: not columns)
        batch = batch_of(runs, records)
    places = [(run, run.first_offset + index) for run in runs for index in range(run.count)]
    for number, message in enumerate(batch):
        alone, (run, offset) = batch.message(number), places[number]
        assert content(message) == content(alone)
        assert (message.receipt, message.place, message.nbytes, message.settled, message.lease_end) == (
            (alone.receipt, alone.place, alone.nbytes, alone.settled, alone.lease_end)
        )
        assert (message.queue_id, message.queue_offset, message.attempt) == (
            run.queue_id,
            offset,
            run.attempt,
        )
        assert message.receipt == run.receipt
        assert message.body == b"x" * (9 if alike else number)
        assert len(batch) == count - number - 1
        assert batch.nbytes == sum(map(len, records[number + 1 :]))
    assert [content(message) for message in batch.readable()] == [
        content(batch.message(number)) for number in range(count)
    ]


def test_a_value_of_one_message_is_not_that_of_its_neighbours() -> None:
    batch = batch_of([Run(3, 10, 2, 2, RECEIPT)], [stored(0, b"one", {}), stored(1, b"two", {})])
    one, two = batch
    one.attempt, one.receipt, one.lease_end, one.body = 5, None, 7.0, b"other"
    assert (one.attempt, one.receipt, one.lease_end, one.body) == (5, None, 7.0, b"other")
    assert (two.attempt, two.receipt, two.lease_end, two.body) == (2, RECEIPT, None, b"two")
    copied = dataclasses.replace(two, body=b"more")
    assert content(copied) == content(two) | {"body": b"more"}
    assert (copied.receipt, copied.receipt_handle) == (None, two.receipt_handle)


def test_a_message_that_is_delivered_again_has_its_new_handle() -> None:
    ((message, _),) = messages([stored(0, b"one", {})])
    ((newer, _),) = messages([stored(0, b"one", {})])
    assert message.receipt_handle == handle_of(RECEIPT, 10)
    newer.receipt = "0.3.8.18bcfe5dd30.1.00000000"
    message.take_over(newer)
    assert message.receipt_handle == handle_of(newer.receipt, 10)
    assert message.receipt == newer.receipt


def test_an_unread_message_is_copied_shown_and_lacks_unknown_names() -> None:
    ((message, _),) = messages([stored(0, b"one", {"own": "1"})])
    assert copy.copy(message).properties == {"own": "1"}
    assert "b'one'" in repr(message)
    assert not hasattr(message, "colour")


def take_in_inbox(batch: StreamedBatch) -> None:
    inbox = Inbox(100, 1 << 20)
    inbox.put_batch(batch)
    for _ in range(len(batch)):
        inbox.take(0.0)


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(len, id="not handed out"),
        pytest.param(lambda batch: next(batch.messages).body, id="one handed out"),
        pytest.param(lambda batch: [next(batch.messages) for _ in range(3)], id="as many as there are"),
        pytest.param(StreamedBatch.readable, id="handed out as readable ones"),
        pytest.param(take_in_inbox, id="taken from the inbox"),
        pytest.param(list, id="iterated to the end"),
    ],
)
def test_a_batch_that_was_not_iterated_to_its_end_waited_for_the_collector(
    use: Callable[[StreamedBatch], object],
) -> None:
    """It held itself, and so the records of all its messages."""
    gc.disable()
    try:
        records = memoryview(b"".join(stored(number, b"one", {}) for number in range(3)))
        held = weakref.ref(records)
        batch = batch_of([Run(3, 10, 3, 2, RECEIPT)], records)
        del records
        use(batch)
        assert held() is not None
        del batch
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("columns", [False, True])
def test_a_kept_message_kept_the_inflated_bodies_of_its_neighbours(
    monkeypatch: pytest.MonkeyPatch, columns: bool
) -> None:
    monkeypatch.setattr(record_spans, "has_few_records", lambda _: not columns)
    bodies = [bytes([number]) * 1_000 for number in range(4)]
    records = [
        stored(number, body if number == 2 else zlib.compress(body), {}, sys_flag=int(number != 2))
        for number, body in enumerate(bodies)
    ]
    batch = batch_of([Run(3, 10, 1, 2, RECEIPT), Run(3, 11, 3, 1, RECEIPT)], records)
    kept = next(batch.messages)
    assert sorted(kept.run.spans.inflated) == [1, 3], "those that were not handed out"
    others = list(batch)
    assert kept.run.spans.inflated == {}
    assert [message.body for message in (kept, *others)] == bodies
