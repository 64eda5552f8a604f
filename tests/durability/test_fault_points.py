"""R4: the engine killed, failed and held at every one of its named fault points.

killed: the files as another process finds them, or as a power cut leaves them, are recovered and asked for
everything that was promised by then. failed: the call next to the point fails; the engine continues or stops,
as its documentation says, and the same is asked. held: while a thread's work stands still, the event loop's
side continues beside it.
"""

from __future__ import annotations

import errno
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.durability.consumer_script import ConsumerScript
from tests.durability.engine_script import SETTINGS, Ledger, StoppedError
from tests.durability.script_check import check_files
from tests.support.engine import NOW_MS, SMALL_SYNC, append, flush, open_store, read_queue, record, send
from tests.support.trials import SOAK, Trials
from trovemq_broker.timers import rocketmq_files
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.fault_points import POINTS, armed
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem

DIRECTORY_AREAS: Final = ("repair", "backup", "restore", "replica", "truncation", "own_offsets")
"""Areas that the script does not pass: other tests kill there."""
MEMORY_POINTS: Final = tuple(name for name in POINTS if name.partition(".")[0] not in DIRECTORY_AREAS)
REFUSING_AREAS: Final = ("topics", "groups", "offsets", "deletions")
APPENDING_AREAS: Final = ("events", "tables", "timers", "transactions", "delivery", "atomic")
TREE_AREAS: Final = ("trees", "atomic", "deduplication")
"""Of these packages many passes of a point are killed: they differ by the content of a step or a run."""
TREE_KILLS_MAX: Final = 1_000 if SOAK else 4
TOGETHER: Final = 1 if SOAK else 8
"""Points that fail in one run of the script: points that lie far apart in the table."""
PASSES_BETWEEN: Final = 100
GROUPS: Final = [
    MEMORY_POINTS[begin :: -(-len(MEMORY_POINTS) // TOGETHER)]
    for begin in range(-(-len(MEMORY_POINTS) // TOGETHER))
]
PARTS: Final = 3 if SOAK else 1
WHAT: Final = "fault points, each killed, failed and paused"
SEED: Final = 4


@pytest.fixture(autouse=True)
def _small_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocketmq_files, "WHEEL_SLOTS", 4_096)  # two weeks of slots are 38 MB to copy


class Passes:
    """Which point is passed how often; `chosen` is called at the wanted passes."""

    def __init__(self, script: ConsumerScript) -> None:
        self.script = script
        self.counts: Counter[str] = Counter()
        self.in_work: set[str] = set()
        self.busy = False

    def note(self, name: str) -> int:
        """The number of this pass, from 1."""
        self.counts[name] += 1
        if self.script.in_work:
            self.in_work.add(name)
        return self.counts[name]


def rehearse() -> Passes:
    """The script with nothing happening at any point."""
    script = ConsumerScript(MemoryFileSystem(), SEED)
    passes = Passes(script)
    with armed(lambda name: void(passes.note(name))):
        script.run()
    return passes


def void(_result: object) -> None:
    """Nothing."""


@pytest.fixture(scope="module")
def rehearsal() -> Iterator[Passes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocketmq_files, "WHEEL_SLOTS", 4_096)
        yield rehearse()


def check_remains(
    script_files: MemoryFileSystem, ledger: Ledger, now_ms: EpochMs, source: random.Random
) -> None:
    """The files after a kill, and after a power cut that keeps any of the unsynced pages."""
    check_files(script_files.after_process_kill(), ledger.copy(), now_ms, killed=True)
    check_files(cut(script_files, source), ledger.copy(), now_ms, killed=False)


def check_end(script: ConsumerScript, source: random.Random) -> None:
    """The files after the script's end, by one of the two."""
    files, killed = script.files, source.random() < 0.5
    assert isinstance(files, MemoryFileSystem)
    left = files.after_process_kill() if killed else cut(files, source)
    check_files(left, script.ledger, script.now_ms, killed=killed)


def cut(files: MemoryFileSystem, source: random.Random) -> MemoryFileSystem:
    odds = source.choice([0.0, 0.5, 1.0])
    return files.after_power_cut(lambda: source.random() < odds)


# --- the table ----------------------------------------------------------------------------------------
def test_the_table_and_the_source_name_the_same_points() -> None:
    named: Counter[str] = Counter()
    for path in [*Path("broker").rglob("*.py"), *Path("store/trovemq_store").rglob("*.py")]:
        if path.name != "fault_points.py":
            named.update(re.findall(r'fault_point\("([^"]+)"\)', path.read_text()))
    assert set(named) == set(POINTS)
    assert len(POINTS) >= 60


def test_the_script_passes_every_point(rehearsal: Passes) -> None:
    print()
    for name, where in POINTS.items():
        if name in MEMORY_POINTS:
            beside = "thread" if name in rehearsal.in_work else ""
            print(f"{name:34} {rehearsal.counts[name]:>6}  {beside:6} {where}")
    assert [name for name in MEMORY_POINTS if not rehearsal.counts[name]] == []


# --- killed -------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_point(part: int, trials: Trials, rehearsal: Passes) -> None:
    """One run passes all of them; the files at a chosen pass are those that a kill there would leave."""
    chosen: dict[tuple[str, int], int] = {}
    for number in trials.numbers(len(MEMORY_POINTS), default=len(MEMORY_POINTS), part=part, parts=PARTS):
        name = MEMORY_POINTS[number]
        source, count = random.Random(f"kill {number}"), rehearsal.counts[name]
        kills = min(count, TREE_KILLS_MAX) if name.partition(".")[0] in TREE_AREAS else 1
        chosen |= {(name, at): number for at in source.sample(range(1, count + 1), kills)}
    script = ConsumerScript(MemoryFileSystem(), SEED)
    passes = Passes(script)

    def act(name: str) -> None:
        if passes.busy or (name, passes.note(name)) not in chosen:
            return
        passes.busy = True
        number = chosen.pop((name, passes.counts[name]))
        with trials.one(number) as source:
            assert isinstance(script.files, MemoryFileSystem)
            check_remains(script.files, script.ledger, script.now_ms, source)
        if number not in chosen.values():
            trials.count("R4", WHAT)
        passes.busy = False

    with armed(act):
        script.run()
    assert not chosen, "every chosen pass came"


# --- failed -------------------------------------------------------------------------------------------
def failure(name: str, source: random.Random) -> Exception:
    """The faults that can happen there (see fault_points)."""
    area, _, place = name.partition(".")
    number = source.choice([errno.EIO, errno.ENOSPC])
    if area in REFUSING_AREAS or (area in APPENDING_AREAS and place.startswith("before_")):
        return TroveError(errors.DISK_FULL, f"no space at {name}")
    return StorageError("write", name, number, "at a fault point")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_failed_at_every_point(part: int, trials: Trials, rehearsal: Passes) -> None:
    for number in trials.numbers(len(GROUPS), default=len(GROUPS), part=part, parts=PARTS):
        with trials.one(number) as source:
            waiting = moments(GROUPS[number], rehearsal, source)
            while waiting:
                before = len(waiting)
                fail_each_once(waiting, source)
                assert len(waiting) < before, f"no pass of {list(waiting)} came"
        trials.count("R4", WHAT, len(GROUPS[number]))


def moments(names: Sequence[str], rehearsal: Passes, source: random.Random) -> dict[str, int]:
    """Of each point the number of a pass."""
    return {name: source.randint(1, rehearsal.counts[name]) for name in names}


def fail_each_once(waiting: dict[str, int], source: random.Random) -> None:
    """One run, which ends where a failure stops the engine; the points that did fail wait no more. Between
    two failures the script continues for a while, and a start that failed comes to its end: the second try
    does not fail again. The pass of a point may then be a later one, or in the next run an earlier one."""
    script = ConsumerScript(MemoryFileSystem(), SEED)
    passes = Passes(script)
    failed_at, start_failed = -PASSES_BETWEEN, False

    def act(name: str) -> None:
        nonlocal failed_at, start_failed
        passed, total = passes.note(name), passes.counts.total()
        start_failed = start_failed and not script.is_open
        waited = total - failed_at >= PASSES_BETWEEN and not start_failed
        if waited and passed >= waiting.get(name, 1 << 30):
            del waiting[name]
            failed_at, start_failed = total, not script.is_open
            raise failure(name, source)

    with armed(act):
        try:
            script.run()
        except StoppedError:
            pass
    waiting.update({name: source.randint(1, max(1, passes.counts[name])) for name in waiting})
    check_end(script, source)


# --- held ---------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_held_at_every_point(part: int, trials: Trials, rehearsal: Passes) -> None:
    """In a thread's work the loop continues beside it; elsewhere a copy of the files is opened meanwhile."""
    groups = held_together(rehearsal)
    for number in trials.numbers(len(groups), default=len(groups), part=part, parts=PARTS):
        with trials.one(number) as source:
            waiting = moments(groups[number], rehearsal, source)
            while waiting:
                before = len(waiting)
                hold_at_each(waiting, source)
                assert len(waiting) < before, f"no pass of {list(waiting)} came"
        trials.count("R4", WHAT, len(groups[number]))


def held_together(rehearsal: Passes) -> list[list[str]]:
    """Two of a thread's work, where the script continues on another path, with some at which it does not."""
    in_work = [name for name in MEMORY_POINTS if name in rehearsal.in_work]
    others = [name for name in MEMORY_POINTS if name not in rehearsal.in_work]
    if SOAK:
        return [[name] for name in (*in_work, *others)]
    groups = -(-len(in_work) // 2)
    return [[*in_work[at::groups], *others[at::groups]] for at in range(groups)]


def hold_at_each(waiting: dict[str, int], source: random.Random) -> None:
    """One run; the points at which it was held wait no more. A pass of the others may not have come, because
    the script takes another path beside held work: the next run has another one."""
    script = ConsumerScript(MemoryFileSystem(), SEED)
    passes = Passes(script)

    def act(name: str) -> None:
        if passes.busy or passes.note(name) < waiting.get(name, 1 << 30):
            return
        del waiting[name]
        passes.busy = True
        assert isinstance(script.files, MemoryFileSystem)
        if script.in_work and script.is_open:
            script.go_on_beside()
        else:
            killed = script.files.after_process_kill()
            check_files(killed, script.ledger.copy(), script.now_ms, killed=True)
        passes.busy = False

    with armed(act):
        script.run()
    waiting.update({name: source.randint(1, max(1, passes.counts[name])) for name in waiting})
    check_end(script, source)


# --- one by one ---------------------------------------------------------------------------------------
def test_a_start_killed_while_it_made_the_queues_again_kept_their_numbers() -> None:
    """A queue whose records were all removed by retention began at offset 0 again."""
    files = MemoryFileSystem()
    store = open_store(files, SMALL_SYNC, topics=("orders", "bills"))
    send(store, b"old", topic="bills")
    for _ in range(12):
        send(store, b"x" * 2_000)
        flush(store)
    store.flush_projections()
    trim_now(store.trim(store.closed_segments()[-1].end))
    files = files.after_process_kill()
    for name in files.list("consumequeue/orders/0"):
        files.remove(f"consumequeue/orders/0/{name}")
    left: list[MemoryFileSystem] = []

    def act(name: str) -> None:
        if name == "recovery.before_rebuild":
            left.append(files.after_process_kill())

    with armed(act):
        MessageStore.open(files, SMALL_SYNC, NOW_MS)
    for found in (files.after_process_kill(), *left):
        store = MessageStore.open(found, SMALL_SYNC, NOW_MS)
        assert send(store, b"new", topic="bills").first_queue_offset == 1
    assert len(left) == 1


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", ["json.before_backup", "json.before_content", "json.after_content"])
def test_a_topic_whose_deletion_was_refused_kept_its_messages(point: str, nth: int) -> None:
    """One of the deletion's two copies was written, the other found no space; the next start believed it."""
    settings = replace(SETTINGS, tables_in_log=nth == 1)  # else the second save is that of the topics
    files = MemoryFileSystem()
    store = MessageStore.open(files, settings, NOW_MS)
    store.topics.create("orders", queue_count=1)
    one = record(b"kept", append_property_crc=settings.append_property_crc)
    append(store, one)
    flush(store)
    passes: list[str] = []

    def act(name: str) -> None:
        passes.extend([name] if name == point else [])
        if name == point and len(passes) == nth:
            raise StorageError("write", "trovemq/deletions.json", errno.ENOSPC)

    with armed(act), pytest.raises(TroveError, match="DISK_FULL"):
        store.delete_topic("orders", NOW_MS)
    append(store, record(b"later", append_property_crc=settings.append_property_crc))
    flush(store)
    store = MessageStore.open(files.after_process_kill(), settings, NOW_MS)
    assert [message.body for message in read_queue(store)] == [b"kept", b"later"]
    assert store.topics.get("orders") is not None
