"""The consume queues as they were before records.queue_units, with a way for each form of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.columns import QueuePart, RecordColumns
from trovemq_proto.records.fields import ROWS_MAX, RecordFields, store_timestamp
from trovemq_proto.records.hashes import java_hash
from trovemq_proto.records.index_entries import deliver_time
from trovemq_proto.records.layout import (
    PROPERTY_DELAY,
    PROPERTY_TAGS,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SCHEDULE_TOPIC,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_MASK,
)
from trovemq_proto.records.properties import parse_properties
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import File
from trovemq_store.index.consume_queue import BLANK_UNIT, UNIT_DTYPE, UNIT_SIZE, ConsumeQueue, Unit
from trovemq_store.index.consume_queues import ConsumeQueues, QueueGapError
from trovemq_store.log.projection import DispatchBatch

_BLANK: Final = BLANK_UNIT.tobytes()
_NOTED_MAX: Final = 1024
_QUEUE_ID = Struct(">i")
_QUEUE_OFFSET = Struct(">q")
_QUEUE_PLACE = Struct(f">i{QUEUE_OFFSET_AT - QUEUE_ID_AT - 4}xq")  # QUEUEID, QUEUEOFFSET
_UNIT = Struct(">qiq")  # UNIT_DTYPE
_Run = tuple[ConsumeQueue, QueueOffset, bytes]
"""A queue, the offset of the first unit, the bytes of all units."""


class FormerQueue(ConsumeQueue):
    """With a second way to write the next units."""

    def write(self, offset: QueueOffset, units: bytes) -> None:
        """append() of the bytes of whole units, which are invisible before publish()."""
        count = len(units) // UNIT_SIZE
        assert count > 0, "a run has units"
        assert len(units) == count * UNIT_SIZE, "units are whole"
        if self._first_unit >= self._end:
            self._begin_at(offset)
        assert offset >= self._end, "units follow each other"
        if offset > self._end:
            self._write(self._end, _BLANK * (offset - self._end))
        self._write(offset, units)
        # A reader at the end asks for the last one next.
        self._known = (QueueOffset(offset + count - 1), _UNIT.unpack_from(units, len(units) - UNIT_SIZE))

    def write_next(self, units: bytes, last: Unit) -> None:
        """write() at the end of a queue that has units; `last`: the fields of the last of these ones. Raises
        the errors of append."""
        assert self._first_unit < self._end, "the queue has units"
        assert len(units) % UNIT_SIZE == 0, "units are whole"
        size, begin = len(units), self._end * UNIT_SIZE
        position = begin % self._file_size
        base, path = self._last_path
        if begin - position != base or base != self._bases[-1] or position + size > self._file_size:
            self.write(self._end, units)
            return
        fault_point("queues.before_write")
        self._open_files.get(path).write(position, units)
        self._dirty.mark(path)
        fault_point("queues.after_write")
        self._known = (QueueOffset(self._end + size // UNIT_SIZE - 1), last)

    def _write(self, offset: QueueOffset, units: bytes) -> None:
        data = units
        while data:
            begin = offset * UNIT_SIZE
            position = begin % self._file_size
            base = begin - position
            piece = data if position + len(data) <= self._file_size else data[: self._file_size - position]
            path = self._path(base)
            fault_point("queues.before_write")
            self._file_for_writing(base, path).write(position, piece)
            self._dirty.mark(path)
            fault_point("queues.after_write")
            data = data[len(piece) :]
            offset = QueueOffset(offset + len(piece) // UNIT_SIZE)

    def _file_for_writing(self, base: int, path: str) -> File:
        if self._bases and base <= self._bases[-1]:
            return self._open_files.get(path)
        assert base % self._file_size == 0, "files are named by multiples of their size"
        assert not self._bases or base == self._bases[-1] + self._file_size, "files follow each other"
        file = self._open_files.create(path, self._file_size)
        self._bases.append(base)
        self._dirty.mark_created(path)
        fault_point("queues.after_create")
        return file


_Next = dict[FormerQueue, tuple[bytes, Unit]]
"""The bytes of the next units of each queue, and the fields of the last one."""


class FormerQueues(ConsumeQueues):
    """Applies a batch in five forms."""

    def get(self, topic: str, queue_id: QueueId) -> FormerQueue | None:
        queue = super().get(topic, queue_id)
        assert queue is None or isinstance(queue, FormerQueue), "all queues are made here"
        return queue

    def _queue(self, topic: str, queue_id: QueueId) -> FormerQueue:
        queues = self._queues.setdefault(topic, {})
        queue = queues.get(queue_id)
        if queue is None:
            queue = FormerQueue(topic, queue_id, self._files, self._open_files, self._dirty, self._file_size)
            queues[queue_id] = queue
        assert isinstance(queue, FormerQueue), "all queues are made here"
        return queue

    def apply(self, batch: DispatchBatch) -> None:
        """See Projection. Raises QueueGapError; nothing is then written."""
        if batch.end <= self._position:
            return
        if self._apply_next(batch):
            return
        runs = None
        if len(batch.records) <= ROWS_MAX or batch.records.has_rows:
            if self._apply_few(batch):
                return
        else:
            runs = self._runs_of_parts(batch)
        if runs is None:
            runs = list(self._runs_of_one(batch) if len(batch.records) == 1 else self._former_runs(batch))
        # A batch may be a transaction: none of its queues shows it before all of them have it.
        together = len({id(queue) for queue, _, _ in runs}) == len(runs)
        for queue, offset, units in runs:
            if offset > queue.max_offset and queue.has_units:
                self._note_gap(queue, offset)
            queue.write(offset, units)
            if not together:
                queue.publish(offset, len(units) // UNIT_SIZE)
            fault_point("queues.after_run")
        fault_point("queues.before_showing")
        for queue, offset, units in runs:
            if together:
                queue.publish(offset, len(units) // UNIT_SIZE)
            self._grown[queue.topic, queue.queue_id] = None
        self._position = batch.end

    def _apply_next(self, batch: DispatchBatch) -> bool:
        """apply() of the next records of a queue: a message that was sent alone, or a batch of records
        that are alike. False: nothing was done."""
        records = batch.records
        topic = records.topic
        if topic is None or batch.alive is not None:
            return False
        count = len(records.positions)
        row = records.rows[0] if count == 1 else records.alike
        if row is None:
            return False
        physical_offset = batch.physical_offset + row.position
        queue_id, offset = _QUEUE_PLACE.unpack_from(records.data, row.position + QUEUE_ID_AT)
        queue = self.get(topic, queue_id)
        if (
            queue is None
            or not queue.continues_at(offset)
            or physical_offset < self._position
            or row.sys_flag & SYS_FLAG_TRANSACTION_MASK
        ):
            return False
        if count == 1:
            unit = (PhysicalOffset(physical_offset), row.size, plain_tags_code(records, row))
            queue.write_next(_UNIT.pack(*unit), unit)
        else:
            queue.write(offset, _units(batch).tobytes())
        fault_point("queues.after_run")
        fault_point("queues.before_showing")
        queue.publish(offset, count)
        self._grown[topic, queue_id] = None
        self._position = batch.end
        return True

    def _apply_few(self, batch: DispatchBatch) -> bool:
        """apply() of a few records that simply continue their queues. False: nothing was done."""
        found = self._next_of_few(batch)
        if found is None:
            return False
        for queue, (units, last) in found.items():
            queue.write_next(units, last)
            fault_point("queues.after_run")
        fault_point("queues.before_showing")
        grown = self._grown
        for queue, (units, _) in found.items():
            queue.publish(queue.max_offset, len(units) // UNIT_SIZE)
            grown[queue.topic, queue.queue_id] = None
        self._position = batch.end
        return True

    def _former_runs(self, batch: DispatchBatch) -> Iterator[_Run]:
        """For each queue of the batch the units that it lacks, and the offset of the first."""
        records = batch.records
        if not len(records):
            return
        chosen = self._chosen(batch)
        units = _units(batch)
        queue_ids = records.queue_ids
        offsets = records.queue_offsets
        for topic, indexes in records.topic_groups():
            taken = indexes if chosen is None else indexes[chosen[indexes]]
            for queue_id, members in _by_queue(queue_ids, taken):
                yield from self._new_units(self._queue(topic, queue_id), offsets[members], units[members])

    def _next_of_few(self, batch: DispatchBatch) -> _Next | None:
        """The next units of each queue of the batch, made without columns; None unless all records continue
        their queues, and no queue comes twice."""
        records, at = batch.records, batch.physical_offset
        rows, data = records.rows, records.data
        if not rows or batch.alive is not None or at + rows[0].position < self._position:
            return None
        parts = records.parts
        if parts is None:
            if records.topic is None:
                return None
            (queue_id,) = _QUEUE_ID.unpack_from(data, rows[0].position + QUEUE_ID_AT)
            parts = (QueuePart(records.topic, queue_id, len(rows)),)
        found: _Next = {}
        left = zip(rows, _tags_codes(records), strict=True)
        for topic, queue_id, count in parts:
            queue = self.get(topic, QueueId(queue_id))
            if queue is None:
                return None
            units = b""
            for number, (row, code) in zip(range(count), left, strict=False):
                position, size, sys_flag = row[:3]
                own_id, offset = _QUEUE_PLACE.unpack_from(data, position + QUEUE_ID_AT)
                if (
                    own_id != queue_id
                    or not queue.continues_at(offset - number)
                    or sys_flag & SYS_FLAG_TRANSACTION_MASK
                ):
                    return None
                last = (PhysicalOffset(at + position), size, code)
                units += _UNIT.pack(*last)
            found[queue] = units, last
        return found if len(found) == len(parts) else None

    def _runs_of_parts(self, batch: DispatchBatch) -> list[_Run] | None:
        """_runs of records whose queues are known; None unless all of them are new and visible."""
        records = batch.records
        if records.parts is None or batch.alive is not None or batch.offset_of(0) < self._position:
            return None
        assert not (records.sys_flags & SYS_FLAG_TRANSACTION_MASK).any(), "they are plain messages"
        units, offsets = _units(batch), records.queue_offsets.tolist()
        found: list[_Run] = []
        begin = 0
        for topic, queue_id, count in records.parts:
            queue, end = self._queue(topic, QueueId(queue_id)), begin + count
            if queue.has_units and offsets[begin] == queue.max_offset:
                found.append((queue, offsets[begin], units[begin:end].tobytes()))
            else:
                found += self._new_units(queue, np.array(offsets[begin:end]), units[begin:end])
            begin = end
        assert begin == len(records), "each record has its part"
        return found

    def _runs_of_one(self, batch: DispatchBatch) -> Iterator[_Run]:
        """_runs of a batch of one record, without columns: a single send should not pay for them."""
        row = batch.records.rows[0]
        physical_offset = batch.physical_offset + row.position
        transaction = row.sys_flag & SYS_FLAG_TRANSACTION_MASK
        if physical_offset < self._position or transaction not in (0, SYS_FLAG_TRANSACTION_COMMIT):
            return
        if batch.alive is not None and not batch.alive[0]:
            return
        data = batch.records.data
        topic = batch.records.topic
        if topic is None:
            topic = str(data[row.topic_position : row.topic_position + row.topic_size], "utf-8", "replace")
        (queue_id,) = _QUEUE_ID.unpack_from(data, row.position + QUEUE_ID_AT)
        (offset,) = _QUEUE_OFFSET.unpack_from(data, row.position + QUEUE_OFFSET_AT)
        queue = self._queue(topic, queue_id)
        if offset >= queue.max_offset or not queue.has_units:
            tags_code = plain_tags_code(batch.records, row)
            unit = _UNIT.pack(physical_offset, row.size, tags_code)
            if offset == queue.max_offset and queue.has_units:
                yield queue, QueueOffset(offset), unit
            else:
                units = np.frombuffer(unit, UNIT_DTYPE)
                yield from self._new_units(queue, np.array([offset]), units)

    def _chosen(self, batch: DispatchBatch) -> NDArray[np.bool_] | None:
        """Which records get a unit; None: all."""
        records = batch.records
        transaction = records.sys_flags & SYS_FLAG_TRANSACTION_MASK
        chosen: NDArray[np.bool_] | None = batch.alive
        if transaction.any():
            committed = (transaction == 0) | (transaction == SYS_FLAG_TRANSACTION_COMMIT)
            chosen = committed if chosen is None else chosen & committed
        if batch.offset_of(0) < self._position:
            new = batch.physical_offset + records.positions >= self._position
            chosen = new if chosen is None else chosen & new
        return chosen

    def _new_units(
        self, queue: ConsumeQueue, offsets: NDArray[np.int64], units: NDArray[np.void]
    ) -> Iterator[_Run]:
        first = int(offsets[0])
        dense = int(offsets[-1]) - first == len(offsets) - 1 and (
            len(offsets) < 3 or bool((offsets[1:] - offsets[:-1] == 1).all())
        )
        # A queue without units takes any first offset (a rebuild may begin below the old one).
        known = max(0, queue.max_offset - first) if queue.has_units else 0
        if not dense or first < 0 or (queue.has_units and first > queue.max_offset):
            yield from self._new_units_one_by_one(queue, offsets, units)
        elif known < len(offsets):
            yield queue, QueueOffset(first + known), units[known:].tobytes()

    def _new_units_one_by_one(
        self, queue: ConsumeQueue, offsets: NDArray[np.int64], units: NDArray[np.void]
    ) -> Iterator[_Run]:
        """_new_units if an offset is missing or comes twice."""
        end = queue.max_offset if queue.has_units else QueueOffset(-1)
        first, taken = end, list[int]()
        for index, offset in enumerate(map(QueueOffset, offsets.tolist())):
            if offset < max(0, end):
                continue
            if offset != end:
                if not self._may_leave_former_gap(queue, end, offset, offsets[index + 1 :]):
                    self._note_former_misplaced(units[index])
                    continue
                if taken:
                    yield queue, first, units[taken].tobytes()
                first, taken = offset, []
            taken.append(index)
            end = QueueOffset(offset + 1)
        if taken:
            yield queue, first, units[taken].tobytes()

    def _may_leave_former_gap(
        self, queue: ConsumeQueue, end: QueueOffset, offset: QueueOffset, later: NDArray[np.int64]
    ) -> bool:
        """Whether the record with this offset continues after a gap from `end` (-1: it is the first one)."""
        if ((later >= end) & (later < offset)).any():
            return False  # the records after it continue from `end`: its own offset is damaged
        if end < 0 or offset - end <= self._gap_units_max:
            return True
        if self._rebuilding:
            return False
        raise QueueGapError(queue, offset, end)

    def _note_former_misplaced(self, unit: np.void) -> None:
        if len(self.misplaced) < _NOTED_MAX:
            begin = PhysicalOffset(int(unit["physical_offset"]))
            self.misplaced.append((begin, PhysicalOffset(begin + int(unit["size"]))))


def _units(batch: DispatchBatch) -> NDArray[np.void]:
    """The unit of every record of the batch."""
    records = batch.records
    units = np.empty(len(records), UNIT_DTYPE)
    units["physical_offset"] = batch.physical_offset + records.positions
    units["size"] = records.sizes if records.alike is None else records.alike.size
    units["tags_code"] = _tags_codes(records)
    return units


def _by_queue(
    queue_ids: NDArray[np.int32], indexes: NDArray[np.int64]
) -> Iterator[tuple[QueueId, NDArray[np.int64]]]:
    """The indexes of each queue id, in order."""
    if not len(indexes):
        return
    ids = queue_ids[indexes]
    if (ids == ids[0]).all():
        yield QueueId(int(ids[0])), indexes
        return
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]]).tolist()
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        yield QueueId(int(ids[start])), indexes[order[start:end]]


def plain_tags_code(batch: RecordColumns, row: RecordFields) -> int:
    """The tagsCode of one record."""
    block = bytes(batch.data[row.property_position : row.property_position + row.property_size])
    topic = batch.topic
    if topic is None:
        topic = str(batch.data[row.topic_position : row.topic_position + row.topic_size], "utf-8", "replace")
    properties = parse_properties(block)
    if topic == SCHEDULE_TOPIC:
        stored = store_timestamp(batch.data, row.position, row.sys_flag)
        delivered = deliver_time(properties.get(PROPERTY_DELAY), stored)
        if delivered is not None:
            return delivered
    tag = properties.get(PROPERTY_TAGS)
    return java_hash(tag) if tag else 0


def _tags_codes(batch: RecordColumns) -> list[int]:
    return [plain_tags_code(batch, batch.row(index)) for index in range(len(batch))]
