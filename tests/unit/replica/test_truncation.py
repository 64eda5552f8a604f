"""Cuts of the log's end: complete at the next start, kept in a file, and never below the commit offset."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.atomic import SEGMENT
from tests.support.cut_group import Group
from tests.support.engine import NOW_MS
from tests.support.followers import Leader, bodies, commit, files_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.replica.cut_records import cut_files, decoded, drop_old_records, keep_records
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.replica_file import ReplicaFile
from trovemq_store.replica.truncation import finish_truncation


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 30), st.integers(50, 4_000), st.integers(1, 12))
def test_a_cut_log_is_as_if_it_had_never_been_longer(lost: int, size: int, since: int) -> None:
    group = Group(lost=lost, size=size, since=since)
    group.cut()
    group.check_follows(group.reopened(), group.files)


def test_a_tail_that_was_cut_came_back() -> None:
    group = Group(lost=30, size=3_000)
    assert len(group.store.log.segments) > 2
    group.cut()
    store = group.reopened()
    assert store.end_offset == group.agreed
    segment = store.log.segments.last
    assert not any(segment.file.view()[group.agreed - segment.start :])
    assert store.segment_count == 1
    replica = ReplicaFile.open(group.files)
    assert (replica.state.truncating, replica.epochs) == (None, Epochs.of([(1, 0)]))
    group.check_follows(store, group.files)


def test_the_cut_records_are_in_a_file() -> None:
    group = Group()
    before = group.store.log.read(LOG_ORIGIN, group.store.end_offset).tobytes()
    group.cut()
    (path,) = cut_files(group.files.after_power_cut())
    found = decoded(group.files.read_bytes(path))
    assert path == found.path == f"trovemq/cut/2-{group.agreed:020d}"
    assert (found.cut_at, found.kept_from, found.end) == (group.agreed, group.agreed, len(before))
    assert found.data == before[group.agreed :]
    assert ReplicaFile.open(group.files).state.cut_bytes_dropped == 0


def test_nothing_below_the_commit_offset_is_cut() -> None:
    group = Group()
    before = files_of(group.files, "commitlog")
    for limit, cut_at in ((group.committed, group.committed - 1), (group.store.end_offset, group.agreed)):
        group.store.limit_commits(PhysicalOffset(limit))
        with pytest.raises(TroveError) as refused:
            group.store.begin_truncation(group.replica, PhysicalOffset(cut_at))
        assert refused.value.spec is errors.STORE_DIVERGED
    assert group.replica.state.truncating is None
    assert (cut_files(group.files), files_of(group.files, "commitlog")) == ([], before)
    commit(group.store, group.store.end_offset)
    assert bodies(group.store) == group.first.visible_below(group.store.end_offset)


def test_a_cut_within_a_record_is_refused() -> None:
    group = Group()
    with pytest.raises(TroveError, match="no record of it begins") as refused:
        group.store.begin_truncation(group.replica, PhysicalOffset(group.agreed + 1))
    assert refused.value.spec is errors.STORE_DIVERGED
    assert group.replica.state.truncating is None


def test_a_store_that_is_to_be_cut_takes_no_records() -> None:
    group = Group()
    group.store.begin_truncation(group.replica, group.agreed)
    with pytest.raises(TroveError) as refused:
        group.store.append_raw(group.store.end_offset, memoryview(b""))
    assert refused.value.spec is errors.STORE_FAILED
    with pytest.raises(TroveError) as refused:
        group.store.begin_truncation(group.replica, group.agreed)
    assert refused.value.spec is errors.STORE_FAILED


def test_a_single_broker_has_nothing_to_cut() -> None:
    files = MemoryFileSystem()
    MessageStore.open(files, SEGMENT, NOW_MS).close(NOW_MS)
    before = sorted(files._files)
    assert not finish_truncation(files, SEGMENT.commit_log_file_size)
    assert sorted(files._files) == before


# --- the files of cut records -----------------------------------------------------------------------------
def kept(files: MemoryFileSystem, log: CommitLog, at: int, epoch: int, kept_max: int) -> int:
    dropped = keep_records(files, log, PhysicalOffset(at), epoch, kept_max)
    drop_old_records(files, kept_max)
    return dropped


def test_of_a_long_tail_the_newest_whole_records_are_kept() -> None:
    leader, files = Leader(), MemoryFileSystem()
    for _ in range(30):
        leader.send("orders", 0, 2, 1_500)
    log, ends = leader.store.log, leader.record_ends
    dropped = kept(files, log, ends[1], 7, 10_000)
    (path,) = cut_files(files)
    found = decoded(files.read_bytes(path))
    assert found.kept_from in ends
    assert 8_000 < len(found.data) <= 10_000
    assert dropped == found.kept_from - ends[1]
    assert found.data.endswith(bytes(log.read(PhysicalOffset(ends[-2]), ends[-1] - ends[-2])))


def test_older_files_are_counted_and_removed() -> None:
    leader, files = Leader(), MemoryFileSystem()
    leader.send("orders", 0, 20, 1_000)
    log, ends = leader.store.log, leader.record_ends
    assert [kept(files, log, ends[at], epoch, 10_000) for epoch, at in ((2, -4), (3, -5))] == [0, 0]
    assert kept(files, log, ends[-4], 10, 10_000) == ends[-1] - ends[-4]
    assert [path.split("/")[-1].split("-")[0] for path in cut_files(files)] == ["3", "10"]
    leader.send("orders", 0, 1, 1_000)
    assert kept(files, log, ends[-4], 10, 10_000) == ends[-1] - ends[-4], "another tail of that place"


@pytest.mark.parametrize("at", [0, 7, 11, 15, 23, 40, -1])
def test_a_damaged_file_of_cut_records_is_noticed(at: int) -> None:
    group = Group()
    group.cut()
    content = bytearray(group.files.read_bytes(cut_files(group.files)[0]))
    content[at] ^= 1
    if at == 11:  # the epoch alone has no check: the name has it too
        assert decoded(bytes(content)).path not in cut_files(group.files)
        return
    if at == 23:  # nor has the place of the cut
        assert decoded(bytes(content)).cut_at != group.agreed
        return
    with pytest.raises(ValueError, match="damaged"):
        decoded(bytes(content))
    with pytest.raises(ValueError, match="too short"):
        decoded(bytes(content[:39]))


def test_a_cut_that_finds_no_space_has_cut_nothing() -> None:
    group = Group()
    group.files.capacity = group.files.used_bytes()
    for number in range(8):
        group.files.remove(f"trovemq/reserve-{number}")
    group.files.capacity = group.files.used_bytes()
    with pytest.raises(StorageError):
        group.store.begin_truncation(group.replica, group.agreed)
    assert group.replica.state.truncating is None
    group.files.capacity = None
    commit(group.store, group.store.end_offset)
    assert bodies(group.store) == group.first.visible_below(group.store.end_offset)
