"""Small helpers to drive the engine in tests: settings with tiny files, and sends of plain messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.encode import encode_record
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.layout import (
    CRC_PROPERTY_EMPTY,
    CRC_PROPERTY_SIZE,
    PROPERTIES_SIZE_MAX,
    PROPERTY_CRC,
    VALUE_END,
)
from trovemq_proto.records.message import Message, decode_message
from trovemq_proto.records.record_crc import has_record_crc
from trovemq_proto.records.validate import validate_batch
from trovemq_store.engine.message_store import AppendResult, MessageStore
from trovemq_store.files.files import FileSystem
from trovemq_store.settings import StoreSettings

NOW_MS = EpochMs(1_700_000_000_000)
BORN_HOST = bytes([10, 0, 0, 2, 0, 0, 0xC3, 0xCB])

SMALL = StoreSettings(
    commit_log_file_size=12_288,
    consume_queue_file_size=400,
    index_slot_count=64,
    index_item_count=256,
    body_size_max=8_192,
    batch_size_max=16_384,
    flush_mode="async",
    store_host="10.0.0.1:8081",
)
SMALL_SYNC = replace(SMALL, flush_mode="sync")


def open_store(
    files: FileSystem, settings: StoreSettings = SMALL, *, topics: Sequence[str] = ("orders",)
) -> MessageStore:
    """An open store that has the topics (4 queues each)."""
    store = MessageStore.open(files, settings, NOW_MS, process_id=42)
    for topic in topics:
        if store.topics.get(topic) is None:
            store.topics.create(topic, queue_count=4)
    return store


def record(
    body: bytes,
    *,
    topic: str = "orders",
    queue_id: QueueId = QueueId(0),
    keys: str = "",
    tag: str = "",
    unique_key: str = "",
    properties: Mapping[str, str] | None = None,
    **fields: Any,
) -> bytes:
    """One record as a producer encodes it."""
    named = {"UNIQ_KEY": unique_key, "KEYS": keys, "TAGS": tag, **(properties or {})}
    return encode_record(
        topic,
        body,
        queue_id=queue_id,
        properties={name: value for name, value in named.items() if value},
        born_timestamp=NOW_MS - 5,
        **fields,
    )


def with_crc_property(record: bytes) -> bytes:
    """The encoded record with the CRC property reserved, where it is well formed, has none and has space."""
    fields = read_fields(record, 0, len(record))
    size_max = PROPERTIES_SIZE_MAX - CRC_PROPERTY_SIZE
    if fields is None or has_record_crc(record, fields) or fields.property_size > size_max:
        return record
    end, block = fields.property_position - 2, record[fields.property_position :]
    if block and block[-1] != VALUE_END:
        return record
    size = fields.property_size + CRC_PROPERTY_SIZE
    total = len(record) + CRC_PROPERTY_SIZE
    return total.to_bytes(4) + record[4:end] + size.to_bytes(2) + block + CRC_PROPERTY_EMPTY


def sent_record(body: bytes, **fields: Any) -> bytes:
    """The same with space for the whole record's CRC, as brokers ask their producers for by default."""
    return record(body, append_property_crc=True, **fields)


def own_properties(message: Message) -> dict[str, str]:
    """The message's properties beside the whole record's CRC."""
    return {name: value for name, value in message.properties.items() if name != PROPERTY_CRC}


def append(
    store: MessageStore,
    *records: bytes,
    topic: str = "orders",
    queue_id: QueueId = QueueId(0),
    now_ms: EpochMs = NOW_MS,
) -> AppendResult:
    """Validates and appends the records as one batch, as the produce path does."""
    batch = validated(store, records, topic, queue_id)
    return append_batch(store, batch, topic, queue_id, now_ms)


def append_batch(
    store: MessageStore,
    batch: RecordBatch,
    topic: str = "orders",
    queue_id: int = 0,
    now_ms: EpochMs = NOW_MS,
    born_host: bytes | None = BORN_HOST,
) -> AppendResult:
    (result,) = store.append(batch, ((topic, queue_id, len(batch)),), now_ms, born_host=born_host)
    return result


def validated(store: MessageStore, records: Sequence[bytes], topic: str, queue_id: QueueId) -> RecordBatch:
    """The records as one batch; the property for the whole record's CRC is reserved as the store wants it."""
    wanted = store.settings.append_property_crc
    data = bytearray().join([with_crc_property(record) if wanted else record for record in records])
    return validate_batch(
        data,
        topic=topic,
        queue_id=queue_id,
        body_size_max=store.settings.body_size_max,
        store_host_ipv6=store.settings.store_host.startswith("["),
        append_property_crc=wanted and b"__CRC32#" in data,
    )


def send(store: MessageStore, body: bytes, now_ms: EpochMs = NOW_MS, **fields: Any) -> AppendResult:
    """Appends one message; in async mode it is then visible."""
    topic, queue_id = fields.get("topic", "orders"), fields.get("queue_id", 0)
    result = append(store, record(body, **fields), topic=topic, queue_id=queue_id, now_ms=now_ms)
    store.dispatch()
    return result


def flush(store: MessageStore) -> None:
    """One group commit, in this thread."""
    work = store.begin_flush()
    if work is not None:
        work.run()
        store.finish_flush(work)


def read_queue(store: MessageStore, topic: str = "orders", queue_id: QueueId = QueueId(0)) -> list[Message]:
    """Every visible message of a queue, by its consume queue."""
    queue = store.consume_queues.get(topic, queue_id)
    if queue is None:
        return []
    messages = []
    for unit in queue.units(queue.min_offset, queue.max_offset - queue.min_offset):
        found = store.record_at(PhysicalOffset(int(unit["physical_offset"])))
        assert found is not None, "a unit points to a record"
        assert len(found) == int(unit["size"])
        messages.append(decode_message(found))
    return messages


def scan_bodies(store: MessageStore) -> list[bytes]:
    """Bodies of every visible, living message, in log order."""
    bodies: list[bytes] = []
    for _, records, alive in store.scan(store.min_offset, store.visible_offset):
        bodies += [message.body for i, message in enumerate(records.messages()) if alive is None or alive[i]]
    return bodies
