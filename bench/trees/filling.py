"""A store of many small messages, filled in this process, on which its trees are measured.

Two topics take batches in turn: the unique ids of one are those that the SDK gives (they rise with time), of
the other random ones (uuid4), and that topic is deduplicated. Each message has one key of 100,000 and one
tag of 5.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import EpochMs
from trovemq_proto.records import BatchEncoder, validate_batch
from trovemq_proto.records.unique_keys import UniqueKeyGenerator
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem
from trovemq_store.settings import StoreSettings

GENERATED = "generated-ids"
RANDOM = "random-ids"
TOPICS = (GENERATED, RANDOM)
QUEUES = 4
DEDUPLICATED = {"deduplicate": "1d"}
BATCH = 1_000
BODY_SIZES = (100, 200)
KEYS = 100_000
TAGS = tuple(f"tag{number}" for number in range(5))
KEPT_A_BATCH = 4
"""Ids that are remembered, to be looked up."""
FLUSH_BATCHES = 200
MAC = b"\x02trove"
START_S = 150_000_000
BASE_MS = EpochMs(1_700_000_000_000)
STORE_SETTINGS = {
    "commit_log_file_size": 1 << 28,
    "consume_queue_file_size": 6_000_000,
    "index_slot_count": 20_000,
    "index_item_count": 80_000,
}


@dataclass(slots=True)
class Filled:
    """messages: of both topics; ids: some of each topic's; log_bytes: of the log."""

    messages: int
    log_bytes: int
    ids: dict[str, list[str]] = field(default_factory=lambda: {topic: [] for topic in TOPICS})


def open_store(directory: Path) -> MessageStore:
    settings = StoreSettings(
        flush_mode="async", message_index_enable=False, tree_index_enable=True, spare_segment_enable=False,
        **STORE_SETTINGS,  # type: ignore[arg-type]
    )  # fmt: skip
    return MessageStore.open(RealFileSystem(directory), settings, BASE_MS)


def fill(store: MessageStore, messages: int) -> Filled:
    """Appended, on disk and dispatched; the trees have nothing of it yet."""
    for topic in TOPICS:
        store.topics.create(topic, QUEUES, options=DEDUPLICATED if topic == RANDOM else {})
    encoders = {topic: BatchEncoder(topic, append_property_crc=True) for topic in TOPICS}
    generator = random.Random(3)
    unique = UniqueKeyGenerator(MAC, 1, START_S, lambda: (store.last_store_timestamp - BASE_MS) // 100)
    bodies = [generator.randbytes(generator.randint(*BODY_SIZES)) for _ in range(BATCH)]
    tags = [TAGS[number % len(TAGS)] for number in range(BATCH)]
    filled = Filled(messages, 0)
    for number in range(messages // BATCH):
        topic, queue_id = TOPICS[number % 2], number // 2 % QUEUES
        ids = unique.take_matrix(BATCH) if topic == GENERATED else _random_ids(generator)
        keys = [f"order-{generator.randrange(KEYS):06}" for _ in range(BATCH)]
        data = encoders[topic].encode(
            bodies, queue_id=queue_id, unique_keys=ids, keys=keys, tags=tags, born_timestamp=BASE_MS
        )
        _append(store, data, topic, queue_id, BASE_MS + number)
        kept = ids[:: BATCH // KEPT_A_BATCH]
        filled.ids[topic] += [row.tobytes().decode() for row in kept]
        if number % FLUSH_BATCHES == FLUSH_BATCHES - 1:
            _flush(store)
    _flush(store)
    filled.log_bytes = store.end_offset
    return filled


def _random_ids(generator: random.Random) -> NDArray[np.uint8]:
    """uint8[n, 32]: uuid4 in hexadecimal."""
    ids: Sequence[str] = [uuid.UUID(int=generator.getrandbits(128), version=4).hex for _ in range(BATCH)]
    return np.frombuffer("".join(ids).encode(), np.uint8).reshape(BATCH, 32)


def _append(store: MessageStore, data: bytearray, topic: str, queue_id: int, now_ms: EpochMs) -> None:
    batch = validate_batch(
        data, topic=topic, queue_id=queue_id, body_size_max=store.settings.body_size_max,
        store_host_ipv6=False, append_property_crc=True,
    )  # fmt: skip
    store.append(batch, ((topic, queue_id, len(batch)),), now_ms)
    store.dispatch()


def _flush(store: MessageStore) -> None:
    work = store.begin_flush()
    if work is not None:
        work.run()
        store.finish_flush(work)
