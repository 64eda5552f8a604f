"""Acknowledgements under kills, stops and full disks, and who may open a store."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.broker_process import (
    BrokerProcess,
    Stubs,
    refused,
    running_broker,
    send_when_there_is_space,
)
from tests.support.engine import sent_record
from trovemq_proto.records import decode_message
from trovemq_proto.v1 import admin_pb2, common_pb2, message_pb2, query_pb2

pytestmark = pytest.mark.slow


async def create_topic(stubs: Stubs, queue_count: int = 2) -> None:
    await stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders", queue_count=queue_count))


def frame(number: int, body: bytes) -> message_pb2.AppendFrame:
    key = f"K{number}"
    return message_pb2.AppendFrame(
        frame_id=number, topic="orders", records=sent_record(body, keys=key, unique_key=f"U{number}")
    )


async def bodies(stubs: Stubs) -> list[bytes]:
    found, offset = list[bytes](), 0
    while True:
        request = message_pb2.FetchRequest(topic="orders", offset=offset)
        reply = await stubs.messages.Pull(request)
        if reply.next_offset == offset:
            return found
        data, offset = reply.records, reply.next_offset
        while data:
            size = int.from_bytes(data[:4])
            found.append(decode_message(data[:size]).body)
            data = data[size:]


async def by_key(stubs: Stubs, key: str) -> list[bytes]:
    request = query_pb2.QueryByKeyRequest(topic="orders", key=key)
    pages = [page async for page in stubs.queries.QueryByKey(request)]
    assert pages[-1].complete
    return [decode_message(page.records).body for page in pages if page.records]


@pytest.mark.asyncio
@pytest.mark.parametrize("flush_mode", ["sync", "async"])
async def test_kill_and_restart_lose_nothing_that_was_acknowledged(tmp_path: Path, flush_mode: str) -> None:
    """The process dies, the machine does not: bytes in the page cache survive, in both modes."""
    acknowledged = list[int]()
    for _ in range(3):
        with running_broker(tmp_path, f"flush_mode={flush_mode}") as broker:
            async with Stubs(broker.address) as stubs:
                if not acknowledged:
                    await create_topic(stubs)
                call = stubs.messages.Append()
                start = len(await bodies(stubs))
                assert start >= len(acknowledged)
                for number in range(start, start + 400):
                    await call.write(frame(number, b"%d" % number + bytes(2_000)))
                for _ in range(150):
                    reply = await call.read()
                    assert reply.status == common_pb2.PUT_OK
                    acknowledged.append(reply.frame_id)
                await asyncio.to_thread(broker.kill)
    with running_broker(tmp_path, f"flush_mode={flush_mode}") as broker:
        assert next(line for line in broker.lines if line["event"] == "store.opened")["clean"] is False
        async with Stubs(broker.address) as stubs:
            found = [int(body.rstrip(b"\0")) for body in await bodies(stubs)]
            assert found == list(range(len(found))), "no gap, no duplicate, in order"
            assert set(acknowledged) <= set(found)
            for number in (0, acknowledged[-1], len(found) - 1):
                assert await by_key(stubs, f"K{number}") == [b"%d" % number + bytes(2_000)]
                found_by_id = await stubs.queries.GetMessage(query_pb2.GetMessageRequest(id=f"U{number}"))
                assert found_by_id.kind == query_pb2.UNIQUE_KEY


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_drains_and_the_next_start_is_clean(tmp_path: Path, number: signal.Signals) -> None:
    with running_broker(tmp_path) as broker:
        async with Stubs(broker.address) as stubs:
            await create_topic(stubs)
            call = stubs.messages.Append()
            fetch = stubs.messages.Fetch()
            await fetch.write(message_pb2.FetchRequest(topic="orders", queue_id=1, wait_ms=60_000))
            for index in range(200):
                await call.write(frame(index, b"%d" % index))
            first = await call.read()
            broker.send_signal(number)
            replies = [first, *await rest_of(call)]
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert (await fetch.read()).records == b"", "who waits is answered"
        assert await asyncio.to_thread(broker.wait) == 0
    stored = [reply.frame_id for reply in replies if reply.status == common_pb2.PUT_OK]
    refused_later = {reply.error.symbol for reply in replies if reply.HasField("error")}
    assert refused_later <= {"SERVICE_NOT_AVAILABLE"}
    with running_broker(tmp_path) as broker:
        opened = next(line for line in broker.lines if line["event"] == "store.opened")
        assert opened["clean"] is True
        async with Stubs(broker.address) as stubs:
            found = [int(body) for body in await bodies(stubs)]
            assert set(stored) <= set(found)
            assert found == list(range(len(found)))


@pytest.mark.asyncio
async def test_a_full_disk_refuses_appends_and_reads_continue(tmp_path: Path) -> None:
    """The limit of file sizes stands for the disk: no further segment can be made."""
    with running_broker(tmp_path, "flush_mode=async") as broker:
        async with Stubs(broker.address) as stubs:
            await create_topic(stubs)
            body = bytes(100_000)
            await stubs.messages.Send(_send(body))
            pid = broker.process.pid
            unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (500_000, unlimited[1]))
            count, symbol = 1, ""
            while not symbol and count < 30:
                try:
                    await stubs.messages.Send(_send(body))
                    count += 1
                except grpc.aio.AioRpcError:
                    symbol = (await refused(stubs.messages.Send(_send(body)))).symbol
            assert symbol == "DISK_FULL"
            assert await bodies(stubs) == [body] * count
            status, _ = await asyncio.to_thread(broker.get, "/healthz")
            assert status == 200
            resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
            reply = await send_when_there_is_space(stubs, _send(b"space again"))
            assert reply.first_queue_offset == count
        assert await asyncio.to_thread(broker.stop) == 0


async def rest_of(call: Any) -> list[message_pb2.AppendReply]:
    """Every reply until the stream breaks."""
    replies = []
    try:
        while (reply := await call.read()) is not grpc.aio.EOF:
            replies.append(reply)
    except grpc.aio.AioRpcError:
        pass
    return replies


def _send(body: bytes) -> message_pb2.SendRequest:
    return message_pb2.SendRequest(topic="orders", messages=[message_pb2.OutgoingMessage(body=body)])


@pytest.mark.asyncio
async def test_topics_that_were_made_altered_and_deleted_stay_so_after_a_kill(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        async with Stubs(broker.address) as stubs:
            await create_topic(stubs)
            await stubs.messages.Send(_send(b"gone"))
            await stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="made", message_type="FIFO"))
            await stubs.admin.AlterTopic(admin_pb2.AlterTopicRequest(topic="made", queue_count=11))
            await stubs.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="orders"))
            await asyncio.to_thread(broker.kill)
    with running_broker(tmp_path) as broker:
        async with Stubs(broker.address) as stubs:
            listed = await stubs.admin.ListTopics(admin_pb2.ListTopicsRequest())
            topics = [(topic.topic, topic.queue_count, topic.message_type) for topic in listed.topics]
            assert topics == [("made", 11, "FIFO")]
            await create_topic(stubs)
            assert (await stubs.messages.Send(_send(b"new"))).first_queue_offset == 0
            assert await bodies(stubs) == [b"new"]


def test_a_store_has_one_broker(tmp_path: Path) -> None:
    with running_broker(tmp_path):
        second = BrokerProcess(tmp_path)
        assert second.address == ""
        assert second.wait() == 3
        assert "STORE_LOCKED" in json.dumps(second.lines)


def test_other_sizes_than_the_stores_are_refused(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        assert broker.stop() == 0
    second = BrokerProcess(tmp_path, ["mappedFileSizeCommitLog=2097152"])
    assert second.wait() == 4
    assert "STORE_SETTINGS_MISMATCH" in json.dumps(second.lines)


@pytest.mark.parametrize("ended", ["cleanly", "killed"])
def test_a_store_of_other_sizes_did_not_open_without_flags(tmp_path: Path, ended: str) -> None:
    with running_broker(tmp_path) as broker:
        if ended == "killed":
            broker.kill()
    again = BrokerProcess(tmp_path, small_files=False)
    assert again.stop() == 0
    assert (tmp_path / "commitlog" / f"{0:020d}").stat().st_size == 1_048_576


def test_an_address_in_use_is_said(tmp_path: Path) -> None:
    with running_broker(tmp_path / "a") as broker:
        second = BrokerProcess(tmp_path / "b", arguments=["--listen", broker.address])
        assert second.wait() == 6


@pytest.mark.asyncio
async def test_a_second_signal_ends_at_once_and_counts_as_a_crash(tmp_path: Path) -> None:
    with running_broker(tmp_path, "drain_time_max_ms=8000") as broker:
        async with Stubs(broker.address) as stubs:
            await create_topic(stubs)
            await stubs.messages.Send(_send(b"kept"))
            os.kill(broker.process.pid, signal.SIGSTOP)  # both signals are there when it continues
            broker.send_signal(signal.SIGINT)
            broker.send_signal(signal.SIGTERM)
            os.kill(broker.process.pid, signal.SIGCONT)
            assert await asyncio.to_thread(broker.wait) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    with running_broker(tmp_path) as broker:
        async with Stubs(broker.address) as stubs:
            assert await bodies(stubs) == [b"kept"]
