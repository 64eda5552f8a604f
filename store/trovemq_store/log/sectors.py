"""Distinguishes a record that lost a sector from a whole one.

A power cut may lose some of the sectors that were written after the last sync; lost ones read as zeros. In a
body the CRC shows that, in a header the lengths. For properties a sector of zeros is the only sign. To make
it a sure one, no record is appended whose properties could look like that.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.queue_rules import SECTOR_SIZE as RULES_SECTOR_SIZE

SECTOR_SIZE: Final = 512
_ZEROS: Final = bytes(SECTOR_SIZE)
assert RULES_SECTOR_SIZE == SECTOR_SIZE, "a record that is not special has less than a sector of properties"


def check_properties(batch: RecordBatch) -> None:
    """TroveError BATCH_ILLEGAL if properties end with a zero byte, or have a sector's size of them."""
    if batch.by_rows:
        data, spans = batch.data, [(row.property_position, row.property_size) for row in batch.rows]
        if all(not size or (size < SECTOR_SIZE and data[begin + size - 1]) for begin, size in spans):
            return
        begins, sizes = [begin for begin, _ in spans], [size for _, size in spans]
        ends_with_zero = any(size and data[begin + size - 1] == 0 for begin, size in spans)
    else:
        property_sizes = batch.property_sizes
        last = batch.array[batch.property_positions + property_sizes - 1]
        ends_with_zero = bool(((last == 0) & (property_sizes > 0)).any())
        long = property_sizes >= SECTOR_SIZE
        begins, sizes = batch.property_positions[long].tolist(), property_sizes[long].tolist()
    if ends_with_zero or any(
        size >= SECTOR_SIZE and _ZEROS in bytes(batch.data[begin : begin + size])
        for begin, size in zip(begins, sizes, strict=True)
    ):
        raise TroveError(
            errors.BATCH_ILLEGAL, "a record's properties have zero bytes at their end, or 512 in a row"
        )


def count_whole(records: RecordBatch, begin: int) -> int:
    """The number of records before the first one that lacks a sector of its properties. Records below
    position `begin` of the batch's bytes (which begin at a sector) are not examined."""
    ends = records.positions + records.sizes
    starts = -(-records.property_positions // SECTOR_SIZE) * SECTOR_SIZE
    asked = np.flatnonzero((starts < ends) & (records.positions >= begin))
    several = starts[asked] + SECTOR_SIZE < ends[asked]
    # The first byte that a sector has of the properties is enough to know most records as whole.
    doubtful = asked[several | (records.array[starts[asked]] == 0)]
    for index in doubtful.tolist():
        end = int(ends[index])
        for sector in range(int(starts[index]), end, SECTOR_SIZE):
            if not any(records.data[sector : min(sector + SECTOR_SIZE, end)]):
                return int(index)
    return len(records)


def written_until(data: NDArray[np.uint8], begin: int, end: int) -> int:
    """Where the first sector that is all zeros in [begin, end) begins, `begin` in place of its sector's; or
    end."""
    starts = np.r_[begin, np.arange(begin // SECTOR_SIZE + 1, -(-end // SECTOR_SIZE)) * SECTOR_SIZE]
    written = np.logical_or.reduceat(data[begin:end] != 0, starts - begin)
    return end if written.all() else int(starts[int(np.argmin(written))])
