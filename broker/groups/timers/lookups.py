"""Looking up what waits: everything for a real topic, or what has a key.

The key index has a waiting record under the system topic in which it lies; the record says which topic it is
for, and the table knows whether it still waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from broker.groups.timers.calendar import WAITS, slot_of
from broker.groups.timers.sources import queue_of, source_of
from broker.groups.timers.waiting_table import WaitingTable
from broker.groups.timers.wheel_records import WHEEL_TOPIC
from broker.query.key_query import KeyQuery
from broker.query.query_by_key import query_pages
from trovemq_proto.records.layout import QUEUE_ID_AT, SCHEDULE_TOPIC
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids
from trovemq_store.engine.steps import Steps

FOUND_MAX: Final = 1_000
CANDIDATES_STEP: Final = 8
CANDIDATES_MAX: Final = 10_000
"""Records of one system topic that have the key, whatever their real topic, waiting or not."""


@dataclass(frozen=True, slots=True)
class PendingTimer:
    """A message that waits: when it is delivered (epoch ms), and where its record lies."""

    deliver_ms: int
    topic: str
    """The wheel topic or the schedule topic."""
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that waits: its record in a system topic, and when it is delivered (epoch ms)."""

    record: memoryview
    unique_key: str
    deliver_ms: int


@dataclass(frozen=True, slots=True)
class DelayedMessages:
    """Soonest first; complete is False where there may be more."""

    messages: list[DelayedMessage]
    complete: bool


def pending_of_topic(table: WaitingTable, topic: str) -> Iterator[PendingTimer]:
    """Everything that waits for that real topic, in no order."""
    number = table.topic_number(topic)
    for block in table.calendar.blocks() if number is not None else ():
        for row in block[(block["state"] == WAITS) & (block["topic"] == number)]:
            waiting_topic, queue_id = queue_of(int(row["source"]))
            yield PendingTimer(int(row["deliver_ms"]), waiting_topic, queue_id, int(row["offset"]))


def delayed_messages(
    store: MessageStore, table: WaitingTable, topic: str, key: str
) -> Steps[DelayedMessages]:
    """What waits for that real topic and has the key as its unique key or among its keys.

    TroveError TOPIC_NOT_FOUND, INDEX_DISABLED, REQUEST_ILLEGAL.
    """
    queue_ids(store, topic)
    found: list[DelayedMessage] = []
    complete = True
    for waiting_topic in (WHEEL_TOPIC, SCHEDULE_TOPIC):
        if not store.consume_queues.queues(waiting_topic):
            continue
        for page in query_pages(store, KeyQuery(waiting_topic, key), messages_max=CANDIDATES_MAX):
            for number, (record, queue_offset) in enumerate(
                zip(page.records, page.queue_offsets, strict=True), 1
            ):
                if number % CANDIDATES_STEP == 0:
                    yield  # each is looked for among all that wait for its time
                message = _waiting_message(table, topic, waiting_topic, record, queue_offset)
                if message is not None:
                    found.append(message)
            if page.last or len(found) >= FOUND_MAX:
                complete = complete and page.complete
                break
            yield
    found.sort(key=lambda message: message.deliver_ms)
    return DelayedMessages(found[:FOUND_MAX], complete and len(found) <= FOUND_MAX)


def waiting_until(table: WaitingTable, topic: str, queue_id: int, queue_offset: int) -> int | None:
    """When the message whose record lies there is delivered (epoch ms); None where none waits there."""
    source = source_of(topic, queue_id)
    waiting = table.sources.waiting(source, queue_offset) if source is not None else None
    if source is None or waiting is None or not _waits(table, source, queue_offset, waiting.deliver_ms):
        return None
    return waiting.deliver_ms


def _waiting_message(
    table: WaitingTable, topic: str, waiting_topic: str, record: memoryview, queue_offset: int
) -> DelayedMessage | None:
    """None where it waits no more, or for another topic."""
    queue_id = int.from_bytes(record[QUEUE_ID_AT : QUEUE_ID_AT + 4], signed=True)
    source = source_of(waiting_topic, queue_id)
    waiting = table.sources.waiting(source, queue_offset) if source is not None else None
    if source is None or waiting is None or waiting.topic != topic:
        return None
    if not _waits(table, source, queue_offset, waiting.deliver_ms):
        return None
    return DelayedMessage(record, waiting.unique_key, waiting.deliver_ms)


def _waits(table: WaitingTable, source: int, offset: int, deliver_ms: int) -> bool:
    return any(
        np.any((block["offset"] == offset) & (block["source"] == source) & (block["state"] == WAITS))
        for block in table.calendar.blocks_at(slot_of(deliver_ms))
    )
