"""Look-ups of delayed messages: all those of a real topic, or whether a record is still pending."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trovemq_broker.timers.calendar import WAITS, slot_of
from trovemq_broker.timers.sources import queue_of, source_of
from trovemq_broker.timers.waiting_table import WaitingTable
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records.layout import QUEUE_ID_AT


@dataclass(frozen=True, slots=True)
class PendingTimer:
    """A delayed message: when it is delivered (epoch ms), and where its record lies."""

    deliver_ms: EpochMs
    topic: str
    """The wheel topic or the schedule topic."""
    queue_id: QueueId
    queue_offset: QueueOffset


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A delayed message: its record in a system topic, and when it is delivered (epoch ms)."""

    record: memoryview
    unique_key: str
    deliver_ms: EpochMs


def pending_of_topic(table: WaitingTable, topic: str) -> Iterator[PendingTimer]:
    """The delayed messages for that real topic, in no order."""
    number = table.topic_number(topic)
    for block in table.calendar.blocks() if number is not None else ():
        for row in block[(block["state"] == WAITS) & (block["topic"] == number)]:
            waiting_topic, queue_id = queue_of(int(row["source"]))
            yield PendingTimer(
                EpochMs(int(row["deliver_ms"])), waiting_topic, queue_id, QueueOffset(int(row["offset"]))
            )


def waiting_until(
    table: WaitingTable, topic: str, queue_id: QueueId, queue_offset: QueueOffset
) -> EpochMs | None:
    """When the delayed message at that queue offset is delivered (epoch ms); None if there is none, or it is
    not pending."""
    source = source_of(topic, queue_id)
    waiting = table.sources.waiting(source, queue_offset) if source is not None else None
    if source is None or waiting is None or not _waits(table, source, queue_offset, waiting.deliver_ms):
        return None
    return waiting.deliver_ms


def waiting_message(
    table: WaitingTable, topic: str, waiting_topic: str, record: memoryview, queue_offset: QueueOffset
) -> DelayedMessage | None:
    """The delayed message; None if it is no longer pending, or is for another topic."""
    queue_id = QueueId(int.from_bytes(record[QUEUE_ID_AT : QUEUE_ID_AT + 4], signed=True))
    source = source_of(waiting_topic, queue_id)
    waiting = table.sources.waiting(source, queue_offset) if source is not None else None
    if source is None or waiting is None or waiting.topic != topic:
        return None
    if not _waits(table, source, queue_offset, waiting.deliver_ms):
        return None
    return DelayedMessage(record, waiting.unique_key, waiting.deliver_ms)


def _waits(table: WaitingTable, source: int, offset: int, deliver_ms: EpochMs) -> bool:
    return any(
        np.any((block["offset"] == offset) & (block["source"] == source) & (block["state"] == WAITS))
        for block in table.calendar.blocks_at(slot_of(deliver_ms))
    )
