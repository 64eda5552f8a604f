"""When the process gives memory back, and that it does."""

from __future__ import annotations

import asyncio

import pytest

from tests.support import fake_loop
from trovemq_daemon import memory_trim
from trovemq_daemon.memory_trim import GROWN_MIN, TrimPolicy, own_memory, used_memory


def test_memory_is_trimmed_where_it_has_grown_since_the_last_time() -> None:
    policy = TrimPolicy()
    assert not policy.wants(100 << 20)
    assert not policy.wants((100 << 20) + GROWN_MIN - 1)
    assert policy.wants((100 << 20) + GROWN_MIN)
    policy.trimmed(120 << 20)
    assert not policy.wants((120 << 20) + GROWN_MIN - 1)
    assert not policy.wants(50 << 20)
    assert policy.wants((50 << 20) + GROWN_MIN)
    assert policy.count == 1


def test_the_process_knows_its_own_memory() -> None:
    size = own_memory()
    assert size is None or 1 << 20 < size < 1 << 40


def test_what_was_freed_after_a_look_at_much_in_use_was_never_returned() -> None:
    """By the process's size: it was looked at while a gigabyte was in use, and did not grow any more. The
    unused memory grows when that is freed."""
    policy = TrimPolicy()
    for unused_mib in (10, 60, 20):
        if policy.wants(unused_mib << 20):
            policy.trimmed(unused_mib << 20)
    assert policy.wants(1_000 << 20)


def test_what_was_returned_then_used_and_freed_was_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two readings: what malloc says is free was the same at both."""
    used, free, resident = 50 << 20, 400 << 20, 450 << 20
    trims = []

    def trim(_pad: int) -> int:
        nonlocal resident
        trims.append(resident)
        resident = used
        return 1

    monkeypatch.setattr(memory_trim, "own_memory", lambda: resident)
    monkeypatch.setattr(memory_trim, "used_memory", lambda: used)
    monkeypatch.setattr(memory_trim, "free_memory", lambda: free, raising=False)
    policy = TrimPolicy()
    resident = used
    memory_trim._trim_where_wanted(policy, trim)
    for _ in range(3):
        resident = used + free
        memory_trim._trim_where_wanted(policy, trim)
        assert resident == used
    assert len(trims) == 3


def test_what_was_freed_before_the_first_look_was_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reading came five seconds after the start, and memory free then counted as always free."""
    looks: list[float] = []

    async def look(_work: object) -> None:
        looks.append(asyncio.get_running_loop().time())

    async def scene() -> None:
        task = asyncio.create_task(memory_trim.keep_trimmed(TrimPolicy()))
        await asyncio.sleep(1.5 * memory_trim.INTERVAL_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr(memory_trim, "run_in_thread", look)
    fake_loop.run(scene())
    assert looks == [0, memory_trim.INTERVAL_S]


def test_malloc_says_what_is_used() -> None:
    before = used_memory()
    if before is None:
        return  # not glibc 2.33
    blocks = [bytearray(100_000) for _ in range(200)]
    after = used_memory()
    del blocks
    assert after is not None
    assert after - before > 15_000_000
