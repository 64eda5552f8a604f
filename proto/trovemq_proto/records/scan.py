"""The longest run of good records from a position on: so recovery and rebuilds of indexes read the log."""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.check import RecordState, check_record, is_plausible_topic
from trovemq_proto.records.columns import few_rows
from trovemq_proto.records.geometry import strided
from trovemq_proto.records.layout import PHYSICAL_OFFSET_AT, RECORD_SIZE_MIN, TOPIC_SIZE_MAX_V2
from trovemq_proto.records.record_crcs import damaged_records

_TOTAL_SIZE: Final = Struct(">i")
_LONG: Final = Struct(">q")
_DOUBTFUL: Final = np.array([byte == ord(".") or not is_plausible_topic(chr(byte)) for byte in range(256)])
"""Bytes that no topic's name may have, and the dot, of which alone a name may not consist."""
_PLAIN: Final = bytes(np.flatnonzero(~_DOUBTFUL).tolist())
_ALIKE_MIN: Final = 8
"""After this many consecutive records of one size, the next ones are examined together: bench/codec.py,
"scan_run with CRC, uniform"."""


def scan_run(
    data: memoryview,
    position: int,
    limit: int,
    *,
    physical_offset_of_data: int | None,
    check_crc: bool,
    bytes_max: int,
) -> tuple[RecordBatch, int, RecordState]:
    """The records from `position` on that check_record calls good, in one pass.

    data, limit: as for check_record; physical_offset_of_data: the log position of data[0], or None when the
    records' PHYSICALOFFSET is not to be compared. The run has at most bytes_max bytes (but one record at
    least). Returns the run, the position after it, and the state that stopped it: RECORD means bytes_max
    (continue from the end); ZEROS also when nothing remains before the limit. Never raises for any bytes.
    """
    batch = _good_head(_walk(data, position, limit, bytes_max), physical_offset_of_data, check_crc)
    end = position + batch.nbytes
    at = None if physical_offset_of_data is None else physical_offset_of_data + end
    state, _ = check_record(data, end, limit, physical_offset=at, check_crc=check_crc)
    assert state is not RecordState.RECORD or len(batch), "the first record is never left out for its size"
    assert end <= limit or not len(batch), "no record passes the limit"
    return batch, end, state


def few_records_of_log(data: memoryview, physical_offset: int) -> RecordBatch | None:
    """The records that fill `data`, which lies there in the log, as rows: few ones that check_record calls
    good, their CRCs aside. None: scan_run reads them."""
    rows = few_rows(data)
    known: bytes | None = None
    for row in rows or ():
        topic = bytes(data[row.topic_position : row.topic_position + row.topic_size])
        if topic != known and not is_plausible_topic(topic.decode("utf-8", "replace")):
            return None
        known = topic
        (stated,) = _LONG.unpack_from(data, row.position + PHYSICAL_OFFSET_AT)
        if stated != physical_offset + row.position:
            return None
    return None if rows is None else RecordBatch.of_rows(data, rows, None)


def _walk(data: memoryview, position: int, limit: int, bytes_max: int) -> RecordBatch:
    """The ranges from `position` on that the TOTALSIZEs give, as long as they fit. Whether they are records
    is not checked."""
    start = position
    sizes = array("q")
    unpack = _TOTAL_SIZE.unpack_from
    first_size = unpack(data, start)[0] if start <= limit - RECORD_SIZE_MIN else 0
    end = min(limit, start + max(first_size, bytes_max))
    before = alike = 0
    last, append = end - RECORD_SIZE_MIN, sizes.append
    while position <= last:
        (size,) = unpack(data, position)
        if size < RECORD_SIZE_MIN or size > end - position:
            break
        append(size)
        position += size
        if size != before:
            before, alike = size, 1
            continue
        alike += 1
        if alike >= _ALIKE_MIN:
            # Up to four times as many as were alike: a wrong guess costs little beside those.
            more = _count_alike(data, position, size, min(4 * alike, (end - position) // size))
            sizes.extend(array("q", (size,)) * more)
            position += more * size
            alike += more
    all_sizes = np.array(sizes, np.int64)
    return RecordBatch(data, start + np.cumsum(all_sizes) - all_sizes, all_sizes)


def _count_alike(data: memoryview, position: int, size: int, count_max: int) -> int:
    """How many TOTALSIZEs in a row from `position` on are `size`; count_max of them lie within the limit."""
    if count_max <= 0:
        return 0
    others = strided(data, ">i4", position, count_max, size) != size
    return int(np.argmax(others)) if others.any() else count_max


def _good_head(batch: RecordBatch, physical_offset_of_data: int | None, check_crc: bool) -> RecordBatch:
    """The first records of a walk, as many as check_record calls good."""
    batch = batch.well_formed_head()
    if not len(batch):
        return batch
    bad = _implausible_topics(batch)
    if physical_offset_of_data is not None:
        bad |= batch.physical_offsets != physical_offset_of_data + batch.positions
    batch = _before_first(batch, bad)
    if check_crc and len(batch):
        batch = _before_first(batch, damaged_records(batch))
    return batch


def _implausible_topics(batch: RecordBatch) -> NDArray[np.bool_]:
    """is_plausible_topic of each record, negated; a name is decoded only if it has a doubtful byte."""
    if batch.only_topic is not None:
        return np.full(len(batch), not is_plausible_topic(batch.only_topic))
    rows = batch.topic_rows
    if rows is not None and rows.size and not rows.tobytes().translate(None, _PLAIN):
        return np.zeros(len(batch), np.bool_)
    sizes, ends = batch.topic_sizes, np.cumsum(batch.topic_sizes)
    places = np.arange(int(ends[-1])) + np.repeat(batch.topic_positions - (ends - sizes), sizes)
    doubtful_bytes = np.flatnonzero(_DOUBTFUL[batch.array[places]])
    doubtful = (sizes == 0) | (sizes > TOPIC_SIZE_MAX_V2)
    doubtful[np.searchsorted(ends, doubtful_bytes, "right")] = True
    bad = np.zeros(len(batch), np.bool_)
    for index in np.flatnonzero(doubtful).tolist():
        at, size = int(batch.topic_positions[index]), int(sizes[index])
        bad[index] = not is_plausible_topic(str(batch.data[at : at + size], "utf-8", "replace"))
    return bad


def _before_first(batch: RecordBatch, bad: NDArray[np.bool_]) -> RecordBatch:
    return batch.head(int(np.argmax(bad))) if bad.any() else batch
