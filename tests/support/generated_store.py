"""Stores on disk that the engine wrote from a seed, for those who read its files without it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from deploy.demo import flights
from tests.support.engine import NOW_MS, SMALL, append, open_store, record
from trovemq_proto.positions import QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.real import RealFileSystem
from trovemq_store.settings import StoreSettings

QUEUES: Final = 4
ROLLING: Final = replace(
    SMALL,
    commit_log_file_size=1 << 20,
    consume_queue_file_size=20 * 1_000,
    index_slot_count=997,
    index_item_count=20_000,
    body_size_max=1 << 16,
    batch_size_max=1 << 18,
)
"""Every kind of file rolls within a few ten thousand records."""


def write_random_store(
    root: Path, record_count: int, *, seed: int, topics: Iterable[str], settings: StoreSettings = ROLLING
) -> None:
    """Batches of many sizes in any order of topics and queues, with keys and tags of all kinds; store times
    rise, stand still and now and then fall."""
    source, names, now_ms = random.Random(seed), list(topics), NOW_MS
    store = open_store(RealFileSystem(root), settings, topics=names)
    written = 0
    while written < record_count:
        topic, queue_id = source.choice(names), source.randrange(QUEUES)
        count = min(source.choice((1, 1, 2, 7, 40, 150)), record_count - written)
        now_ms += source.choice((0, 0, 3, 40, 1_500, -20))
        records = [
            _random_record(source, topic, QueueId(queue_id), number)
            for number in range(written, written + count)
        ]
        append(store, *records, topic=topic, queue_id=QueueId(queue_id), now_ms=now_ms)
        store.dispatch()
        written += count
    store.close(now_ms)


def _random_record(source: random.Random, topic: str, queue_id: QueueId, number: int) -> bytes:
    keys = " ".join(source.choice(("a", "bb", "", "Flug-ü", f"k{number % 211}")) for _ in range(number % 4))
    return record(
        source.randbytes(source.choice((0, 5, 60, 200))),
        topic=topic,
        queue_id=queue_id,
        keys=keys,
        tag=source.choice(("", "x", "längere", "tag-1")),
        unique_key=f"u{number}" if number % 5 else "",
        properties={"p": str(number)} if number % 3 == 0 else {},
    )


def write_flights(root: Path, count: int, settings: StoreSettings) -> None:
    """The first `count` flights, as `make run` sends them."""
    store = open_store(RealFileSystem(root), settings, topics=())
    store.topics.create(flights.TOPIC, queue_count=flights.QUEUE_COUNT)
    now_ms, messages = NOW_MS, itertools.islice(flights.flight_messages(), count)
    while chosen := list(itertools.islice(messages, 1_000)):
        for queue_id in range(flights.QUEUE_COUNT):
            own = [_flight_record(message) for message in chosen if message.queue_id == queue_id]
            if own:
                append(store, *own, topic=flights.TOPIC, queue_id=QueueId(queue_id), now_ms=now_ms)
                store.dispatch()
            now_ms += 7
    store.close(now_ms)


def _flight_record(message: flights.FlightMessage) -> bytes:
    return record(
        message.body,
        topic=flights.TOPIC,
        queue_id=QueueId(message.queue_id),
        keys=" ".join(message.keys),
        tag=message.tag,
        unique_key=message.message_id,
        properties=message.properties,
    )


def delete_topic(root: Path, topic: str, settings: StoreSettings = ROLLING) -> None:
    """The topic is deleted, recreated and gets one message."""
    store = _reopen(root, settings)
    store.delete_topic(topic, NOW_MS)
    store.topics.create(topic, queue_count=QUEUES)
    append(
        store,
        record(b"again", topic=topic, queue_id=QueueId(1), keys="again"),
        topic=topic,
        queue_id=QueueId(1),
    )
    store.dispatch()
    store.close(NOW_MS)


def trim(root: Path, segment_count: int, settings: StoreSettings = ROLLING) -> None:
    """The log's first segments are gone, as retention removes them."""
    store = _reopen(root, settings)
    trim_now(store.trim(store.closed_segments()[segment_count - 1].end))
    store.close(NOW_MS)


def _reopen(root: Path, settings: StoreSettings) -> MessageStore:
    return open_store(RealFileSystem(root), settings, topics=())
