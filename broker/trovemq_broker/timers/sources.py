"""The queues of delayed messages, each with a number: 0 is the wheel's queue, 1 + n is queue n of
`SCHEDULE_TOPIC_XXXX` (delay level n + 1)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_broker.timers.wheel_records import (
    WHEEL_QUEUE_ID,
    WHEEL_TOPIC,
    DelayedDelivery,
    WaitingRecord,
    read_record,
    read_waiting,
)
from trovemq_proto.errors import DamagedError
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.layout import SCHEDULE_TOPIC
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE, UNITS_STEP, readable_units
from trovemq_store.files.files import UnreadableError
from trovemq_store.index.consume_queue import ConsumeQueue

WHEEL_SOURCE: Final = 0
SCHEDULE_QUEUES_MAX: Final = 1_024

Int64s = NDArray[np.int64]


def queue_of(source: int) -> tuple[str, QueueId]:
    """(topic, queue id) of a source."""
    return (WHEEL_TOPIC, WHEEL_QUEUE_ID) if source == WHEEL_SOURCE else (SCHEDULE_TOPIC, QueueId(source - 1))


def source_of(topic: str, queue_id: QueueId) -> int | None:
    """The number of the queue as a source; None if it is not a queue of delayed messages."""
    if topic == WHEEL_TOPIC and queue_id == WHEEL_QUEUE_ID:
        return WHEEL_SOURCE
    if topic == SCHEDULE_TOPIC and 0 <= queue_id < SCHEDULE_QUEUES_MAX:
        return queue_id + 1
    return None


class Sources:
    """Reads the records of delayed messages in one store. A record that was removed or is damaged is None."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def queues(self) -> list[tuple[int, ConsumeQueue]]:
        """Sources that have ever had a message, with their queues."""
        queues = [
            *self._store.consume_queues.queues(WHEEL_TOPIC),
            *self._store.consume_queues.queues(SCHEDULE_TOPIC),
        ]
        found = [(source_of(queue.topic, queue.queue_id), queue) for queue in queues]
        return [(source, queue) for source, queue in found if source is not None]

    def queue(self, source: int) -> ConsumeQueue | None:
        return self._store.consume_queues.get(*queue_of(source))

    def unit(self, source: int, offset: int) -> tuple[PhysicalOffset, int, int] | None:
        """(physical offset, size, tags code) of a message; None if it is no longer in its queue, or its unit
        cannot be read."""
        queue = self.queue(source)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        try:
            unit = queue.unit(QueueOffset(offset))
        except UnreadableError:
            self._store.damage.met_unit(queue.topic, queue.queue_id, QueueOffset(offset))
            return None
        return None if unit[1] == BLANK_UNIT_SIZE else unit

    def places(self, source: int, offsets: Int64s) -> tuple[Int64s, Int64s]:
        """Physical offset and size of the record at each queue offset; size 0 if there is none."""
        physical, sizes = np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.int64)
        queue = self.queue(source)
        if queue is None:
            return physical, sizes
        order = np.argsort(offsets, kind="stable")
        sorted_offsets = offsets[order]
        begin = int(np.searchsorted(sorted_offsets, queue.min_offset))
        last = int(np.searchsorted(sorted_offsets, queue.max_offset))
        while begin < last:
            first = int(sorted_offsets[begin])
            end = min(int(np.searchsorted(sorted_offsets, first + UNITS_STEP)), last)
            here = order[begin:end]
            window = readable_units(queue, QueueOffset(first), int(sorted_offsets[end - 1]) + 1 - first)
            units = window[offsets[here] - first]
            physical[here] = units["physical_offset"]
            sizes[here] = np.where(units["size"] == BLANK_UNIT_SIZE, 0, units["size"])
            begin = end
        return physical, sizes

    def record(self, source: int, offset: int) -> WaitingRecord | None:
        """The whole record, checked against its CRC; None also if it is not a delayed message."""
        unit = self.unit(source, offset)
        try:
            record = self._store.record_at(unit[0], check=False) if unit is not None else None
        except DamagedError:
            return None
        if unit is None or record is None:
            return None
        return read_record(record, None if source == WHEEL_SOURCE else unit[2])

    def waiting_at(
        self, source: int, physical_offset: PhysicalOffset, tags_code: int
    ) -> DelayedDelivery | None:
        """The delayed message in the record at that offset; None also if it is not one."""
        try:
            record = self._store.record_at(physical_offset, check=False)
        except DamagedError:
            return None
        if record is None:
            return None
        return read_waiting(record, None if source == WHEEL_SOURCE else tags_code)

    def waiting(self, source: int, offset: int) -> DelayedDelivery | None:
        """The delayed message at that queue offset; None if it is gone, damaged, or not a delayed message."""
        unit = self.unit(source, offset)
        return None if unit is None else self.waiting_at(source, unit[0], unit[2])
