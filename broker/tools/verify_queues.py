"""Consume queues against the log: every record of a queue has its unit, and every unit has its record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.index.consume_queue import BLANK_SIZE, UNIT_DTYPE
from broker.projection import DispatchBatch
from broker.tools.findings import Findings
from broker.tools.layouts import QueueView
from broker.tools.store_view import StoreView

_TRANSACTION_MASK: Final = 0xC
_TRANSACTION_COMMIT: Final = 0x8
_UNITS_AT_ONCE: Final = 65_536


@dataclass(slots=True)
class _Seen:
    """What the log says of one queue: its units [first, end), and how many of them are right."""

    first: int
    end: int
    count: int = 0


def unit_indexes(run: DispatchBatch) -> NDArray[np.int64]:
    """The records of a run that get a consume-queue unit: neither prepared nor rolled back nor deleted."""
    kind = run.records.sys_flags & _TRANSACTION_MASK
    wanted = (kind == 0) | (kind == _TRANSACTION_COMMIT)
    return np.flatnonzero(wanted if run.alive is None else wanted & run.alive)


def units_of(run: DispatchBatch) -> NDArray[np.void]:
    """The unit that each record of a run should have (also of those that get none)."""
    units = np.empty(len(run.records), UNIT_DTYPE)
    units["physical_offset"] = run.physical_offset + run.records.positions
    units["size"] = run.records.sizes
    units["tags_code"] = run.records.tags_codes()
    return units


def by_queue(run: DispatchBatch) -> Iterator[tuple[tuple[str, int], NDArray[np.int64]]]:
    """((topic, queue id), indexes of its records that get a unit, in log order) for each queue of a run."""
    wanted = np.zeros(len(run.records), np.bool_)
    wanted[unit_indexes(run)] = True
    for topic, indexes in run.records.topic_groups():
        mine = indexes[wanted[indexes]]
        queue_ids = run.records.queue_ids[mine]
        for queue_id in np.unique(queue_ids).tolist():
            yield (topic, queue_id), mine[queue_ids == queue_id]


class QueueCheck:
    """Feed it every run of the log, then finish()."""

    def __init__(self, view: StoreView, findings: Findings) -> None:
        self._view = view
        self._findings = findings
        self._queues = {(queue.topic, queue.queue_id): queue for queue in view.queues}
        self._seen: dict[tuple[str, int], _Seen] = {}

    def run(self, run: DispatchBatch) -> None:
        expected = units_of(run)
        for key, indexes in by_queue(run):
            self._compare(key, run.records.queue_offsets[indexes], expected[indexes])

    def _compare(self, key: tuple[str, int], offsets: NDArray[np.int64], expected: NDArray[np.void]) -> None:
        seen = self._seen.setdefault(key, _Seen(int(offsets[0]), int(offsets[0])))
        seen.first = min(seen.first, int(offsets.min()))
        seen.end = max(seen.end, int(offsets.max()) + 1)
        queue = self._queues.get(key) or QueueView(*key, [])
        actual = queue.at(offsets)
        within = offsets < queue.end
        for i in np.flatnonzero(within & (actual != expected)):
            path, at = queue.place(int(offsets[i]))
            self._findings.add(
                path, at, f"unit {offsets[i]} is {_text(actual[i])}, the log says {_text(expected[i])}"
            )
        seen.count += int(np.count_nonzero(within & (actual == expected)))

    def finish(self, end: int) -> None:
        """After the last run; `end` is the log's end."""
        for key, seen in self._seen.items():
            queue = self._queues.get(key) or QueueView(*key, [])
            if queue.end < seen.end:
                path, at = queue.place(queue.end)
                what = f"units {max(queue.end, seen.first)} to {seen.end - 1} are missing"
                self._findings.add(path, at, what, note=not self._view.clean)
        for queue in self._queues.values():
            self._check_surplus(queue, self._seen.get((queue.topic, queue.queue_id)), end)

    def _check_surplus(self, queue: QueueView, seen: _Seen | None, end: int) -> None:
        """Units that stand for no record of the present log."""
        first, last = (seen.first, seen.end) if seen is not None else (queue.end, queue.end)
        for begin, stop in ((queue.first, min(first, queue.end)), (last, queue.end)):
            for chunk in range(begin, stop, _UNITS_AT_ONCE):
                units = queue.units(chunk, min(chunk + _UNITS_AT_ONCE, stop))
                self._check_outside(queue, chunk, units, end)

    def _check_outside(self, queue: QueueView, first: int, units: NDArray[np.void], end: int) -> None:
        """Blanks, units of a trimmed log and of deleted topics may be there; others may not."""
        below = max(self._view.log.min_offset, self._view.deletions.deleted_below(queue.topic))
        surplus = (units["size"] != BLANK_SIZE) & (units["physical_offset"] >= below)
        for i in np.flatnonzero(surplus):
            behind = int(units["physical_offset"][i]) >= end
            path, at = queue.place(first + int(i))
            what = "lies behind the log's end" if behind else "belongs to no record"
            note = behind and not self._view.clean
            self._findings.add(path, at, f"unit {first + i}, {_text(units[i])}, {what}", note=note)


def _text(unit: np.void) -> str:
    return f"({unit['physical_offset']}, {unit['size']} bytes, tags code {unit['tags_code']})"
