"""Scans a part of the log that the key index does not cover: in windows, from the last one back.

Records can be read forwards only, so a window must begin at a record. The units of the consume queues name
the begins of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset, QueueOffset
from trovemq_proto.records import RecordBatch
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.index.consume_queues import ConsumeQueues

WINDOW_BYTES: Final = 1 << 18
"""Bytes of the log that a scan reads at a time."""


def window_start(consume_queues: ConsumeQueues, begin: PhysicalOffset, end: PhysicalOffset) -> PhysicalOffset:
    """The start of a record (or `begin`) about WINDOW_BYTES before `end`; begin is the start of a record."""
    target = PhysicalOffset(end - WINDOW_BYTES)
    if target <= begin:
        return begin
    best = begin
    for topic in consume_queues.topics():
        for queue in consume_queues.queues(topic):
            offset = QueueOffset(queue.lower_bound(PhysicalOffset(target + 1)) - 1)
            if offset >= queue.min_offset:
                best = max(best, queue.unit(offset)[0])
            if best > target - WINDOW_BYTES:
                return best
    return best


def matches(
    store: MessageStore,
    begin: PhysicalOffset,
    end: PhysicalOffset,
    answering: Callable[[RecordBatch], NDArray[np.bool_]],
) -> tuple[list[PhysicalOffset], int]:
    """Physical offsets of the records of [begin, end) that may answer, newest first, and the number of
    records that were tested."""
    found: list[PhysicalOffset] = []
    record_count = 0
    for physical_offset, records, alive in store.scan(begin, end, WINDOW_BYTES):
        record_count += len(records)
        chosen = answering(records)
        if alive is not None:
            chosen &= alive
        found += (physical_offset + records.positions[chosen]).tolist()
    found.reverse()
    return found, record_count


def windows(
    consume_queues: ConsumeQueues, begin: PhysicalOffset, end: PhysicalOffset
) -> Iterator[tuple[PhysicalOffset, PhysicalOffset]]:
    """[begin, end) cut into windows, the last one first."""
    while begin < end:
        start = window_start(consume_queues, begin, end)
        yield start, end
        end = start
