"""Bytes of another node's log: appended as they are, or refused with nothing changed."""

from __future__ import annotations

import errno

import pytest

from tests.support.engine import SMALL, open_store, send
from tests.support.raw_runs import RawRun, raw_runs
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_proto.records import blank_record
from trovemq_store.files.faulty import FaultyFileSystem, fail_at
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.raw_append import append_raw
from trovemq_store.settings import StoreSettings

SIZE = SMALL.commit_log_file_size


def written(count: int = 40, settings: StoreSettings = SMALL) -> tuple[MemoryFileSystem, CommitLog]:
    """A leader's files and log, of some segments."""
    files = MemoryFileSystem()
    store = open_store(files, settings)
    for number in range(count):
        send(store, b"%d" % number * (number % 97 * 10 + 1), queue_id=number % 4, keys=f"k{number}")
    return files, store.log


def new_log(files: MemoryFileSystem | FaultyFileSystem | None = None) -> CommitLog:
    return CommitLog(MemoryFileSystem() if files is None else files, SIZE)


def log_files(files: MemoryFileSystem) -> dict[str, bytes]:
    return {name: files.read_bytes(f"commitlog/{name}") for name in files.list("commitlog")}


def state_of(log: CommitLog, files: MemoryFileSystem) -> tuple[PhysicalOffset, dict[str, bytes]]:
    return log.end, log_files(files)


def test_the_files_become_equal_byte_for_byte() -> None:
    leader_files, leader = written()
    files = MemoryFileSystem()
    log, count = new_log(files), 0
    cuts = [run.end for run in raw_runs(leader, LOG_ORIGIN, leader.end, range(leader.end))][::3]
    for run in raw_runs(leader, LOG_ORIGIN, leader.end, cuts):
        count += len(append_raw(log, *run))
    assert len(leader.segments) >= 2
    assert (count, log.end) == (40, leader.end)
    assert log_files(files) == log_files(leader_files)


def test_a_segment_of_which_only_the_blank_is_missing_is_ended() -> None:
    leader_files, leader = written()
    files = MemoryFileSystem()
    log = new_log(files)
    first, *later = raw_runs(leader, LOG_ORIGIN, leader.end)
    append_raw(log, first.physical_offset, first.data[:-8], 0)
    blank = RawRun(log.end, first.data[-8:], first.unused)
    assert len(append_raw(log, *blank)) == 0
    for run in later:
        append_raw(log, *run)
    assert log_files(files) == log_files(leader_files)


@pytest.mark.parametrize("offset", [1, 64, SIZE])
def test_bytes_for_another_offset_than_the_end_are_refused(offset: int) -> None:
    _, leader = written()
    files = MemoryFileSystem()
    log = new_log(files)
    run = next(raw_runs(leader, LOG_ORIGIN, leader.end))
    with pytest.raises(TroveError) as refused:
        append_raw(log, PhysicalOffset(offset), run.data, run.unused)
    assert refused.value.spec is errors.REPLICA_OFFSET_MISMATCH
    assert state_of(log, files) == (0, {})


def changed(data: memoryview, at: int, value: bytes) -> memoryview:
    copy = bytearray(data)
    copy[at : at + len(value)] = value
    return memoryview(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda run, second: (run.data[:0], 0),
        lambda run, second: (run.data[:-9], 0),  # the last record lacks a byte
        lambda run, second: (run.data[:40], 0),
        lambda run, second: (run.data, run.unused - 1),
        lambda run, second: (run.data, 0),
        lambda run, second: (run.data[:-8], run.unused + 8),  # no blank
        lambda run, second: (run.data[:second], run.unused),
        lambda run, second: (run.data[:second], -1),
        lambda run, second: (memoryview(bytes(run.data[:second]) + b"\0" * 8), 0),
        lambda run, second: (memoryview(bytes(run.data[:second]) + blank_record(100)), 92),
        lambda run, second: (memoryview(bytes(run.data) + b"\0" * SIZE), 0),  # more than a segment
        lambda run, second: (changed(run.data, second, b"\0\0\xff"), run.unused),  # TOTALSIZE
        lambda run, second: (changed(run.data, second + 4, b"\0"), run.unused),  # MAGICCODE
        lambda run, second: (changed(run.data, second + 28, b"\0" * 8), run.unused),  # PHYSICALOFFSET
        lambda run, second: (run.data[second:-8], 0),  # of another place
    ],
)
def test_a_run_that_is_not_whole_records_of_its_place_changed_the_log(change) -> None:  # type: ignore[no-untyped-def]
    _, leader = written()
    files = MemoryFileSystem()
    log = new_log(files)
    run = next(raw_runs(leader, LOG_ORIGIN, leader.end))
    assert run.unused > 0
    second = int.from_bytes(run.data[:4])
    data, unused = change(run, second)
    with pytest.raises(TroveError) as refused:
        append_raw(log, LOG_ORIGIN, data, unused)
    assert refused.value.spec is errors.REPLICA_BYTES_ILLEGAL
    assert state_of(log, files) == (0, {})
    append_raw(log, *run)
    assert log.end == run.end


def test_a_record_that_leaves_no_space_for_a_blank_is_refused() -> None:
    _, leader = written(1)
    run = next(raw_runs(leader, LOG_ORIGIN, leader.end))
    log = CommitLog(MemoryFileSystem(), len(run.data) + 7)
    with pytest.raises(TroveError, match="a blank has no space"):
        append_raw(log, *run)


def test_bytes_that_the_disk_did_not_take_are_appended_later() -> None:
    leader_files, leader = written()
    inner = MemoryFileSystem()
    faulty = FaultyFileSystem(inner)
    log = new_log(faulty)
    first, *later = raw_runs(leader, LOG_ORIGIN, leader.end)
    append_raw(log, first.physical_offset, first.data[:-8], 0)
    blank = RawRun(log.end, first.data[-8:], first.unused)
    faulty.tear, faulty.decide = True, fail_at("write", 1, errno.EIO, "commitlog")
    with pytest.raises(TroveError) as refused:
        append_raw(log, *blank)
    assert refused.value.spec is errors.UNKNOWN_ERROR
    assert log.end == blank.physical_offset
    for run in (blank, *later):
        append_raw(log, *run)
    assert log_files(inner) == log_files(leader_files)
