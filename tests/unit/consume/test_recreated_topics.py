"""A topic that is deleted and recreated: positions in the old one are none in the new one."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, flush, open_store, send
from trovemq_broker.fetch.offsets import OffsetKeeper, ResetTarget
from trovemq_broker.fetch.pull import Puller, PullRequest, PullSettings
from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QUEUE_ORIGIN, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import decode_message
from trovemq_proto.records.fields import split_records
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem

QUEUE = QueueId(0)


def remade(store: MessageStore, *bodies: bytes) -> None:
    """Deletes the topic, and makes it again with these messages."""
    store.delete_topic("orders", NOW_MS)
    store.topics.create("orders", queue_count=4)
    for body in bodies:
        send(store, body)


def refused(store: MessageStore, offset: int, identity: PhysicalOffset | None) -> str:
    """The symbol of the error with which a pull is refused; "" if it is answered."""
    request = PullRequest("orders", QUEUE, QueueOffset(offset), topic_identity=identity)
    try:
        Puller(store, PullSettings()).pull(request)
    except TroveError as error:
        return error.symbol
    return ""


def test_a_position_in_a_deleted_topic_was_read_on_in_its_namesake() -> None:
    store = open_store(MemoryFileSystem())
    for _ in range(3):
        send(store, b"old")
    before = store.topic_identity("orders")
    assert refused(store, 2, before) == ""
    remade(store, *[b"new"] * 9)
    assert [refused(store, offset, before) for offset in (0, 2, 8, 9, 99)] == ["TOPIC_RECREATED"] * 5
    assert refused(store, 2, None) == "", "an integer from a user is not checked"
    now = store.topic_identity("orders")
    assert now > before
    assert [refused(store, offset, now) for offset in (0, 8, 9, 10)] == ["", "", "", "OFFSET_OUT_OF_RANGE"]


def test_where_there_is_no_topic_a_position_is_refused_as_any_other_is() -> None:
    store = open_store(MemoryFileSystem())
    send(store, b"old")
    before = store.topic_identity("orders")
    store.delete_topic("orders", NOW_MS)
    assert refused(store, 0, before) == "TOPIC_NOT_FOUND"
    store.topics.create("orders", queue_count=4)
    request = PullRequest("orders", QueueId(7), QUEUE_ORIGIN, topic_identity=before)
    with pytest.raises(TroveError, match="QUEUE_NOT_FOUND"):
        Puller(store, PullSettings()).pull(request)


@dataclass
class Reader:
    """Keeps its own position, and begins again where it is refused with TOPIC_RECREATED."""

    store: MessageStore
    offset: int = 0
    identity: PhysicalOffset | None = None

    def read(self, count: int) -> list[bytes] | None:
        """The next messages; None where the topic is another one."""
        puller = Puller(self.store, PullSettings())
        request = PullRequest("orders", QUEUE, QueueOffset(self.offset), count, topic_identity=self.identity)
        try:
            result = puller.pull(request)
        except TroveError as error:
            if error.symbol != "TOPIC_RECREATED":
                raise
            self.offset, self.identity = 0, None
            return None
        self.offset, self.identity = result.next_offset, puller.topic_identity("orders")
        return [decode_message(record).body for record in split_records(b"".join(result.slices))]


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 6)),
    st.tuples(st.just("read"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["remake", "kill", "restart"]), st.just(0)),
)


@given(steps=st.lists(STEPS, min_size=4, max_size=12))
def test_a_reader_with_a_position_skips_nothing_of_any_topic(steps: list[tuple[str, int]]) -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    reader = Reader(store)
    written: list[bytes] = []  # of the present topic
    found: list[bytes] = []  # the part of it that the reader has, as far as it knows
    number = 0
    for step, count in [*steps, ("read", 99), ("read", 99)]:
        if step == "send":
            for _ in range(count):
                written.append(b"%d" % number)
                send(store, written[-1])
                number += 1
        elif step == "remake":
            remade(store)
            written = []
        elif step == "read":
            new = reader.read(count)
            found = [] if new is None else found + new
            assert new is None or found == written[: len(found)]
        else:
            if step == "restart":
                store.close(NOW_MS)
            else:
                files = files.after_process_kill()
            store = reader.store = open_store(files)
    assert found == written


class Keeper(OffsetKeeper):
    """While it waits for the log's sync, the topic is deleted and recreated."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__(
            store, self._sync, lambda topic, queue_id, at: search_offset(store, topic, queue_id, at)
        )
        self._engine = store

    async def _sync(self, _end: PhysicalOffset) -> None:
        flush(self._engine)
        remade(self._engine, *[b"new"] * 9)


@pytest.mark.asyncio
@pytest.mark.parametrize("resets", [False, True])
async def test_a_groups_offset_was_stored_for_the_namesake_of_its_topic(resets: bool) -> None:
    store = open_store(MemoryFileSystem())
    for _ in range(5):
        send(store, b"old")
    keeper = Keeper(store)
    moving: Coroutine[Any, Any, object] = (
        keeper.reset("g", "orders", QUEUE, ResetTarget(to_max=True))
        if resets
        else keeper.commit("g", "orders", QUEUE, QueueOffset(5))
    )
    with pytest.raises(TroveError, match="TOPIC_RECREATED"):
        await moving
    assert store.offsets.get("g", "orders", QUEUE) is None, "the group begins at the beginning"


@pytest.mark.parametrize("topic", ["orders", "%DLQ%g"])
def test_a_topic_begins_again_for_groups_and_their_dead_letters(topic: str) -> None:
    files = MemoryFileSystem()
    store = open_store(files, topics=())
    for body in (b"old", b"new"):
        if topic == "orders":
            store.topics.create(topic, queue_count=1)
        else:
            store.topics.ensure_internal(topic, 1)
        assert store.offsets.get("g", topic, QUEUE) is None
        send(store, body, topic=topic)
        store.offsets.commit("g", topic, QUEUE, QueueOffset(1))
        before = store.topic_identity(topic)
        if body == b"old":
            store.delete_topic(topic, NOW_MS)
            assert store.topic_identity(topic) > before
