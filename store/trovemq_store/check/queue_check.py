"""Consume queues against the log: every record of a queue has its unit, and every unit has its record.

Invariant: of each queue the units below `next` (and at or after `first`) have been compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId
from trovemq_store.check.checked_store import CheckedStore, QueueUnits
from trovemq_store.check.findings import Findings
from trovemq_store.check.layouts import Records
from trovemq_store.check.queue_rules import (
    UnknownPlaces,
    by_queue,
    report_surplus,
    report_unequal,
    surplus_units,
    units_of,
)
from trovemq_store.index.consume_queue import ROOT_DIRECTORY, UNIT_SIZE
from trovemq_store.log.projection import DispatchBatch

_UNITS_AT_ONCE: Final = 16_384
_QUEUES_AT_ONCE: Final = 32
DAMAGES_MAX: Final = 65_536
"""The number of damaged places that are kept, to recognise the units of their records."""

Int64s = NDArray[np.int64]


@dataclass(slots=True)
class _Seen:
    """The log's view of one queue: its messages [first, end), compared up to `next`."""

    first: int
    end: int
    next: int


class QueueCheck:
    """Feed it every run and damage of the log, in order, then finish(). The iterators are steps.

    begun_at: where a live store's log ended when the check began; topics deleted after it were deleted since.
    """

    def __init__(
        self, store: CheckedStore, findings: Findings, begun_at: PhysicalOffset = LOG_ORIGIN
    ) -> None:
        self._store = store
        self._begun_at = begun_at
        self._findings = findings
        self._seen: dict[tuple[str, QueueId], _Seen] = {}
        self._unknown = UnknownPlaces()
        self.unit_count = 0

    def damage(self, begin: PhysicalOffset, end: PhysicalOffset) -> None:
        """Nothing is known of the records of [begin, end): they may have units."""
        if len(self._unknown) < DAMAGES_MAX:
            self._unknown.add(begin, end)

    def run(self, run: DispatchBatch) -> Iterator[None]:
        expected = units_of(run)
        for number, (key, indexes) in enumerate(by_queue(run)):
            self._compare(key, run.records.queue_offsets[indexes], expected[indexes])
            if number % _QUEUES_AT_ONCE == _QUEUES_AT_ONCE - 1:
                yield

    def _floor(self, topic: str) -> PhysicalOffset:
        """Records below this offset may have units, but need not."""
        return max(self._store.min_offset, self._store.deleted_below(topic))

    def _compare(self, key: tuple[str, QueueId], offsets: Int64s, expected: Records) -> None:
        kept = expected["physical_offset"] >= self._floor(key[0])  # trimmed or deleted meanwhile
        if not kept.all():
            offsets, expected = offsets[kept], expected[kept]
        if not len(offsets):
            return
        seen = self._seen.get(key)
        if seen is None:
            first = int(offsets[0])
            seen = self._seen[key] = _Seen(first, first, first)
        seen.first = min(seen.first, int(offsets.min()))
        seen.end = max(seen.end, int(offsets.max()) + 1)
        queue = self._store.queue(*key)
        if queue is None:
            return
        within = offsets < queue.end
        offsets, expected = offsets[within], expected[within]
        if not len(offsets):
            return
        self._check_gaps(queue, seen, offsets)
        actual = queue.at(offsets)
        for i in np.flatnonzero(actual != expected).tolist():
            report_unequal(self._findings, queue, int(offsets[i]), actual[i], expected[i])
        self.unit_count += len(offsets)

    def _check_gaps(self, queue: QueueUnits, seen: _Seen, offsets: Int64s) -> None:
        """Checks the units between those of the records: only damaged records may have them."""
        ends = np.maximum.accumulate(np.r_[seen.next, offsets + 1])
        for i in np.flatnonzero(offsets > ends[:-1]).tolist():
            for begin in range(int(ends[i]), int(offsets[i]), _UNITS_AT_ONCE):
                units = queue.units(begin, min(begin + _UNITS_AT_ONCE, int(offsets[i])))
                self._check_outside(queue, begin, units, None)
        seen.next = int(ends[-1])

    # --- the end ------------------------------------------------------------------------------------
    def finish(self, end: PhysicalOffset) -> Iterator[None]:
        """Call after the last run; the checked part of the log ends at `end`."""
        for key, seen in list(self._seen.items()):
            self._check_missing(key, seen)
            yield
        for key in self._store.queue_keys():
            queue = self._store.queue(*key)
            if queue is not None:
                yield from self._check_surplus(queue, self._seen.get(key), end)

    def _check_missing(self, key: tuple[str, QueueId], seen: _Seen) -> None:
        topic, queue_id = key
        queue = self._store.queue(topic, queue_id)
        queue_end = 0 if queue is None else queue.end
        if queue_end >= seen.end or (self._store.live and self._deleted_since(topic)):
            return
        if queue is None:
            path, at = f"{ROOT_DIRECTORY}/{topic}/{queue_id}", seen.first * UNIT_SIZE
        else:
            path, at = queue.place(queue_end)
        what = f"units {max(queue_end, seen.first)} to {seen.end - 1} are missing"
        self._findings.add(path, at, what, note=not self._store.clean)

    def _deleted_since(self, topic: str) -> bool:
        return self._store.deleted_below(topic) > self._begun_at

    def _check_surplus(self, queue: QueueUnits, seen: _Seen | None, end: PhysicalOffset) -> Iterator[None]:
        """Checks the units before and after those of the records in the log."""
        if self._store.live and self._deleted_since(queue.topic):
            return
        first, last = (seen.first, seen.next) if seen is not None else (queue.end, queue.end)
        for begin, stop in ((queue.first, min(first, queue.end)), (last, queue.end)):
            for chunk in range(begin, stop, _UNITS_AT_ONCE):
                if chunk < queue.first:
                    continue  # its file was removed meanwhile
                units = queue.units(chunk, min(chunk + _UNITS_AT_ONCE, stop))
                self._check_outside(queue, chunk, units, end)
                yield
                if self._store.live and len(units) and int(units["physical_offset"][0]) >= end:
                    break  # they were added meanwhile

    def _check_outside(
        self, queue: QueueUnits, first: int, units: Records, end: PhysicalOffset | None
    ) -> None:
        """Checks units without records. They may be blanks, or of a trimmed log, of damaged records or of
        deleted topics; in a live store also of records at or after `end`."""
        surplus = surplus_units(units, self._floor(queue.topic), self._unknown)
        if self._store.live and end is not None:
            surplus &= units["physical_offset"] < end
        found = np.flatnonzero(surplus)
        report_surplus(self._findings, queue, first + found, units[found], end, clean=self._store.clean)


def with_alive(store: CheckedStore, run: DispatchBatch) -> DispatchBatch:
    """The run with its records of deleted topics marked, as they are at this moment."""
    return replace(run, alive=store.alive_mask(run.records, run.physical_offset))
