"""A store whose files are deleted while the process runs: it fails, and is not recreated."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.engine import NOW_MS, SMALL_SYNC, append, record
from trovemq_broker.maintenance import background
from trovemq_broker.produce.waiters import store_failed
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.failures import raise_failed_sync, reported
from trovemq_store.files.files import DeletedError, FileSystem, StorageError
from trovemq_store.files.kernel_sync import KernelSync
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem


@pytest.fixture(params=["real", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    return RealFileSystem(tmp_path / "store") if request.param == "real" else MemoryFileSystem()


def opened(files: FileSystem) -> MessageStore:
    store = MessageStore.open(files, SMALL_SYNC, NOW_MS, process_id=1)
    append(store, record(b"first", topic="orders"), topic="orders", queue_id=QueueId(0))
    store.flush()
    return store


def test_a_file_without_a_name_is_an_error_after_its_sync(files: FileSystem) -> None:
    file = files.create("some/file", 4_096, preallocate=True)
    file.write(0, b"x")
    file.sync()
    file.check_linked()
    files.remove("some/file")
    file.sync()
    with pytest.raises(DeletedError) as gone:
        file.check_linked()
    assert gone.value.sync_failed
    assert "some/file" in str(gone.value)


def test_a_sync_of_a_deleted_log_acknowledges_nothing(files: FileSystem) -> None:
    store = opened(files)
    flushed = store.flushed_offset
    files.remove(store.log.segments.last.file.path)
    append(store, record(b"second", topic="orders"), topic="orders", queue_id=QueueId(0))
    with pytest.raises(DeletedError):
        store.flush()
    assert store.failed
    assert store.flushed_offset == flushed < store.end_offset
    with pytest.raises(TroveError):
        append(store, record(b"third", topic="orders"), topic="orders", queue_id=QueueId(0))
    store.close(NOW_MS)


def test_a_sync_by_the_kernel_of_a_deleted_log_acknowledges_nothing(tmp_path: Path) -> None:
    kernel = KernelSync.open()
    if kernel is None:
        pytest.skip("this kernel does not sync by io_submit")
    store = opened(RealFileSystem(tmp_path / "store"))
    append(store, record(b"second", topic="orders"), topic="orders", queue_id=QueueId(0))
    work = store.begin_flush()
    assert work is not None
    shutil.rmtree(tmp_path / "store")
    if not work.begin_in_kernel(kernel):
        kernel.close()
        pytest.skip("nor for this file system")
    kernel.wait()
    with pytest.raises(DeletedError):
        work.end_in_kernel(kernel)
    assert store.failed
    kernel.close()
    store.close(NOW_MS)


@pytest.mark.asyncio
async def test_a_store_that_takes_no_appends_notices_it_too(files: FileSystem) -> None:
    store = opened(files)
    files.remove(store.log.segments.last.file.path)
    with pytest.raises(TroveError) as ended:
        await background.keep_reserve(store, lambda _grown: None)
    assert ended.value.spec is errors.STORE_DELETED
    store.close(NOW_MS)


def test_a_directory_that_was_deleted_is_not_made_again(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = opened(RealFileSystem(root))
    shutil.rmtree(root)
    for change in (
        lambda: store.files.write_atomic("config/topics.json", b"{}"),
        lambda: store.files.write_atomic("abort", b""),
        lambda: store.files.create("trovemq/reserve-0", 4_096, preallocate=True),
        lambda: store.files.rename("abort", "config/abort"),
    ):
        with pytest.raises(StorageError):
            change()
    with pytest.raises(DeletedError):
        store.check_linked()
    store.close(NOW_MS)
    assert not root.exists()


def test_the_error_names_the_deletion_and_other_syncs_do_not() -> None:
    deleted, failed = DeletedError("commitlog/0"), StorageError("sync", "commitlog/0", 5)
    for error, spec in ((deleted, errors.STORE_DELETED), (failed, errors.STORE_FAILED)):
        assert reported(error, "the append failed", errors.UNKNOWN_ERROR).spec is spec
        assert store_failed(error).spec is spec
        with pytest.raises(TroveError) as raised:
            raise_failed_sync(error)
        assert raised.value.spec is spec
