"""The longest run of good records: what recovery and the rebuilding of indexes read the log by."""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.check import RecordState, check_record, is_plausible_topic
from trovemq_proto.records.geometry import measure
from trovemq_proto.records.layout import MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN
from trovemq_proto.records.record_crc import damaged_records

_SIZE_AND_MAGIC: Final = Struct(">iI")


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
    records' PHYSICALOFFSET is not to be compared. At most bytes_max bytes are taken (but one record at
    least). Returns the run, the position after it, and what stopped it: RECORD means bytes_max (go on from
    the end); ZEROS also when nothing is left before the limit. Never raises for any bytes.
    """
    batch = _good_head(_walk(data, position, limit, bytes_max), physical_offset_of_data, check_crc)
    end = position + batch.nbytes
    at = None if physical_offset_of_data is None else physical_offset_of_data + end
    state, _ = check_record(data, end, limit, physical_offset=at, check_crc=check_crc)
    assert state is not RecordState.RECORD or len(batch), "the first record is never left out for its size"
    return batch, end, state


def _walk(data: memoryview, position: int, limit: int, bytes_max: int) -> RecordBatch:
    """What lies from `position` on and has a v1 or v2 magic and a TOTALSIZE that fits."""
    start = position
    sizes: list[int] = []
    unpack, last = _SIZE_AND_MAGIC.unpack_from, limit - RECORD_SIZE_MIN
    end_max = start + bytes_max
    while position <= last:
        size, magic = unpack(data, position)
        position += size
        if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_SIZE_MIN or position > limit:
            break
        if position > end_max and sizes:
            break
        sizes.append(size)
    all_sizes = np.array(sizes, np.int64)
    return RecordBatch(data, start + np.cumsum(all_sizes) - all_sizes, all_sizes)


def _good_head(batch: RecordBatch, physical_offset_of_data: int | None, check_crc: bool) -> RecordBatch:
    """The first records of a walk, as many as check_record calls good."""
    batch = batch.head(measure(batch.data, batch.positions, batch.sizes).well_formed)
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
    if batch.only_topic is not None:
        return np.full(len(batch), not is_plausible_topic(batch.only_topic))
    plausible = {topic: is_plausible_topic(topic) for topic in set(batch.topics)}
    return np.array([not plausible[topic] for topic in batch.topics])


def _before_first(batch: RecordBatch, bad: NDArray[np.bool_]) -> RecordBatch:
    return batch.head(int(np.argmax(bad))) if bad.any() else batch
