"""The bytes of a queue's messages: always those of its units, however often and whenever it is asked."""

from __future__ import annotations

import errno
import gc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, append, flush, open_store, record, send
from trovemq_broker.query import queue_sizes
from trovemq_broker.query.queue_sizes import QueueSizes
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.steps import finished
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.consume_queue import ConsumeQueue

SETTINGS = replace(SMALL, consume_queue_file_size=100)  # five messages
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.lists(st.integers(0, 900), min_size=1, max_size=7)),
        st.tuples(st.sampled_from(["ask", "begin", "continue", "trim", "reopen"]), st.just([0])),
    ),
    min_size=1,
    max_size=30,
)


def queue_of(store: MessageStore) -> ConsumeQueue:
    queue = store.consume_queues.get("orders", QueueId(0))
    assert queue is not None
    return queue


def bytes_of(queue: ConsumeQueue) -> int:
    """By its units, one by one."""
    offsets = map(QueueOffset, range(queue.min_offset, queue.max_offset))
    return sum(queue.unit(offset)[1] for offset in offsets)


@given(_STEPS)
def test_the_size_is_that_of_the_units_after_anything(steps: list[tuple[str, list[int]]]) -> None:
    files = MemoryFileSystem()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_sizes, "UNITS_STEP", 2)
        store, sizes = open_store(files, SETTINGS), QueueSizes()
        send(store, b"first")
        begun = []
        for name, bodies in steps:
            if name == "send":
                append(store, *(record(bytes(size)) for size in bodies))
                store.dispatch()
            elif name == "begin":
                begun.append(sizes.size_of(queue_of(store)))
            elif name == "continue" and begun:
                next(begun[-1], None)
            elif name == "trim" and (closed := store.closed_segments()):
                flush(store)
                trim_now(store.trim(closed[0].end))
            elif name == "reopen":
                flush(store)
                store.flush_projections()
                store.close(NOW_MS)
                store, begun = open_store(files, SETTINGS), []
            elif name == "ask":
                assert finished(sizes.size_of(queue_of(store))) == bytes_of(queue_of(store))
        for one in begun:
            finished(one)
        assert finished(sizes.size_of(queue_of(store))) == bytes_of(queue_of(store))
        store.close(NOW_MS)


def test_a_second_question_reads_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    store, sizes = open_store(MemoryFileSystem(), SETTINGS), QueueSizes()
    for _ in range(12):
        send(store, b"x")
    assert finished(sizes.size_of(queue_of(store))) == bytes_of(queue_of(store))
    send(store, b"one more")
    read: list[int] = []
    units = ConsumeQueue.units

    def counted(queue: ConsumeQueue, offset: QueueOffset, count: int) -> Any:
        read.append(count)
        return units(queue, offset, count)

    monkeypatch.setattr(ConsumeQueue, "units", counted)
    assert finished(sizes.size_of(queue_of(store))) == bytes_of(queue_of(store))
    assert read == [1]


def test_a_queue_that_is_gone_has_no_size_and_nothing_is_kept_of_it() -> None:
    store, sizes = open_store(MemoryFileSystem(), SETTINGS), QueueSizes()
    send(store, b"x")
    queue = queue_of(store)
    steps = sizes.size_of(queue)
    next(steps)
    store.consume_queues.delete_topic("orders")
    assert finished(sizes.size_of(queue)) in (None, 0)
    del queue, steps
    gc.collect()
    assert not sizes._kept


def test_units_that_the_disk_does_not_give_have_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    store, sizes = open_store(MemoryFileSystem(), SETTINGS), QueueSizes()
    send(store, b"x")

    def fails(*_: object) -> None:
        raise StorageError("read", "consumequeue/orders/0", errno.EIO)

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "units", fails)
        assert finished(sizes.size_of(queue_of(store))) is None
    assert finished(sizes.size_of(queue_of(store))) == bytes_of(queue_of(store))


def test_the_cached_queue_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_sizes, "KEPT_QUEUES_MAX", 2)
    store, sizes = open_store(MemoryFileSystem(), SETTINGS), QueueSizes()
    for number in range(4):
        send(store, b"x", queue_id=QueueId(number))
    for number in range(4):
        queue = store.consume_queues.get("orders", QueueId(number))
        assert queue is not None
        assert finished(sizes.size_of(queue)) == bytes_of(queue)
    assert len(sizes._kept) <= 2
