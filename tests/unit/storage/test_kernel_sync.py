"""Syncs by the kernel: their results are those of fdatasync, and one that is refused has not begun."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import File, FileSystem, StorageError
from trovemq_store.files.guarded import CHUNK_SIZE_MAX, GuardedFileSystem
from trovemq_store.files.kernel_sync import KernelSync
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.read_only import ReadOnlyFileSystem
from trovemq_store.files.real import RealFileSystem

SETUP, DESTROY, GET_EVENTS, SUBMIT = range(4)
WAIT_S_MAX = 240
SIZE = 8_192


class Kernel:
    """Its system calls, with results that a test chooses."""

    def __init__(self, submitted: int = 0, result: int = 0, read: int = 0) -> None:
        """Each is an errno or 0: of io_submit, of the sync, of io_getevents."""
        self.submitted, self.result, self.read = submitted, result, read
        self.submits = 0

    def __call__(self, number: ctypes.c_long, *arguments: Any) -> int:
        failure = 0
        if number.value == SUBMIT:
            self.submits += 1
            failure = self.submitted
        elif number.value == GET_EVENTS:
            failure = self.read
            arguments[3][2] = -self.result
        ctypes.set_errno(failure)
        return -1 if failure else 1


def sync_of(kernel: Kernel) -> KernelSync:
    return KernelSync(kernel, (SETUP, DESTROY, GET_EVENTS, SUBMIT), 0, os.eventfd(0, os.EFD_NONBLOCK))


@contextmanager
def syncing(kernel: Kernel) -> Iterator[KernelSync]:
    sync = sync_of(kernel)
    try:
        yield sync
    finally:
        sync.close()


@contextmanager
def file_of(files: FileSystem) -> Iterator[File]:
    file = files.create("file", SIZE, preallocate=True)
    try:
        yield file
    finally:
        file.close()


def ended(sync: KernelSync) -> None:
    """As the kernel reports it."""
    os.eventfd_write(sync.fileno(), 1)


def wait(sync: KernelSync) -> None:
    assert select.select([sync.fileno()], [], [], WAIT_S_MAX)[0], "the sync did not end"


def test_files_are_synced_one_after_the_other(tmp_path: Path, kernel_sync: KernelSync) -> None:
    with file_of(RealFileSystem(tmp_path)) as file:
        for number in range(20):
            file.write(number, b"x")
            assert kernel_sync.end() is None, "none runs"
            assert file.begin_sync(kernel_sync)
            assert kernel_sync.running
            wait(kernel_sync)
            assert file.end_sync(kernel_sync)
            assert not kernel_sync.running
    assert not file.begin_sync(kernel_sync), "its descriptor may be another file's by now"


def test_a_sync_that_runs_is_waited_for_by_close(tmp_path: Path, kernel_sync: KernelSync) -> None:
    with file_of(RealFileSystem(tmp_path)) as file:
        file.write(0, bytes(SIZE))
        assert file.begin_sync(kernel_sync)
        kernel_sync.close()
    kernel_sync.close()


def test_a_sync_that_was_waited_for_has_its_result(tmp_path: Path, kernel_sync: KernelSync) -> None:
    with file_of(RealFileSystem(tmp_path)) as file:
        file.write(0, bytes(SIZE))
        assert file.begin_sync(kernel_sync)
        kernel_sync.wait()
        assert file.end_sync(kernel_sync)


def test_other_threads_go_on_while_one_waits_for_a_sync() -> None:
    waits = threading.Event()
    with syncing(Kernel(result=errno.EIO)) as sync:

        def end() -> None:
            assert waits.wait(WAIT_S_MAX)
            ended(sync)

        thread = threading.Thread(target=end)
        thread.start()
        assert sync.begin(0)
        waits.set()
        sync.wait()
        assert sync.end() == errno.EIO, "it has ended"
        thread.join()


def test_what_cannot_be_synced_is_not_taken(kernel_sync: KernelSync) -> None:
    reader, writer = os.pipe()
    try:
        assert not kernel_sync.begin(writer)
        assert not kernel_sync.running
        assert kernel_sync.end() is None
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(("number", "submits"), [(errno.EAGAIN, 2), (errno.EINVAL, 1), (errno.ENOSYS, 1)])
def test_only_a_lack_of_memory_is_tried_again(number: int, submits: int) -> None:
    kernel = Kernel(submitted=number)
    with syncing(kernel) as sync:
        assert [sync.begin(0), sync.begin(0)] == [False, False]
    assert kernel.submits == submits


@pytest.mark.parametrize(
    ("kernel", "number"),
    [
        (Kernel(result=errno.EIO), errno.EIO),
        (Kernel(result=errno.ENOSPC), errno.ENOSPC),
        (Kernel(read=errno.EINVAL), errno.EINVAL),
    ],
)
def test_a_failed_sync_is_the_error_of_its_file_and_is_remembered(
    tmp_path: Path, kernel: Kernel, number: int
) -> None:
    files = GuardedFileSystem(RealFileSystem(tmp_path), CHUNK_SIZE_MAX)
    with syncing(kernel) as sync, file_of(files) as file:
        assert file.begin_sync(sync)
        assert not file.end_sync(sync), "it has not ended"
        assert files.sync_failure is None
        ended(sync)
        with pytest.raises(StorageError) as caught:
            file.end_sync(sync)
    assert (caught.value.operation, caught.value.path, caught.value.errno) == ("sync", "file", number)
    assert files.sync_failure is caught.value


def test_files_whose_syncs_a_test_decides_are_not_the_kernels(tmp_path: Path) -> None:
    kernel = Kernel()
    with syncing(kernel) as sync:
        with file_of(FaultyFileSystem(RealFileSystem(tmp_path))) as faulty:
            assert not faulty.begin_sync(sync)
        with file_of(MemoryFileSystem()) as in_memory:
            assert not in_memory.begin_sync(sync)
        assert not ReadOnlyFileSystem(tmp_path).open("file").begin_sync(sync)
    assert kernel.submits == 0


@pytest.mark.usefixtures("kernel_sync")
def test_a_machine_whose_numbers_are_not_known_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "sparc64")
    assert KernelSync.open() is None


@pytest.mark.usefixtures("kernel_sync")
def test_a_process_without_a_descriptor_left_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_count: int, _flags: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "eventfd", refuse)
    assert KernelSync.open() is None


@pytest.mark.usefixtures("kernel_sync")
def test_a_process_without_a_request_left_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("trovemq_store.files.kernel_sync._NUMBERS", {platform.machine(): (10_000, 0, 0, 0)})
    assert KernelSync.open() is None
    assert len(os.listdir("/proc/self/fd")) == descriptors
