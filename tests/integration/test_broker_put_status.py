"""Each PutMessageStatus that a broker can answer, provoked; a refused message leaves no trace."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.broker_here import BrokerHere, broker_here
from tests.support.broker_process import refused
from tests.support.engine import sent_record
from trovemq_proto.records import decode_message, encode_offset_msg_id
from trovemq_proto.v1 import common_pb2, message_pb2, query_pb2
from trovemq_store.files.files import Buffer, StorageError
from trovemq_store.files.guarded import RESERVE_COUNT, RESERVE_DIRECTORY
from trovemq_store.files.real import RealFile
from trovemq_store.log.segments import KEPT_PATH

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


class Sender:
    """One Append stream, one frame at a time."""

    def __init__(self, broker: BrokerHere) -> None:
        self._call = broker.stubs.messages.Append()
        self._number = 0

    async def write(self, records: bytes, topic: str = "orders") -> None:
        self._number += 1
        await self._call.write(message_pb2.AppendFrame(frame_id=self._number, topic=topic, records=records))

    async def read(self) -> Any:
        return await self._call.read()

    async def send(self, records: bytes, topic: str = "orders") -> Any:
        await self.write(records, topic)
        return await self.read()


def send_request(body: bytes = b"x", **message: Any) -> message_pb2.SendRequest:
    return message_pb2.SendRequest(topic="orders", messages=[{"body": body, **message}])


async def bodies(broker: BrokerHere) -> list[bytes]:
    reply = await broker.stubs.messages.Pull(message_pb2.FetchRequest(topic="orders"))
    data, found = reply.records, []
    while data:
        size = int.from_bytes(data[:4])
        found.append(decode_message(data[:size]).body)
        data = data[size:]
    return found


async def by_unique_key(broker: BrokerHere, key: str) -> list[bytes]:
    request = query_pb2.QueryByKeyRequest(topic="orders", key=key, type=query_pb2.UNIQUE)
    pages = [page async for page in broker.stubs.queries.QueryByKey(request)]
    return [decode_message(page.records).body for page in pages if page.records]


@contextmanager
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No sync ends within the block."""
    may_end = threading.Event()
    sync = os.fdatasync

    def slow(descriptor: int) -> None:
        may_end.wait(20)
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", slow)
        try:
            yield
        finally:
            may_end.set()


@contextmanager
def no_new_files(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[None]:
    def broken(_descriptor: int, _offset: int, _size: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", broken)
        yield


async def reserve_made(store: Path) -> None:
    """The broker makes its reserve for a full disk while it serves, and refuses messages where that fails."""
    files = [store / path for path in (KEPT_PATH, f"{RESERVE_DIRECTORY}/reserve-{RESERVE_COUNT - 1}")]
    async with asyncio.timeout(240):
        while not all(file.exists() for file in files):
            await asyncio.sleep(0.01)


async def test_put_ok_names_every_place(tmp_path: Path) -> None:
    async with broker_here(tmp_path) as broker:
        await broker.create_topic()
        end = (await broker.counters())["log_end_offset"]
        reply = await Sender(broker).send(sent_record(b"one") + sent_record(b"two"))
        assert (reply.status, reply.durability) == (common_pb2.PUT_OK, common_pb2.DISK)
        assert (reply.first_queue_offset, reply.physical_offset, reply.record_count) == (0, end, 2)
        assert reply.store_timestamp > 0
        identifier = encode_offset_msg_id(reply.store_host, reply.physical_offset)
        found = await broker.stubs.queries.GetMessage(query_pb2.GetMessageRequest(id=identifier))
        assert decode_message(found.records).body == b"one"


async def test_flush_disk_timeout_says_that_the_message_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_here(tmp_path, sync_flush_timeout_ms=50) as broker:
        await broker.create_topic()
        with slow_disk(monkeypatch):
            framed = await Sender(broker).send(sent_record(b"framed", unique_key="U1"))
            sent = await broker.stubs.messages.Send(send_request(b"sent"))
            for reply in (framed, sent):
                assert reply.status == common_pb2.FLUSH_DISK_TIMEOUT
                assert reply.error.symbol == "FLUSH_DISK_TIMEOUT"
                assert reply.durability == common_pb2.MEMORY
            assert [framed.first_queue_offset, sent.first_queue_offset] == [0, 1]
            assert await bodies(broker) == [], "not visible before the sync that covers it"
            assert await by_unique_key(broker, "U1") == []
            polling = broker.stubs.messages.Fetch()
            request = message_pb2.FetchRequest(topic="orders", wait_ms=10_000)
            await polling.write(request)
            polled = asyncio.create_task(polling.read())
            async with asyncio.timeout(240):
                while (await broker.counters())["long_polls"] != 1:
                    await asyncio.sleep(0.005)
        assert (await polled).next_offset > 0
        assert await by_unique_key(broker, "U1") == [b"framed"]
        async with asyncio.timeout(240):
            while await bodies(broker) != [b"framed", b"sent"]:
                await asyncio.sleep(0.005)
        assert (await broker.counters())["flush_timeouts"] == 2


async def test_reads_and_health_are_answered_while_a_sync_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_here(tmp_path, sync_flush_timeout_ms=50) as broker:
        await broker.create_topic()
        sender, health = Sender(broker), health_pb2_grpc.HealthStub(broker.stubs.channel)
        await sender.send(sent_record(b"before", unique_key="U1"))
        flushes = (await broker.counters())["flushes"]
        with slow_disk(monkeypatch):  # the index has no file yet, too
            reply = await sender.send(sent_record(b"hangs"))
            assert reply.status == common_pb2.FLUSH_DISK_TIMEOUT
            assert await bodies(broker) == [b"before"]
            assert await by_unique_key(broker, "U1") == [b"before"]
            answer = await health.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            assert [(await broker.get(path))[0] for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
            assert (await broker.counters())["flushes"] == flushes, "the sync still hangs"
        assert (await sender.send(sent_record(b"after"))).status == common_pb2.PUT_OK


async def test_os_page_cache_busy_when_too_much_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"unsynced_bytes_max": 65_536, "append_wait_max_ms": 50}
    async with broker_here(tmp_path, commit_log_file_size=1 << 20, **limits) as broker:
        await broker.create_topic()
        sender = Sender(broker)
        with slow_disk(monkeypatch):
            for _ in range(9):
                await sender.write(sent_record(bytes(9_000)))
            reply = await sender.read()
            assert (reply.frame_id, reply.status) == (9, common_pb2.OS_PAGE_CACHE_BUSY)
            assert (await refused(broker.stubs.messages.Send(send_request()))).symbol == "OS_PAGE_CACHE_BUSY"
            assert (await broker.counters())["appends_waiting"] == 8
        assert [(await sender.read()).status for _ in range(8)] == [common_pb2.PUT_OK] * 8
        assert (await sender.send(sent_record(b"space"))).first_queue_offset == 8


@pytest.mark.parametrize(
    ("number", "status", "symbol"),
    [
        (errno.EIO, common_pb2.CREATE_MAPPED_FILE_FAILED, "CREATE_MAPPED_FILE_FAILED"),
        (errno.ENOSPC, common_pb2.SERVICE_NOT_AVAILABLE, "DISK_FULL"),
    ],
)
async def test_no_segment_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int, symbol: str
) -> None:
    async with broker_here(tmp_path) as broker:
        await broker.create_topic()
        sender = Sender(broker)
        await sender.send(sent_record(b"first"))  # the queue's own first file is there
        await reserve_made(tmp_path)
        with no_new_files(monkeypatch, number):
            count, end = 1, 0
            while (reply := await sender.send(sent_record(bytes(16_000)))).status == common_pb2.PUT_OK:
                count, end = count + 1, (await broker.counters())["log_end_offset"]
            assert (reply.status, reply.error.symbol) == (status, symbol)
            assert (await broker.counters())["log_end_offset"] == end, "nothing was written"
            assert (await refused(broker.stubs.messages.Send(send_request(bytes(16_000))))).symbol == symbol
            assert len(await bodies(broker)) == count, "reads continue"
            assert (await broker.get("/healthz"))[0] == 200
        again = await sender.send(sent_record(bytes(16_000)))
        assert (again.status, again.first_queue_offset) == (common_pb2.PUT_OK, count), "no offset was used up"


async def test_unknown_error_when_the_log_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_here(tmp_path) as broker:
        await broker.create_topic()
        sender = Sender(broker)
        write = RealFile.write

        def broken(file: RealFile, offset: int, data: Buffer) -> None:
            if file.path.startswith("commitlog"):
                raise StorageError("write", file.path, errno.EIO)
            write(file, offset, data)

        with monkeypatch.context() as patch:
            patch.setattr(RealFile, "write", broken)
            reply = await sender.send(sent_record(b"x"))
            assert (reply.status, reply.error.symbol) == (common_pb2.UNKNOWN_ERROR, "UNKNOWN_ERROR")
        assert (await sender.send(sent_record(b"y"))).first_queue_offset == 0
        assert await bodies(broker) == [b"y"]


async def test_service_not_available_for_a_topic_without_write_permission(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"orders":{"topicName":"orders","perm":4,"readQueueNums":4,"writeQueueNums":4}}}'
    )
    async with broker_here(tmp_path) as broker:
        sender = Sender(broker)
        reply = await sender.send(sent_record(b"x"))
        assert (reply.status, reply.error.symbol) == (
            common_pb2.SERVICE_NOT_AVAILABLE,
            "SERVICE_NOT_AVAILABLE",
        )


async def test_properties_size_exceeded_and_message_illegal(tmp_path: Path) -> None:
    async with broker_here(tmp_path, body_size_max=16_384) as broker:
        await broker.create_topic()
        sender, end = Sender(broker), (await broker.counters())["log_end_offset"]
        for records, status, symbol in (
            (properties_of(40_000), common_pb2.PROPERTIES_SIZE_EXCEEDED, "PROPERTIES_SIZE_EXCEEDED"),
            (sent_record(bytes(16_385)), common_pb2.MESSAGE_ILLEGAL, "MESSAGE_SIZE_EXCEEDED"),
            (sent_record(bytes(8_000)) * 9, common_pb2.MESSAGE_ILLEGAL, "BATCH_SIZE_EXCEEDED"),
            (sent_record(b"x")[:-1], common_pb2.MESSAGE_ILLEGAL, "BATCH_ILLEGAL"),
        ):
            reply = await sender.send(records)
            assert (reply.status, reply.error.symbol) == (status, symbol)
        reply = await sender.send(sent_record(b"x"), topic="unknown")
        assert (reply.status, reply.error.symbol) == (common_pb2.MESSAGE_ILLEGAL, "TOPIC_NOT_FOUND")
        assert (await broker.counters())["log_end_offset"] == end
        assert (await sender.send(sent_record(b"good"))).first_queue_offset == 0


def properties_of(size: int) -> bytes:
    """A record that is well formed but for the size of its properties, which no encoder makes."""
    small = sent_record(b"x", properties={"p": "v"})
    at = small.index(b"p\x01v")
    properties = b"p\x01" + b"v" * (size - 3) + b"\x02"
    data = bytearray(small[: at - 2] + size.to_bytes(2) + properties)
    data[:4] = len(data).to_bytes(4)
    return bytes(data)
