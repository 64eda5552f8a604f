"""Where a log ends without the atomic run in the middle of which it ends.

A leader's frames end at records, also within a run. So a follower may have the first records of one whose
rest it will never get: its leader is gone, and it is promoted itself. They were not committed, because a
commit is the end of an append. A node cuts them off before the first record of the epoch that it leads: else
each start would find a run that lacks records in the middle of the log.
"""

from __future__ import annotations

from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.run_mark import read_mark
from trovemq_proto.records.scan import scan_run
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.reader import LogReader
from trovemq_store.log.whole_runs import WholeRuns


def whole_end(log: CommitLog, committed: PhysicalOffset) -> PhysicalOffset:
    """The log's end, or where the run begins that lacks its last records there. `committed`: the known commit
    offset; nothing before it is read. StorageError."""
    runs = WholeRuns(LogReader(log, committed, log.end, limit=log.end, check_crc=False))
    for _ in runs:
        pass
    if runs.unfinished and runs.unfinished[-1].end == log.end:
        return runs.unfinished[-1].physical_offset
    return log.end


def whole_until(data: bytes | memoryview, physical_offset: PhysicalOffset) -> PhysicalOffset:
    """Where these bytes of a log end without such a run, which may have begun before them."""
    view = memoryview(data)
    records, end, _ = scan_run(
        view,
        0,
        len(view),
        physical_offset_of_data=physical_offset,
        check_crc=False,
        bytes_max=len(view),
    )
    if end == len(view) and len(records):
        last = RecordBatch(records.data, records.positions[-1:], records.sizes[-1:], records.topic)
        at = PhysicalOffset(physical_offset + int(last.positions[0]))
        mark = read_mark(last, 0, at)
        if mark is not None and mark.number + 1 < mark.record_count:
            return mark.begin
    return PhysicalOffset(physical_offset + len(view))
