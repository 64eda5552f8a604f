"""Import of RocketMQ's timers, and export to them.

Import: messages that RocketMQ would still deliver become pending here. In the wheel's queue these are all
records from the next offset that RocketMQ would put into its log, and before it each record with a unit in a
slot that RocketMQ has not read. In a schedule queue they are all records from the level's offset on.

Export: log and wheel are rewritten with the pending records only. RocketMQ continues in the wheel's queue
after the record of the log's last unit. So the queue's last record has a unit even if it is not pending: in a
slot of the past, which is never read.

Invariants
- Files are replaced in such an order that RocketMQ, started after any step, skips no pending message: before
  the last step it begins at the first pending record. (It may then deliver some again.)
- This broker reads these files only if RocketMQ used the store last, so an export may stop anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_broker.timers.calendar import Rows
from trovemq_broker.timers.rocketmq_files import (
    MAGIC_DEFAULT,
    MAGIC_ROLL,
    PRECISION_MS,
    SLOT_DTYPE,
    UNIT_DTYPE,
    UNIT_SIZE,
    DelayOffsets,
    TimerCheck,
    Units,
    clear_wheel_and_log,
    load_check,
    load_units,
    log_file_size,
    save_check,
    save_units,
    save_wheel,
    unit_positions,
)
from trovemq_broker.timers.sources import WHEEL_SOURCE, Sources, queue_of, source_of
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records.hashes import java_hash
from trovemq_proto.records.layout import SCHEDULE_TOPIC
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE, UNITS_STEP
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.index.consume_queue import ConsumeQueue

ROLL_WINDOW_MS: Final = 172_800_000
"""timerRollWindowSlot: a message that is due later than this gets a nearer slot, at which it is put into the
wheel again."""

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PendingImport:
    """The pending messages, by source: the `waiting` offsets below `positions`, and everything from there
    on."""

    positions: dict[int, int]
    waiting: dict[int, list[int]]


def import_from_rocketmq(store: MessageStore, files: FileSystem) -> PendingImport:
    """The messages that RocketMQ would still deliver. Raises StorageError, and TroveError STORE_FAILED if a
    file is unreadable."""
    positions: dict[int, int] = {}
    waiting: dict[int, list[int]] = {}
    sources = Sources(store)
    wheel = sources.queue(WHEEL_SOURCE)
    if wheel is not None:
        positions[WHEEL_SOURCE], waiting[WHEEL_SOURCE] = _import_wheel(wheel, files)
    by_level = DelayOffsets(files).by_level
    for queue in store.consume_queues.queues(SCHEDULE_TOPIC):
        source = source_of(SCHEDULE_TOPIC, queue.queue_id)
        if source is not None:
            offset = by_level.get(queue.queue_id + 1, 0)
            positions[source] = min(max(offset, queue.min_offset), queue.max_offset)
    return PendingImport(positions, waiting)


def _import_wheel(queue: ConsumeQueue, files: FileSystem) -> tuple[int, list[int]]:
    """(the next offset to be read, the offsets below it with pending messages or delete markers)."""
    check = load_check(files) or TimerCheck()
    units = load_units(files)
    offsets = _offsets_of(queue, units["physical_offset"].astype(np.int64))
    last = int(offsets[-1]) + 1 if len(offsets) and offsets[-1] >= 0 else check.queue_offset
    position = min(max(min(last, check.master_queue_offset), queue.min_offset), queue.max_offset)
    slots = (units["write_ms"] + units["delay_ms"].astype(np.int64)) // PRECISION_MS
    unread = (slots >= check.last_read_ms // PRECISION_MS) & (offsets >= 0) & (offsets < position)
    return position, np.unique(offsets[unread]).tolist()


def _offsets_of(queue: ConsumeQueue, physical_offsets: Int64s) -> Int64s:
    """The queue offset of the record at each physical offset; -1 where the queue has none."""
    if not len(physical_offsets):
        return physical_offsets
    first = max(queue.lower_bound(PhysicalOffset(int(physical_offsets.min()))), queue.min_offset)
    places = _units(queue, first, queue.max_offset)
    kept = np.flatnonzero(places["size"] != BLANK_UNIT_SIZE)
    known = places["physical_offset"][kept].astype(np.int64)
    if not len(known):
        return np.full(len(physical_offsets), -1, np.int64)
    index = np.minimum(np.searchsorted(known, physical_offsets), len(known) - 1)
    return np.where(known[index] == physical_offsets, first + kept[index], -1)


def _units(queue: ConsumeQueue, begin: int, end: int) -> NDArray[np.void]:
    return queue.units(QueueOffset(begin), end - begin) if begin < end else queue.units(queue.max_offset, 0)


# --- export -------------------------------------------------------------------------------------------
def export_to_rocketmq(
    store: MessageStore,
    files: FileSystem,
    rows: Rows,
    topics: list[str],
    positions: dict[int, int],
    now_ms: EpochMs,
    log_file_size_configured: int,
) -> None:
    """Writes RocketMQ's files. Pending are the rows (sorted by source and offset) and everything after
    `positions`. The configured size counts if there is no log yet.

    Blocks. StorageError; TroveError DISK_FULL, STORE_FAILED.
    """
    _export_levels(store, files, rows, positions, now_ms)
    queue = Sources(store).queue(WHEEL_SOURCE)
    check = load_check(files)
    if queue is None or (check is None and not queue.max_offset):
        return
    position = positions.get(WHEEL_SOURCE, 0)
    read_ms = now_ms // PRECISION_MS * PRECISION_MS
    wheel_rows = rows[rows["source"] == WHEEL_SOURCE]
    file_size = log_file_size(files, log_file_size_configured)
    units = _waiting_units(queue, wheel_rows, topics, read_ms)
    if len(units) and int(wheel_rows["offset"][-1]) + 1 < position:
        units = np.concatenate([units, _processed_unit(queue, position, read_ms)])
    slots = _chain(units, unit_positions(len(units), file_size))

    before = check or TimerCheck()
    first = int(wheel_rows["offset"][0]) if len(wheel_rows) else position
    check = TimerCheck(
        read_ms, 0, QueueOffset(first), QueueOffset(first), before.state_version, now_ms, before.counter + 1
    )
    fault_point("timers.before_files")
    save_check(files, check)
    fault_point("timers.after_check")
    clear_wheel_and_log(files, file_size)
    fault_point("timers.after_clearing")
    save_units(files, units, file_size)
    fault_point("timers.after_log")
    save_wheel(files, slots)
    fault_point("timers.after_wheel")
    end = int(unit_positions(len(units), file_size)[-1]) + UNIT_SIZE if len(units) else 0
    save_check(
        files,
        replace(
            check,
            log_flush_position=end,
            queue_offset=QueueOffset(position),
            master_queue_offset=QueueOffset(position),
        ),
    )


def _waiting_units(queue: ConsumeQueue, rows: Rows, topics: list[str], read_ms: int) -> Units:
    """The unit of each pending record, in queue order; _chain() fills in `previous`."""
    places = _places(queue, rows["offset"])
    out_ms = (rows["deliver_ms"] - 1) // PRECISION_MS * PRECISION_MS
    slot_ms = np.maximum(out_ms, read_ms)
    far_ms = slot_ms - read_ms - ROLL_WINDOW_MS
    near_ms = np.where(far_ms < ROLL_WINDOW_MS // 3, ROLL_WINDOW_MS // 2, ROLL_WINDOW_MS)
    units = np.zeros(len(rows), UNIT_DTYPE)
    units["size"] = UNIT_SIZE
    units["magic"] = np.where(far_ms >= 0, MAGIC_DEFAULT | MAGIC_ROLL, MAGIC_DEFAULT)
    units["write_ms"] = read_ms
    units["delay_ms"] = np.where(far_ms >= 0, near_ms, slot_ms - read_ms)
    units["physical_offset"] = places["physical_offset"]
    units["record_size"] = places["size"]
    hashes = np.array([java_hash(topic) for topic in topics] or [0], np.int32)
    units["topic_hash"] = hashes[rows["topic"]]
    return units


def _processed_unit(queue: ConsumeQueue, position: int, read_ms: int) -> Units:
    """A unit for the queue's last record that can be found, in the slot before the first one that is read."""
    physical_offset, size, _ = queue.unit(queue.written_before(QueueOffset(position - 1)))
    unit = (UNIT_SIZE, -1, MAGIC_DEFAULT, read_ms - PRECISION_MS, 0, physical_offset, size, 0, 0)
    return np.array([unit], UNIT_DTYPE)


def _places(queue: ConsumeQueue, offsets: Int64s) -> NDArray[np.void]:
    """The consume queue's unit of each offset; the offsets are ascending."""
    parts = [_units(queue, 0, 0)]
    begin = 0
    while begin < len(offsets):
        first = int(offsets[begin])
        end = int(np.searchsorted(offsets, first + UNITS_STEP))
        window = queue.units(QueueOffset(first), UNITS_STEP)
        parts.append(window[offsets[begin:end] - first])
        begin = end
    return np.concatenate(parts)


def _chain(units: Units, positions: Int64s) -> NDArray[np.void]:
    """Fills in `previous` of the units; returns the slots (SLOT_DTYPE) of the units that are to be read."""
    seconds = (units["write_ms"] + units["delay_ms"].astype(np.int64)) // PRECISION_MS
    order = np.argsort(seconds, kind="stable")
    ordered, places = seconds[order], positions[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(units) else np.empty(0, np.int64)
    previous = np.r_[-1, places[:-1]] if len(units) else places
    previous[begins] = -1
    units["previous"][order] = previous
    ends = np.r_[begins[1:], len(units)] if len(units) else begins
    slots = np.zeros(len(begins), SLOT_DTYPE)
    slots["second"] = ordered[begins]
    slots["first"] = places[begins]
    slots["last"] = places[ends - 1]
    slots["count"] = ends - begins
    return slots


def _export_levels(
    store: MessageStore, files: FileSystem, rows: Rows, positions: dict[int, int], now_ms: EpochMs
) -> None:
    delay_offsets = DelayOffsets(files)
    by_level = dict(delay_offsets.by_level)
    for source, position in positions.items():
        topic, queue_id = queue_of(source)
        if topic == SCHEDULE_TOPIC:
            waiting = rows["offset"][rows["source"] == source]
            by_level[queue_id + 1] = int(waiting[0]) if len(waiting) else position
    delay_offsets.save(by_level, now_ms)
