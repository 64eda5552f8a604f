"""Where the scan of a store begins that RocketMQ left after a crash, if its clock stepped."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import pytest

from tests.support.engine import NOW_MS
from trovemq_proto.records import encode_record
from trovemq_proto.records.layout import BLANK_SIZE, MAGIC_BLANK_BYTES
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.key_index import synced_end
from trovemq_store.log.checkpoint import Checkpoint
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.recovery import foreign_scan_start

SEGMENT: Final = 2_048
SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS


def log_of(times: Sequence[int]) -> tuple[CommitLog, list[int]]:
    """A log of records with these store times, and where each begins."""
    data, places = bytearray(), list[int]()
    for time in times:
        record = encode_record("t", bytes(100), store_timestamp=time, physical_offset=len(data))
        space = SEGMENT - len(data) % SEGMENT
        if len(record) + BLANK_SIZE > space:
            data += (space.to_bytes(4) + MAGIC_BLANK_BYTES).ljust(space, b"\0")
            record = encode_record("t", bytes(100), store_timestamp=time, physical_offset=len(data))
        places.append(len(data))
        data += record
    files = MemoryFileSystem()
    for start in range(0, len(data) + SEGMENT, SEGMENT):  # and one that is made in advance
        file = files.create(f"commitlog/{start:020d}", SEGMENT, preallocate=False)
        file.write(0, bytes(data[start : start + SEGMENT]))
    log = CommitLog(files, SEGMENT)
    log.segments.load()
    return log, places


def scan_start(log: CommitLog, synced_ms: int) -> int:
    marks = Checkpoint(physic_msg_timestamp=synced_ms, logics_msg_timestamp=synced_ms)
    return foreign_scan_start(log, marks)


@pytest.mark.parametrize("step_ms", [5 * SECOND_MS, 5 * MINUTE_MS, 2 * HOUR_MS])
@pytest.mark.parametrize("ahead_count", [1, 2, 40])
def test_after_a_step_in_a_segment_a_scan_skipped_unsynced_messages(step_ms: int, ahead_count: int) -> None:
    """The checkpoint is of the last message before the clock was set back; only later ones were lost."""
    before = [NOW_MS + number * SECOND_MS for number in range(45)]
    ahead = [before[-1] + step_ms + number for number in range(ahead_count)]
    after = [before[-1] + SECOND_MS // 4 * number for number in range(60)]
    log, places = log_of(before + ahead + after)
    start = scan_start(log, ahead[-1])
    assert start % SEGMENT == 0
    assert start <= places[len(before) + ahead_count], "the first message that may be lost is read"


@pytest.mark.parametrize("seed", range(20))
def test_no_scan_begins_after_the_synced_end_whatever_the_clock(seed: int) -> None:
    source = random.Random(seed)
    times = [NOW_MS]
    while len(times) < 150:
        step = source.choice((0, -SECOND_MS, -HOUR_MS, HOUR_MS)) if source.random() < 0.05 else 0
        times.append(times[-1] + source.randrange(SECOND_MS) + step)
    log, places = log_of(times)
    for synced in source.sample(range(90, 149), 10):
        assert scan_start(log, times[synced]) <= places[synced + 1]


def test_without_a_step_a_scan_begins_at_the_last_old_segment() -> None:
    times = [NOW_MS + number * 20 * SECOND_MS for number in range(150)]
    log, places = log_of(times)
    begins = dict(zip(places, times, strict=True))
    for synced, later in pairwise(times[::7]):
        wanted = [place for place, time in begins.items() if not place % SEGMENT and time <= synced - 3_000]
        assert scan_start(log, synced) == max(wanted, default=0)
        assert scan_start(log, synced) <= scan_start(log, later)


def test_an_index_file_in_which_store_times_step_back_counted_as_synced() -> None:
    """RocketMQ had noted the end of the full file before it; a new file begins with that time."""
    files = MemoryFileSystem()
    headers = [(NOW_MS, NOW_MS + HOUR_MS, 0, 4_000), (NOW_MS + HOUR_MS, NOW_MS + MINUTE_MS, 4_100, 8_000)]
    for number, header in enumerate(headers):
        files.write_atomic(f"index/{number + 1:017d}", struct.pack(">4q2i", *header, 1, 9).ljust(100, b"\0"))
    assert synced_end(files, NOW_MS + HOUR_MS) == 4_000
    assert synced_end(files, NOW_MS) == 0
