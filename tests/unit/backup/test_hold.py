"""Retention takes nothing that a backup is about to copy."""

from __future__ import annotations

from tests.support.retention import HOUR_MS, Broker
from trovemq_store.files.memory import MemoryFileSystem


def test_retention_waits_while_a_backup_holds_the_store() -> None:
    broker = Broker(MemoryFileSystem())
    broker.fill(2)
    broker.now_ms += 2 * HOUR_MS
    broker.store.removal_holds += 1
    assert broker.clean() == 0
    assert broker.store.min_offset == 0
    broker.store.removal_holds -= 1
    assert broker.clean() == 2


def test_a_backup_that_begins_while_retention_is_at_work() -> None:
    """The pending messages were carried by then; the segments stay."""
    broker = Broker(MemoryFileSystem())
    broker.send("outstanding")
    broker.receive()
    broker.fill(2)
    broker.now_ms += 2 * HOUR_MS

    def begin() -> None:
        broker.store.removal_holds = 1

    broker.before_durable = begin
    assert broker.clean() == 0
    assert broker.store.min_offset == 0
