"""When the process gives memory back, and that it does."""

from __future__ import annotations

from trovemq_daemon.memory_trim import GROWN_MIN, TrimPolicy, own_memory


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
