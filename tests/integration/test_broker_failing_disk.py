"""A disk whose sync fails: nothing is acknowledged any more, and the broker ends and says so."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from tests.support.broker_here import broker_here, small_settings
from tests.support.broker_process import Stubs, refused
from trovemq_broker.daemon.app import BrokerApp
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.maintenance import table_files
from trovemq_daemon.lifecycle import ExitCode, Stop, exit_code_of
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import admin_pb2, message_pb2
from trovemq_store.files.files import StorageError
from trovemq_store.files.real import RealFileSystem

pytestmark = pytest.mark.slow


@pytest.mark.asyncio
async def test_a_failed_sync_ends_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = BrokerSettings(
        listen="127.0.0.1:0",
        http="off",
        store=str(tmp_path),
        commit_log_file_size=65_536,
        index_slot_count=100,
        index_item_count=400,
        body_size_max=16_384,
    )
    app = BrokerApp(settings)
    running = asyncio.create_task(app.run(Stop()))
    listening = await app.serving
    async with Stubs(str(listening.grpc)) as stubs:
        await stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders"))
        request = message_pb2.SendRequest(topic="orders", messages=[{"body": b"x"}])
        assert (await stubs.messages.Send(request)).first_queue_offset == 0

        def broken(_descriptor: int) -> None:
            raise OSError(errno.EIO, "the disk is gone")

        monkeypatch.setattr(os, "fdatasync", broken)
        assert (await refused(stubs.messages.Send(request))).symbol == "STORE_FAILED"
    with pytest.raises(ExceptionGroup) as ended:
        await running
    assert exit_code_of(ended.value) is ExitCode.STORE_FAILED
    assert (tmp_path / "abort").exists(), "the next start recovers"


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_disk_that_fails_at_the_end_is_said_and_the_next_start_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def broken(_files: RealFileSystem, path: str, _data: bytes) -> None:
        raise StorageError("write", path, number)

    request = message_pb2.SendRequest(topic="orders", messages=[{"body": b"x"}])

    async def run_and_fail(patch: pytest.MonkeyPatch) -> None:
        async with broker_here(tmp_path, projection_flush_interval_ms=60_000) as broker:
            await broker.create_topic()
            await broker.stubs.messages.Send(request)
            patch.setattr(RealFileSystem, "write_atomic", broken)

    with monkeypatch.context() as patch, pytest.raises(TroveError) as ended:
        await run_and_fail(patch)
    assert exit_code_of(ended.value) is ExitCode.STORE_FAILED
    assert (tmp_path / "abort").exists()
    async with broker_here(tmp_path) as broker:
        assert (await broker.stubs.messages.Send(request)).first_queue_offset == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("operation", "number", "symbol"),
    [
        ("create", errno.ENOSPC, "DISK_FULL"),
        ("create", errno.EIO, "CREATE_MAPPED_FILE_FAILED"),
        ("write_atomic", errno.ENOSPC, "DISK_FULL"),
        ("write_atomic", errno.EIO, "STORE_FAILED"),
        ("list", errno.EIO, "STORE_FAILED"),
    ],
)
async def test_a_disk_that_fails_at_the_start_is_said_by_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, number: int, symbol: str
) -> None:
    def broken(_files: RealFileSystem, path: str, *_more: object, **_named: object) -> None:
        raise StorageError(operation, path, number)

    monkeypatch.setattr(RealFileSystem, operation, broken)
    with pytest.raises(TroveError) as ended:
        async with broker_here(tmp_path):
            pass
    assert ended.value.symbol == symbol
    assert exit_code_of(ended.value) is ExitCode.STORE_FAILED


@pytest.mark.asyncio
async def test_a_failed_sync_of_a_small_file_ends_the_broker_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that is written after the reply."""
    monkeypatch.setattr(table_files, "WRITE_S", 0.02)
    app = BrokerApp(small_settings(tmp_path, projection_flush_interval_ms=60_000))
    running = asyncio.create_task(app.run(Stop()))
    listening = await app.serving
    async with Stubs(str(listening.grpc)) as stubs:
        await stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders"))
        synced = os.fdatasync

        def broken(descriptor: int) -> None:
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith("topics.json.tmp"):
                raise OSError(errno.EIO, "the disk is gone")
            synced(descriptor)

        monkeypatch.setattr(os, "fdatasync", broken)
        with suppress(grpc.aio.AioRpcError):  # the file of the first topic comes before it, perhaps
            await stubs.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="bills"))
        with pytest.raises(ExceptionGroup) as ended:
            await running
        request = message_pb2.SendRequest(topic="orders", messages=[{"body": b"x"}])
        with pytest.raises(grpc.aio.AioRpcError):
            await stubs.messages.Send(request)
    assert exit_code_of(ended.value) is ExitCode.STORE_FAILED
