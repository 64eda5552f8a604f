"""A log that begins again at a later offset: complete at the next start, whatever came between."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.atomic import SEGMENT
from tests.support.engine import NOW_MS
from tests.support.followers import Leader, bodies, commit, copy, files_of, follower
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.files import FileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.new_log import PATH, begin_new_log
from trovemq_store.replica.replica_file import ReplicaFile

BEGIN = PhysicalOffset(3 * SEGMENT.commit_log_file_size)
EPOCHS = Epochs.of([(1, 0), (5, 500)])


class Killed(Exception):  # noqa: N818 - as a process is
    """The process is gone."""


@dataclass
class Counted:
    """Lets `left` changes of the files pass."""

    left: int

    def after(self, change: Any) -> Any:
        def counted(*args: Any, **named: Any) -> Any:
            if self.left <= 0:
                raise Killed
            self.left -= 1
            return change(*args, **named)

        return counted


def with_old_log() -> MemoryFileSystem:
    files = MemoryFileSystem()
    begin_again(files)
    return files


def begin_again(files: FileSystem) -> None:
    """A follower's store with records, whose log is to begin again."""
    leader = Leader()
    for number in range(20):
        leader.send("orders", number % 2, 3, 900)
    replica = ReplicaFile.open(files)
    replica.promise(9)
    replica.begin_epoch(1, LOG_ORIGIN)
    store = MessageStore.open(files, SEGMENT, NOW_MS, commit_limit=LOG_ORIGIN)
    copy(leader.store, store)
    commit(store, store.end_offset)
    store.flush_projections(index=True)
    store.topics.create("orders", queue_count=2)
    store.begin_new_log(BEGIN, EPOCHS)
    with pytest.raises(TroveError) as caught:
        store.append_raw(store.end_offset, memoryview(b"x"))
    assert caught.value.spec is errors.STORE_FAILED
    store.close(NOW_MS)


def check_empty(files: MemoryFileSystem) -> MessageStore:
    store = follower(files, BEGIN)
    assert store.min_offset == store.end_offset == store.flushed_offset == BEGIN
    assert bodies(store) == {}
    assert store.topics.get("orders") is not None
    replica = ReplicaFile.open(files)
    assert (replica.promised_epoch, replica.epochs) == (9, EPOCHS)
    assert not files.exists(PATH)
    return store


def test_a_log_begins_again_at_the_next_start() -> None:
    check_empty(with_old_log()).close(NOW_MS)


def test_a_log_on_a_real_disk_begins_again(tmp_path: Path) -> None:
    files = RealFileSystem(tmp_path)
    begin_again(files)
    store = MessageStore.open(files, SEGMENT, NOW_MS, commit_limit=BEGIN)
    assert store.min_offset == store.end_offset == BEGIN
    store.close(NOW_MS)
    assert [one.name for one in (tmp_path / "commitlog").iterdir()] == [f"{BEGIN:020d}"]


def test_the_new_log_takes_the_leaders_records() -> None:
    leader = Leader()
    for number in range(60):
        leader.send("orders", number % 2, 3, 900)
    while (work := leader.store.begin_flush()) is not None:
        work.run()
        leader.store.finish_flush(work)
    leader.store.flush_projections()
    trim_now(leader.store.trim(BEGIN))
    files = with_old_log()
    store = check_empty(files)
    copy(leader.store, store)
    commit(store, store.end_offset)
    assert bodies(store) == bodies(leader.store) != {}
    assert files_of(files, "commitlog") == files_of(leader.files, "commitlog")
    store.close(NOW_MS)
    again = follower(files, store.end_offset)
    assert bodies(again) == bodies(leader.store)


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_crash_at_each_change_is_repaired_by_the_next_start(power_cut: bool) -> None:
    begun = with_old_log()
    for changes in range(1_000):
        files = begun.after_process_kill()
        counted = Counted(changes)
        for name in ("remove", "create", "write_atomic", "sync_directory", "rename", "remove_directory"):
            setattr(files, name, counted.after(getattr(files, name)))
        try:
            follower(files, BEGIN)
            break
        except Killed:
            pass
        survivor = files.after_power_cut() if power_cut else files.after_process_kill()
        check_empty(survivor)
    assert changes > 20, "each change was tried"


@pytest.mark.parametrize(
    ("content", "spec"),
    [
        (b"{", errors.STORE_FAILED),
        (b'{"format": 2, "begin": 0}', errors.STORE_NEWER),
        (b'{"format": 1, "begin": 7}', errors.STORE_FAILED),
        (b'{"format": 1, "begin": 0, "epochs": [[2, 0], [1, 5]]}', errors.STORE_FAILED),
        (b'{"format": 1, "begin": 0, "crc32": "00000000"}', errors.STORE_FAILED),
    ],
)
def test_a_damaged_file_removes_nothing(content: bytes, spec: errors.ErrorSpec) -> None:
    files = with_old_log()
    before = files_of(files, "commitlog")
    files.write_atomic(PATH, content)
    with pytest.raises(TroveError) as caught:
        follower(files, BEGIN)
    assert caught.value.spec is spec
    assert files_of(files, "commitlog") == before != {}


def test_a_store_without_the_file_is_opened_as_it_is() -> None:
    files = MemoryFileSystem()
    store = follower(files)
    assert store.min_offset == LOG_ORIGIN
    begin_new_log(files, BEGIN, Epochs())
    assert files.exists(PATH)
