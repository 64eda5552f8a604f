"""The bytes of a store's log as a leader would send them to another node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.check import RecordState, check_record
from trovemq_proto.records.layout import BLANK_SIZE
from trovemq_store.log.commit_log import CommitLog


class RawRun(NamedTuple):
    """Bytes of one segment, which may end with its blank; `unused`: the segment's bytes after that."""

    physical_offset: PhysicalOffset
    data: memoryview
    unused: int

    @property
    def end(self) -> PhysicalOffset:
        return PhysicalOffset(self.physical_offset + len(self.data) + self.unused)


def raw_runs(
    log: CommitLog, begin: PhysicalOffset, end: PhysicalOffset, cuts: Iterable[int] = ()
) -> Iterator[RawRun]:
    """The log's bytes of [begin, end), cut at the ends of segments, and at `cuts`, which lie between
    records."""
    wanted, at = set(cuts), begin
    while at < end:
        segment = log.segments.at(at)
        assert segment is not None
        view, position, unused = segment.file.view(), at - segment.start, 0
        while segment.start + position < end:
            state, size = check_record(
                view, position, len(view), physical_offset=segment.start + position, check_crc=False
            )
            if state is RecordState.BLANK:
                unused = size - BLANK_SIZE
                position += BLANK_SIZE
                break
            assert state is RecordState.RECORD, (at, position, state)
            position += size
            if segment.start + position in wanted:
                break
        first = at - segment.start
        run = RawRun(at, memoryview(bytes(view[first:position])), unused)
        yield run
        at = run.end
