"""The background tasks of a broker, while no descriptor or memory is free for a read."""

from __future__ import annotations

import asyncio
import errno

import pytest

from tests.support.engine import NOW_MS, SMALL_SYNC, flush, open_store, send
from trovemq_broker.maintenance import background
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import READS
from trovemq_store.files.memory import MemoryFileSystem


def test_an_index_that_could_not_read_on_ended_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files, SMALL_SYNC)
    for number in range(3):
        send(store, b"body", NOW_MS + number, keys="k", unique_key=f"U{number}")
    flush(store)
    assert store.key_index is not None
    store.key_index.truncate_to(store.min_offset)
    assert store.lagging
    pauses = 0

    async def pause(_interval_s: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            files.decide = lambda _operation, _path: None
        if pauses == 6:
            raise asyncio.CancelledError
        await asyncio.sleep(0)

    monkeypatch.setattr(background, "sleep_to_tick", pause)
    monkeypatch.setattr(background, "CATCH_UP_PAUSE_S", 0)
    files.decide = lambda operation, _path: errno.ENOMEM if operation in READS else None
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(background.catch_up(store))
    assert store.key_index.position == store.visible_offset
    assert not store.lagging
