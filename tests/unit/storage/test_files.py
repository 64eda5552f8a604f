"""The same promises of the seam over every implementation."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trovemq_store.engine.opening import take_lock
from trovemq_store.files.faulty import FaultyFileSystem, fail_always, fail_at
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem


@pytest.fixture(params=["real", "memory", "faulty"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    makers: dict[str, Callable[[], FileSystem]] = {
        "real": lambda: RealFileSystem(tmp_path / "store"),
        "memory": MemoryFileSystem,
        "faulty": lambda: FaultyFileSystem(RealFileSystem(tmp_path / "store")),
    }
    return makers[request.param]()


@pytest.mark.parametrize("preallocate", [True, False])
def test_a_created_file_is_zeros_and_shows_each_write_at_once(files: FileSystem, preallocate: bool) -> None:
    file = files.create("commitlog/0", 8192, preallocate=preallocate)
    view = file.view()
    assert len(view) == file.size == 8192
    assert not any(view)
    file.write(4094, b"abcd")
    assert bytes(view[4094:4098]) == b"abcd"
    file.sync()
    file.close()
    assert bytes(view[4094:4098]) == b"abcd", "a view outlives the closing of its file"
    assert files.read_bytes("commitlog/0")[4094:4098] == b"abcd"


def test_a_view_is_read_only(files: FileSystem) -> None:
    view = files.create("f", 4096, preallocate=True).view()
    with pytest.raises(TypeError):
        view[0] = 1


def test_creating_what_exists_is_refused(files: FileSystem) -> None:
    files.create("a/b", 16, preallocate=True).close()
    with pytest.raises(StorageError) as caught:
        files.create("a/b", 16, preallocate=True)
    assert caught.value.errno == errno.EEXIST


def test_opening_what_is_missing_is_refused(files: FileSystem) -> None:
    with pytest.raises(StorageError) as caught:
        files.open("nothing")
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "a//b", "a/./b", "a\0b", ".."])
def test_a_path_never_leaves_the_root(files: FileSystem, path: str) -> None:
    with pytest.raises(StorageError):
        files.create(path, 16, preallocate=True)
    with pytest.raises(StorageError):
        files.write_atomic(path, b"x")


def test_write_atomic_replaces_the_whole_content_and_leaves_nothing_else(files: FileSystem) -> None:
    files.write_atomic("config/topics.json", b"a" * 100)
    files.write_atomic("config/topics.json", b"b")
    assert files.read_bytes("config/topics.json") == b"b"
    assert list(files.list("config")) == ["topics.json"]


def test_scatter_writes_each_value_and_the_last_of_equal_offsets_stays(files: FileSystem) -> None:
    file = files.open_writable_map("index/1", 4096)
    file.scatter(np.array([40, 44, 40]), np.array([1, 2, 3], dtype=">i4"))
    unit = np.dtype([("a", ">i8"), ("b", "u1")])
    file.scatter(np.array([101, 301]), np.array([(7, 8), (9, 10)], dtype=unit))
    data = file.view()
    assert bytes(data[40:48]) == bytes.fromhex("0000000300000002")
    assert bytes(data[101:110]) == bytes.fromhex("000000000000000708")
    assert bytes(data[301:310]) == bytes.fromhex("00000000000000090a")
    file.sync()
    file.close()
    assert files.read_bytes("index/1")[40:44] == b"\0\0\0\3"


def test_a_writable_map_grows_a_shorter_file(files: FileSystem) -> None:
    files.create("index/1", 16, preallocate=True).close()
    assert files.open_writable_map("index/1", 4096).size == 4096


def test_listing_renaming_and_removing(files: FileSystem) -> None:
    for name in ("d/2", "d/1", "d/sub/3"):
        files.create(name, 16, preallocate=False).close()
    assert list(files.list("d")) == ["1", "2", "sub"]
    assert files.is_directory("d/sub")
    assert not files.is_directory("d/1")
    files.rename("d/1", "d/9")
    files.remove("d/2")
    files.remove("d/2")
    assert list(files.list("d")) == ["9", "sub"]
    assert list(files.list("nowhere")) == []
    files.truncate("d/9", 8)
    assert files.file_size("d/9") == 8


def test_the_lock_is_exclusive_between_processes(tmp_path: Path) -> None:
    import subprocess
    import sys

    files = RealFileSystem(tmp_path)
    files.lock("lock")
    script = (
        "import fcntl,sys\n"
        "f=open(sys.argv[1],'r+')\n"
        "try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "except OSError: sys.exit(3)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "lock")]
    assert subprocess.run(command, check=False).returncode == 3
    files.unlock("lock")
    assert subprocess.run(command, check=False).returncode == 0


def test_a_full_disk_is_an_error_code_and_leaves_no_file() -> None:
    files = MemoryFileSystem(capacity=10_000)
    files.create("a", 8192, preallocate=True)
    with pytest.raises(StorageError) as caught:
        files.create("b", 8192, preallocate=True)
    assert caught.value.disk_full
    assert not files.exists("b")


def test_a_power_cut_keeps_synced_names_and_synced_bytes_only() -> None:
    files = MemoryFileSystem()
    named = files.create("commitlog/0", 8, preallocate=True)
    files.sync_directory("commitlog")
    named.write(0, b"1234")
    named.sync()
    named.write(4, b"5678")
    files.create("commitlog/1", 8, preallocate=True).sync()
    after = files.after_power_cut()
    assert list(after.list("commitlog")) == ["0"]
    assert after.read_bytes("commitlog/0") == b"1234\0\0\0\0"
    assert files.after_process_kill().read_bytes("commitlog/0") == b"12345678"


def test_injected_faults_hit_the_named_call_only(tmp_path: Path) -> None:
    files = FaultyFileSystem(RealFileSystem(tmp_path))
    file = files.create("commitlog/0", 16, preallocate=True)
    files.decide = fail_at("sync", 2, errno.EIO)
    file.sync()
    with pytest.raises(StorageError):
        file.sync()
    file.sync()
    files.decide = fail_always("create", errno.ENOSPC, "commitlog")
    with pytest.raises(StorageError):
        files.create("commitlog/1", 16, preallocate=True)
    files.create("index/1", 16, preallocate=True)


def test_a_preallocation_without_space_took_all_the_space_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And other writers meanwhile found the disk full: it does not begin."""
    files = RealFileSystem(tmp_path)
    begun: list[int] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda descriptor, offset, size: begun.append(size))
    with pytest.raises(StorageError) as caught:
        files.create("large", files.free_bytes() + (1 << 30), preallocate=True)
    assert caught.value.disk_full
    assert begun == []
    assert not files.exists("large")


def test_a_lock_file_of_another_user_is_not_reported_as_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    files = RealFileSystem(tmp_path)
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(StorageError) as caught:
        take_lock(files)
    assert caught.value.operation == "open"
