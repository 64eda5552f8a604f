"""The engine alone, in this process: the cost of the whole record's CRC, and the speed of a recovery scan."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trovemq_proto.positions import LOG_ORIGIN, EpochMs, QueueId
from trovemq_proto.records import BatchEncoder, validate_batch
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem
from trovemq_store.log.reader import LogReader
from trovemq_store.settings import StoreSettings

TOPIC = "bench"
BATCH = 1000
BODY_SIZE = 1024
ROUNDS = 60


@dataclass(frozen=True, slots=True)
class AppendCost:
    """Median microseconds a message from the received bytes to the consume queue; and the log's scan rate."""

    with_crc_us: float
    without_crc_us: float
    scan_bytes_per_second: float

    @property
    def ratio(self) -> float:
        return self.with_crc_us / self.without_crc_us


def append_cost(directory: Path) -> AppendCost:
    """Batches of 1,000 messages of 1,024 bytes, with the CRC and without in turn."""
    with _side(directory / "crc", True) as crc, _side(directory / "plain", False) as plain:
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(ROUNDS):
            for with_crc in (True, False) if number % 2 else (False, True):
                times[with_crc].append(_append(*(crc if with_crc else plain), with_crc))
        store = crc[0]
        started = time.perf_counter()
        for _ in LogReader(store.log, LOG_ORIGIN, store.end_offset, limit=store.end_offset):
            pass
        scanned = store.end_offset / (time.perf_counter() - started)
    return AppendCost(
        statistics.median(times[True]) / BATCH * 1e6, statistics.median(times[False]) / BATCH * 1e6, scanned
    )


@contextmanager
def _side(directory: Path, with_crc: bool) -> Iterator[tuple[MessageStore, bytes]]:
    directory.mkdir(parents=True)
    settings = StoreSettings(append_property_crc=with_crc, flush_mode="async", message_index_enable=False)
    generator = random.Random(1)
    data = BatchEncoder(TOPIC, append_property_crc=with_crc).encode(
        [generator.randbytes(BODY_SIZE) for _ in range(BATCH)],
        queue_id=0,
        unique_keys=[f"{number:032}" for number in range(BATCH)],
        keys=[f"k{number:06}" for number in range(BATCH)],
        born_timestamp=1,
    )
    store = MessageStore.open(RealFileSystem(directory), settings, EpochMs(1))
    try:
        yield store, bytes(data)
    finally:
        store.close(EpochMs(1))


def _append(store: MessageStore, data: bytes, with_crc: bool) -> float:
    """Seconds of processor time."""
    started = time.process_time()
    buffer = bytearray(data)
    batch = validate_batch(
        buffer, topic=TOPIC, queue_id=0, body_size_max=store.settings.body_size_max, store_host_ipv6=False,
        append_property_crc=with_crc,
    )  # fmt: skip
    store.append(buffer, batch, topic=TOPIC, queue_id=QueueId(0), now_ms=EpochMs(1), born_host=None)
    store.dispatch()
    return time.process_time() - started
