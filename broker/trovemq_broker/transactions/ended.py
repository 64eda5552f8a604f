"""Finds, after a crash, open half messages that were ended in the log without an op record.

The commit record is looked up by its unique key in the real topic: it has type commit, and its
PREPAREDTRANSACTIONOFFSET points to the half. A moved half is also found by its earlier physical offset. A
half after its last check may have been given up: then it is in TRANS_CHECK_MAX_TIME_TOPIC. Without a key
index the queues are read instead, from the oldest of these halves on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from trovemq_broker.transactions.records import GIVEN_UP_TOPIC, TRANSACTION_QUEUE_ID, HalfMessage
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, QueueId
from trovemq_proto.records import Message, decode_stored
from trovemq_proto.records.layout import (
    PROPERTY_REAL_TOPIC,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_MASK,
)
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.engine.queues import queue_ids
from trovemq_store.engine.unique_key_lookup import records_with_unique_key


def find_ended(store: MessageStore, halves: Sequence[HalfMessage], *, checks_max: int) -> list[HalfMessage]:
    """The halves that have ended: they have a commit record, or a give-up record after checks_max checks."""
    last_checked = [half for half in halves if half.checks >= checks_max]
    if store.key_index is None:
        ended = _committed_by_reading(store, halves) | _given_up_by_reading(store, last_checked)
    else:
        ended = {half.offset for half in halves if _has_commit(store, half)}
        ended |= {half.offset for half in last_checked if _was_given_up(store, half)}
    return [half for half in halves if half.offset in ended]


def _has_commit(store: MessageStore, half: HalfMessage) -> bool:
    return any(_is_commit_of(half, message) for message in _found(store, half, half.topic))


def _was_given_up(store: MessageStore, half: HalfMessage) -> bool:
    return any(_is_given_up(half, message) for message in _found(store, half, GIVEN_UP_TOPIC))


def _found(store: MessageStore, half: HalfMessage, topic: str) -> Iterator[Message]:
    try:
        queue_ids(store, topic)
    except TroveError:
        return  # the topic does not exist, or was deleted
    begin = LOG_ORIGIN if half.is_copy else half.physical_offset
    yield from map(decode_stored, records_with_unique_key(store, topic, half.transaction_id, begin))


def _committed_by_reading(store: MessageStore, halves: Iterable[HalfMessage]) -> set[int]:
    queues: dict[tuple[str, QueueId], dict[str, HalfMessage]] = defaultdict(dict)
    for half in halves:
        queues[half.topic, half.queue_id][half.transaction_id] = half
    found: set[int] = set()
    for (topic, queue_id), by_id in queues.items():
        for message in _written_since(store, topic, queue_id, by_id.values()):
            half_of = by_id.get(message.unique_key or "")
            if half_of is not None and _is_commit_of(half_of, message):
                found.add(half_of.offset)
    return found


def _given_up_by_reading(store: MessageStore, halves: Sequence[HalfMessage]) -> set[int]:
    by_id = {(half.topic, half.transaction_id): half for half in halves}
    found: set[int] = set()
    for message in _written_since(store, GIVEN_UP_TOPIC, TRANSACTION_QUEUE_ID, halves):
        key = (message.properties.get(PROPERTY_REAL_TOPIC, ""), message.unique_key or "")
        half = by_id.get(key)
        if half is not None and _is_given_up(half, message):
            found.add(half.offset)
    return found


def _written_since(
    store: MessageStore, topic: str, queue_id: QueueId, halves: Iterable[HalfMessage]
) -> Iterator[Message]:
    """The queue's messages after the oldest of the halves; all messages if one half was moved."""
    queue = store.consume_queues.get(topic, queue_id)
    begin = min((LOG_ORIGIN if half.is_copy else half.physical_offset for half in halves), default=None)
    if queue is None or begin is None:
        return
    for _, message in messages_from(store, topic, queue_id, queue.lower_bound(begin)):
        yield message


def _is_commit_of(half: HalfMessage, message: Message) -> bool:
    """`message` has the half's id."""
    if message.sys_flag & SYS_FLAG_TRANSACTION_MASK != SYS_FLAG_TRANSACTION_COMMIT:
        return False
    prepared = message.prepared_transaction_offset
    return prepared == half.physical_offset or (half.is_copy and prepared < half.physical_offset)


def _is_given_up(half: HalfMessage, message: Message) -> bool:
    return (
        message.unique_key == half.transaction_id
        and message.properties.get(PROPERTY_REAL_TOPIC) == half.topic
        and message.physical_offset > half.physical_offset
    )
