"""Retention of a replica group's leader: it removes no segment that another copy lacks."""

from __future__ import annotations

from tests.support.retention import HOUR_MS, PRESSED, Broker
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.memory import MemoryFileSystem


def test_segments_that_another_copy_lacks_stay() -> None:
    broker = Broker(MemoryFileSystem())
    broker.fill(4)
    broker.now_ms += 2 * HOUR_MS
    broker.copies_need = PhysicalOffset(broker.store.min_offset + 32_768 + 1)
    assert broker.clean() == 1
    assert broker.clean() == 0
    broker.copies_need = PhysicalOffset(broker.store.min_offset + 2 * 32_768)
    assert broker.clean() == 2
    broker.copies_need = broker.store.min_offset
    pressed = broker.stop()
    pressed.copies_need = pressed.store.min_offset
    pressed.fill(2)
    assert pressed.clean(PRESSED) >= 1, "a full disk does not wait"


def test_a_copy_that_lags_meanwhile_keeps_the_segments() -> None:
    broker = Broker(MemoryFileSystem())
    broker.fill(3)
    broker.now_ms += 2 * HOUR_MS
    begin = broker.store.min_offset
    asked: list[int] = []

    def lags_now() -> PhysicalOffset:
        asked.append(1)
        return broker.store.end_offset if len(asked) == 1 else begin

    broker.task._copies_need = lags_now
    assert broker.clean() == 0
    assert broker.store.min_offset == begin
    broker.task._copies_need = lambda: broker.store.end_offset
    assert broker.clean() == 3
