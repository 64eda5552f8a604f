"""Cuts the end of a log that is not the leader's: once begun, it ends at the next start, whatever happens.

A cut in memory alone would come back: after a crash the bytes are still there, and are good records. So:

 1. the bytes are kept in a file under `trovemq/cut/`, synced (cut_records.py);
 2. `trovemq/replica.json` gets `truncating`, and the epochs of the shorter log, synced;
 3. at the next start, before the store is opened: `trovemq/state.json` says no longer that the log was on
    disk beyond the cut; later segments are removed, newest first; the rest of the last one is zeroed, synced;
 4. `truncating` is removed.

Each step may be repeated, so a start after a crash in step 3 or 4 does both again. Then the store is opened
as after a crash. No projection has a record of the part that is cut, because it was not committed.

Invariants
- Nothing below the known commit offset is cut (STORE_DIVERGED).
- Nothing is appended once `truncating` may be on disk: the next start would cut it.
- The log after a crash has all of the part, or nothing of it and the file of step 1.
"""

from __future__ import annotations

import msgspec

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.check import RecordState, check_record
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.log import state
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.recovery import zero_after
from trovemq_store.log.segments import DIRECTORY
from trovemq_store.replica import replica_file
from trovemq_store.replica.cut_records import drop_old_records, keep_records
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.replica_file import ReplicaFile


def keep_tail(
    files: FileSystem, log: CommitLog, epochs: Epochs, end: PhysicalOffset, committed: PhysicalOffset
) -> int:
    """Step 1: the log is to end at `end`; `committed`: the known commit offset. Returns how many bytes are
    dropped, for step 2 (ReplicaFile.begin_truncation).

    TroveError STORE_DIVERGED: nothing has changed; StorageError: nothing will be cut.
    """
    assert committed <= log.end, "committed records are in the log"
    assert end < log.end, "there is something to cut"
    if end < committed:
        raise _diverged(f"the log was to end at {end}, and is committed up to {committed}", end, committed)
    if not _begins_record(log, end):
        raise _diverged(f"the log was to end at {end}, where no record of it begins", end, committed)
    return keep_records(files, log, end, epochs.at(end))


def _diverged(text: str, end: PhysicalOffset, committed: PhysicalOffset) -> TroveError:
    return TroveError(errors.STORE_DIVERGED, text, end=end, committed=committed)


def _begins_record(log: CommitLog, physical_offset: PhysicalOffset) -> bool:
    """Whether a record begins there, or a blank. StorageError if the disk does not return it."""
    segment = log.segments.at(physical_offset)
    if segment is None:
        return False
    view, position = segment.file.view(), physical_offset - segment.start
    segment.file.check_readable(position, len(view))
    found, _ = check_record(view, position, len(view), physical_offset=physical_offset, check_crc=False)
    return found in (RecordState.RECORD, RecordState.BLANK)


def finish_truncation(files: FileSystem, file_size: int) -> bool:
    """Steps 3 and 4, before the store is opened. Whether the log was cut.

    TroveError STORE_NEWER, STORE_FAILED, STORE_SETTINGS_MISMATCH; StorageError: the next start tries again.
    """
    if not files.exists(replica_file.PATH):
        return False
    replica = ReplicaFile.open(files)
    end = replica.state.truncating
    if end is None:
        return False
    _lower_state(files, end)
    log = CommitLog(files, file_size)
    try:
        log.segments.load(end)
        _cut(files, log, end)
    finally:
        log.close()
    drop_old_records(files)
    fault_point("truncation.before_end")
    replica.end_truncation()
    return True


def _lower_state(files: FileSystem, end: PhysicalOffset) -> None:
    saved = state.load(files)
    if saved is None or saved.log_end <= end:
        return
    runs = saved.time_runs
    fault_point("truncation.before_state")
    state.save(
        files,
        msgspec.structs.replace(
            saved,
            log_end=end,
            consume_queue_position=min(saved.consume_queue_position, end),
            key_index_position=min(saved.key_index_position, end),
            key_index_closed=False,
            time_runs=None if runs is None else [run for run in runs if run[0] < end],
        ),
    )


def _cut(files: FileSystem, log: CommitLog, end: PhysicalOffset) -> None:
    log.segments.drop_from(end)
    fault_point("truncation.after_drop")
    files.sync_directory(DIRECTORY)
    zero_after(files, log, end)
    segment = log.segments.at(end)
    if segment is not None:
        segment.file.sync()  # also where an earlier start wrote the zeros, and was killed before its sync
    fault_point("truncation.after_zero")
