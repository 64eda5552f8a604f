"""The engine alone, in this process: the cost of the whole record's CRC, and the speed of a recovery scan."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trovemq_proto.positions import LOG_ORIGIN, EpochMs
from trovemq_proto.records import BatchEncoder, validate_batch
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import Buffer, File
from trovemq_store.files.real import RealFile, RealFileSystem
from trovemq_store.log.reader import LogReader
from trovemq_store.log.segments import DIRECTORY as LOG_DIRECTORY
from trovemq_store.settings import StoreSettings

TOPIC = "bench"
BATCH = 1000
BODY_SIZE = 1024
ROUNDS = 60
SEGMENT_SIZE = 1 << 30


@dataclass(frozen=True, slots=True)
class AppendCost:
    """Median microseconds a message from the received bytes to the consume queue; and the log's scan rate.
    without_write_us: with the CRC, but for the write into the log's file."""

    with_crc_us: float
    without_crc_us: float
    without_write_us: float
    record_size: float
    scan_bytes_per_second: float

    @property
    def ratio(self) -> float:
        return self.with_crc_us / self.without_crc_us


def append_cost(directory: Path) -> AppendCost:
    """Batches of 1,000 messages of 1,024 bytes, with the CRC and without in turn."""
    written = _Written()
    with (
        _side(directory / "crc", True, written) as crc,
        _side(directory / "plain", False, written) as plain,
    ):
        times: dict[bool, list[float]] = {True: [], False: []}
        without_write: list[float] = []
        for number in range(ROUNDS):
            for with_crc in (True, False) if number % 2 else (False, True):
                written.seconds = 0.0
                times[with_crc].append(_append(*(crc if with_crc else plain), with_crc))
                if with_crc:
                    without_write.append(times[True][-1] - written.seconds)
        store = crc[0]
        started = time.perf_counter()
        for _ in LogReader(store.log, LOG_ORIGIN, store.end_offset, limit=store.end_offset):
            pass
        scanned = store.end_offset / (time.perf_counter() - started)
    return AppendCost(
        with_crc_us=_median_us(times[True]),
        without_crc_us=_median_us(times[False]),
        without_write_us=_median_us(without_write),
        record_size=len(crc[1]) / BATCH,
        scan_bytes_per_second=scanned,
    )


def _median_us(seconds: list[float]) -> float:
    return statistics.median(seconds) / BATCH * 1e6


@dataclass(slots=True)
class _Written:
    """Processor time of writes into the log's files."""

    seconds: float = 0.0


class _TimedFile(RealFile):
    """A file of the log."""

    written: _Written

    def write(self, offset: int, data: Buffer) -> None:
        started = time.process_time()
        super().write(offset, data)
        self.written.seconds += time.process_time() - started


class _TimedFiles(RealFileSystem):
    """Counts the time of the log's writes."""

    def __init__(self, root: Path, written: _Written) -> None:
        super().__init__(root)
        self._written = written

    def open(self, path: str) -> File:
        if not path.startswith(LOG_DIRECTORY):
            return super().open(path)
        descriptor = os.open(self._absolute(path), os.O_RDWR | os.O_CLOEXEC)
        file = _TimedFile(descriptor, path, os.fstat(descriptor).st_size)
        file.written = self._written
        return file


@contextmanager
def _side(directory: Path, with_crc: bool, written: _Written) -> Iterator[tuple[MessageStore, bytes]]:
    directory.mkdir(parents=True)
    settings = StoreSettings(
        append_property_crc=with_crc,
        flush_mode="async",
        message_index_enable=False,
        commit_log_file_size=SEGMENT_SIZE,
    )
    generator = random.Random(1)
    data = BatchEncoder(TOPIC, append_property_crc=with_crc).encode(
        [generator.randbytes(BODY_SIZE) for _ in range(BATCH)],
        queue_id=0,
        unique_keys=[f"{number:032}" for number in range(BATCH)],
        keys=[f"k{number:06}" for number in range(BATCH)],
        born_timestamp=1,
    )
    store = MessageStore.open(_TimedFiles(directory, written), settings, EpochMs(1))
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
    store.append(batch, ((TOPIC, 0, len(batch)),), EpochMs(1))
    store.dispatch()
    return time.process_time() - started
