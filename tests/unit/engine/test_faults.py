"""Every call to the disk fails once: whatever happens then is a documented error, nothing stays open, and the
store opens again with everything that was acknowledged.

`make soak` fails each call; otherwise of the calls of one kind (an operation on one kind of file) the first,
the last, and some between fail.
"""

from __future__ import annotations

import errno
import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.engine import NOW_MS, SMALL_SYNC, append, read_queue, record, scan_bodies
from tests.support.trials import SOAK
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem

pytestmark = pytest.mark.slow

SETTINGS = replace(SMALL_SYNC, commit_log_file_size=6_144, index_item_count=16, index_slot_count=8)
OPENING = {errors.STORE_FAILED, errors.DISK_FULL, errors.CREATE_MAPPED_FILE_FAILED}
APPENDING = {*OPENING, errors.UNKNOWN_ERROR}
EVERY = 12  # of the calls of one kind, beside the first and the last


class Nth:
    """Fails the nth call of all, from 1."""

    def __init__(self, nth: int, error_number: int) -> None:
        self.nth = nth
        self.error_number = error_number
        self.count = 0
        self.kinds: list[str] = []

    def __call__(self, operation: str, path: str) -> int | None:
        self.count += 1
        self.kinds.append(f"{operation} {re.sub('[0-9]+', '#', path)}")
        return self.error_number if self.count == self.nth else None


class Broker:
    """A broker's use of its store: after a failed sync it stops, after any other failure it continues."""

    def __init__(self, files: FaultyFileSystem) -> None:
        self.files = files
        self.acknowledged: list[bytes] = []
        self.waiting: list[bytes] = []
        self.refused: list[bytes] = []
        self.topic_made = False

    def run(self) -> None:
        for _ in range(2):
            store = self.opened()
            if store is None:
                continue
            try:
                self.use(store)
            except StorageError:
                store.mark_failed()  # group commit and the background tasks do so
            try:
                store.close(NOW_MS)
            except (StorageError, TroveError):
                pass  # the daemon then ends with an error; the store counts as crashed
            self.check_all_closed()

    def opened(self) -> MessageStore | None:
        refusal: TroveError | None = None
        try:
            return MessageStore.open(self.files, SETTINGS, NOW_MS)
        except TroveError as error:
            refusal = error
        assert refusal.spec in OPENING
        self.check_all_closed()
        return None

    def check_all_closed(self) -> None:
        assert self.files.open_count == 0, "a file stays open"
        assert isinstance(self.files.inner, MemoryFileSystem)
        assert not self.files.inner._locked, "the lock stays"

    def use(self, store: MessageStore) -> None:
        for topic in ("orders", "bills"):
            self.make_topic(store, topic)
        for i in range(9):
            self.send(store, i)
            if i % 3 == 2:
                self.sync(store)
            if i % 4 == 2:
                self.in_background(store)
        self.sync(store)
        if store.topics.get("bills") is not None:
            self.refuse_nothing_but(APPENDING, lambda: store.delete_topic("bills", NOW_MS))
        self.sync(store)

    def make_topic(self, store: MessageStore, topic: str) -> None:
        if store.topics.get(topic) is None:
            self.refuse_nothing_but(APPENDING, lambda: store.topics.create(topic, queue_count=4))

    def send(self, store: MessageStore, i: int) -> None:
        topic = "bills" if i % 5 == 4 else "orders"
        bodies = [
            bytes([len(self.acknowledged) + len(self.waiting), i, part]) + bytes(500) for part in (0, 1)
        ]
        records = [record(body, topic=topic, queue_id=QueueId(i % 2), keys=f"k{i} shared") for body in bodies]
        done = self.refuse_nothing_but(
            APPENDING, lambda: append(store, *records, topic=topic, queue_id=QueueId(i % 2))
        )
        if topic == "orders":
            (self.waiting if done else self.refused).extend(bodies)

    def sync(self, store: MessageStore) -> None:
        work = store.begin_flush()
        if work is None:
            return
        work.run()
        store.finish_flush(work)
        self.acknowledged += self.waiting
        self.waiting = []

    def in_background(self, store: MessageStore) -> None:
        work = store.spare_work()
        if work is not None:
            work.run()
            store.finish_spare(work)
        try:
            store.flush_projections(index=True)
        except StorageError as error:
            if not error.disk_full:
                raise
        store.catch_up(1 << 20)
        store.offsets.commit("billing", "orders", QueueId(0), QueueOffset(1))
        self.refuse_nothing_but(APPENDING, store.offsets.persist)

    def refuse_nothing_but(self, specs: set[errors.ErrorSpec], call: Callable[[], object]) -> bool:
        refusal: TroveError | None = None
        try:
            call()
        except TroveError as error:
            refusal = error
        assert refusal is None or refusal.spec in specs
        return refusal is None


def calls_that_fail() -> list[int]:
    """Their numbers, from 1."""
    clean = Nth(0, errno.EIO)
    Broker(FaultyFileSystem(MemoryFileSystem(), clean)).run()
    if SOAK:
        return list(range(1, clean.count + 1))
    by_kind: dict[str, list[int]] = {}
    for number, kind in enumerate(clean.kinds, 1):
        by_kind.setdefault(kind, []).append(number)
    chosen = {number for numbers in by_kind.values() for number in (*numbers[::EVERY], numbers[-1])}
    return sorted(chosen)


CALLS = calls_that_fail()


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("part", range(8))
def test_each_call_to_the_disk_may_fail(part: int, error_number: int) -> None:
    for nth in CALLS[part::8]:
        memory = MemoryFileSystem()
        broker = Broker(FaultyFileSystem(memory, Nth(nth, error_number), tear=True))
        broker.run()
        source = random.Random(nth)
        if (nth + error_number) % 2:
            check(memory.after_process_kill(), broker, nth)
        else:
            check(memory.after_power_cut(lambda source=source: source.random() < 0.5), broker, nth)  # type: ignore[misc]


def check(files: MemoryFileSystem, broker: Broker, nth: int) -> None:
    store = MessageStore.open(files, SETTINGS, NOW_MS)
    queued = [[message.body for message in read_queue(store, "orders", QueueId(queue))] for queue in (0, 1)]
    found = [body for queue in queued for body in queue]
    others = [m.body for queue in (0, 1) for m in read_queue(store, "bills", QueueId(queue))]
    assert sorted(found + others) == sorted(scan_bodies(store)), nth
    assert set(broker.acknowledged) <= set(found), f"a message is lost (call {nth})"
    assert set(found) <= {*broker.acknowledged, *broker.waiting}, f"a refused message came back (call {nth})"
    assert len(set(found)) == len(found)
    for queue in (0, 1):
        assert [m.queue_offset for m in read_queue(store, "orders", QueueId(queue))] == list(
            range(len(queued[queue]))
        )
    while store.catch_up(1 << 20):
        pass
    store.close(NOW_MS)
    assert MessageStore.open(files, SETTINGS, NOW_MS).recovery.clean
