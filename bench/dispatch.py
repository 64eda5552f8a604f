"""Micro benchmark of dispatch: processor microseconds a batch, for consume queues and key index.

    python -m bench.dispatch

The options are those of bench/paired.py. Each case applies batches that continue their queues, as the
broker's appends make them, until 4,000 messages (or 20 batches) are dispatched. "later": the key index gets
small batches together, as in a broker; "now": each batch at once, as in the tools.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import process_time

from bench import paired
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import RecordBatch, encode_record, pack_host, patch_batch
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.fields import split_fields
from trovemq_store.files.real import RealFileSystem
from trovemq_store.index.consume_queues import ConsumeQueues
from trovemq_store.index.dispatcher import Dispatcher
from trovemq_store.index.key_index import KeyIndex
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.settings import StoreSettings
from trovemq_store.topics.deletions import TopicDeletions

TOPIC = "orders"
HOST = pack_host("10.0.0.1:10911")
NOW_MS = EpochMs(1_700_000_000_000)
MESSAGES = 4_000
BATCHES_MIN = 20
ROUNDS = 15
SETTINGS = StoreSettings(index_slot_count=100_000, index_item_count=1_000_000)


@dataclass(frozen=True)
class Case:
    """Batches of `count` records over `queues` queues. form: the fields that the append has read: "rows" (of
    each record), "uniform" (of the first), "parts" (rows, and the queue of each), "run" (a transaction: only
    the bytes), "columns" (positions and sizes), "joined" (columns and parts)."""

    count: int
    queues: int
    form: str
    keys: bool
    tag: str
    later: bool = True

    @property
    def name(self) -> str:
        fields = "keys" if self.keys else "no keys"
        if self.tag:
            fields += ", tag"
        where = f"{self.queues} queue{'s' * (self.queues > 1)}"
        return f"{self.count} {self.form}, {where}, {fields}, {'later' if self.later else 'now'}"


def cases() -> Iterator[Case]:
    shapes = [(1, 1, "rows"), (4, 1, "rows"), (16, 1, "rows"), (16, 8, "parts"), (16, 8, "run")]
    shapes += [(32, 1, "rows"), (32, 1, "columns"), (32, 8, "run"), (64, 1, "columns"), (64, 1, "uniform")]
    shapes += [(64, 8, "parts"), (64, 8, "run"), (64, 8, "joined"), (1000, 1, "uniform")]
    shapes += [(1000, 1, "columns"), (1000, 8, "run")]
    for count, queues, form in shapes:
        for keys, tag in ((False, ""), (True, ""), (True, "paid")):
            yield Case(count, queues, form, keys, tag)
        yield Case(count, queues, form, True, "paid", later=False)


def encoded(case: Case, number: int, queue_id: int) -> bytes:
    properties = {}
    if case.keys:
        properties = {"UNIQ_KEY": f"56F7E71C361B21BC{number:016X}", "KEYS": f"key{number:07}"}
    if case.tag:
        properties["TAGS"] = case.tag
    body = bytes(100 if case.form == "uniform" else 90 + number % 20)
    return encode_record(
        TOPIC, body, queue_id=QueueId(queue_id), properties=properties, born_timestamp=NOW_MS
    )


def stored_batches(case: Case, count: int) -> list[tuple[bytes, PhysicalOffset]]:
    """The bytes of each batch as they lie in the log, and where."""
    found, position, each = [], 0, case.count // case.queues
    for number in range(count):
        if case.form == "run":
            queue_ids = [index % case.queues for index in range(case.count)]
        else:
            queue_ids = [index // each for index in range(case.count)]
        data = bytearray()
        for index, queue_id in enumerate(queue_ids):
            data += encoded(case, number * case.count + index, queue_id)
        ranks = [queue_ids[:index].count(queue_id) for index, queue_id in enumerate(queue_ids)]
        patch_batch(
            data,
            RecordBatch.split(data),
            first_queue_offset=QueueOffset(0),
            queue_offsets=[number * each + rank for rank in ranks],
            physical_offset=PhysicalOffset(position),
            store_timestamp=EpochMs(NOW_MS + number),
            store_host=HOST,
            born_host=None,
            append_property_crc=False,
        )
        found.append((bytes(data), PhysicalOffset(position)))
        position += len(data)
    return found


def batch_of(case: Case, data: bytes) -> RecordBatch:
    view = memoryview(data)
    rows = list(split_fields(view))
    if case.form == "rows":
        return RecordBatch.of_rows(view, rows, TOPIC)
    if case.form == "parts":
        batch = RecordBatch.of_rows(view, rows, None)
        batch.parts = [
            QueuePart(TOPIC, queue_id, case.count // case.queues) for queue_id in range(case.queues)
        ]
        return batch
    if case.form == "uniform":
        return RecordBatch.of_uniform(view, rows[0], len(rows), TOPIC, checked=True)
    batch = RecordBatch.split(view, topic=TOPIC if case.form == "columns" else None)
    if case.form == "joined":
        batch.parts = [
            QueuePart(TOPIC, queue_id, case.count // case.queues) for queue_id in range(case.queues)
        ]
    return batch


def round_us(case: Case, stored: list[tuple[bytes, PhysicalOffset]]) -> float:
    """Processor microseconds a batch."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as directory:
        files = RealFileSystem(Path(directory))
        queues = ConsumeQueues(files, SETTINGS)
        queues.load(None)
        index = KeyIndex(files, SETTINGS, lambda: "20231114221320000")
        index.load(None)
        dispatcher = Dispatcher(queues, [index], TopicDeletions.load(files), lambda *_: (), PhysicalOffset(0))
        dispatcher.index_later = case.later
        batches = [
            DispatchBatch(batch_of(case, data), at, PhysicalOffset(at + len(data))) for data, at in stored
        ]
        for batch in batches[:2]:  # makes the files
            dispatcher.offer(batch)
            dispatcher.dispatch(batch.end)
        dispatcher.catch_up(1 << 30)
        gc.collect()
        gc.disable()
        start = process_time()
        for batch in batches[2:]:
            dispatcher.offer(batch)
            dispatcher.dispatch(batch.end)
        dispatcher.catch_up(1 << 30)
        spent = process_time() - start
        gc.enable()
        assert index.position == queues.position == batches[-1].end, "all are dispatched"
        queues.close()
        index.close()
    return spent * 1e6 / (len(batches) - 2)


CASES = list(cases())


@lru_cache(maxsize=1)
def batches_of(number: int) -> list[tuple[bytes, PhysicalOffset]]:
    case = CASES[number]
    return stored_batches(case, 2 + max(BATCHES_MIN, MESSAGES // case.count))


def measure(number: int) -> float:
    """Microseconds a batch."""
    return round_us(CASES[number], batches_of(number))


if __name__ == "__main__":
    paired.main("bench.dispatch", [case.name for case in CASES], measure, rounds=ROUNDS)
