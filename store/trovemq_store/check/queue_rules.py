"""The rules of a consume queue, as functions over a run of records or some units: for the scrub of a live
store, `verify`, `repair` and the Spark audit and rebuild alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_store.check.findings import EACH_MAX, Findings
from trovemq_store.check.layouts import Records
from trovemq_store.index.consume_queue import BLANK_SIZE, UNIT_DTYPE
from trovemq_store.log.projection import DispatchBatch

_TRANSACTION_MASK: Final = 0xC
_TRANSACTION_COMMIT: Final = 0x8

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]


class UnitPlaces(Protocol):
    def place(self, unit: int) -> tuple[str, int]:
        """(path, byte offset in the file) of a unit."""
        ...


class UnknownPlaces:
    """Places [begin, end) of the log of whose records nothing is known: they may have units. In log order."""

    def __init__(self, places: Iterable[tuple[PhysicalOffset, PhysicalOffset]] = ()) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in places:
            self.add(begin, end)

    def __len__(self) -> int:
        return len(self._begins)

    def add(self, begin: PhysicalOffset, end: PhysicalOffset) -> None:
        self._begins.append(begin)
        self._ends.append(end)

    def cover(self, physical: Int64s) -> Bools:
        """Which of these physical offsets lie in one."""
        if not self._begins:
            return np.zeros(len(physical), np.bool_)
        at = np.searchsorted(np.array(self._begins, np.int64), physical, "right") - 1
        return (at >= 0) & (physical < np.array(self._ends, np.int64)[at])

    def any_in(self, begin: PhysicalOffset, end: PhysicalOffset) -> bool:
        """Whether any of the places lies between these offsets, at least in part."""
        begins, ends = np.array(self._begins, np.int64), np.array(self._ends, np.int64)
        return bool(np.any((begins < end) & (ends > begin)))


def unit_indexes(run: DispatchBatch) -> Int64s:
    """The records of a run that get a consume-queue unit: neither prepared nor rolled back nor deleted."""
    kind = run.records.sys_flags & _TRANSACTION_MASK
    wanted = (kind == 0) | (kind == _TRANSACTION_COMMIT)
    return np.flatnonzero(wanted if run.alive is None else wanted & run.alive)


def units_of(run: DispatchBatch) -> Records:
    """The unit that each record of a run should have (also of those that get none)."""
    units = np.empty(len(run.records), UNIT_DTYPE)
    units["physical_offset"] = run.physical_offset + run.records.positions
    units["size"] = run.records.sizes
    units["tags_code"] = run.records.tags_codes()
    return units


def by_queue(run: DispatchBatch) -> Iterator[tuple[tuple[str, QueueId], Int64s]]:
    """((topic, queue id), indexes of its records that get a unit, in log order) for each queue of a run."""
    wanted = np.zeros(len(run.records), np.bool_)
    wanted[unit_indexes(run)] = True
    for topic, indexes in run.records.topic_groups():
        mine = indexes[wanted[indexes]]
        queue_ids = run.records.queue_ids[mine]
        for queue_id in np.unique(queue_ids).tolist():
            yield (topic, queue_id), mine[queue_ids == queue_id]


def surplus_units(units: Records, floor: PhysicalOffset, unknown: UnknownPlaces) -> Bools:
    """Which of these units, that belong to no record, must not exist. Blanks may exist, and units of records
    below `floor` (trimmed, or of a deleted topic) or in unknown places."""
    physical = units["physical_offset"].astype(np.int64)
    surplus: Bools = (units["size"] != BLANK_SIZE) & (physical >= floor)
    return surplus & ~unknown.cover(physical) if surplus.any() else surplus


def report_surplus(
    findings: Findings,
    queue: UnitPlaces,
    offsets: Int64s,
    units: Records,
    log_end: PhysicalOffset | None,
    *,
    clean: bool,
) -> None:
    """Reports units that belong to no record, at these queue offsets. log_end: where the log ends; None: the
    units lie before that."""
    for offset, unit in zip(offsets[:EACH_MAX].tolist(), units[:EACH_MAX], strict=True):
        beyond = log_end is not None and int(unit["physical_offset"]) >= log_end
        what = "lies after the log's end" if beyond else "belongs to no record"
        path, at = queue.place(offset)
        findings.add(path, at, f"unit {offset}, {_text(unit)}, {what}", note=beyond and not clean)
    if len(offsets) > EACH_MAX:
        path, at = queue.place(int(offsets[EACH_MAX]))
        what = f"{len(offsets) - EACH_MAX} more units from here on belong to no record"
        beyond = log_end is not None and int(units[EACH_MAX]["physical_offset"]) >= log_end
        findings.add(path, at, what, note=beyond and not clean)


def report_unequal(
    findings: Findings, queue: UnitPlaces, offset: int, actual: np.void, expected: np.void
) -> None:
    path, at = queue.place(offset)
    findings.add(path, at, f"unit {offset} is {_text(actual)}, the log says {_text(expected)}")


def _text(unit: np.void) -> str:
    return f"({unit['physical_offset']}, {unit['size']} bytes, tags code {unit['tags_code']})"
