"""Finds the delayed messages of a topic that have a key.

The key index has a delayed record under the system topic in which it lies. The record names its real topic,
and the timers know whether it is still pending.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trovemq_broker.query.key_query import KeyQuery
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.timers.lookups import DelayedMessage
from trovemq_broker.timers.timers import SCHEDULE_TOPIC, WHEEL_TOPIC, Timers
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids
from trovemq_store.engine.steps import Steps

FOUND_MAX: Final = 1_000
CANDIDATES_STEP: Final = 8
CANDIDATES_MAX: Final = 10_000
"""The most records of one system topic with the key that are examined, whatever their real topic, pending or
not."""


@dataclass(frozen=True, slots=True)
class DelayedMessages:
    """Soonest first; complete is False if there may be more."""

    messages: list[DelayedMessage]
    complete: bool


def delayed_messages(store: MessageStore, timers: Timers, topic: str, key: str) -> Steps[DelayedMessages]:
    """The delayed messages of that real topic that have the key as their unique key or among their keys.

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
                    yield  # the look-up of each searches all messages of its time
                message = timers.waiting_message(topic, waiting_topic, record, queue_offset)
                if message is not None:
                    found.append(message)
            if page.last or len(found) >= FOUND_MAX:
                complete = complete and page.complete
                break
            yield
    found.sort(key=lambda message: message.deliver_ms)
    return DelayedMessages(found[:FOUND_MAX], complete and len(found) <= FOUND_MAX)
