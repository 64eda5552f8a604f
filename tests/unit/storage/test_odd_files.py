"""The seam where files are closed, cut or odd, and where a file system does not know the answer."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from trovemq_store.files.faulty import FaultyFileSystem, fail_always
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.guarded import GuardedFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem, check_readable, scatter_into
from trovemq_store.files.sealed_json import check_seal, seal


@pytest.fixture(params=["memory", "real"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    return MemoryFileSystem() if request.param == "memory" else RealFileSystem(tmp_path)


def failing(error_number: int) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(error_number, os.strerror(error_number))

    return call


# --- open and closed files --------------------------------------------------------------------------------
def test_a_file_is_closed_once(tmp_path: Path) -> None:
    files = FaultyFileSystem(RealFileSystem(tmp_path))
    file = files.create("f", 8, preallocate=False)
    file.close()
    file.close()
    assert files.open_count == 0
    with pytest.raises(StorageError) as caught:
        RealFileSystem(tmp_path).open("missing")
    assert caught.value.errno == errno.ENOENT


def test_a_closed_file_has_no_view(tmp_path: Path) -> None:
    """mmap would give memory without a file."""
    file = RealFileSystem(tmp_path).create("f", 8, preallocate=False)
    file.close()
    with pytest.raises(StorageError) as caught:
        file.view()
    assert (caught.value.operation, caught.value.errno) == ("mmap", errno.EBADF)


def test_a_view_outlives_its_file(tmp_path: Path) -> None:
    file = RealFileSystem(tmp_path).create("f", 8, preallocate=False)
    file.write(0, b"12345678")
    view = file.view()[2:4]
    file.close()
    assert bytes(view) == b"34"


def test_an_unlocked_store_can_be_unlocked(files: FileSystem) -> None:
    files.unlock("lock")
    files.lock("lock")
    files.unlock("lock")
    files.unlock("lock")
    files.lock("lock")


def test_truncating_cuts_or_adds_zeros(files: FileSystem) -> None:
    files.write_atomic("d/f", b"12345678")
    files.truncate("d/f", 3)
    assert files.read_bytes("d/f") == b"123"
    files.truncate("d/f", 5)
    assert files.read_bytes("d/f") == b"123\0\0"


def test_directories_that_are_removed(files: FileSystem) -> None:
    files.write_atomic("d/f", b"x")
    files.remove_directory("d")
    assert files.exists("d/f"), "one that is not empty stays"
    files.remove_directory("none")
    if isinstance(files, RealFileSystem):
        with pytest.raises(StorageError) as caught:
            files.remove_directory("d/f")
        assert caught.value.errno == errno.ENOTDIR


# --- unknown answers of a file system ----------------------------------------------------------------------
def test_a_file_system_without_holes_has_written_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealFileSystem(tmp_path).create("f", 1 << 20, preallocate=False)
    assert list(file.written_ranges(0)) == []
    file.write(300_000, b"x")
    ((begin, end),) = file.written_ranges(0)
    assert begin <= 300_000 < end < 1 << 20
    monkeypatch.setattr(os, "lseek", failing(errno.EINVAL))
    assert list(file.written_ranges(4_096)) == [(4_096, 1 << 20)]


def test_a_kernel_that_cannot_say_what_is_readable_is_believed() -> None:
    mapping = cast("mmap.mmap", SimpleNamespace(madvise=failing(errno.EINVAL)))
    check_readable(mapping, "f", 100, 5_000)
    mapping = cast("mmap.mmap", SimpleNamespace(madvise=failing(errno.EFAULT)))
    with pytest.raises(StorageError) as caught:
        check_readable(mapping, "f", 100, 5_000)
    assert (caught.value.operation, caught.value.errno) == ("read", errno.EIO)


@pytest.mark.parametrize(("blocks", "made"), [(0, True), (1_000, False)])
def test_space_is_looked_for_before_a_file_is_preallocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, made: bool
) -> None:
    """A file system that gives no number of blocks does not know: then it is tried."""
    status = SimpleNamespace(f_blocks=blocks, f_bavail=2, f_frsize=4_096)
    monkeypatch.setattr(os, "fstatvfs", lambda _: status)
    files = RealFileSystem(tmp_path)
    if made:
        assert files.create("f", 100_000, preallocate=True).size == 100_000
    else:
        with pytest.raises(StorageError) as caught:
            files.create("f", 100_000, preallocate=True)
        assert caught.value.disk_full
        assert not files.exists("f")


def test_a_file_that_was_there_stays_where_it_cannot_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RealFileSystem(tmp_path)
    files.write_atomic("f", b"content")
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
    with pytest.raises(StorageError):
        files.open_writable_map("f", 100_000)
    assert files.read_bytes("f") == b"content"


def test_nothing_is_scattered_where_there_are_no_values() -> None:
    target = np.zeros(8, np.uint8)
    scatter_into(target, np.empty(0, np.int64), np.empty(0, np.int32))
    assert not target.any()


def test_a_file_of_the_reserve_of_another_size_is_rebuilt() -> None:
    memory = MemoryFileSystem()
    files = GuardedFileSystem(memory, 100)
    files.refill()
    (path, *others) = sorted(path for path in memory._files if "reserve-" in path)
    memory.truncate(path, 40)
    before = [memory._files[other] for other in others]
    files.refill()
    assert memory.file_size(path) == 100
    assert [memory._files[other] for other in others] == before, "the whole ones stay"
    assert files.is_whole()


def test_a_writable_map_is_guarded_as_a_file_is() -> None:
    memory = FaultyFileSystem(MemoryFileSystem())
    files = GuardedFileSystem(memory, 100)
    mapped = files.open_writable_map("f", 100)
    mapped.scatter(np.array([4]), np.array([7], ">i4"))
    mapped.write(0, b"ab")
    assert bytes(mapped.view()[:8]) == b"ab\0\0\0\0\0\7"
    memory.decide = fail_always("sync", errno.EIO)
    with pytest.raises(StorageError):
        mapped.sync()
    assert files.sync_failure is not None


def test_the_directory_of_a_new_store_is_for_its_user_alone(tmp_path: Path) -> None:
    RealFileSystem(tmp_path / "new" / "store")
    assert (tmp_path / "new" / "store").stat().st_mode & 0o777 == 0o700
    (tmp_path / "old").mkdir(mode=0o755)
    RealFileSystem(tmp_path / "old")
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o755, "one that is there stays as it is"


# --- JSON with a CRC --------------------------------------------------------------------------------------
def test_each_flipped_bit_of_a_sealed_file_is_seen_or_means_nothing() -> None:
    sealed = seal(b'{\n  "a": 12,\n  "b": {"c": "d"}\n}\n')
    check_seal(sealed)
    end = sealed.rindex(b",")
    for at in range(end):
        for bit in range(8):
            with pytest.raises(ValueError, match="CRC"):
                check_seal(sealed[:at] + bytes([sealed[at] ^ 1 << bit]) + sealed[at + 1 :])
    check_seal(b'{"a": 12}')  # of an earlier version
    with pytest.raises(ValueError, match="damaged"):
        check_seal(sealed.replace(b'": "', b'": "x'))
