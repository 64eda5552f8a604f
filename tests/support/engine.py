"""Small helpers to drive the engine in tests: settings with tiny files, and sends of plain messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from broker.message_store import AppendResult, MessageStore
from broker.storage.files import FileSystem
from broker.store_settings import StoreSettings
from trovemq_proto.records.encode import encode_record
from trovemq_proto.records.message import Message, decode_message
from trovemq_proto.records.validate import validate_batch

NOW_MS = 1_700_000_000_000
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
    queue_id: int = 0,
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


def append(
    store: MessageStore,
    *records: bytes,
    topic: str = "orders",
    queue_id: int = 0,
    now_ms: int = NOW_MS,
) -> AppendResult:
    """Validates and appends the records as one batch, as the produce path does."""
    data = bytearray().join(records)
    batch = validate_batch(
        data,
        topic=topic,
        queue_id=queue_id,
        body_size_max=store.settings.body_size_max,
        store_host_ipv6=store.settings.store_host.startswith("["),
        append_property_crc=store.settings.append_property_crc,
    )
    return store.append(data, batch, topic=topic, queue_id=queue_id, now_ms=now_ms, born_host=BORN_HOST)


def send(store: MessageStore, body: bytes, now_ms: int = NOW_MS, **fields: Any) -> AppendResult:
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


def read_queue(store: MessageStore, topic: str = "orders", queue_id: int = 0) -> list[Message]:
    """Every visible message of a queue, by its consume queue."""
    queue = store.consume_queues.get(topic, queue_id)
    if queue is None:
        return []
    messages = []
    for unit in queue.units(queue.min_offset, queue.max_offset - queue.min_offset):
        found = store.record_at(int(unit["physical_offset"]))
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
