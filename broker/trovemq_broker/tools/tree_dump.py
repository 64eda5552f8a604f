"""The trees of a stopped store as readable objects, one per line: KahaDB's three views of its messages.

| view       | order                                                             |
|------------|-------------------------------------------------------------------|
| location   | of the log                                                        |
| message-id | of the unique ids, as text                                        |
| order      | in which each queue is received: by priority if its topic is so;  |
|            | `sequence` counts within the queue                                |
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import StrEnum

import numpy as np

from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import Message, RecordState, check_record, decode_message
from trovemq_proto.records.priorities import priority_of
from trovemq_store.check.store_view import StoreView
from trovemq_store.files.files import StorageError
from trovemq_store.files.trees import TreeReader, key_after
from trovemq_store.index.trees.layout import LOCATION, LOCATION_ENTRY, OFFSET, TERM, UNIQUE_KEY, term_prefix
from trovemq_store.index.trees.topic_numbers import TopicNumbers
from trovemq_store.topics.lax_json import JsonObject
from trovemq_store.topics.topics import TopicTable


class TreeView(StrEnum):
    LOCATION = "location"
    MESSAGE_ID = "message-id"
    ORDER = "order"


def tree(
    view: StoreView, chosen: TreeView, reader: TreeReader, numbers: TopicNumbers
) -> Iterator[JsonObject]:
    match chosen:
        case TreeView.LOCATION:
            yield from locations(view, reader, numbers)
        case TreeView.MESSAGE_ID:
            yield from message_ids(view, reader, numbers)
        case TreeView.ORDER:
            yield from order(view, reader, numbers)


def locations(view: StoreView, reader: TreeReader, numbers: TopicNumbers) -> Iterator[JsonObject]:
    names = {entry.number: topic for topic in numbers.names() if (entry := numbers.find(topic)) is not None}
    for key, value in reader.items(LOCATION, b""):
        first = OFFSET.unpack(key)[0]
        for entry in np.frombuffer(value, LOCATION_ENTRY):
            topic, offset = names.get(int(entry["topic"])), first + int(entry["distance"])
            if topic is not None and offset >= view.log.min_offset:
                yield {
                    "commitLogOffset": offset,
                    "topic": topic,
                    "queueId": int(entry["queue_id"]),
                    "queueOffset": int(entry["queue_offset"]),
                }


def message_ids(view: StoreView, reader: TreeReader, numbers: TopicNumbers) -> Iterator[JsonObject]:
    of_topics = [_ids_of(view, reader, numbers, topic) for topic in numbers.names()]
    for text, topic, offset, message in heapq.merge(*of_topics, key=lambda one: one[:3]):
        yield {
            "messageId": text,
            "topic": topic,
            "queueId": message.queue_id,
            "queueOffset": message.queue_offset,
            "commitLogOffset": offset,
        }


def _ids_of(
    view: StoreView, reader: TreeReader, numbers: TopicNumbers, topic: str
) -> Iterator[tuple[str, str, int, Message]]:
    entry = numbers.find(topic)
    assert entry is not None, "its name was just listed"
    prefix = term_prefix(entry.number, UNIQUE_KEY)
    for key, _ in reader.items(TERM, prefix, key_after(prefix)):
        offset = OFFSET.unpack_from(key, len(key) - OFFSET.size)[0]
        message = _message_at(view, offset)
        if message is not None:
            yield message.unique_key or "", topic, offset, message


def order(view: StoreView, reader: TreeReader, numbers: TopicNumbers) -> Iterator[JsonObject]:
    table = TopicTable.load(view.files)
    rows = []
    for place in locations(view, reader, numbers):
        message = _message_at(view, PhysicalOffset(int(str(place["commitLogOffset"]))))
        if message is not None:
            config = table.get(str(place["topic"]))
            by_priority = config is not None and config.by_priority
            priority = priority_of(message.properties)
            rank = -priority if by_priority else 0
            rows.append(
                (place["topic"], place["queueId"], rank, place["queueOffset"], priority, message, place)
            )
    rows.sort(key=lambda row: row[:4])
    queue, sequence = None, 0
    for topic, queue_id, _, queue_offset, priority, message, place in rows:
        sequence = sequence + 1 if queue == (topic, queue_id) else 1
        queue = (topic, queue_id)
        yield {
            "topic": topic,
            "queueId": queue_id,
            "sequence": sequence,
            "priority": priority,
            "queueOffset": queue_offset,
            "messageId": message.unique_key,
            "commitLogOffset": place["commitLogOffset"],
        }


def _message_at(view: StoreView, physical_offset: PhysicalOffset) -> Message | None:
    """The message at that offset; None if it was removed or is damaged."""
    segment = view.log.segments.at(physical_offset)
    if segment is None or physical_offset < view.log.min_offset:
        return None
    position, data = physical_offset - segment.start, segment.file.view()
    try:
        found, size = check_record(data, position, len(data), physical_offset=physical_offset)
        return decode_message(data[position : position + size]) if found is RecordState.RECORD else None
    except (TroveError, StorageError):
        return None
