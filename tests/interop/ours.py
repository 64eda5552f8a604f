"""A store of ours that RocketMQ can open with the same sizes, and a comparison of both brokers' answers."""

from __future__ import annotations

import time
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.engine import read_queue
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem
from trovemq_store.settings import StoreSettings

SETTINGS: Final = StoreSettings(
    commit_log_file_size=1 << 20,
    consume_queue_file_size=20_000,
    index_slot_count=1_000,
    index_item_count=4_000,
    store_host="127.0.0.1:10911",
    flush_mode="sync",
    tables_in_log=True,
)
CONSUMERS: Final = ConsumerSettings(new_group_start="begin", timer_log_file_size=512)
"""The timer log gets several files."""
BROKER_CONFIG: Final = {
    "brokerClusterName": SETTINGS.cluster,
    "brokerName": SETTINGS.broker,
    "brokerId": "0",
    "mappedFileSizeCommitLog": str(SETTINGS.commit_log_file_size),
    "mappedFileSizeConsumeQueue": str(SETTINGS.consume_queue_file_size),
    "mappedFileSizeTimerLog": str(CONSUMERS.timer_log_file_size),
    "maxHashSlotNum": str(SETTINGS.index_slot_count),
    "maxIndexNum": str(SETTINGS.index_item_count),
}


def open_ours(root: Path, topics: Sequence[str]) -> MessageStore:
    """The store, with these topics of four queues each."""
    root.mkdir(exist_ok=True)
    store = MessageStore.open(RealFileSystem(root), SETTINGS, now_ms())
    for topic in topics:
        if store.topics.get(topic) is None:
            store.topics.create(topic, queue_count=4)
    return store


def now_ms() -> EpochMs:
    return EpochMs(int(time.time() * 1000))


def sync(store: MessageStore) -> None:
    work = store.begin_flush()
    if work is not None:
        work.run()
        store.finish_flush(work)


def all_messages(store: MessageStore) -> dict[int, dict[str, Any]]:
    """Every message of every queue as the manifests and the probe describe them, by physical offset."""
    found: dict[int, dict[str, Any]] = {}
    for topic in store.consume_queues.topics():
        for queue in store.consume_queues.queues(topic):
            for message in read_queue(store, topic, queue.queue_id):
                found[message.physical_offset] = message.to_manifest()
    return found


FIELDS: Final = (
    "topic",
    "queueId",
    "queueOffset",
    "commitLogOffset",
    "storeSize",
    "flag",
    "bornTimestamp",
    "storeTimestamp",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "body",
)
ADDED_BY_CLIENT: Final = frozenset({"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"})


def described(message: dict[str, Any]) -> dict[str, Any]:
    properties = {name: value for name, value in message["properties"].items() if name not in ADDED_BY_CLIENT}
    return {name: message[name] for name in FIELDS} | {"properties": properties}


def assert_same_messages(seen: list[dict[str, Any]], ours: dict[int, dict[str, Any]]) -> None:
    """RocketMQ gave each of our messages once, with the same content, and no other."""
    assert Counter(message["commitLogOffset"] for message in seen) == Counter(ours.keys())
    for message in seen:
        assert described(message) == described(ours[message["commitLogOffset"]])


def bodies(messages: list[dict[str, Any]]) -> Counter[str]:
    return Counter(message["body"] for message in messages)


def encoded(*contents: bytes) -> Counter[str]:
    return Counter(b64encode(content).decode() for content in contents)
