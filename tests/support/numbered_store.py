"""A store with a deduplicated topic, and messages that producers have numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tests.support import deduplicated
from tests.support.deduplicated import SETTINGS, TOPIC, append_records
from tests.support.engine import NOW_MS, flush, sent_record
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId
from trovemq_store.engine.append_result import AppendResult
from trovemq_store.engine.deduplication import Deduplication
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import FileSystem
from trovemq_store.index.trees.unique_ids import MessagePosition

PRODUCERS_MAX = 3
DEPTH = 6


class Message(NamedTuple):
    producer: str
    sequence: int | str
    unique_id: str = ""


class Stored(NamedTuple):
    message: Message
    place: MessagePosition


def opened(
    files: FileSystem, window: str = "10s", producers_max: int = PRODUCERS_MAX
) -> tuple[MessageStore, Deduplication]:
    return deduplicated.opened(files, window, replace(SETTINGS, producers_max=producers_max))


def send(
    deduplication: Deduplication,
    store: MessageStore,
    messages: Sequence[Message],
    *,
    topic: str = TOPIC,
    queue_id: QueueId = QueueId(0),
    now_ms: EpochMs = NOW_MS,
) -> AppendResult:
    data = bytearray()
    for message in messages:
        properties = {"TROVEMQ_PRODUCER": message.producer, "TROVEMQ_SEQUENCE": str(message.sequence)}
        own = {name: value for name, value in properties.items() if value}
        data += sent_record(
            b"body", topic=topic, queue_id=queue_id, unique_key=message.unique_id, properties=own
        )
    return append_records(deduplication, store, data, topic=topic, queue_id=queue_id, now_ms=now_ms)


def numbers(producer: str, *sequences: int) -> list[Message]:
    return [Message(producer, sequence) for sequence in sequences]


def in_log(store: MessageStore) -> list[Stored]:
    flush(store)
    found = []
    for begin, records, _ in store.scan(store.min_offset, store.end_offset):
        for index, message in enumerate(records.messages()):
            if message.topic == TOPIC:
                own = message.properties
                place = MessagePosition(
                    PhysicalOffset(begin + int(records.positions[index])),
                    message.queue_id,
                    message.queue_offset,
                    message.store_timestamp,
                )
                number = int(own["TROVEMQ_SEQUENCE"])
                found.append(Stored(Message(own["TROVEMQ_PRODUCER"], number, own.get("UNIQ_KEY", "")), place))
    return found
