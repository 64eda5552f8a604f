"""When the process gives memory back, and that it does."""

from __future__ import annotations

from trovemq_daemon.memory_trim import GROWN_MIN, TrimPolicy, free_memory, own_memory


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
    free memory grows when that is freed."""
    policy = TrimPolicy()
    for free_mib in (10, 60, 20):
        if policy.wants(free_mib << 20):
            policy.trimmed(free_mib << 20)
    assert policy.wants(1_000 << 20)


def test_malloc_says_what_is_free() -> None:
    before = free_memory()
    if before is None:
        return  # not glibc 2.33
    blocks = [bytearray(100_000) for _ in range(200)]
    used = free_memory()
    del blocks[::2]
    after = free_memory()
    assert used is not None
    assert after is not None
    assert after - used > 5_000_000
