"""A broker's engine with everything that uses it, over a disk of which any one call fails; and the invariants
then.

`Work` has a broker's work: sends, group commits, deliveries, delayed messages, transactions, retention,
snapshots, a scrub, a clean stop and a second start. A step that fails is given up with a documented error,
and the next one continues, as a broker does; after a failed sync nothing continues. `check` opens the files.
"""

from __future__ import annotations

import errno
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from tests.support.engine import NOW_MS, append, flush, record
from tests.support.retention import HOUR_MS, SETTINGS, Broker, bodies
from tests.support.trials import Trials, strata
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.check.findings import Finding, Findings
from trovemq_store.check.live_store import IndexMappings, LiveScrub
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem

SMALL: Final = replace(SETTINGS, commit_log_file_size=12_288, body_size_max=6_000, index_item_count=16)
LONG_MS: Final = 24 * HOUR_MS
ALLOWED: Final = {
    errors.DISK_FULL,
    errors.CREATE_MAPPED_FILE_FAILED,
    errors.STORE_FAILED,
    errors.UNKNOWN_ERROR,
    errors.RESOURCES_SCARCE,
    errors.RECORD_DAMAGED,
    errors.TOPIC_NOT_FOUND,  # its making was refused
    errors.QUEUE_NOT_FOUND,
    errors.TRANSACTION_ILLEGAL,  # the half message was refused
    errors.RECEIPT_HANDLE_ILLEGAL,
    errors.GROUP_NOT_FOUND,
}


class OneCall:
    """Fails the `nth` call, from 1, of those that `counts` counts."""

    def __init__(self, nth: int, error_number: int, counts: Callable[[str], bool]) -> None:
        self._nth, self._error_number, self._counts = nth, error_number, counts
        self.count = 0
        self.made: list[tuple[str, str]] = []
        """Each of them: the operation, and of which kind its file is."""
        self.failed = ("", "")

    @property
    def lost(self) -> bool:
        """A sync has failed: its writes may be gone."""
        error = StorageError(*self.failed, self._error_number)
        return error.sync_failed

    def __call__(self, operation: str, path: str) -> int | None:
        if not self._counts(operation):
            return None
        self.count += 1
        self.made.append((operation, re.sub("consumequeue/.*", "consumequeue", re.sub("[0-9]+", "", path))))
        if self.count != self._nth:
            return None
        self.failed = (operation, path)
        return self._error_number


@dataclass
class Promised:
    """The messages acknowledged as on disk, and the refused ones."""

    lines: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    waiting: list[tuple[list[str], str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class Work:
    def __init__(self, files: FaultyFileSystem, call: OneCall) -> None:
        self.files = files
        self._call = call
        self._lost_before = False
        self.promised = Promised()
        self.steps_failed = 0

    def run(self) -> None:
        now_ms = None
        for turn in range(2):
            self._lost_before = self._call.lost
            broker = self._opened(now_ms)
            if broker is not None:
                self._work(broker, f"{turn}")
                now_ms = broker.now_ms
                self._close(broker)
            assert self.files.open_count == 0, "a file stays open"
            assert isinstance(self.files.inner, MemoryFileSystem)
            assert not self.files.inner._locked, "the lock stays"

    def _opened(self, now_ms: EpochMs | None) -> Broker | None:
        made: list[Broker] = []
        if self._step(lambda: made.append(_open(self.files, now_ms))):
            return made[0]
        return None

    def _close(self, broker: Broker) -> None:
        if not broker.store.failed:
            self._step(lambda: broker.model.export_to_rocketmq(broker.now_ms))
        self._step(lambda: broker.store.close(broker.now_ms))

    def _step(self, call: Callable[[], object]) -> bool:
        """Whether it was done. It may fail only with an error of the table, or one of the disk."""
        refusal: TroveError | StorageError | None = None
        try:
            call()
        except (TroveError, StorageError) as error:
            refusal = error
        if refusal is None:
            return True
        assert isinstance(refusal, StorageError) or refusal.spec in ALLOWED, refusal
        self.steps_failed += 1
        return False

    def _work(self, broker: Broker, turn: str) -> None:
        promised = self.promised
        model = broker.model

        def stored(kind: list[str], name: str, call: Callable[[], object]) -> None:
            if broker.store.failed:
                return
            if self._step(call):
                promised.waiting.append((kind, name))
            elif not any(name == waiting for _, waiting in promised.waiting):
                promised.refused.append(name)
            self._sync(broker)

        self._go(broker, lambda: _keep_space(broker))
        for i in range(3):
            name = f"line-{turn}-{i}"
            stored(promised.lines, name, lambda name=name: _send(broker, name, "lines"))  # type: ignore[misc]
        stored(promised.later, f"timer-{turn}", lambda: _schedule(broker, f"timer-{turn}"))
        stored([], f"half-{turn}", lambda: _prepare(broker, f"half-{turn}"))
        stored(promised.committed, f"half-{turn}", lambda: _commit(broker, f"half-{turn}"))
        stored([], f"order-{turn}", lambda: _send(broker, f"order-{turn}", "orders"))
        self._go(broker, lambda: broker.ack(broker.receive(count=1)))
        broker.now_ms += HOUR_MS
        self._go(broker, broker.deliver_timers)
        self._go(broker, lambda: _in_background(broker))
        self._go(broker, lambda: _scrub(broker))
        for i in range(4):
            self._go(broker, lambda i=i: _send(broker, f"{i}" * 4_000, "filler"))  # type: ignore[misc]
            self._sync(broker)
        self._go(broker, lambda: broker.store.flush_projections(index=True))
        self._go(broker, broker.save_snapshot)
        self._go(
            broker,
            lambda: broker.store.offsets.commit("billing", "lines", QueueId(0), QueueOffset(1), durable=True),
        )
        self._go(broker, lambda: model.groups.persist(now_ms=broker.now_ms))
        broker.now_ms += 2 * HOUR_MS
        self._go(broker, broker.clean)

    def _go(self, broker: Broker, call: Callable[[], object]) -> None:
        if not broker.store.failed:
            self._step(call)

    def _sync(self, broker: Broker) -> None:
        if broker.store.failed or not self._step(lambda: flush(broker.store)):
            return
        assert self._lost_before or not self._call.lost, "something is acknowledged after a failed sync"
        if broker.store.flushed_offset == broker.store.end_offset:
            for kind, name in self.promised.waiting:
                kind.append(name)
            self.promised.waiting.clear()
        self._step(broker.sync)


def _open(files: FaultyFileSystem, now_ms: EpochMs | None) -> Broker:
    """A start that fails lets go of everything."""
    seen: list[Broker] = []

    class Opening(Broker):
        def __init__(self) -> None:
            seen.append(self)
            super().__init__(files, settings=SMALL, now_ms=NOW_MS if now_ms is None else now_ms)

    try:
        return Opening()
    except (TroveError, StorageError):
        store = getattr(seen[0], "store", None)
        if store is not None:
            store.mark_failed()
            store.close(0)
        raise


def _keep_space(broker: Broker) -> None:
    work = broker.store.reserve.work()
    if work is not None:
        work.run()
        broker.store.reserve.finish(work)


def _send(broker: Broker, name: str, topic: str) -> None:
    append(
        broker.store,
        record(name.encode(), topic=topic, unique_key=f"id-{name[:20]}", keys="k"),
        topic=topic,
        now_ms=broker.now_ms,
    )


def _schedule(broker: Broker, name: str) -> None:
    new = NewRecord("orders", QueueId(0), name.encode(), {"UNIQ_KEY": f"id-{name}"}, broker.now_ms)
    broker.model.timers.schedule(new, broker.now_ms + 1_000, broker.now_ms)


def _prepare(broker: Broker, name: str) -> None:
    new = NewRecord("orders", QueueId(0), name.encode(), {"UNIQ_KEY": f"id-{name}"}, broker.now_ms)
    broker.model.transactions.prepare(new, broker.now_ms)


def _commit(broker: Broker, name: str) -> None:
    broker.model.transactions.end(f"id-{name}", "orders", True, broker.now_ms)


def _in_background(broker: Broker) -> None:
    store = broker.store
    if (spare := store.spare_work()) is not None:
        spare.run()
        store.finish_spare(spare)
    _keep_space(broker)
    store.flush_projections()
    store.catch_up(1 << 20)


def _scrub(broker: Broker) -> None:
    mappings = IndexMappings(broker.store)
    mappings.open()
    index = mappings.now(broker.store.visible_offset)
    if index is None:
        return
    found: list[Finding] = []
    scrub = LiveScrub(broker.store, index, Findings(found.append), 1 << 20)
    failure: OSError | None = None
    for _ in range(1_000):
        try:
            scrub.steps.send(failure)
        except StopIteration:
            break
    assert not found or re.search("injected|unreadable", found[0].what), (
        found
    )  # consequences of it may follow


def check(files: MemoryFileSystem, promised: Promised) -> None:
    """The result of a start: everything promised, nothing refused, each line once and in its order."""
    broker = Broker(files, settings=SMALL, now_ms=NOW_MS + LONG_MS)
    lines = [message.body.decode() for message in broker.messages("lines")]
    kept = [line for line in promised.lines if line in lines]
    assert kept == [line for line in lines if line in promised.lines], "the order changed"
    assert len(set(lines)) == len(lines), "a message came twice"
    lost = [line for line in promised.lines if line not in lines]
    low = broker.store.consume_queues.get("lines", QueueId(0))
    gone = low.min_offset if low is not None else 0  # by its age
    assert len(lost) <= gone, f"lost: {lost}"
    assert not set(lines) & set(promised.refused), "a refused message came back"
    broker.deliver_timers()
    outstanding = {*promised.later, *promised.committed}
    found = {message.body.decode() for message in broker.messages("orders")}
    for name in sorted(outstanding - found):
        queue = broker.store.consume_queues.get("orders", QueueId(0))
        assert queue is not None, f"{name} is lost"
        assert queue.min_offset > 0, f"{name} is lost"
    assert not {f"{name}" for name in promised.refused if name.startswith("timer")} & found
    assert bodies(broker.receive()) is not None
    broker.model.export_to_rocketmq(broker.now_ms)
    broker.store.close(broker.now_ms)
    assert Broker(files, settings=SMALL, now_ms=broker.now_ms).store.recovery.clean


def changes(operation: str) -> bool:
    return operation != "read"


def reads(operation: str) -> bool:
    return operation == "read"


@cache
def calls_of(counts: Callable[[str], bool]) -> list[tuple[str, str]]:
    """The calls of this kind that the work makes."""
    call = OneCall(0, errno.EIO, counts)
    work = Work(FaultyFileSystem(MemoryFileSystem(), call), call)
    work.run()
    assert work.steps_failed == 0, "nothing fails where the disk does not"
    assert len(work.promised.lines) == 6
    return call.made


def default_of(calls: list[tuple[str, str]], errors_each: int) -> list[int]:
    """Of each operation on files of one kind the first call, the last one and one between them, the last two
    with one of the errors."""
    by_kind: dict[tuple[str, str], list[int]] = {}
    for at, call in enumerate(calls):
        by_kind.setdefault(call, []).append(at)
    chosen: set[int] = set()
    for kind, places in by_kind.items():
        some = places[strata(len(places), 1, str(kind))[0]]
        chosen.update(places[0] * errors_each + error for error in range(errors_each))
        chosen.update((places[-1] * errors_each, (some + 1) * errors_each - 1))
    return sorted(chosen)


def fail_one(call: OneCall, source: random.Random) -> None:
    """The work with that call failing; then a kill, or a power cut that keeps a part of the rest."""
    memory = MemoryFileSystem()
    work = Work(FaultyFileSystem(memory, call, tear=True), call)
    work.run()
    assert call.failed != ("", ""), "the call was made"
    if source.random() < 0.5:
        check(memory.after_process_kill(), work.promised)
    else:
        check(memory.after_power_cut(lambda: source.random() < 0.5), work.promised)


def fail_each(
    trials: Trials, error_numbers: tuple[int, ...], counts: Callable[[str], bool], part: int, parts: int
) -> None:
    """One part of a test's trials: every call, with every error."""
    calls, done = calls_of(counts), 0
    total = len(calls) * len(error_numbers)
    for number in trials.chosen(total, default_of(calls, len(error_numbers)), part=part, parts=parts):
        with trials.one(number) as source:
            nth, which = divmod(number, len(error_numbers))
            fail_one(OneCall(1 + nth, error_numbers[which], counts), source)
        done += 1
    trials.count("R7", "failing calls of the seam", done)
