"""Builds the files of one consume queue from its pieces of all segments. Their form is in
index.consume_queue.

Pieces are processed in log order, and cut into stretches of consecutive queue offsets. A stretch that

- continues where the queue ends is added;
- begins below the end is added without the units that the queue has, as a broker skips dispatched records;
- leaves a gap is added after blank units, as the broker writes them for damaged records. If later records of
  the queue would fill the gap, or it has more than GAP_UNITS_MAX units, the stretch is left out.

The first stretch may begin anywhere; blank units precede it from the start of its file.

Invariant: every unit is at the place of its record's queue offset, whatever the log contains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trovemq_spark.job import FINDINGS_MAX
from trovemq_spark.rebuild.blocks import Piece, Units
from trovemq_spark.rebuild.files import write_pieces
from trovemq_spark.storage import StoragePath
from trovemq_store.index.consume_queue import BLANK_UNIT, ROOT_DIRECTORY, UNIT_SIZE
from trovemq_store.index.consume_queues import GAP_UNITS_MAX
from trovemq_store.log.segments import file_name

LOOK_AHEAD: Final = 256
"""How many stretches after a gap are searched for one that would fill it."""
_UNITS_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class QueueTask:
    topic: str
    queue_id: int
    pieces: list[Piece]
    """In log order."""
    blocks: StoragePath
    target: StoragePath
    file_size: int
    """Bytes, whole units."""
    starts_at_zero: bool
    """The log has its first byte, so the queue should begin at offset 0."""

    @property
    def unit_count(self) -> int:
        return sum(piece.count for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class QueueFault:
    """A fault of a queue, at the record at `physical_offset` of the log."""

    kind: str
    what: str
    physical_offset: int


@dataclass(slots=True)
class QueueResult:
    topic: str
    queue_id: int
    first_offset: int = 0
    end_offset: int = 0
    files: list[str] = field(default_factory=list)
    """Names of the files in the target."""
    unit_count: int = 0
    blank_count: int = 0
    """Blank units between others; those before the first are not counted."""
    faults: list[QueueFault] = field(default_factory=list)
    fault_count: int = 0

    def fault(self, kind: str, what: str, physical_offset: int) -> None:
        self.fault_count += 1
        if len(self.faults) < FINDINGS_MAX:
            queue = f"{self.topic}-{self.queue_id}"
            self.faults.append(QueueFault(kind, f"{queue}: {what}", physical_offset))


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Units [begin, begin + count) of a piece, with the offsets [first, first + count)."""

    piece: Piece
    begin: int
    first: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.count


def build_queue(task: QueueTask) -> QueueResult:
    """Writes the queue's files. Raises OSError."""
    result = QueueResult(task.topic, task.queue_id)
    writer = _FileWriter(task)
    stretches = [stretch for piece in task.pieces for stretch in _stretches(piece, task.blocks)]
    end = -1
    for place, stretch in enumerate(stretches):
        known = max(0, max(end, 0) - stretch.first)
        if known:
            _note_known(result, stretch, known, task.blocks)
        if known >= stretch.count:
            continue
        first = stretch.first + known
        if first != end and not _may_leave_gap(stretches, place, end):
            what = (
                f"{stretch.count} messages from offset {first} on are left out, offset {max(end, 0)} is next"
            )
            result.fault("queueOffsetWrong", what, _physical(stretch, 0, task.blocks))
            continue
        if first > end >= 0 or (end < 0 < first and task.starts_at_zero):
            what = f"messages {max(end, 0)} to {first - 1} are missing, blanks replace them"
            result.fault("queueHole", what, _physical(stretch, known, task.blocks))
        if end < 0:
            result.first_offset = first
            writer.begin(first)
        elif first > end:
            result.blank_count += first - end
            writer.add(end, np.repeat(BLANK_UNIT, first - end))
        _add_units(stretch, known, task.blocks, writer)
        result.unit_count += stretch.count - known
        end = stretch.end
    result.end_offset = max(end, 0)
    result.files = writer.finish()
    return result


def _stretches(piece: Piece, blocks: StoragePath) -> Iterator[_Stretch]:
    if piece.offsets_at < 0:
        yield _Stretch(piece, 0, piece.first_offset, piece.count)
        return
    offsets = piece.offsets(blocks)
    breaks = (np.flatnonzero(offsets[1:] != offsets[:-1] + 1) + 1).tolist()
    for begin, end in zip([0, *breaks], [*breaks, len(offsets)], strict=True):
        yield _Stretch(piece, begin, int(offsets[begin]), end - begin)


def _may_leave_gap(stretches: list[_Stretch], place: int, end: int) -> bool:
    """Whether the stretch may be added after a gap from `end` on (-1: it is the first one)."""
    first = stretches[place].first
    later = stretches[place + 1 : place + 1 + LOOK_AHEAD]
    if any(max(other.first, end) < min(other.end, first) for other in later):
        return False
    return end < 0 or first - end <= GAP_UNITS_MAX


def _note_known(result: QueueResult, stretch: _Stretch, known: int, blocks: StoragePath) -> None:
    count = min(known, stretch.count)
    physical_offset = _physical(stretch, 0, blocks)
    if stretch.first < 0:
        result.fault("queueOffsetWrong", f"offset {stretch.first} cannot be", physical_offset)
    else:
        what = f"{count} messages from offset {stretch.first} on are there twice, the first ones stay"
        result.fault("queueDuplicate", what, physical_offset)


def _physical(stretch: _Stretch, index: int, blocks: StoragePath) -> int:
    return int(stretch.piece.units(blocks, stretch.begin + index, 1)["physical_offset"][0])


def _add_units(stretch: _Stretch, known: int, blocks: StoragePath, writer: _FileWriter) -> None:
    for index in range(known, stretch.count, _UNITS_AT_ONCE):
        count = min(_UNITS_AT_ONCE, stretch.count - index)
        writer.add(stretch.first + index, stretch.piece.units(blocks, stretch.begin + index, count))


class _FileWriter:
    """Takes units in order, and writes each file when it is full."""

    def __init__(self, task: QueueTask) -> None:
        self._task = task
        self._base = -1
        self._parts: list[tuple[int, bytes]] = []
        self._names: list[str] = []

    def begin(self, offset: int) -> None:
        """The queue's first unit is that of `offset`."""
        position = offset * UNIT_SIZE
        self._base = position - position % self._task.file_size
        blank_count = (position - self._base) // UNIT_SIZE
        if blank_count:
            self.add(self._base // UNIT_SIZE, np.repeat(BLANK_UNIT, blank_count))

    def add(self, offset: int, units: Units) -> None:
        """Adds units that follow those before."""
        data, position = memoryview(units.tobytes()), offset * UNIT_SIZE
        while data:
            if position == self._base + self._task.file_size:
                self._write()
                self._base = position
            space = self._base + self._task.file_size - position
            self._parts.append((position - self._base, bytes(data[:space])))
            position += min(space, len(data))
            data = data[space:]

    def finish(self) -> list[str]:
        """Writes the last file. Returns the names of all files."""
        if self._parts:
            self._write()
        return self._names

    def _write(self) -> None:
        task = self._task
        name = f"{ROOT_DIRECTORY}/{task.topic}/{task.queue_id}/{file_name(self._base)}"
        write_pieces(task.target, name, task.file_size, self._parts)
        self._parts = []
        self._names.append(name)
