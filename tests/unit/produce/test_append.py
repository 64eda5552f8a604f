"""The append path: refusals, their names, and that a refusal leaves the log untouched."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.engine import NOW_MS, SMALL, SMALL_SYNC, open_store, read_queue, with_crc_property
from tests.support.engine import record as plain_record
from trovemq_broker.produce.append import Appender, AppendSettings
from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_broker.produce.group_commit import GroupCommit, Grown
from trovemq_broker.produce.put_status import put_status
from trovemq_proto import errors
from trovemq_proto.errors import ERRORS, TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.v1 import common_pb2
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import Buffer, StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.settings import StoreSettings


class Bench:
    """An appender over a store in memory; `grown` has the announcements."""

    def __init__(self, settings: StoreSettings = SMALL, **append_settings: bool | int) -> None:
        self.store = open_store(MemoryFileSystem(), settings)
        self.grown: Grown = []
        self.commit = GroupCommit(
            self.store, FlushSettings(flush_mode=settings.flush_mode), self.grown.extend
        )
        self.appender = Appender(
            self.store,
            self.commit,
            AppendSettings(**append_settings),  # type: ignore[arg-type]
            lambda: NOW_MS,
            self.grown.extend,
        )

    def refusal(self, topic: str, queue_id: QueueId, data: Buffer) -> TroveError:
        end = self.store.end_offset
        with pytest.raises(TroveError) as caught:
            self.appender.append(topic, queue_id, data, None)
        assert self.store.end_offset == end, "a refused batch leaves the log as it was"
        return caught.value


def record(body: bytes, **fields: Any) -> bytes:
    """As the route says that this store wants them."""
    return with_crc_property(plain_record(body, **fields))


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.asyncio
async def test_async_append_is_visible_and_announced(bench: Bench) -> None:
    data = record(b"one") + record(b"two")
    result = bench.appender.append("orders", QueueId(0), data, None)
    assert (result.first_queue_offset, result.record_count) == (0, 2)
    await asyncio.sleep(0)
    assert bench.grown == [("orders", 0)]
    assert [message.body for message in read_queue(bench.store)] == [b"one", b"two"]
    assert bench.appender.durability == "memory"


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [1, 40], ids=["few", "many"])
async def test_the_receive_buffer_may_be_used_again_after_the_append(bench: Bench, count: int) -> None:
    received = bytearray(b"".join(record(b"one") for _ in range(count)))
    bench.appender.append("orders", QueueId(0), memoryview(received), None)
    received[:] = bytes(len(received))
    await asyncio.sleep(0)
    assert [message.body for message in read_queue(bench.store)] == [b"one"] * count


@pytest.mark.asyncio
async def test_a_batch_that_belongs_to_the_append_is_not_copied(bench: Bench) -> None:
    received = bytearray(record(b"one"))
    before = bytes(received)
    bench.appender.append("orders", QueueId(0), memoryview(received), None, owned=True)
    await asyncio.sleep(0)
    assert received != before, "its offsets were written into it"
    assert bytes(bench.store.read(bench.store.min_offset, len(received))) == received


@pytest.mark.asyncio
async def test_sync_append_is_not_visible_before_its_sync() -> None:
    bench = Bench(SMALL_SYNC)
    bench.appender.append("orders", QueueId(0), record(b"one"), None)
    assert bench.grown == []
    assert read_queue(bench.store) == []
    assert bench.appender.durability == "disk"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("topic", "queue_id", "make", "symbol"),
    [
        ("", 0, lambda: record(b"x"), "TOPIC_ILLEGAL"),
        ("../x", 0, lambda: record(b"x"), "TOPIC_ILLEGAL"),
        ("a\x01b", 0, lambda: record(b"x"), "TOPIC_ILLEGAL"),
        ("%RETRY%group", 0, lambda: record(b"x"), "TOPIC_ILLEGAL"),
        ("t" * 128, 0, lambda: record(b"x"), "TOPIC_ILLEGAL"),
        ("unknown", 0, lambda: record(b"x"), "TOPIC_NOT_FOUND"),
        ("orders", 4, lambda: record(b"x", queue_id=4), "QUEUE_NOT_FOUND"),
        ("orders", -1, lambda: record(b"x"), "QUEUE_NOT_FOUND"),
        ("orders", 0, lambda: b"", "BATCH_ILLEGAL"),
        ("orders", 0, lambda: b"\x00\x00", "BATCH_ILLEGAL"),
        ("orders", 1, lambda: record(b"x"), "BATCH_ILLEGAL"),
        ("orders", 0, lambda: record(b"x", topic="others"), "BATCH_ILLEGAL"),
        ("orders", 0, lambda: record(b"x", body_crc=1), "BATCH_ILLEGAL"),
        ("orders", 0, lambda: record(b"x", magic=0xDAA320AB), "BATCH_ILLEGAL"),
        ("orders", 0, lambda: record(b"x")[:-1], "BATCH_ILLEGAL"),
        ("orders", 0, lambda: record(b"x") + record(b"y", body_crc=1), "BATCH_ILLEGAL"),
        ("orders", 0, lambda: record(b"x" * 8_193), "MESSAGE_SIZE_EXCEEDED"),
        ("orders", 0, lambda: record(b"x" * 4_000) * 5, "BATCH_SIZE_EXCEEDED"),
        ("orders", 0, lambda: record(b"x" * 4_000) * 3, "BATCH_SIZE_EXCEEDED"),
    ],
)
async def test_refusals(
    bench: Bench, topic: str, queue_id: QueueId, make: Callable[[], bytes], symbol: str
) -> None:
    assert bench.refusal(topic, queue_id, make()).symbol == symbol
    assert bench.appender.append("orders", QueueId(0), record(b"next"), None).first_queue_offset == 0


@pytest.mark.asyncio
async def test_a_refusal_names_the_command_that_creates_the_topic(bench: Bench) -> None:
    refused = bench.refusal("unknown", QueueId(0), record(b"x"))
    assert refused.message == "topic unknown does not exist: trovemq topic create unknown"


@pytest.mark.asyncio
async def test_a_topic_is_made_by_sending_where_that_is_switched_on() -> None:
    bench = Bench(auto_create_topic_enable=True, auto_create_queue_count=5)
    bench.appender.append("fresh", QueueId(4), record(b"x", topic="fresh", queue_id=4), None)
    assert bench.store.topics.require("fresh").queue_count == 5
    assert bench.refusal("%DLQ%x", QueueId(0), record(b"x")).symbol == "TOPIC_ILLEGAL"


@pytest.mark.asyncio
async def test_a_topic_without_write_permission(bench: Bench) -> None:
    bench.store.topics.alter("orders", perm=4)
    assert bench.refusal("orders", QueueId(0), record(b"x")).symbol == "SERVICE_NOT_AVAILABLE"


@pytest.mark.asyncio
async def test_nothing_is_taken_while_stopping(bench: Bench) -> None:
    bench.appender.refuse(TroveError(errors.SERVICE_NOT_AVAILABLE))
    assert bench.refusal("orders", QueueId(0), record(b"x")).symbol == "SERVICE_NOT_AVAILABLE"


@pytest.mark.asyncio
async def test_a_failed_dispatch_stops_the_store(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_store: MessageStore) -> Grown:
        raise StorageError("write", "consumequeue", errno.EIO)

    monkeypatch.setattr(MessageStore, "dispatch", broken)
    reported = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
    bench.appender.append("orders", QueueId(0), record(b"x"), None)
    await asyncio.sleep(0)
    loop.set_exception_handler(None)
    assert [type(error) for error in reported] == [StorageError]
    assert bench.store.failed
    assert bench.refusal("orders", QueueId(0), record(b"y")).symbol == "STORE_FAILED"
    assert bench.commit.failure is not None


def test_every_refusal_has_a_put_status_of_the_protocol() -> None:
    names = set(common_pb2.PutMessageStatus.keys())
    statuses = {spec.symbol: put_status(TroveError(spec)) for spec in ERRORS}
    assert set(statuses.values()) <= names
    assert "PUT_OK" not in statuses.values()
    assert statuses["FLUSH_DISK_TIMEOUT"] == "FLUSH_DISK_TIMEOUT"
    assert statuses["REPLICA_TIMEOUT"] == "FLUSH_SLAVE_TIMEOUT"
    assert statuses["NOT_ENOUGH_REPLICAS"] == "IN_SYNC_REPLICAS_NOT_ENOUGH"
    assert statuses["CREATE_MAPPED_FILE_FAILED"] == "CREATE_MAPPED_FILE_FAILED"
    assert statuses["PROPERTIES_SIZE_EXCEEDED"] == "PROPERTIES_SIZE_EXCEEDED"
    assert statuses["OS_PAGE_CACHE_BUSY"] == "OS_PAGE_CACHE_BUSY"
    assert statuses["DISK_FULL"] == "SERVICE_NOT_AVAILABLE"
    assert statuses["BATCH_ILLEGAL"] == "MESSAGE_ILLEGAL"


@pytest.mark.asyncio
async def test_ipv6_store_hosts_ask_for_ipv6_records() -> None:
    bench = Bench(replace(SMALL, store_host="[::1]:8081"))
    assert bench.refusal("orders", QueueId(0), record(b"x")).symbol == "BATCH_ILLEGAL"
    data = record(b"x", store_host=bytes(20))
    assert len(bench.appender.append("orders", QueueId(0), data, None).store_host) == 20
