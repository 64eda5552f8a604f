"""Benchmark of second paths that no other benchmark has a case for: processor time of one call.

    python -m bench.second_paths --with ROWS_MAX=0 --case spans

The options are those of bench/paired.py. The cases, and the constant that chooses the path of each:

- "spans", "fetched": batches that the SDK receives and fetches (ROWS_MAX)
- "topics": the records of each topic of a batch, which has one path
- "odd": index entries of a batch, of which some records have another layout (ODD_SHARE)
- "priorities": the priorities of new messages of a queue (ROWS_MAX)
- "sizes": the histogram of the sizes of records that were appended (ROWS_MAX)
- "frames": records of Append frames that arrive in one iteration of the loop (COPY_SIZE_MAX)
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from functools import lru_cache
from time import thread_time_ns
from typing import Final

import numpy as np

from bench import paired
from bench.appends import opened
from trovemq._consume.record_spans import RecordSpans
from trovemq.fetched import FetchedBatch
from trovemq_broker.groups.delivery.priority_order import PriorityQueues
from trovemq_broker.groups.delivery.records import RecordReader
from trovemq_broker.produce.accumulator import Accumulator
from trovemq_broker.produce.append import Appender, AppendSettings
from trovemq_broker.produce.batches import Batch
from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_broker.produce.outgoing import OutgoingEncoder
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, QueueId
from trovemq_proto.records import BatchEncoder, RecordBatch
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.encode import encode_record
from trovemq_proto.records.queue_rules import QueueRules
from trovemq_proto.records.validate import read_parts

ROUNDS: Final = 40
ROUND_US: Final = 6_000
TOPIC: Final = "orders"
NOW_MS: Final = EpochMs(1_700_000_000_000)
FRAMES: Final = 16  # of one iteration of the loop

CASES: Final = (
    *(("spans", count, size) for size in (100, 1_000) for count in (4, 16, 32, 64, 128, 512)),
    *(("fetched", count, size) for size in (100, 1_000) for count in (4, 16, 32, 64, 128, 512)),
    *(("topics", 1_000, topics) for topics in (2, 4, 8, 64, -2, -8)),
    *(("odd, one in", 1_000, each) for each in (100, 20, 12, 4, 2)),
    *(("priorities", count, 1) for count in (1, 2, 4, 8, 16, 64)),
    *(("priorities, every 8th record", count, 8) for count in (2, 4, 8, 16, 64)),
    *(("sizes", count, 300) for count in (2, 8, 16, 32, 64)),
    *(("frames", FRAMES, size) for size in (200, 3_000, 8_000, 32_000, 128_000, 1_000_000)),
)
"""Name, count of records, and a number: bytes of a body, topics, records to one odd one, queues."""


def spans(count: int, size: int) -> Callable[[], object]:
    data = memoryview(encoded(count, size, crc=False))
    return lambda: RecordSpans(data).inflate()


def fetched(count: int, size: int) -> Callable[[], object]:
    data = encoded(count, size, crc=False)
    return lambda: list(FetchedBatch(data, count, 0, count).messages())


def topics(count: int, number: int) -> Callable[[], object]:
    names = [f"topic{each:03}" if number > 0 else "topic" + each * "s" for each in range(abs(number))]
    data = b"".join(
        encode_record(names[index * 7 % len(names)], bytes(100 + index % 50)) for index in range(count)
    )
    batch = RecordBatch.split(data)
    return lambda: RecordBatch(data, batch.positions, batch.sizes).topic_groups()


def odd(count: int, each: int) -> Callable[[], object]:
    data = b"".join(
        encode_record(
            TOPIC,
            bytes(90 + index % 20),
            properties={"UNIQ_KEY": f"{index:032}", "KEYS": f"k{index:06}"}
            | ({"TRACE": f"{index:04}"} if index % each == each - 1 else {}),
        )
        for index in range(count)
    )
    batch = RecordBatch.split(data, topic=TOPIC)
    return lambda: RecordBatch(data, batch.positions, batch.sizes, TOPIC).index_entries()


def priorities(count: int, queues: int) -> Callable[[], object]:
    store = opened(queues)
    parts = [QueuePart(TOPIC, queue_id, 1) for queue_id in range(queues)]
    rules = [
        QueueRules(TOPIC, queue_id, body_size_max=1 << 20, store_host_ipv6=False, append_property_crc=False)
        for queue_id in range(queues)
    ]
    for number in range(count):
        properties = {"UNIQ_KEY": f"{number:032}", "_SYS_MSG_PRIORITY_": str(number % 10)}
        records = [
            encode_record(TOPIC, bytes(200), queue_id=QueueId(queue_id), properties=properties)
            for queue_id in range(queues)
        ]
        data = memoryview(bytearray().join(records))
        store.append(read_parts(data, parts, rules), parts, NOW_MS)
    store.dispatch()
    records_read = RecordReader(store)
    records_read._checked_from = LOG_ORIGIN  # as of records that were appended since the start
    order = PriorityQueues(store, records_read)
    order.catch_up(TOPIC, QueueId(0), 0, 1 << 20)
    known = order._queues[TOPIC, QueueId(0)]

    def work() -> None:
        known.arrays = [array("q") for _ in known.arrays]
        known.end = 0
        order.catch_up(TOPIC, QueueId(0), 0, 1 << 20)

    return work


def sizes(count: int, size: int) -> Callable[[], object]:
    traffic = Traffic()
    positions = np.cumsum([0, *(size + index * 7 % 50 for index in range(1, count))])
    total = int(positions[-1]) + size
    return lambda: traffic.appended(TOPIC, count, total, positions)


def frames(count: int, size: int) -> Callable[[], object]:
    store = opened(1)
    commit = GroupCommit(store, FlushSettings(flush_mode="async"), lambda _: None)
    appender = Appender(store, commit, AppendSettings(), lambda: NOW_MS, lambda _: None)
    encoder = OutgoingEncoder(store.settings, False, lambda: "")
    accumulator = Accumulator(appender, encoder, encoder.batch_size_max, commit)
    frame = encoded(1, size, crc=True)
    batch = Batch(TOPIC, QueueId(0), frame, born_host=bytes(8))

    def done(*_: object) -> None:
        pass

    def work() -> None:
        for _ in range(count):
            accumulator.submit(batch, done)
        accumulator.append_all()

    return work


def encoded(count: int, size: int, *, crc: bool) -> bytes:
    return bytes(
        BatchEncoder(TOPIC, append_property_crc=crc).encode(
            [bytes([index % 251]) * (size + index * 7 % 50) for index in range(count)],
            queue_id=0,
            unique_keys=[f"{index:032}" for index in range(count)],
            keys=[f"k{index:06}" for index in range(count)],
            tags="paid",
            born_timestamp=NOW_MS,
        )
    )


KINDS: Final = {each.__name__: each for each in (spans, fetched, topics, odd, priorities, sizes, frames)}


@lru_cache(maxsize=1)
def prepared(number: int) -> Callable[[], object]:
    name, count, other = CASES[number]
    return KINDS[name.partition(",")[0]](count, other)


async def measured(number: int) -> float:
    """Microseconds a call."""
    work = prepared(number)
    work()
    calls = spent = 0
    while spent < ROUND_US * 1_000:
        await asyncio.sleep(0)
        started = thread_time_ns()
        work()
        spent += thread_time_ns() - started
        calls += 1
    return spent / calls / 1_000


def main() -> None:
    loop = asyncio.new_event_loop()
    paired.main(
        "bench.second_paths",
        [f"{name} {other}: {count}" for name, count, other in CASES],
        lambda number: loop.run_until_complete(measured(number)),
        rounds=ROUNDS,
    )


if __name__ == "__main__":
    main()
