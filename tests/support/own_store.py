"""A store that our own engine wrote and closed cleanly: with a deleted topic, a trimmed beginning, compressed
bodies, delivery events, retries and dead letters, delayed messages and transactions."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import replace
from pathlib import Path

from tests.support.damage import contents_of
from tests.support.engine import SMALL, append, record
from tests.support.retention import FREE, HOUR_MS, LEASE_MS, WORKERS, Broker
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records.layout import SYS_FLAG_COMPRESSED
from trovemq_store.files.memory import MemoryFileSystem

SETTINGS = replace(
    SMALL,
    commit_log_file_size=65_536,
    consume_queue_file_size=1_000,
    index_slot_count=100,
    index_item_count=400,
    body_size_max=16_384,
    flush_mode="sync",
    append_property_crc=True,
)


def own_store(root: Path) -> Path:
    """Writes it below `root`, which does not exist yet; RocketMQ's empty timer wheel is left out."""
    files = MemoryFileSystem()
    broker = Broker(files, settings=SETTINGS)
    broker.store.topics.create("gone", queue_count=1)
    _send(broker, "filler", range(60), body_size=2_000)  # will be trimmed
    broker.now_ms += 2 * HOUR_MS
    _send(broker, "gone", range(40))
    broker.store.delete_topic("gone", broker.now_ms)
    _send(broker, "orders", range(300))
    broker.schedule("later", broker.now_ms + 3_000)
    broker.prepare("half")
    broker.prepare("whole")
    broker.commit("whole")
    received = broker.receive(WORKERS, count=10)
    broker.ack(received[::2])
    for _ in range(4):  # the others are delivered again until their attempts are over
        broker.now_ms += LEASE_MS + 1_000
        broker.receive(WORKERS, count=5)
    broker.deliver_timers()
    _send(broker, "lines", range(150), body_size=600)
    broker.store.offsets.commit("pullers", "orders", QueueId(0), QueueOffset(250), durable=True)
    broker.store.flush_projections(index=True)
    broker.save_snapshot()
    assert asyncio.run(broker.task.clean(FREE)) > 0, "the beginning was trimmed"
    assert broker.store.min_offset > 0
    broker.model.export_to_rocketmq(broker.now_ms)
    broker.store.close(broker.now_ms)
    return write_store(files, root)


def write_store(files: MemoryFileSystem, root: Path) -> Path:
    """The files as they are, below `root`, without RocketMQ's timer wheel."""
    for path, data in contents_of(files).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def _send(broker: Broker, topic: str, numbers: range, body_size: int = 90) -> None:
    """Every third body is compressed; every second message has keys."""
    for number in numbers:
        broker.now_ms += 7
        body = bytes((number * 31 + at) % 251 + 1 for at in range(body_size))
        compressed = number % 3 == 0
        encoded = record(
            zlib.compress(body) if compressed else body,
            topic=topic,
            keys=f"{topic}-{number % 5} all" if number % 2 else "",
            tag=f"t{number % 2}",
            unique_key=f"U-{topic}-{number:05d}",
            sys_flag=SYS_FLAG_COMPRESSED if compressed else 0,
            append_property_crc=True,
        )
        append(broker.store, encoded, topic=topic, now_ms=broker.now_ms)
        broker.sync()
