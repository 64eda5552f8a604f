"""R15: allocations that fail, one at a time, in every kind of call; and a store larger than the memory that
the process may have.

A failed allocation may end the call or the process, and nothing else: messages acknowledged before it, and
those that the engine acknowledges after it, are there at the next start.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.durability.nomemory_child import (
    ALLOCATIONS,
    CONSUMERS,
    FIRST_LATER,
    LATER_MS,
    MESSAGES,
    NEW,
    OPERATIONS,
    SETTINGS,
    WENT_ON,
    bodies,
)
from tests.durability.script_check import check_queues, scan
from tests.support.engine import NOW_MS, flush, open_store, read_queue, send
from tests.support.trials import Trials, strata
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.timers import rocketmq_files
from trovemq_proto.errors import TroveError
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.index.dispatcher import Dispatcher
from trovemq_store.log.commit_log import CommitLog

TOTAL: Final = 2_000
DEFAULT: Final = 60
WHAT: Final = "failed allocations"
IN_MEMORY: Final = Path("/dev/shm")
STRIDE: Final = 5
"""Trials one after another that are of one call."""
PARTS: Final = 2
CHUNK: Final = 100


def trial_of(number: int) -> tuple[str, int]:
    """(the call, which of its allocations fails)."""
    block, within = divmod(number, STRIDE)
    name, of_call = OPERATIONS[block % len(OPERATIONS)], block // len(OPERATIONS) * STRIDE + within
    return name, of_call * ALLOCATIONS[name] * len(OPERATIONS) // TOTAL


def default_trials() -> list[int]:
    """Trials of each call, over all of its allocations."""
    by_call: dict[str, list[int]] = {}
    for number in range(TOTAL):
        by_call.setdefault(trial_of(number)[0], []).append(number)
    each = -(-DEFAULT // len(OPERATIONS))
    chosen = [numbers[at] for name, numbers in by_call.items() for at in strata(len(numbers), each, name)]
    return sorted(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_an_allocation_that_fails_loses_nothing(
    part: int, trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = IN_MEMORY if IN_MEMORY.is_dir() else tmp_path  # no power is cut here: no sync needs to last
    with tempfile.TemporaryDirectory(dir=base) as directory:
        fail_allocations(part, trials, Path(directory), monkeypatch)


def fail_allocations(part: int, trials: Trials, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("_testcapi") is None:
        trials.skip("R15", WHAT, "this Python has no _testcapi to make allocations fail")
    monkeypatch.setattr(rocketmq_files, "WHEEL_SLOTS", 4_096)
    numbers = list(trials.chosen(TOTAL, default_trials(), part=part, parts=PARTS))
    seen: Counter[int] = Counter()
    for begin in range(0, len(numbers), CHUNK):
        chunk = numbers[begin : begin + CHUNK]
        directory = base / f"chunk-{begin}"
        directory.mkdir()
        for number, code in zip(chunk, run_child(directory, chunk), strict=True):
            with trials.one(number):
                name, nth = trial_of(number)
                check(directory / f"{name}-{nth}", name, code)
            seen[code] += 1
        shutil.rmtree(directory)
    trials.count("R15", WHAT, len(numbers))
    assert seen[1] + seen[WENT_ON] > len(numbers) // 2, f"allocations did fail: {seen}"


def run_child(directory: Path, numbers: list[int]) -> list[int]:
    """How each of these trials ended."""
    asked = ["{}:{}".format(*trial_of(number)) for number in numbers]
    child = subprocess.run(
        [sys.executable, "-m", "tests.durability.nomemory_child", str(directory), *asked],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    lines = [line.split() for line in child.stdout.splitlines()]
    assert [line[0] for line in lines] == asked
    return [int(line[1]) for line in lines]


def check(root: Path, name: str, code: int) -> None:
    """Opens the child's files."""
    files = RealFileSystem(root)
    store = MessageStore.open(files, SETTINGS, LATER_MS)
    try:
        check_messages(store, name, code)
        check_outstanding(store, files)
        check_queues(store, scan(store))
    finally:
        store.mark_failed()
        store.close(LATER_MS)


def check_messages(store: MessageStore, name: str, code: int) -> None:
    found = [message.body for message in read_queue(store, "orders")]
    later = bodies(FIRST_LATER, NEW) if code == WENT_ON else []
    if code != WENT_ON:
        found = [body for body in found if body not in bodies(FIRST_LATER, NEW)]
    assert found[:MESSAGES] == bodies(0, MESSAGES), "messages acknowledged before are there"
    assert found[len(found) - len(later) :] == later, "messages acknowledged after it are there"
    tried = found[MESSAGES : len(found) - len(later)]
    appended = name in ("flush", "dispatch") or (name == "append" and code == 0)
    assert tried in ([bodies(MESSAGES, NEW)] if appended else [[], bodies(MESSAGES, NEW)]), (
        "whole or not at all"
    )
    pages = list(query_pages(store, KeyQuery("orders", "all", KeyType.KEY), messages_max=1_000))
    places = [at for at, message in scan(store) if message.topic == "orders"]
    assert [at for page in pages for at in page.physical_offsets] == places[::-1], "look-ups are whole"


def check_outstanding(store: MessageStore, files: RealFileSystem) -> None:
    model = ConsumerState.open(store, files, CONSUMERS, LATER_MS)
    for _ in range(10):
        if not model.timers.deliver_due(LATER_MS):
            break
    if model.transactions.open_count:
        model.transactions.end("deal", "deals", True, LATER_MS)
    model.events.flush(LATER_MS)
    flush(store)
    store.dispatch()
    arrived = Counter(message.body for message in read_queue(store, "later"))
    assert set(arrived) == {b"timer0", b"timer1"}, "timers are delivered"
    assert max(arrived.values()) <= 2, "and at most once more"
    assert [message.body for message in read_queue(store, "deals")] == [b"deal"], "committed once"
    assert store.last_store_timestamp >= NOW_MS


# --- the middle of an append --------------------------------------------------------------------------
@pytest.mark.parametrize("place", [(CommitLog, "_write"), (Dispatcher, "offer")], ids=["written", "offered"])
def test_an_append_that_has_no_memory_when_it_is_written_ends_the_store(
    place: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log had the records; the next append was given their queue offsets again, or they had no units."""
    files = MemoryFileSystem()
    store = open_store(files, SETTINGS)
    send(store, b"before")
    flush(store)
    whole = getattr(*place)

    def fails_behind_it(*arguments: object) -> None:
        if place[1] == "_write":
            whole(*arguments)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(*place, fails_behind_it)
        with pytest.raises(MemoryError):
            send(store, b"in the middle")
    assert store.failed
    with pytest.raises(TroveError, match="STORE_FAILED"):
        send(store, b"after it")
    store = MessageStore.open(files.after_process_kill(), SETTINGS, LATER_MS)
    assert send(store, b"new").first_queue_offset == 2
    flush(store)
    assert [message.body for message in read_queue(store)] == [b"before", b"in the middle", b"new"]


# --- a small memory -----------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_store_of_384_mib_is_written_and_read_within_256_mib(trials: Trials, tmp_path: Path) -> None:
    """The limit is on the data that the process makes (RLIMIT_DATA): pages of mapped files are the kernel's
    to take back."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.durability.small_memory_child", str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2_000:]
    assert child.stdout.split() == ["refused", "written", "read", "recovered"]
    trials.count("R15", "runs within 256 MiB")
