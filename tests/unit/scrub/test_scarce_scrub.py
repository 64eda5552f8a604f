"""The scrub of a store that is in use, while no descriptor is free to read ahead with."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tests.support.engine import NOW_MS, open_store, send
from trovemq_broker.server.core.pace import Pace
from trovemq_broker.server.native import store_scrub
from trovemq_store.check.findings import Finding
from trovemq_store.files.files import ScarceError
from trovemq_store.files.memory import MemoryFileSystem


def test_a_scrub_without_a_free_descriptor_reported_damage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = open_store(MemoryFileSystem())
    for number in range(20):
        send(store, b"body", NOW_MS + number, keys="k", unique_key=f"U{number}")
    found: list[Finding] = []
    monkeypatch.setattr(store_scrub, "read_ahead", lambda _root, _part: OSError(errno.EMFILE, "no"))

    async def scrub() -> None:
        checking = await store_scrub.begin_scrub(store, found)
        async for _ in store_scrub.scrub_steps(checking, tmp_path, Pace(1 << 30)):
            pass

    with pytest.raises(ScarceError):
        asyncio.run(scrub())
    assert found == []
