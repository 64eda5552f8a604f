"""A broker as a process ends, at its start, the deletion of a group that a crash interrupted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import NOW_MS, flush
from tests.unit.server.test_deleted_groups import RETRIES, SETTINGS, used_with_retries
from trovemq.testing import BrokerProcess
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem

pytestmark = pytest.mark.slow

SIZES: dict[str, Any] = {
    "mappedFileSizeCommitLog": SETTINGS.commit_log_file_size,
    "mappedFileSizeConsumeQueue": SETTINGS.consume_queue_file_size,
    "maxHashSlotNum": SETTINGS.index_slot_count,
    "maxIndexNum": SETTINGS.index_item_count,
}


async def interrupted(files: Any) -> None:
    """A store whose group is deleted, and its retry topics are not."""
    broker = await used_with_retries(files)

    async def fails(name: str) -> int:
        raise TroveError(errors.REPLICA_TIMEOUT)

    broker.changes._topic_changes.delete = fails  # type: ignore[method-assign]
    with pytest.raises(TroveError):
        await broker.changes.delete("workers")
    flush(broker.store)
    broker.store.close(NOW_MS)


def test_a_daemon_kept_retry_topics_of_a_deleted_group(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    asyncio.run(interrupted(RealFileSystem(root)))
    with BrokerProcess(store=root, **SIZES) as broker:
        broker.stop()
    store = MessageStore.open(RealFileSystem(root), SETTINGS, NOW_MS)
    try:
        assert [one for one in RETRIES if one in store.topics] == []
        assert "orders" in store.topics
    finally:
        store.close(NOW_MS)
