"""A store with deduplicated topics beside a plain model of its knowledge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tests.support.engine import NOW_MS, SMALL_SYNC, flush, open_store, sent_record
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.validate import validate_batch
from trovemq_store.engine.append_result import AppendResult
from trovemq_store.engine.deduplication import Deduplication
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import FileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.trees.unique_ids import MessagePosition
from trovemq_store.settings import StoreSettings

SETTINGS: Final = replace(SMALL_SYNC, tree_index_enable=True)
WINDOW: Final = "10s"
WINDOW_MS: Final = 10_000
TOPIC: Final = "orders"
ENDS: Final = ("stopped", "killed", "power", "trees lost")


def opened(
    files: FileSystem, options: str = WINDOW, settings: StoreSettings = SETTINGS
) -> tuple[MessageStore, Deduplication]:
    """The store with the topic, made where it is missing."""
    store = open_store(files, settings, topics=())
    if store.topics.get(TOPIC) is None:
        store.topics.create(TOPIC, 4, options={"deduplicate": options})
    return store, Deduplication(store)


def send(
    deduplication: Deduplication,
    store: MessageStore,
    ids: Sequence[str],
    *,
    topic: str = TOPIC,
    queue_id: QueueId = QueueId(0),
    now_ms: EpochMs = NOW_MS,
    body: bytes = b"body",
) -> AppendResult:
    """One batch by the path of producers; an empty id: a record without one."""
    data = bytearray().join(
        sent_record(body, topic=topic, queue_id=queue_id, unique_key=unique_id) for unique_id in ids
    )
    return append_records(deduplication, store, data, topic=topic, queue_id=queue_id, now_ms=now_ms)


def append_records(
    deduplication: Deduplication,
    store: MessageStore,
    data: bytearray,
    *,
    topic: str,
    queue_id: QueueId,
    now_ms: EpochMs,
) -> AppendResult:
    """Records that were sent together, checked as the broker does it."""
    batch = validate_batch(
        data,
        topic=topic,
        queue_id=queue_id,
        body_size_max=store.settings.body_size_max,
        store_host_ipv6=False,
        append_property_crc=True,
    )
    (result,) = deduplication.append(batch, ((topic, queue_id, len(batch)),), now_ms)
    return result


def ended(files: MemoryFileSystem, store: MessageStore, how: str, now_ms: EpochMs) -> MemoryFileSystem:
    """The state after the next start; `how` is one of ENDS."""
    if how == "stopped":
        store.close(now_ms)
    else:
        files = files.after_process_kill() if how == "killed" else files.after_power_cut()
    if how == "trees lost":
        files.remove("trovemq/trees/data.mdb")
    return files


def sweep_a_little(store: MessageStore) -> None:
    assert store.trees is not None
    store.trees.sweep(2)
    store.trees.sweep_ids(store.time.since_of(store.last_store_timestamp), store.last_store_timestamp, 2)


def step(store: MessageStore, bytes_max: int = 1 << 20) -> bool:
    """One step of the trees, as their task makes it."""
    found = store.begin_trees(bytes_max)
    if found is None:
        return False
    try:
        found.run()
    finally:
        store.finish_trees(found)
    return True


def stored(store: MessageStore, topic: str = TOPIC) -> list[tuple[str, MessagePosition]]:
    """Every message of the topic in the log, in its order: its id and where it is."""
    flush(store)
    found = []
    for begin, records, alive in store.scan(store.min_offset, store.end_offset):
        for index, message in enumerate(records.messages()):
            if message.topic == topic and (alive is None or alive[index]):
                place = MessagePosition(
                    PhysicalOffset(begin + int(records.positions[index])),
                    message.queue_id,
                    message.queue_offset,
                    message.store_timestamp,
                )
                found.append((message.properties.get("UNIQ_KEY", ""), place))
    return found


def places_of(result: AppendResult, queue_id: QueueId) -> list[MessagePosition]:
    """Where each message of the batch is, by the sender's replies."""
    found = []
    kept = 0
    for index in range(result.message_count):
        place = result.duplicates.get(index)
        if place is None:
            offset = result.physical_offset + int(result.positions[kept])
            place = MessagePosition(
                PhysicalOffset(offset),
                queue_id,
                QueueOffset(result.first_queue_offset + kept),
                result.store_timestamp,
            )
            kept += 1
        assert result.queue_offset(index) == place.queue_offset
        found.append(place)
    assert kept == result.record_count
    return found
