"""Runs of records that another node's frames brought, kept until they may be applied: so they are neither
read from the log again nor copied, and their columns are those of the check before the append.

They are a part of the log's end only: records that are missing here are read from the log.

Invariants
- The runs continue each other, and lie at the end of the log. Each begins with its first record.
- The records of an atomic transaction (trovemq_proto.records.run_mark) are in one run; a frame that ends or
  begins within one is not kept.
- A run is here until the batch that was made of it has been applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_store.index.undispatched import count_whole, records_below
from trovemq_store.log.projection import DispatchBatch

KEPT_BYTES_MAX: Final = 16 << 20
"""Of records that wait for their commit: as much as a follower may have that it has not reported."""


class KeptRuns:
    """Runs that were appended last."""

    def __init__(self) -> None:
        self._runs: deque[DispatchBatch] = deque()
        self._size = 0
        self._whole = False
        """Whether no transaction lacks its last records where the log ends; at first that is not known."""

    @property
    def begin(self) -> PhysicalOffset | None:
        """Where the first run begins; None if there is none."""
        return self._runs[0].physical_offset if self._runs else None

    def add(self, run: DispatchBatch) -> None:
        """Keeps the run, which was just appended, if it is fit for it. It owns its bytes."""
        follows, self._whole = self._whole, count_whole(run) == len(run.records)
        if self._size + run.records.nbytes > KEPT_BYTES_MAX or not (follows and self._whole):
            self.clear()
        else:
            self._runs.append(run)
            self._size += run.records.nbytes

    def clear(self) -> None:
        self._runs.clear()
        self._size = 0

    def below(self, end: PhysicalOffset) -> Iterator[DispatchBatch]:
        """The runs below `end`, as far as they are whole; each leaves when the next one is asked for."""
        while self._runs and self._runs[0].physical_offset < end:
            run, rest = self._runs[0], None
            if run.end > end:
                count = count_whole(records_below(run, end))
                if not count:
                    return
                run, rest = _split(run, count)
            yield run
            self._runs.popleft()
            self._size -= run.records.nbytes
            if rest is not None:
                self._runs.appendleft(rest)


def _split(run: DispatchBatch, count: int) -> tuple[DispatchBatch, DispatchBatch]:
    """The first records, and the others, of which there may be none: then a blank follows."""
    data, positions, sizes = run.records.data, run.records.positions, run.records.sizes
    at = int(positions[count - 1] + sizes[count - 1])
    head = RecordBatch(data[:at], positions[:count], sizes[:count])
    tail = RecordBatch(data[at:], positions[count:] - at, sizes[count:])
    middle = PhysicalOffset(run.physical_offset + at)
    return DispatchBatch(head, run.physical_offset, middle), DispatchBatch(tail, middle, run.end)
