"""Reading the log forwards as runs of records, telling its end from damage in the middle.

What stands at a position is one of five things (trovemq_proto.records.check): a record, a blank (go on in the
next segment), zeros, a torn record, or a damaged one. Below the known end nothing may be missing: there
zeros, torn and damaged bytes are *damage*, which is reported, and reading goes on at the next record that
names its own position. At or behind the known end the first of them is the end of the log.
What lies behind the known end was perhaps never synced: a record there that lost a sector (see
broker.log.sectors) is a torn one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from broker.log.commit_log import CommitLog
from broker.log.sectors import count_whole
from broker.log.segments import Segment
from broker.projection import DispatchBatch
from trovemq_proto.records.check import RecordState, check_record
from trovemq_proto.records.scan import scan_run

RUN_BYTES_MAX: Final = 1 << 20
_RESYNC_CHUNK_MIN: Final = 1 << 12
_RESYNC_CHUNK_MAX: Final = 1 << 20
_MAGIC_POSITION: Final = 4


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [physical_offset, end) of the log that are no good record, below the known end."""

    physical_offset: int
    end: int
    state: RecordState


@dataclass(slots=True)
class LogReader:
    """Reads from `position` on. After the iteration `position` is where it stopped.

    `known_end`: the log is known to reach to here. `limit`: nothing at or behind it is looked at (None: read
    until the log's own end). `damages` lists what was passed over.
    """

    log: CommitLog
    position: int
    known_end: int
    limit: int | None = None
    check_crc: bool = True
    run_bytes_max: int = RUN_BYTES_MAX
    damages: list[Damage] = field(default_factory=list)
    damaged_bytes: int = 0

    def __iter__(self) -> Iterator[DispatchBatch]:
        """Runs of good records in log order; `alive` is not filled in."""
        while self.limit is None or self.position < self.limit:
            self.position = max(self.position, self.log.min_offset)  # retention may go on beside
            segment = self.log.segments.at(self.position)
            if segment is None:
                return
            run, state = self._next_run(segment)
            if run is not None:
                yield run
            if state is RecordState.RECORD:
                continue
            if state is RecordState.BLANK:
                self.position = segment.end
            elif self.position < self.known_end:
                self._pass_damage(segment, state)
            else:
                return

    def _next_run(self, segment: Segment) -> tuple[DispatchBatch | None, RecordState]:
        """The good records from `position` on, and what stands behind them."""
        view = segment.file.view()
        limit = (
            segment.file.size if self.limit is None else min(segment.file.size, self.limit - segment.start)
        )
        begin = self.position - segment.start
        records, end, state = scan_run(
            view,
            begin,
            limit,
            physical_offset_of_data=segment.start,
            check_crc=self.check_crc,
            bytes_max=self.run_bytes_max,
        )
        if self.limit is None and segment.start + end > self.known_end:
            whole = count_whole(records, self.known_end - segment.start)
            if whole < len(records):
                end, state = int(records.positions[whole]), RecordState.TORN
                records = records.head(whole)
        if len(records) == 0:
            return None, state
        self.position = segment.start + end
        return DispatchBatch(records, segment.start, self.position), state

    def _pass_damage(self, segment: Segment, state: RecordState) -> None:
        damaged_from = self.position
        begin = damaged_from + 1
        if state is RecordState.DAMAGED:
            # Its lengths are right: what looks like a record within its body is none.
            view, position = segment.file.view(), damaged_from - segment.start
            begin += check_record(view, position, len(view), physical_offset=damaged_from)[1] - 1
        self.position = find_record(segment, begin)
        self.damages.append(Damage(damaged_from, self.position, state))
        self.damaged_bytes += self.position - damaged_from


def find_record(segment: Segment, physical_offset: int) -> int:
    """The first good record from `physical_offset` on that names its own position; else the segment's end."""
    view = segment.file.view()
    data = np.frombuffer(view, dtype=np.uint8)
    chunk = physical_offset - segment.start + _MAGIC_POSITION
    size = _RESYNC_CHUNK_MIN
    while chunk < len(data):
        window = data[chunk : chunk + size + 3]
        hits = (window[:-3] == 0xDA) & (window[1:-2] == 0xA3) & (window[2:-1] == 0x20)
        for hit in np.flatnonzero(hits):
            position = chunk + int(hit) - _MAGIC_POSITION
            state, _ = check_record(
                view, position, len(data), physical_offset=segment.start + position, check_crc=True
            )
            if state is RecordState.RECORD:
                return segment.start + position
        chunk += size
        size = min(2 * size, _RESYNC_CHUNK_MAX)
    return segment.end
