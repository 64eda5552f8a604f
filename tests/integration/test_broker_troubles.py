"""A broker in trouble continues with the rest: no index file, a disk really full, a foreign lock."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from tests.support.broker_here import BrokerHere, broker_here
from tests.support.broker_process import (
    ROOT,
    STOP_TIME_MAX_S,
    BrokerProcess,
    Stubs,
    error_of,
    refused,
    running_broker,
    send_when_there_is_space,
)
from tests.support.engine import NOW_MS, open_store, send
from tests.support.fork_server import popen
from tests.support.small_disks import mounted_disk
from trovemq_proto.records import decode_message
from trovemq_proto.v1 import admin_pb2, message_pb2, query_pb2
from trovemq_store.files.files import File, StorageError
from trovemq_store.files.real import RealFileSystem

pytestmark = pytest.mark.slow

SEGMENTS_AHEAD_MAX: Final = 5


def send_request(body: bytes, key: str = "k", topic: str = "orders") -> message_pb2.SendRequest:
    return message_pb2.SendRequest(topic=topic, messages=[{"body": body, "keys": [key]}])


def split(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = int.from_bytes(data[:4])
        found.append(decode_message(data[:size]).body)
        data = data[size:]
    return found


async def query(stubs: Stubs, key: str = "k", topic: str = "orders") -> list[bytes]:
    request = query_pb2.QueryByKeyRequest(topic=topic, key=key, messages_max=1_000)
    return [body async for page in stubs.queries.QueryByKey(request) for body in split(page.records)]


async def pull_all(stubs: Stubs, topic: str = "orders") -> AsyncIterator[bytes]:
    offset = 0
    while True:
        reply = await stubs.messages.Pull(message_pb2.FetchRequest(topic=topic, offset=offset))
        for body in split(reply.records):
            yield body
        if reply.next_offset == offset:
            return
        offset = reply.next_offset


# --- the key index --------------------------------------------------------------------------------------
@contextmanager
def no_index_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    create, tried = RealFileSystem.create, list[str]()

    def broken(files: RealFileSystem, path: str, size: int, *, preallocate: bool) -> File:
        if "index-file" in path:
            tried.append(path)
            raise StorageError("create", path, errno.EIO)
        return create(files, path, size, preallocate=preallocate)

    with monkeypatch.context() as patch:
        patch.setattr(RealFileSystem, "create", broken)
        yield tried


async def ready(broker: BrokerHere) -> str:
    """The store's problem, by /readyz."""
    status, text = await broker.get("/readyz")
    detail = json.loads(text)["checks"]["store"]["detail"]
    assert (status == 200) == (detail == "")
    return str(detail)


@pytest.mark.asyncio
async def test_without_an_index_file_nothing_is_missed_and_the_index_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_here(tmp_path) as broker:
        await broker.create_topic(queue_count=1)
        with no_index_files(monkeypatch) as tried:
            await broker.stubs.messages.Send(send_request(b"0"))
            async with asyncio.timeout(240):
                while not tried:  # a single record is indexed within a tenth of a second
                    await asyncio.sleep(0.02)
            assert len(tried) % 3 == 0, "three tries"
            for number in range(1, 5):
                await broker.stubs.messages.Send(send_request(b"%d" % number))
            assert await query(broker.stubs) == [b"4", b"3", b"2", b"1", b"0"], "scanned from the log"
            assert "EIO" in await ready(broker)
            metrics = (await broker.get("/metrics"))[1]
            failures = next(line for line in metrics.splitlines() if "index_create_failures_total{" in line)
            assert float(failures.rpartition(" ")[2]) >= 3
            assert 'projection="key_index"} 1.0' in metrics
        async with asyncio.timeout(240):
            while await ready(broker):
                await asyncio.sleep(0.02)
        assert (await broker.counters())["lagging_projections"] == 0
        assert list((tmp_path / "index").iterdir())
        assert await query(broker.stubs) == [b"4", b"3", b"2", b"1", b"0"]


@pytest.mark.asyncio
@pytest.mark.parametrize("safe", [False, True])
async def test_message_index_safe_at_the_start(tmp_path: Path, safe: bool) -> None:
    """The index is complete before requests are served, or look-ups scan the missing part."""
    async with broker_here(tmp_path, message_index_enable=False) as broker:
        await broker.create_topic(queue_count=1)
        for number in range(20):
            await broker.stubs.messages.Send(send_request(b"%d" % number))
    async with broker_here(tmp_path, message_index_safe=safe) as broker:
        if safe:
            assert (await broker.counters())["lagging_projections"] == 0
        assert await query(broker.stubs) == [b"%d" % number for number in range(19, -1, -1)]


@pytest.mark.asyncio
async def test_a_unique_key_of_very_many_messages_is_cut_and_the_reply_says_so(tmp_path: Path) -> None:
    async with broker_here(tmp_path, query_page_bytes_max=4_096) as broker:
        await broker.create_topic(queue_count=1)
        for number in range(3):
            message = message_pb2.OutgoingMessage(body=b"%d" % number + bytes(1_500), unique_key="twin")
            await broker.stubs.messages.Send(message_pb2.SendRequest(topic="orders", messages=[message]))
            found = await broker.stubs.queries.GetMessage(query_pb2.GetMessageRequest(id="twin"))
            assert [body[:1] for body in split(found.records)] == [b"2", b"1", b"0"][2 - number :][:2]
            assert found.more == (number == 2)


# --- the disk -------------------------------------------------------------------------------------------
@contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    """A separate file system, of that size."""
    with mounted_disk("tmpfs", path, size) as disk:
        if disk is None:
            pytest.skip("no file system can be mounted here")
        yield disk


@pytest.mark.asyncio
@pytest.mark.parametrize("flush_mode", ["sync", "async"])
async def test_a_file_system_that_is_really_full(tmp_path: Path, flush_mode: str) -> None:
    kept = ("disk_warning_percent=100", "clean_forcibly_enable=false")  # the file system itself has to say it
    settings = ("mappedFileSizeCommitLog=262144", f"flush_mode={flush_mode}", *kept)
    with small_disk(tmp_path / "disk", 3 << 20) as disk, running_broker(disk, *settings) as broker:
        async with Stubs(broker.address) as stubs:
            await stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders", queue_count=1))
            await stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="leaving"))
            sent = await send_until_full(stubs)
            assert len(sent) > 10
            fill(disk / "filler")
            for _ in range(SEGMENTS_AHEAD_MAX):  # segments made ahead of the filler may have space
                if not (more := await send_until_full(stubs)):
                    break
                sent += more
            assert await send_until_full(stubs) == []
            assert [body async for body in pull_all(stubs)] == sent, "reads continue"
            assert await query(stubs) == sent[::-1], "queries continue"
            # The broker's own records and small files take the space of the reserve.
            await stubs.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="leaving"))
            assert broker.process.poll() is None
            assert (await asyncio.to_thread(broker.get, "/healthz"))[0] == 200
            (disk / "filler").unlink()
            subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
            reply = await send_when_there_is_space(stubs, send_request(b"space again"))
            assert reply.first_queue_offset == len(sent), "no refused append used up an offset"
            assert [body async for body in pull_all(stubs)] == [*sent, b"space again"]
        assert await asyncio.to_thread(broker.stop) == 0
        with running_broker(disk, *settings) as again:
            async with Stubs(again.address) as stubs:
                assert [body async for body in pull_all(stubs)] == [*sent, b"space again"]
                assert await query(stubs) == [b"space again", *sent[::-1]]


async def send_until_full(stubs: Stubs) -> list[bytes]:
    """The bodies that were acknowledged before the disk was full."""
    sent: list[bytes] = []
    while True:
        body = b"%06d" % len(sent) + bytes(20_000)
        try:
            await stubs.messages.Send(send_request(body))
        except grpc.aio.AioRpcError as error:
            failure = error
            break
        sent.append(body)
    assert error_of(failure).symbol == "DISK_FULL"
    return sent


def fill(path: Path) -> None:
    """Takes every free byte."""
    status = os.statvfs(path.parent)
    path.write_bytes(bytes(status.f_bavail * status.f_frsize))


# --- who else has the store -----------------------------------------------------------------------------
def test_a_store_that_a_java_broker_has_open_is_refused(tmp_path: Path) -> None:
    """Java's FileChannel.tryLock is a POSIX record lock on the file `lock`; so is this process's."""
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys; f = open(sys.argv[1], 'w+b'); fcntl.lockf(f, fcntl.LOCK_EX, 1, 0);"
            "print('held', flush=True); sys.stdin.read()",
            str(tmp_path / "lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        second = BrokerProcess(tmp_path)
        assert second.wait() == 3
        assert "STORE_LOCKED" in json.dumps(second.lines)
        assert not (tmp_path / "commitlog").exists(), "and nothing in it was touched"
        assert holder.stdin is not None
        holder.stdin.close()


# --- names ----------------------------------------------------------------------------------------------
OTHERS_NAMES = ("%RETRY%group", "TBW102", "rmq_sys_x", "with.dot", "t" * 200)


@pytest.mark.asyncio
async def test_every_topic_of_the_store_can_be_read_whatever_its_name(tmp_path: Path) -> None:
    """Another broker wrote topics whose names no user may create here or send to."""
    store = open_store(RealFileSystem(tmp_path), topics=())
    for name in OTHERS_NAMES:
        send(store, b"old", topic=name, keys="k", unique_key=f"U{len(name)}{name[:5]}")
    settings = store.settings
    store.close(NOW_MS)
    sizes = {
        "commit_log_file_size": settings.commit_log_file_size,
        "consume_queue_file_size": settings.consume_queue_file_size,
        "index_slot_count": settings.index_slot_count,
        "index_item_count": settings.index_item_count,
        "body_size_max": 4_096,
    }
    async with broker_here(tmp_path, **sizes) as broker:
        for name in OTHERS_NAMES:
            await read_everything(broker.stubs, name)
            for call in (
                broker.stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=name)),
                broker.stubs.messages.Send(send_request(b"new", topic=name)),
            ):
                assert (await refused(call)).symbol == "TOPIC_ILLEGAL"
        listed = await broker.stubs.admin.ListTopics(admin_pb2.ListTopicsRequest(include_system=True))
        assert {topic.topic for topic in listed.topics} >= set(OTHERS_NAMES)


async def read_everything(stubs: Stubs, topic: str) -> None:
    assert [body async for body in pull_all(stubs, topic)] == [b"old"]
    assert await query(stubs, topic=topic) == [b"old"]
    found = await stubs.queries.GetMessage(query_pb2.GetMessageRequest(id=f"U{len(topic)}{topic[:5]}"))
    assert decode_message(found.records).topic == topic
    place: dict[str, Any] = {"topic": topic, "queue_id": 0, "queue_offset": 0}
    found = await stubs.queries.GetMessage(query_pb2.GetMessageRequest(location=place))
    assert decode_message(found.records).body == b"old"
    search = query_pb2.SearchOffsetRequest(topic=topic, timestamp=NOW_MS + 1)
    assert (await stubs.queries.SearchOffset(search)).offset == 1
    offsets = await stubs.queries.QueueOffsets(query_pb2.QueueOffsetsRequest(topic=topic))
    assert [(queue.min_offset, queue.max_offset) for queue in offsets.queues] == [(0, 1)]
    described = await stubs.admin.DescribeTopic(admin_pb2.DescribeTopicRequest(topic=topic))
    assert described.queues[0].max_offset == 1
    await stubs.admin.CommitOffset(admin_pb2.CommitOffsetRequest(group="g", topic=topic, offset=1))
    assert (await stubs.admin.GetOffset(admin_pb2.GetOffsetRequest(group="g", topic=topic))).offset == 1


def test_a_broker_whose_own_name_was_unknown_ended(tmp_path: Path) -> None:
    """Exit code 2, after which systemd does not start it again. It waits until the name is known."""
    command = [
        sys.executable,
        "-m",
        "trovemq_broker",
        "--store",
        str(tmp_path / "store"),
        "--log-format",
        "json",
    ]
    addresses = [
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--advertise",
        "no-such-host.invalid:8081",
    ]
    process = popen([*command, *addresses], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        events = (json.loads(line)["event"] for line in process.stderr)
        assert next(events) == "broker.name_unknown"
        process.send_signal(signal.SIGTERM)
        assert list(events) == ["daemon.stopped"]
        assert process.wait(STOP_TIME_MAX_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
