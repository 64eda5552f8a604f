"""After every crash all of an atomic transaction is there or nothing of it: messages and acknowledgements.

A store in memory is stopped before its changes, and the files after a kill and after a power cut there are
opened; a run is cut off at each of its bytes; calls of the disk fail; a daemon is killed under a producer.
"""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path
from typing import Final

import pytest

import trovemq
from tests.durability.crash_seam import RecordingFileSystem
from tests.durability.verified_daemon import SMALL_FILES
from tests.support.atomic import SEGMENT, AtomicStore, Sent
from tests.support.trials import SOAK, Trials
from trovemq.testing import BrokerProcess
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem

pytestmark = pytest.mark.slow

SECTOR: Final = 512
SCRIPTS: Final = 10
DEFAULT_SCRIPTS: Final = 1
FAULTS: Final = 200
DEFAULT_FAULTS: Final = 10
DAEMONS: Final = 5
DEFAULT_DAEMONS: Final = 1
KILLS: Final = 20 if SOAK else 3
WHAT: Final = "crash states of atomic transactions"
WHAT_KILLED: Final = "kills of a daemon under atomic transactions"


def live(atomic: AtomicStore, source: random.Random, steps: int) -> None:
    """Feeds, transactions, syncs, stored offsets and snapshots, in any order."""
    for _ in range(steps):
        atomic.now_ms += source.choice([10, 10, 20_000])
        kind = source.random()
        if kind < 0.25:
            atomic.feed(*(b"feed %d" % source.randrange(1 << 40) for _ in range(source.randrange(1, 4))))
        elif kind < 0.7:
            delivered = atomic.receive(source.randrange(1, 4)) if source.random() < 0.6 else []
            transaction_id = f"t{source.randrange(1 << 60):x}"
            messages = [
                (
                    source.choice(["orders", "bills"]),
                    source.randrange(2),
                    source.randbytes(source.choice([5, 400, 1_400])).hex().encode()[:1_400],
                )
                for _ in range(source.randrange(1, 5))
            ]
            atomic.commit(transaction_id, messages, delivered)
        elif kind < 0.9:
            atomic.flush()
        elif kind < 0.95:
            atomic.model.events.flush(atomic.now_ms)
        elif atomic.store.offsets.log_needed <= atomic.store.flushed_offset:
            atomic.store.offsets.persist()  # as the keeper of the offsets does
        else:
            work = atomic.model.begin_snapshot(atomic.now_ms, always=True)
            atomic.flush()
            if work is not None:
                work.run()
    atomic.flush()


def opened_again(tree: MemoryFileSystem, atomic: AtomicStore) -> AtomicStore:
    sent = [Sent(s.transaction_id, s.messages, s.acknowledged, s.durable) for s in atomic.sent]
    return AtomicStore(tree, now_ms=atomic.now_ms, sent=sent)


def check(tree: MemoryFileSystem, atomic: AtomicStore, *, twice: bool = True) -> None:
    """The files after a crash; now and then twice: recovery gives the same when it is killed and runs
    again."""
    again = opened_again(tree, atomic)
    there = again.check_all_or_none()
    if not twice:
        return
    once_more = opened_again(tree.after_process_kill(), again)
    assert once_more.check_all_or_none() == there


@pytest.mark.parametrize("part", range(2))
def test_whatever_a_crash_leaves_has_all_of_a_transaction_or_nothing(part: int, trials: Trials) -> None:
    for number in trials.numbers(SCRIPTS, default=DEFAULT_SCRIPTS, part=part, parts=2):
        with trials.one(number) as source:
            checked = crash_everywhere(number, source)
        trials.count("atomic", WHAT, checked)


def crash_everywhere(number: int, source: random.Random) -> int:
    """One script; how many crash states of it were checked."""
    files = RecordingFileSystem()
    atomic = AtomicStore(files)
    checked = 0

    def before(operation: str, path: str) -> None:
        nonlocal checked
        if chance.random() < (0.2 if path.startswith("commitlog") else 0.9):
            return  # many, and alike
        share, twice = chance.choice([0.1, 0.5, 0.9]), chance.random() < 0.1
        check(files.after_process_kill(), atomic, twice=twice)
        check(files.after_power_cut(), atomic, twice=twice)
        torn = files.after_power_cut(lambda: chance.random() < share, unit=SECTOR)
        check(torn, atomic, twice=twice)
        checked += 3

    chance = random.Random(f"cuts {number}")
    files.before = before
    live(atomic, source, 30)
    files.before = lambda operation, path: None
    assert sum(sent.durable for sent in atomic.sent) >= 5, "too little was continuing"
    check(files.after_power_cut(), atomic)
    assert checked > 60
    return checked


def test_a_run_that_was_cut_off_at_any_byte_is_gone(trials: Trials) -> None:
    files = MemoryFileSystem()
    atomic = AtomicStore(files)
    atomic.feed(b"1", b"2")
    atomic.commit("before", [("orders", 0, b"x"), ("bills", 0, b"y")], atomic.receive(1))
    atomic.flush()
    committed = atomic.commit("cut", [("orders", n % 2, b"z" * 100) for n in range(6)], atomic.receive(1))
    end, path = atomic.store.end_offset, f"commitlog/{0:020d}"
    assert end < SEGMENT.commit_log_file_size
    at = committed.messages[0].physical_offset
    for length in [*range(0, end - at, 41), end - at - 1]:
        tree = files.after_process_kill()
        tree._files[path].data[at + length : end] = bytes(end - at - length)
        again = opened_again(tree, atomic)
        again.sent = [sent for sent in again.sent if sent.durable]  # the cut one is tried no more
        assert again.check_all_or_none() == {"before"}
        assert "cut" not in again.commits.ends
        assert again.messages("cut") == []
        if length > 500:  # its first record is whole
            assert again.store.recovery.cut_transaction is not None
        again.commit("after", [("bills", 1, b"new")])
        again.flush()
        assert again.check_all_or_none() >= {"before", "after"}


@pytest.mark.parametrize("part", range(2))
def test_a_failing_call_leaves_all_of_a_transaction_or_nothing(part: int, trials: Trials) -> None:
    for number in trials.numbers(FAULTS, default=DEFAULT_FAULTS, part=part, parts=2):
        with trials.one(number) as source:
            fail_somewhere(number, source)
        trials.count("atomic", WHAT, 2)


def fail_somewhere(number: int, source: random.Random) -> None:
    """One call of the disk fails; the files after a kill and a power cut after it are checked."""
    memory = MemoryFileSystem()
    files = FaultyFileSystem(memory, tear=bool(number % 2))
    atomic = AtomicStore(files)
    failing, error_number = source.randrange(1, 120), source.choice([errno.EIO, errno.ENOSPC])
    calls = 0

    def decide(operation: str, path: str) -> int | None:
        nonlocal calls
        if operation not in ("write", "create", "sync", "write_atomic", "scatter"):
            return None
        calls += 1
        return error_number if calls == failing else None

    files.decide = decide
    for _ in range(40):
        try:
            live(atomic, source, 1)
        except (TroveError, StorageError):
            if atomic.store.failed:
                break
    files.decide = lambda operation, path: None
    check(memory.after_process_kill(), atomic)
    check(memory.after_power_cut(), atomic)


# --- a real daemon ----------------------------------------------------------------------------------------


async def produce(broker: BrokerProcess, number: int, reported: dict[str, int], stop: asyncio.Event) -> None:
    """Transactions over two topics, each with its number in every message; `reported`: those acknowledged."""
    count = 0
    async with trovemq.connect(broker.address, wait_ms=20_000) as client:
        while not stop.is_set():
            size = count % 7 + 2
            tx = client.transaction()
            for index in range(size):
                body = f"{number} {count} {size}".encode() + bytes(200 * (index % 3))
                await tx.send("orders" if index % 2 else "bills", body)
            try:
                await tx.commit()
            except TroveError as error:
                if not error.fields.get("in_doubt") and not error.retriable:
                    raise
            else:
                reported[f"{number} {count}"] = size
            count += 1


async def seen(broker: BrokerProcess) -> dict[str, list[int]]:
    """By transaction: how many of its messages there are, and how many it was to have."""
    found: dict[str, list[int]] = {}
    async with trovemq.connect(broker.address, wait_ms=20_000) as client:
        for topic in ("orders", "bills"):
            for queue_id in range(2):
                async for message in client.pull(topic, queue_id=queue_id):
                    producer, count, size = message.body.rstrip(b"\0").decode().split()
                    entry = found.setdefault(f"{producer} {count}", [0, int(size)])
                    entry[0] += 1
    return found


def test_a_daemon_that_is_killed_again_and_again_shows_no_half_transaction(
    trials: Trials, tmp_path: Path
) -> None:
    for number in trials.numbers(DAEMONS, default=DEFAULT_DAEMONS):
        mode = "ASYNC_FLUSH" if number % 2 else "SYNC_FLUSH"
        with trials.one(number) as source, BrokerProcess(flushDiskType=mode, **SMALL_FILES) as broker:
            reported = asyncio.run(_kill_under_load(broker, source))
            found = asyncio.run(seen(broker))
            halves = {name: entry for name, entry in found.items() if entry[0] != entry[1]}
            assert not halves
            assert not set(reported) - set(found), "acknowledged messages are there"
            assert len(reported) >= KILLS
        trials.count("atomic", WHAT_KILLED, KILLS)


async def _kill_under_load(broker: BrokerProcess, source: random.Random) -> dict[str, int]:
    reported: dict[str, int] = {}
    stop = asyncio.Event()
    async with trovemq.connect(broker.address, wait_ms=20_000) as client:
        for topic in ("orders", "bills"):
            await client.admin.create_topic(topic, queue_count=2)
    producers = [asyncio.create_task(produce(broker, number, reported, stop)) for number in range(4)]
    try:
        for _ in range(KILLS):
            before = len(reported)
            wanted = before + source.randrange(4, 30)
            async with asyncio.timeout(90):
                while len(reported) < wanted:
                    await asyncio.sleep(source.random() / 100)
            await asyncio.to_thread(broker.restart, kill=True)
    finally:
        stop.set()
        await asyncio.gather(*producers)
    return reported


def test_the_broker_stops_while_a_transaction_is_open(tmp_path: Path) -> None:
    """A clean stop rolls open transactions back, and answers those that are committing."""

    async def run(broker: BrokerProcess) -> dict[str, int]:
        reported: dict[str, int] = {}
        stop = asyncio.Event()
        async with trovemq.connect(broker.address) as client:
            for topic in ("orders", "bills"):
                await client.admin.create_topic(topic, queue_count=2)
        tasks = [asyncio.create_task(produce(broker, number, reported, stop)) for number in range(3)]
        async with asyncio.timeout(90):
            while len(reported) < 20:
                await asyncio.sleep(0.005)
        await asyncio.to_thread(broker.restart)
        stop.set()
        await asyncio.gather(*tasks)
        return reported

    with BrokerProcess(**SMALL_FILES) as broker:
        reported = asyncio.run(run(broker))
        found = asyncio.run(seen(broker))
        assert all(count == size for count, size in found.values())
        assert set(reported) <= set(found)
    assert errors.SERVICE_NOT_AVAILABLE.retriable
