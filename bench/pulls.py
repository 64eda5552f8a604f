"""Benchmark of Puller: processor time of one pull, of records that are in the page cache.

    python -m bench.pulls

The options are those of bench/paired.py. Each case pulls the last records of a queue. In the log they lie one
after the other ("adjacent"), or between the records of seven other queues ("of 8 queues"), each alone or 200
together ("in runs").
"""

from __future__ import annotations

import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from time import thread_time_ns
from typing import Final

from bench import paired
from trovemq_broker.fetch.pull import Puller, PullRequest, PullSettings
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, QueueId, QueueOffset
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.encode import encode_record
from trovemq_proto.records.queue_rules import QueueRules
from trovemq_proto.records.validate import read_parts
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem
from trovemq_store.settings import StoreSettings

ROUNDS: Final = 40
ROUND_US: Final = 6_000
TOPIC: Final = "orders"
NOW_MS: Final = EpochMs(1_700_000_000_000)
RECORDS: Final = 1_000
RUN: Final = 200
LAYOUTS: Final = {"adjacent": (1, 1), "of 8 queues": (8, 1), "of 8 queues, in runs": (8, RUN)}
"""Queues, and how many records of one follow one another."""
CASES: Final = [(count, layout) for layout in LAYOUTS for count in (1, 2, 8, 32, 64, 500)]
SETTINGS: Final = StoreSettings(
    flush_mode="async", message_index_enable=False, commit_log_file_size=1 << 24, append_property_crc=False
)


def filled(directory: Path, queues: int, run: int) -> MessageStore:
    """A store with RECORDS records of each queue, of which `run` lie together."""
    store = MessageStore.open(RealFileSystem(directory), SETTINGS, NOW_MS, process_id=1)
    store.topics.create(TOPIC, queue_count=queues)
    parts = [QueuePart(TOPIC, queue_id, run) for queue_id in range(queues)]
    rules = [
        QueueRules(TOPIC, queue_id, body_size_max=1 << 20, store_host_ipv6=False, append_property_crc=False)
        for queue_id in range(queues)
    ]
    for begin in range(0, RECORDS, run):
        data = bytearray()
        for queue_id in range(queues):
            for number in range(begin, begin + run):
                properties = {"UNIQ_KEY": f"{number:032}", "TAGS": "paid"}
                body = bytes(200 + number * 7 % 100)
                data += encode_record(TOPIC, body, queue_id=QueueId(queue_id), properties=properties)
        store.append(read_parts(memoryview(data), parts, rules), parts, NOW_MS)
    store.dispatch()
    return store


class Pulls:
    """Keeps one store of each layout."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._puller = lru_cache(maxsize=None)(self._open)

    def _open(self, layout: str) -> Puller:
        store = filled(self._directory / layout, *LAYOUTS[layout])
        puller = Puller(store, PullSettings())
        puller._checked_from = LOG_ORIGIN  # as of records that were appended since the start
        return puller

    def measure(self, number: int) -> float:
        """Microseconds a pull."""
        count, layout = CASES[number]
        puller = self._puller(layout)
        request = PullRequest(TOPIC, QueueId(0), QueueOffset(RECORDS - count), bytes_max=1 << 20)
        puller.pull(request)
        started = thread_time_ns()
        pulls = 0
        while (spent := thread_time_ns() - started) < ROUND_US * 1_000:
            puller.pull(request)
            pulls += 1
        return spent / pulls / 1_000


def main() -> None:
    directory = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        pulls = Pulls(directory)
        names = [f"{count} {layout}" for count, layout in CASES]
        paired.main("bench.pulls", names, pulls.measure, rounds=ROUNDS)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
