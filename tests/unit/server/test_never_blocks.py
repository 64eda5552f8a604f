"""Nothing that a request does waits for the disk on the event loop.

Each call of the operating system that may wait for the disk is made to raise when it comes from the loop's
thread. A `pwrite` of records is none of these: it goes into preallocated blocks of the page cache.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Literal

import pytest
from blockbuster import BlockBusterFunction, BlockingError

from tests.support.engine import NOW_MS, record, with_crc_property
from tests.support.submitting import send
from trovemq_broker.daemon.broker_services import BrokerServices
from trovemq_broker.daemon.opening import open_consumer_state
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.fetch.offsets import ResetTarget
from trovemq_broker.fetch.pull import PullRequest
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.produce.outgoing import OutgoingMessage
from trovemq_broker.query.get_message import get_message
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_daemon.addresses import parse_address
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem
from trovemq_store.log.retention import DiskUse

WRITES = ("fsync", "fdatasync", "posix_fallocate", "ftruncate", "truncate", "open", "rename", "mkdir")
LOOKS_AND_REMOVALS = ("stat", "statvfs", "listdir", "unlink", "rmdir")
FlushMode = Literal["sync", "async"]


@contextmanager
def waits_forbidden(names: Sequence[str] = (*WRITES, *LOOKS_AND_REMOVALS)) -> Iterator[None]:
    guards = [BlockBusterFunction(os, name) for name in names]
    for guard in guards:
        guard.activate()
    try:
        yield
    finally:
        for guard in guards:
            guard.deactivate()


@asynccontextmanager
async def services(path: Path, flush_mode: FlushMode) -> AsyncIterator[BrokerServices]:
    """On real files, with the group commit at work; the first files of every kind are there."""
    settings = BrokerSettings(
        store=str(path),
        flush_mode=flush_mode,
        commit_log_file_size=1 << 22,
        index_slot_count=100,
        index_item_count=10_000,
        clean_forcibly_enable=True,
        disk_warning_percent=100,  # the machine's own disk decides nothing
    )
    store_settings = settings.store_settings(parse_address("127.0.0.1:8081"))
    store = MessageStore.open(RealFileSystem(path), store_settings, NOW_MS)
    model = open_consumer_state(store, settings)
    own = settings.listen_address
    broker = BrokerServices(store, model, settings, own, "1.2.3", traffic=Traffic())
    parts = broker.core
    committing = asyncio.create_task(parts.group_commit.run())
    await parts.topic_changes.create("orders", 2, "NORMAL")
    for queue_id in range(2):
        await append(parts, QueueId(queue_id))
    try:
        yield broker
    finally:
        parts.group_commit.stop()
        await committing
        parts.group_commit.close()
        store.close(NOW_MS)


async def append(parts: BrokerCore, queue_id: QueueId = QueueId(0)) -> int:
    data = b"".join(
        with_crc_property(record(b"body", queue_id=queue_id, keys=f"k{i}", unique_key=f"U{i}", tag="t"))
        for i in range(10)
    )
    result = parts.appender.append("orders", queue_id, data, None)
    await parts.group_commit.durable(result.end)
    return result.first_queue_offset


def test_the_guard_guards(tmp_path: Path) -> None:
    async def blocks() -> None:
        os.stat(tmp_path)

    with waits_forbidden():
        os.stat(tmp_path)  # no loop runs here
        with pytest.raises(BlockingError):
            asyncio.run(blocks())


@pytest.mark.asyncio
@pytest.mark.parametrize("flush_mode", ["sync", "async"])
async def test_the_data_plane(tmp_path: Path, flush_mode: FlushMode) -> None:
    async with services(tmp_path, flush_mode) as broker:
        parts = broker.core
        with waits_forbidden():
            for number in range(1, 20):
                assert await append(parts) == 10 * number
            sent = await send(parts.accumulator, "orders", QueueId(-1), [OutgoingMessage(b"one", keys=["k"])])
            await parts.group_commit.durable(sent.result.end)
            assert (
                parts.puller.pull(
                    PullRequest("orders", QueueId(0), QueueOffset(0), tags=("t",))
                ).message_count
                == 200
            )
            assert parts.search("orders", QueueId(0), EpochMs(0)) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("flush_mode", ["sync", "async"])
async def test_queries(tmp_path: Path, flush_mode: FlushMode) -> None:
    async with services(tmp_path, flush_mode) as broker:
        parts = broker.core
        with waits_forbidden():
            for kind, key in ((KeyType.KEY, "k3"), (KeyType.UNIQUE, "U3"), (KeyType.TAG, "t")):
                pages = list(query_pages(parts.store, KeyQuery("orders", key, kind)))
                assert sum(len(page.records) for page in pages) == (20 if kind is KeyType.TAG else 2)
            assert len(get_message(parts.store, "U3").records) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("flush_mode", ["sync", "async"])
async def test_consumer_offsets_and_topics(tmp_path: Path, flush_mode: FlushMode) -> None:
    async with services(tmp_path, flush_mode) as broker:
        parts = broker.core
        with waits_forbidden():
            await parts.offsets.commit("g", "orders", QueueId(0), QueueOffset(10))
            await parts.offsets.reset("g", "orders", None, ResetTarget(to_min=True))
            await parts.topic_changes.create("made", 1, "FIFO")
            await parts.topic_changes.alter("made", queue_count=3, message_type=None)
        with waits_forbidden(WRITES):  # its queues' files, which no reader uses any more, continue the loop
            await parts.topic_changes.delete("made")
            await parts.topic_changes.delete("orders")
        assert parts.store.topics.names() == []


@pytest.mark.asyncio
@pytest.mark.parametrize("flush_mode", ["sync", "async"])
async def test_retention(tmp_path: Path, flush_mode: FlushMode) -> None:
    async with services(tmp_path, flush_mode) as broker:
        parts = broker.core
        workers = parts.model.groups.for_use("workers", auto_create=True, now_ms=NOW_MS)
        parts.model.delivery.receive(
            ReceiveRequest(group=workers, topic="orders", invisible_ms=60_000, now_ms=NOW_MS, count_max=1)
        )
        assert (
            await segments_removed(broker, names=()) == 2
        )  # the queue of the carried has its first file now
        assert await segments_removed(broker, names=(*WRITES, *LOOKS_AND_REMOVALS)) == 3
        assert broker.tasks.retention.counters.carried_messages == 2
        assert len(list((tmp_path / "commitlog").iterdir())) == 1


async def segments_removed(broker: BrokerServices, names: Sequence[str]) -> int:
    """The log gets segments, and a full disk takes them."""
    parts = broker.core
    for _ in range(3):
        result = parts.appender.append("orders", QueueId(0), with_crc_property(record(bytes(3 << 20))), None)
    await parts.group_commit.durable(result.end)
    parts.store.flush_projections()
    work = parts.model.begin_snapshot(NOW_MS, always=True)
    assert work is not None
    await parts.group_commit.durable(work.log_end)
    work.run()
    with waits_forbidden(names):
        assert (await broker.tasks.retention.check_disk()).total > 0
        return await broker.tasks.retention.clean(DiskUse(1 << 30, 1 << 20))
