"""StoreService on real files in this process: its refusals, its counts, and untouched files."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.engine import NOW_MS, SMALL_SYNC, flush, open_store, send
from tests.unit.server.test_never_blocks import waits_forbidden
from trovemq_broker.server.native.store_service import StoreService
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import store_pb2
from trovemq_store.files.real import RealFileSystem

pytestmark = pytest.mark.asyncio

CONTEXT = cast("Any", None)
FAST = 1 << 40


@asynccontextmanager
async def serving(path: Path, messages: int = 60) -> AsyncIterator[StoreService]:
    store = open_store(RealFileSystem(path / "store"), SMALL_SYNC)
    for number in range(messages):
        send(store, b"b" * 300, NOW_MS + number, keys=f"k{number}", queue_id=number % 4)
    flush(store)
    store.flush_projections()
    yield StoreService(store, path / "store", asyncio.Lock(), lambda: NOW_MS, path)
    assert store.removal_holds == 0
    store.close(NOW_MS)


async def test_a_scrub(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        request = store_pb2.ScrubRequest(bytes_per_second=FAST)
        replies = [reply async for reply in service.scrub(request, CONTEXT)]
        assert replies[-1].done
        assert (replies[-1].records, replies[-1].units, replies[-1].items) == (60, 60, 60)
        assert (service.counters.scrubs, service.counters.scrub_damages) == (1, 0)
        assert service.counters.scrubbed_bytes >= replies[-1].end


async def test_damage_is_counted(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        with (tmp_path / "store" / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(200)
            file.write(b"damage")
        request = store_pb2.ScrubRequest(bytes_per_second=FAST)
        replies = [reply async for reply in service.scrub(request, CONTEXT)]
        assert service.counters.scrub_damages == replies[-1].damages == 1
        found = [finding for reply in replies for finding in reply.findings if not finding.note]
        assert [(each.file, each.offset) for each in found] == [(f"commitlog/{0:020d}", 0)]


@pytest.mark.parametrize("rate", [-1, 1, (1 << 40) + 1])
async def test_a_rate_that_is_refused(tmp_path: Path, rate: int) -> None:
    async with serving(tmp_path, 0) as service:
        with pytest.raises(TroveError) as caught:
            await anext(service.scrub(store_pb2.ScrubRequest(bytes_per_second=rate), CONTEXT))
        assert caught.value.spec is errors.REQUEST_ILLEGAL
        request = store_pb2.BackupRequest(directory=str(tmp_path / "backup"), bytes_per_second=rate)
        with pytest.raises(TroveError) as caught:
            await anext(service.backup(request, CONTEXT))
        assert caught.value.spec is errors.REQUEST_ILLEGAL
        assert not (tmp_path / "backup").exists()


async def test_one_backup_at_a_time_and_what_is_stopped_is_removed(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        first = tmp_path / "first"
        slow = store_pb2.BackupRequest(directory=str(first), bytes_per_second=2048, copy=True)

        async def read() -> None:
            async for _ in service.backup(slow, CONTEXT):
                pass

        task = asyncio.create_task(read())
        while not first.exists():
            await asyncio.sleep(0.001)
        other = store_pb2.BackupRequest(directory=str(tmp_path / "other"))
        with pytest.raises(TroveError) as caught:
            await anext(service.backup(other, CONTEXT))
        assert caught.value.spec is errors.LIMIT_EXCEEDED
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not first.exists()
        assert service.counters.backup_failures == 1
        replies = [reply async for reply in service.backup(other, CONTEXT)]
        assert replies[-1].done
        assert service.counters.backups == 1


@pytest.mark.parametrize(
    ("number", "spec"),
    [
        (errno.EIO, errors.UNKNOWN_ERROR),
        (errno.ENOSPC, errors.DISK_FULL),
        (errno.EACCES, errors.REQUEST_ILLEGAL),
    ],
)
async def test_a_backup_that_fails_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, spec: errors.ErrorSpec
) -> None:
    def failing(*_: object) -> Iterator[int]:
        yield 0
        raise OSError(number, "no")

    async with serving(tmp_path) as service:
        monkeypatch.setattr("trovemq_store.backup.writer.link_file", failing)
        request = store_pb2.BackupRequest(directory=str(tmp_path / "backup"))
        with pytest.raises(TroveError, match="the backup failed") as caught:
            async for _ in service.backup(request, CONTEXT):
                pass
        assert caught.value.spec is spec
        assert not (tmp_path / "backup").exists()
        monkeypatch.undo()
        assert [reply async for reply in service.backup(request, CONTEXT)][-1].done


async def test_neither_waits_for_the_disk_on_the_loop(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        scrub = store_pb2.ScrubRequest(bytes_per_second=FAST)
        backup = store_pb2.BackupRequest(directory=str(tmp_path / "backup"), bytes_per_second=FAST)
        with waits_forbidden():
            assert [reply async for reply in service.scrub(scrub, CONTEXT)][-1].done
            assert [reply async for reply in service.backup(backup, CONTEXT)][-1].done


async def test_backups_are_made_below_the_allowed_directory_only(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    for root, word in ((None, "switched off"), (allowed, "not below")):
        async with serving(tmp_path / "s", messages=1) as plain:
            service = StoreService(
                plain._store, tmp_path / "s" / "store", asyncio.Lock(), lambda: NOW_MS, root
            )
            request = store_pb2.BackupRequest(directory=str(tmp_path / "elsewhere"))
            with pytest.raises(TroveError, match=word) as caught:
                await anext(service.backup(request, CONTEXT))
            assert caught.value.spec is errors.REQUEST_ILLEGAL
    assert not (tmp_path / "elsewhere").exists()


async def test_a_backup_was_written_beside_the_allowed_directory(tmp_path: Path) -> None:
    """Into one whose name begins with that of the allowed one."""
    allowed, beside = tmp_path / "backups", tmp_path / "backups-of-others"
    allowed.mkdir()
    async with serving(tmp_path / "s", messages=1) as plain:
        store = tmp_path / "s" / "store"
        service = StoreService(plain._store, store, asyncio.Lock(), lambda: NOW_MS, allowed)
        with pytest.raises(TroveError, match="not below"):
            await anext(service.backup(store_pb2.BackupRequest(directory=str(beside)), CONTEXT))
    assert not beside.exists()
