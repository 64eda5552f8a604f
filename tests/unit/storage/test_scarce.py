"""Descriptors and address space of this process that are all taken, for a moment."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from trovemq_proto import errors
from trovemq_store.files.faulty import FaultyFileSystem, fail_at
from trovemq_store.files.files import ScarceError, StorageError, UnreadableError, storage_error
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.index.open_files import OpenFiles
from trovemq_store.topics.offsets import ConsumerOffsets

HUGE = 1 << 40


@contextmanager
def limited(kind: int, limit: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_only_a_read_that_lacked_nothing_means_damage() -> None:
    assert isinstance(storage_error("read", "a", errno.EIO), UnreadableError)
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN):
        failure = storage_error("open", "a", number)
        assert isinstance(failure, ScarceError)
        assert (failure.spec, failure.errno, failure.retriable) == (errors.RESOURCES_SCARCE, number, True)
        assert type(storage_error("write", "a", number)) is StorageError
        assert storage_error("sync", "a", number).sync_failed, "whatever its errno is"


def test_no_descriptor_is_free(tmp_path: Path) -> None:
    files = RealFileSystem(tmp_path)
    files.create("a", 4_096, preallocate=True).close()
    opened = files.open("a")
    lowest_free = os.dup(0)
    os.close(lowest_free)
    with limited(resource.RLIMIT_NOFILE, lowest_free):
        for call in (lambda: files.open("a"), lambda: files.list("")):
            with pytest.raises(ScarceError):
                call()
        for read in (lambda: files.read_bytes("a"), lambda: files.head("a", 8)):
            with pytest.raises(ScarceError):
                read()
        with suppress(ScarceError):  # from Python 3.13 on it needs no descriptor
            opened.view()
    assert bytes(opened.view()[:8]) == bytes(8)
    with limited(resource.RLIMIT_NOFILE, lowest_free):
        opened.check_readable(0, 4_096)  # it is mapped
    opened.close()


def test_no_address_space_is_free(tmp_path: Path) -> None:
    files = RealFileSystem(tmp_path)
    files.create("a", HUGE, preallocate=False).close()
    opened = files.open("a")
    with limited(resource.RLIMIT_AS, HUGE), pytest.raises(ScarceError):
        opened.view()
    opened.close()


def test_files_that_are_kept_open_make_way() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    for name in "abcd":
        files.inner.create(name, 8, preallocate=True)
    kept = OpenFiles(files, 16)
    for name in "abc":
        kept.get(name)
    files.decide = fail_at("open", 1, errno.EMFILE)
    assert kept.get("d").size == 8
    assert files.open_count == len(kept) == 2
    files.decide = lambda operation, _path: errno.EMFILE if operation == "open" else None
    with pytest.raises(ScarceError):
        kept.get("a")
    assert files.open_count == len(kept) == 0


def test_a_start_without_a_free_descriptor_took_older_offsets() -> None:
    """The copy beside a file has its content before the last change."""
    files = FaultyFileSystem(MemoryFileSystem())
    files.inner.write_atomic("config/consumerOffset.json", b'{"offsetTable":{"orders@workers":{"0":9}}}')
    files.inner.write_atomic("config/consumerOffset.json.bak", b'{"offsetTable":{}}')
    files.decide = fail_at("read_bytes", 1, errno.EMFILE)
    with pytest.raises(ScarceError):
        ConsumerOffsets.load(files)
    assert len(ConsumerOffsets.load(files)) == 1
