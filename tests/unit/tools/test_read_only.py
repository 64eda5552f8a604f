"""The view of a store that must not change."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.read_only import ReadOnlyFileSystem

HOLD_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "a").write_bytes(b"abc")
    (tmp_path / "empty").touch()
    (tmp_path / "lock").write_bytes(b"lock")
    return tmp_path


@pytest.mark.parametrize(
    "write",
    [
        lambda files: files.create("x", 10, preallocate=True),
        lambda files: files.open_writable_map("config/a", 3),
        lambda files: files.write_atomic("config/a", b"x"),
        lambda files: files.truncate("config/a", 0),
        lambda files: files.rename("config/a", "b"),
        lambda files: files.remove_directory("config"),
        lambda files: files.sync_directory("config"),
        lambda files: files.lock("lock"),
        lambda files: files.unlock("lock"),
        lambda files: files.open("config/a").write(0, b"x"),
    ],
)
def test_every_write_raises(root: Path, write: Callable[[FileSystem], None]) -> None:
    with pytest.raises(StorageError) as raised:
        write(ReadOnlyFileSystem(root))
    assert raised.value.errno == errno.EROFS
    assert (root / "config" / "a").read_bytes() == b"abc"


def test_a_removed_file_is_only_hidden(root: Path) -> None:
    files = ReadOnlyFileSystem(root)
    files.remove("config/a")
    files.remove("missing")
    assert not files.exists("config/a")
    assert files.list("config") == []
    with pytest.raises(StorageError):
        files.open("config/a")
    assert (root / "config" / "a").exists()
    assert ReadOnlyFileSystem(root).list("config") == ["a"]


def test_reading(root: Path) -> None:
    files: FileSystem = ReadOnlyFileSystem(root)
    file = files.open("config/a")
    assert (file.path, file.size, bytes(file.view())) == ("config/a", 3, b"abc")
    assert file.view().readonly
    file.sync()
    file.close()
    assert bytes(files.open("empty").view()) == b""
    assert (files.file_size("config/a"), files.read_bytes("config/a")) == (3, b"abc")
    assert (files.is_directory("config"), files.is_directory("config/a")) == (True, False)
    assert files.list("missing") == []
    assert list(ReadOnlyFileSystem(root).walk()) == ["config/a", "empty", "lock"]
    assert files.free_bytes() == 0


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "."])
def test_no_path_leaves_the_store(root: Path, path: str) -> None:
    with pytest.raises(StorageError):
        ReadOnlyFileSystem(root).read_bytes(path)


def test_a_lock_of_another_process_is_seen_and_not_touched(root: Path) -> None:
    files = ReadOnlyFileSystem(root)
    assert not files.is_locked("lock")
    assert not files.is_locked("missing")
    command = [sys.executable, "-c", HOLD_LOCK, str(root / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert files.is_locked("lock")
        holder.communicate()
    assert not files.is_locked("lock")
