"""A projection's syncs: each file, or very many of them at once."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from trovemq_store.files import whole_sync
from trovemq_store.files.faulty import FaultyFileSystem, fail_always
from trovemq_store.files.files import File, StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.index.dirty_files import MANY, DirtyFiles


class CountingFiles(MemoryFileSystem):
    """Counts the syncs; `whole` is the answer of sync_all."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.whole = whole
        self.whole_syncs = 0
        self.opened = 0
        self.directories = 0

    def sync_all(self) -> bool:
        self.whole_syncs += 1
        return self.whole

    def open(self, path: str) -> File:
        self.opened += 1
        return super().open(path)

    def sync_directory(self, directory: str) -> None:
        self.directories += 1
        super().sync_directory(directory)


def dirty_files(files: MemoryFileSystem, count: int) -> DirtyFiles:
    made = DirtyFiles(files)
    for number in range(count):
        files.create(f"queues/{number}/0", 64, preallocate=True).close()
        made.mark_created(f"queues/{number}/0")
    return made


def test_a_start_and_a_stop_synced_tens_of_thousands_of_files_one_by_one() -> None:
    files = CountingFiles(whole=True)
    dirty = dirty_files(files, MANY)
    dirty.sync()
    assert (files.whole_syncs, files.opened, files.directories) == (1, 0, 0)
    dirty.sync()
    assert files.whole_syncs == 1, "nothing is left to sync"


def test_where_the_system_cannot_sync_all_each_file_is_synced() -> None:
    files = CountingFiles(whole=False)
    dirty_files(files, MANY).sync()
    assert (files.whole_syncs, files.opened, files.directories) == (1, MANY, MANY + 2)


def test_few_files_are_synced_each() -> None:
    files = CountingFiles(whole=True)
    dirty_files(files, 10).sync()
    assert (files.whole_syncs, files.opened) == (0, 10)


def test_a_sync_that_fails_among_many_is_final() -> None:
    inner = MemoryFileSystem()
    dirty_files(inner, MANY)
    files = FaultyFileSystem(inner, fail_always("sync", errno.EIO))
    dirty = DirtyFiles(files)
    for number in range(MANY):
        dirty.mark_created(f"queues/{number}/0")
    for _ in range(2):
        with pytest.raises(StorageError):
            dirty.sync()


def test_the_real_one_is_used_only_while_the_store_is_locked(tmp_path: Path) -> None:
    files = RealFileSystem(tmp_path)
    assert not files.sync_all()
    files.lock("lock")
    file = files.create("a/b", 4_096, preallocate=True)
    file.write(0, b"x")
    file.close()
    assert files.sync_all() in (True, False), "which of them depends on the file system"
    files.unlock("lock")
    assert not files.sync_all()


def test_it_is_not_believed_where_the_system_does_not_name_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_sync, "_kind", lambda _: "ext4")
    monkeypatch.setattr(whole_sync, "_linux", lambda: (5, 8))
    assert whole_sync.WholeSync(str(tmp_path)).run()
    monkeypatch.setattr(whole_sync, "_linux", lambda: (5, 7))
    assert not whole_sync.WholeSync(str(tmp_path)).run()
    monkeypatch.setattr(whole_sync, "_linux", lambda: (6, 1))
    monkeypatch.setattr(whole_sync, "_kind", lambda _: "overlay")
    assert not whole_sync.WholeSync(str(tmp_path)).run()


def test_the_kernel_and_the_file_system_are_known(tmp_path: Path) -> None:
    assert whole_sync._linux() > (2, 0)
    with (tmp_path / "f").open("wb") as file:
        assert isinstance(whole_sync._kind(file.fileno()), str)
