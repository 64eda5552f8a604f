"""Pulling by queue offset: which messages come, how far, and the notes on the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, append, open_store, record, send
from trovemq_broker.fetch.pull import Puller, PullRequest, PullResult, PullSettings
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, QueueId, QueueOffset
from trovemq_proto.records import Message, decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.consume_queue import UNIT_DTYPE, ConsumeQueue


def puller(store: MessageStore) -> Puller:
    return Puller(store, PullSettings(bytes_default=4_096, bytes_max=8_192))


def puller_of_checked(store: MessageStore) -> Puller:
    """As if the records had been appended since: their CRCs need no check."""
    reader = puller(store)
    reader._checked_from = LOG_ORIGIN
    return reader


def messages(result: PullResult) -> list[Message]:
    """The result as a client reads it: one run of bytes, cut by the records' own sizes."""
    data = b"".join(result.slices)
    found = []
    while data:
        size = int.from_bytes(data[:4])
        found.append(decode_message(data[:size]))
        data = data[size:]
    assert len(found) == result.message_count
    assert sum(len(part) for part in result.slices) == result.byte_count
    return found


def read_all(store: MessageStore, request: PullRequest) -> tuple[list[Message], int]:
    """Everything from the request's offset on, pull by pull, and the number of pulls."""
    found, offset, pulls = list[Message](), request.offset, 0
    while True:
        result = puller(store).pull(
            PullRequest(
                request.topic, request.queue_id, offset, request.messages_max, request.bytes_max, request.tags
            )
        )
        if result.at_end:
            return found, pulls
        assert result.next_offset > offset, "a pull always comes further"
        found += messages(result)
        offset, pulls = result.next_offset, pulls + 1


def written_store() -> MessageStore:
    """Three queues that were written by turns, over several segments; queue 0 has tags."""
    opened = open_store(MemoryFileSystem(), topics=("orders", "empty"))
    for number in range(60):
        tag = ("paid", "Aa", "BB")[number % 3]  # Aa and BB have one hash
        send(opened, b"%03d" % number + bytes(number * 7), queue_id=0, tag=tag, unique_key=f"U{number}")
        append(
            opened, record(b"x", queue_id=QueueId(1)), record(b"y", queue_id=QueueId(1)), queue_id=QueueId(1)
        )
        opened.dispatch()
    return opened


SHARED = written_store()  # for tests that only read


@pytest.fixture
def store() -> MessageStore:
    return written_store()


def test_everything_comes_once_and_in_order(store: MessageStore) -> None:
    found, pulls = read_all(store, PullRequest("orders", QueueId(0), QueueOffset(0)))
    assert [message.queue_offset for message in found] == list(range(60))
    assert [message.body[:3] for message in found] == [b"%03d" % number for number in range(60)]
    assert pulls > 1
    assert store.segment_count > 1


@given(
    offset=st.integers(0, 60),
    messages_max=st.integers(0, 70),
    bytes_max=st.integers(0, 10_000),
    tags=st.sets(st.sampled_from(["paid", "Aa", "BB", "none"])),
)
def test_limits_and_tags_never_lose_a_message(
    offset: int, messages_max: int, bytes_max: int, tags: set[str]
) -> None:
    request = PullRequest("orders", QueueId(0), QueueOffset(offset), messages_max, bytes_max, tuple(tags))
    found, _ = read_all(SHARED, request)
    assert [message.queue_offset for message in found] == [
        number for number in range(offset, 60) if not tags or ("paid", "Aa", "BB")[number % 3] in tags
    ]
    result = puller(SHARED).pull(request)
    if messages_max:
        assert result.message_count <= messages_max
    assert result.byte_count <= max(min(bytes_max or 4_096, 8_192), 1_024) or result.message_count == 1


@given(offset=st.integers(0, 60), messages_max=st.integers(0, 40), bytes_max=st.integers(0, 10_000))
@pytest.mark.parametrize("queue_id", [0, 1])
def test_a_few_messages_are_read_as_many_are(
    queue_id: QueueId, offset: int, messages_max: int, bytes_max: int
) -> None:
    request = PullRequest("orders", queue_id, QueueOffset(offset + 60 * queue_id), messages_max, bytes_max)
    reader = puller_of_checked(SHARED)
    short = reader.pull(request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Puller, "_last", lambda *_: None)
        assert reader.pull(request) == short
        patch.setattr("trovemq_broker.fetch.pull.ROWS_MAX", 0)
        assert reader.pull(request) == short


def test_a_few_messages_of_a_backlog_cost_what_the_last_few_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pull of one message looked at the next 8,192 units of its queue."""
    looked: list[int] = []
    unit_rows = ConsumeQueue.unit_rows

    def watched(queue: ConsumeQueue, offset: QueueOffset, count: int) -> Any:
        looked.append(count)
        return unit_rows(queue, offset, count)

    monkeypatch.setattr(ConsumeQueue, "unit_rows", watched)
    monkeypatch.setattr(ConsumeQueue, "units", None)
    result = puller_of_checked(SHARED).pull(PullRequest("orders", QueueId(0), QueueOffset(2), 3))
    assert [message.queue_offset for message in messages(result)] == [2, 3, 4]
    assert looked == [3]


def test_neighbours_in_the_log_come_as_one_slice() -> None:
    opened = open_store(MemoryFileSystem())
    append(opened, *(record(b"body%d" % i) for i in range(10)))
    opened.dispatch()
    result = puller(opened).pull(PullRequest("orders", QueueId(0), QueueOffset(0)))
    assert (len(result.slices), result.message_count) == (1, 10)


def test_at_the_end_nothing_comes(store: MessageStore) -> None:
    result = puller(store).pull(PullRequest("orders", QueueId(0), QueueOffset(60)))
    assert result.at_end
    assert (result.next_offset, result.min_offset, result.max_offset) == (60, 0, 60)


def test_a_queue_to_which_nothing_was_written_is_empty(store: MessageStore) -> None:
    result = puller(store).pull(PullRequest("empty", QueueId(3), QueueOffset(0)))
    assert (result.at_end, result.next_offset, result.max_offset) == (True, 0, 0)


@pytest.mark.parametrize(
    ("request_", "symbol"),
    [
        (PullRequest("orders", QueueId(0), QueueOffset(-1)), "OFFSET_OUT_OF_RANGE"),
        (PullRequest("orders", QueueId(0), QueueOffset(61)), "OFFSET_OUT_OF_RANGE"),
        (PullRequest("empty", QueueId(0), QueueOffset(1)), "OFFSET_OUT_OF_RANGE"),
        (PullRequest("orders", QueueId(4), QueueOffset(0)), "QUEUE_NOT_FOUND"),
        (PullRequest("orders", QueueId(-1), QueueOffset(0)), "QUEUE_NOT_FOUND"),
        (PullRequest("no such", QueueId(0), QueueOffset(0)), "TOPIC_NOT_FOUND"),
        (PullRequest("orders", QueueId(0), QueueOffset(0), messages_max=-1), "REQUEST_ILLEGAL"),
        (PullRequest("orders", QueueId(0), QueueOffset(0), bytes_max=-1), "REQUEST_ILLEGAL"),
        (PullRequest("orders", QueueId(0), QueueOffset(0), tags=("t",) * 65), "REQUEST_ILLEGAL"),
    ],
)
def test_refusals(store: MessageStore, request_: PullRequest, symbol: str) -> None:
    with pytest.raises(TroveError) as caught:
        puller(store).pull(request_)
    assert caught.value.symbol == symbol
    if symbol == "OFFSET_OUT_OF_RANGE":
        assert caught.value.fields["min_offset"] == "0"
        assert caught.value.fields["max_offset"] == ("60" if request_.topic == "orders" else "0")


def test_a_topic_that_only_the_store_knows_can_be_read(store: MessageStore) -> None:
    store.topics.delete("orders")
    assert (
        puller(store).pull(PullRequest("orders", QueueId(0), QueueOffset(0), messages_max=1)).message_count
        == 1
    )
    with pytest.raises(TroveError, match="QUEUE_NOT_FOUND"):
        puller(store).pull(PullRequest("orders", QueueId(7), QueueOffset(0)))


def reopened_with_damage(at: str) -> MessageStore:
    """Ten messages of 100 bytes; then one byte of number 5 is turned, while the store is closed."""
    files = MemoryFileSystem()
    opened = open_store(files)
    results = [send(opened, bytes([number]) * 100) for number in range(10)]
    opened.close(NOW_MS)
    position = results[5].physical_offset + {"body": 100, "size": 3, "physical offset": 35}[at]
    log = files.open("commitlog/" + "0" * 20)
    log.write(position, bytes([log.view()[position] ^ 1]))
    log.close()
    return open_store(files)


@pytest.mark.parametrize("at", ["body", "size", "physical offset"])
def test_a_damaged_record_is_left_out_and_named(at: str) -> None:
    result = puller(reopened_with_damage(at)).pull(PullRequest("orders", QueueId(0), QueueOffset(0)))
    assert result.damaged_offsets == (5,)
    assert [message.queue_offset for message in messages(result)] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert result.next_offset == 10


def test_a_pull_of_the_damaged_record_alone_comes_further() -> None:
    result = puller(reopened_with_damage("body")).pull(
        PullRequest("orders", QueueId(0), QueueOffset(5), messages_max=1)
    )
    assert (result.message_count, result.damaged_offsets, result.next_offset) == (0, (5,), 6)
    assert not result.at_end


def test_queue_offsets_come_only_where_the_records_say_something_else(store: MessageStore) -> None:
    assert puller(store).pull(PullRequest("orders", QueueId(1), QueueOffset(3))).queue_offsets == b""
    queue = store.consume_queues.get("orders", QueueId(1))
    assert queue is not None
    queue.append(
        queue.max_offset, queue.units(QueueOffset(0), 1).astype(UNIT_DTYPE)
    )  # a second unit for one record
    result = puller(store).pull(PullRequest("orders", QueueId(1), QueueOffset(queue.max_offset - 2)))
    assert [message.queue_offset for message in messages(result)] == [queue.max_offset - 2, 0]
    expected = [queue.max_offset - 2, queue.max_offset - 1]
    assert np.frombuffer(result.queue_offsets, "<i8").tolist() == expected


PLACES = {"nothing": -1, "size": 3, "queue offset": 27, "physical offset": 35, "body's size": 87}


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("without", [(), ("_last",), ("_last", "_read_rows")])
def test_the_last_message_by_itself_is_read_as_any_other(
    at: str, without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a fast path where all is well, else as others are."""
    for short_way in without:
        monkeypatch.setattr(Puller, short_way, lambda *_: None)
    files = MemoryFileSystem()
    opened = open_store(files)
    reader = puller(opened)
    result = [send(opened, b"%03d" % number) for number in range(3)][-1]
    opened.dispatch()
    if at != "nothing":
        log = files.open("commitlog/" + "0" * 20)
        position = result.physical_offset + PLACES[at]
        log.write(position, bytes([log.view()[position] ^ 1]))
    pulled = reader.pull(PullRequest("orders", QueueId(0), QueueOffset(2)))
    assert (pulled.next_offset, pulled.min_offset, pulled.max_offset) == (3, 0, 3)
    if at == "nothing":
        assert [message.body for message in messages(pulled)] == [b"002"]
        assert (pulled.queue_offsets, pulled.damaged_offsets) == (b"", ())
    elif at == "queue offset":  # the receiver sees by its CRC that it is damaged
        assert np.frombuffer(pulled.queue_offsets, "<i8").tolist() == [2]
    else:
        assert (pulled.message_count, pulled.damaged_offsets) == (0, (2,))
