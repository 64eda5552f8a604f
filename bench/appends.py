"""Benchmark of Appender: processor time to check and append one batch, in memory, without its dispatch.

    python -m bench.appends

The options are those of bench/paired.py. "alike": records of one layout, "any": of different sizes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from statistics import median
from time import thread_time_ns
from typing import Final

from bench import paired
from trovemq_broker.produce.append import Appender, AppendSettings
from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records import BatchEncoder, SingleRecords
from trovemq_proto.records.columns import QueuePart
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.settings import StoreSettings

ROUNDS: Final = 60
ROUND_US: Final = 6_000
TOPIC: Final = "orders"
NOW_MS: Final = EpochMs(1_700_000_000_000)
COUNTS: Final = (1, 4, 8, 16, 32, 48, 64, 96, 1000)
CASES: Final = (
    *((f"{count} {kind}", count, 1) for kind in ("alike", "any") for count in COUNTS),
    ("8 queues x 2", 2, 8),
    ("8 queues x 4", 4, 8),
    ("8 queues x 8", 8, 8),
    ("8 queues x 16", 16, 8),
    ("64 queues x 2", 2, 64),
    ("2 queues x 32", 32, 2),
    ("4, sender by IPv6", 4, 1),
    ("64, sender by IPv6", 64, 1),
)
"""Name, records of a queue, queues."""


def encoded(kind: str, count: int, queue_id: int) -> bytes:
    if "IPv6" in kind:
        singles = SingleRecords(
            TOPIC, queue_id, born_host=bytes(20), store_host=bytes(8), append_property_crc=True
        )
        return b"".join(
            singles.encode(b"v" * 200, b"UNIQ_KEY\x01%032d\x02" % number, NOW_MS) for number in range(count)
        )
    sizes = [200 + (number * 7 % 100 if "any" in kind else 0) for number in range(count)]
    return bytes(
        BatchEncoder(TOPIC, append_property_crc=True).encode(
            [bytes([size % 251]) * size for size in sizes],
            queue_id=queue_id,
            unique_keys=[f"{number:032}" for number in range(count)],
            keys=[f"k{number:06}" for number in range(count)],
            tags="paid",
            born_timestamp=NOW_MS,
        )
    )


def opened(queues: int) -> MessageStore:
    """A store in memory with the topic."""
    settings = StoreSettings(
        flush_mode="async",
        message_index_enable=False,
        commit_log_file_size=1 << 28,
        undispatched_bytes_max=1 << 30,
    )
    store = MessageStore.open(MemoryFileSystem(), settings, NOW_MS, process_id=1)
    store.topics.create(TOPIC, queue_count=queues)
    return store


def prepared(name: str, count: int, queues: int) -> Callable[[], object]:
    """A call that appends the case's batch."""
    store = opened(queues)
    commit = GroupCommit(store, FlushSettings(flush_mode="async"), lambda _: None)
    appender = Appender(store, commit, AppendSettings(), lambda: NOW_MS, lambda _: None)
    if queues == 1:
        data = encoded(name, count, 0)
        born_host = bytes(8)
        return lambda: appender.append(TOPIC, QueueId(0), data, born_host)
    parts = [QueuePart(TOPIC, queue_id, count) for queue_id in range(queues)]
    data = b"".join(encoded(name, count, queue_id) for queue_id in range(queues))
    return lambda: appender.append_joined(parts, bytearray(data))


class Appends:
    """Keeps the store of the last case."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._number = -1
        self._work: Callable[[], object] = int
        self._appends = 0

    def measure(self, number: int) -> float:
        """Microseconds an append."""
        return self._loop.run_until_complete(self._round(number))

    async def _round(self, number: int) -> float:
        if number != self._number:
            await self._prepare(number)
        started = thread_time_ns()
        for _ in range(self._appends):
            self._work()
        spent = thread_time_ns() - started
        await asyncio.sleep(0)
        return spent / self._appends / 1_000

    async def _prepare(self, number: int) -> None:
        self._number, self._work = number, prepared(*CASES[number])
        times = []
        for _ in range(20):
            started = thread_time_ns()
            self._work()
            times.append(thread_time_ns() - started)
            await asyncio.sleep(0)
        self._appends = max(3, ROUND_US * 1_000 // int(median(times)))


if __name__ == "__main__":
    paired.main("bench.appends", [name for name, _, _ in CASES], Appends().measure, rounds=ROUNDS)
