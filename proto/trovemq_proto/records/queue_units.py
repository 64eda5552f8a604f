"""The consume queue units of a batch: for each of its queues, the bytes to append.

A unit is 20 bytes, big-endian: physical offset (i64), size (i32), tagsCode (i64). A record of type none or
commit has one; prepared and rolled-back ones have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, repeat
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.columns import QueuePart, RecordColumns
from trovemq_proto.records.fields import ROWS_MAX, RecordFields
from trovemq_proto.records.index_entries import plain_topic, row_tags_code, row_tags_codes, tags_codes
from trovemq_proto.records.layout import (
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_MASK,
)

UNIT_SIZE: Final = 20
UNIT_DTYPE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert UNIT_DTYPE.itemsize == UNIT_SIZE
_UNIT: Final = Struct(">qiq")
_QUEUE_PLACE: Final = Struct(f">i{QUEUE_OFFSET_AT - QUEUE_ID_AT - 4}xq")  # QUEUEID, QUEUEOFFSET
Mask = NDArray[np.bool_]


UnitRun = tuple[str, QueueId, QueueOffset, bytes]
"""Units of one queue whose queue offsets follow one another: topic, queue id, queue offset of the first, and
their bytes. A plain tuple: a dispatch of one record makes one of them."""


def run_end(run: UnitRun) -> QueueOffset:
    """One past the queue offset of the last unit."""
    return QueueOffset(run[2] + len(run[3]) // UNIT_SIZE)


def units_of(
    batch: RecordColumns, physical_offset: PhysicalOffset, applied: PhysicalOffset, alive: Mask | None
) -> list[UnitRun]:
    """The units of the records at or after `applied` for which `alive`, bool[n], is true (None: of all).

    physical_offset: that of the batch's buffer. The runs are in log order if the batch's parts are known,
    else by topic, in the order of the topics' first records, and by queue id. A queue has several runs, one
    after the other and in log order, only where its queue offsets do not follow one another.
    """
    count = len(batch.positions)
    row = batch.rows[0] if count == 1 else batch.alike
    if row is not None and alive is None and physical_offset + row.position >= applied:
        return _alike_units(batch, row, count, physical_offset)
    if count <= ROWS_MAX or batch.has_rows:
        return _row_units(batch, physical_offset, applied, alive)
    return _column_units(batch, physical_offset, applied, alive)


# --- records that are alike, or a single one ---


def _alike_units(
    batch: RecordColumns, row: RecordFields, count: int, physical_offset: PhysicalOffset
) -> list[UnitRun]:
    """row: the fields of the first record."""
    position, size, sys_flag = row[:3]
    if sys_flag & SYS_FLAG_TRANSACTION_MASK and not _has_unit(sys_flag):
        return []
    queue_id, offset = _QUEUE_PLACE.unpack_from(batch.data, position + QUEUE_ID_AT)
    if count == 1:
        units = _UNIT.pack(physical_offset + position, size, row_tags_code(batch, row))
    else:
        units = _unit_columns(batch, physical_offset).tobytes()
    topic = batch.topic
    return [(plain_topic(batch, row) if topic is None else topic, queue_id, offset, units)]


# --- rows ---


def _row_units(
    batch: RecordColumns, physical_offset: PhysicalOffset, applied: PhysicalOffset, alive: Mask | None
) -> list[UnitRun]:
    data = batch.data
    rows: Iterable[tuple[RecordFields, int, str]] = zip(
        batch.rows, row_tags_codes(batch), _row_topics(batch), strict=False
    )
    if alive is not None:
        rows = compress(rows, alive.tolist())
    runs: list[UnitRun] = []
    topic, queue_id, first, end, units = "", QueueId(-1), QueueOffset(0), -1, b""
    for row, tags_code, own_topic in rows:
        at, size, sys_flag = row[:3]
        place = physical_offset + at
        if place < applied or (sys_flag & SYS_FLAG_TRANSACTION_MASK and not _has_unit(sys_flag)):
            continue
        own_id, offset = _QUEUE_PLACE.unpack_from(data, at + QUEUE_ID_AT)
        if offset == end and own_id == queue_id and own_topic == topic:
            units += _UNIT.pack(place, size, tags_code)
            end += 1
            continue
        if units:
            runs.append((topic, queue_id, first, units))
        topic, queue_id, first, end = own_topic, own_id, offset, offset + 1
        units = _UNIT.pack(place, size, tags_code)
    if units:
        runs.append((topic, queue_id, first, units))
    return runs if len(runs) <= 1 else _by_queue(runs, in_log_order=batch.parts is not None)


def _row_topics(batch: RecordColumns) -> Iterable[str]:
    """The topic of each record, perhaps of more."""
    if batch.topic is not None:
        return repeat(batch.topic)
    if batch.parts is not None:
        return chain.from_iterable(repeat(topic, size) for topic, _, size in batch.parts)
    return [plain_topic(batch, row) for row in batch.rows]


def _has_unit(sys_flag: int) -> bool:
    return sys_flag & SYS_FLAG_TRANSACTION_MASK in (0, SYS_FLAG_TRANSACTION_COMMIT)


def _by_queue(runs: list[UnitRun], *, in_log_order: bool) -> list[UnitRun]:
    """The runs in the order of units_of(), and those that continue one another as one."""
    if in_log_order and len({run[:2] for run in runs}) == len(runs):
        return runs
    topics = {topic: number for number, topic in enumerate(dict.fromkeys(run[0] for run in runs))}
    joined: list[UnitRun] = []
    for run in sorted(runs, key=lambda run: (topics[run[0]], run[1])):
        topic, queue_id, offset, units = run
        last = joined[-1] if joined else None
        if last is not None and last[:2] == run[:2] and run_end(last) == offset:
            joined[-1] = (topic, queue_id, last[2], last[3] + units)
        else:
            joined.append(run)
    return joined


# --- columns ---


def _column_units(
    batch: RecordColumns, physical_offset: PhysicalOffset, applied: PhysicalOffset, alive: Mask | None
) -> list[UnitRun]:
    units = _unit_columns(batch, physical_offset)
    chosen = _chosen(batch, physical_offset, applied, alive)
    if chosen is None and batch.parts is not None:
        return _part_units(batch, batch.parts, units)
    runs: list[UnitRun] = []
    for topic, indexes in batch.topic_groups():
        own = indexes if chosen is None else indexes[chosen[indexes]]
        runs += _topic_units(topic, batch.queue_ids[own], batch.queue_offsets[own], units[own])
    return runs


def _unit_columns(batch: RecordColumns, physical_offset: PhysicalOffset) -> NDArray[np.void]:
    """The unit of every record."""
    units = np.empty(len(batch.positions), UNIT_DTYPE)
    units["physical_offset"] = physical_offset + batch.positions
    units["size"] = batch.sizes if batch.alike is None else batch.alike.size
    units["tags_code"] = tags_codes(batch)
    return units


def _chosen(
    batch: RecordColumns, physical_offset: PhysicalOffset, applied: PhysicalOffset, alive: Mask | None
) -> Mask | None:
    """Which records get a unit; None: all."""
    chosen = alive
    transaction = batch.sys_flags & SYS_FLAG_TRANSACTION_MASK
    if transaction.any():
        committed = (transaction == 0) | (transaction == SYS_FLAG_TRANSACTION_COMMIT)
        chosen = committed if chosen is None else chosen & committed
    if physical_offset + int(batch.positions[0]) < applied:
        new = physical_offset + batch.positions >= applied
        chosen = new if chosen is None else chosen & new
    return chosen


def _part_units(batch: RecordColumns, parts: Sequence[QueuePart], units: NDArray[np.void]) -> list[UnitRun]:
    """The runs of records whose queues are known. The queue offsets of a part follow one another."""
    assert len(units) == len(batch.positions), "each record has its unit"
    data, offsets = units.tobytes(), batch.queue_offsets.tolist()
    runs: list[UnitRun] = []
    begin = 0
    for topic, queue_id, size in parts:
        end = begin + size
        assert offsets[end - 1] - offsets[begin] == size - 1, "an append counts up the offsets of a part"
        run = data[begin * UNIT_SIZE : end * UNIT_SIZE]
        runs.append((topic, QueueId(queue_id), offsets[begin], run))
        begin = end
    assert begin == len(offsets), "each record has its part"
    return _by_queue(runs, in_log_order=True)


def _topic_units(
    topic: str, queue_ids: NDArray[np.int32], offsets: NDArray[np.int64], units: NDArray[np.void]
) -> Iterator[UnitRun]:
    """The runs of one topic's records, which are in log order."""
    if not len(units):
        return
    several = bool((queue_ids != queue_ids[0]).any())
    if several:
        order = np.argsort(queue_ids, kind="stable")
        queue_ids, offsets, units = queue_ids[order], offsets[order], units[order]
    breaks = offsets[1:] - offsets[:-1] != 1
    if several:
        breaks |= queue_ids[1:] != queue_ids[:-1]
    data = units.tobytes()
    for start, end in _ranges(0, (np.flatnonzero(breaks) + 1).tolist(), len(units)):
        run = data[start * UNIT_SIZE : end * UNIT_SIZE]
        yield (topic, QueueId(int(queue_ids[start])), QueueOffset(int(offsets[start])), run)


def _ranges(begin: int, cuts: Iterable[int], end: int) -> Iterable[tuple[int, int]]:
    starts = [begin, *cuts]
    return zip(starts, [*starts[1:], end], strict=True)
