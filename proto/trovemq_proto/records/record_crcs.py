"""The CRCs over many records at once (record_crc.py)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from trovemq_proto.records.columns import RecordColumns
from trovemq_proto.records.geometry import sliding
from trovemq_proto.records.layout import CRC_MASK, CRC_PROPERTY_PREFIX, CRC_PROPERTY_SIZE, VALUE_END
from trovemq_proto.records.record_crc import ALIKE_MIN, DIGITS_AT

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

_NAME_WORD: Final = int.from_bytes(CRC_PROPERTY_PREFIX[:8])
_VALUE_END_AT: Final = CRC_PROPERTY_SIZE - 1
_FOUR_DIGITS: Final[NDArray[np.uint32]] = (
    (np.arange(10_000)[:, None] // 10 ** np.arange(4) % 10 + ord("0")).astype(np.uint8).view("<u4")[:, 0]
)
"""ASCII digits of 0..9999, the least significant one in the lowest byte."""


def look_like_record_crcs(batch: RecordColumns) -> Bools:
    """looks_like_record_crc for each record; False if the properties have less than 20 bytes."""
    found: Bools = batch.property_sizes >= CRC_PROPERTY_SIZE
    at = batch.positions + batch.sizes - CRC_PROPERTY_SIZE
    exact = _have_names(batch, at)
    doubtful = np.flatnonzero(found & ~exact)
    if len(doubtful):
        alike = np.zeros(len(doubtful), np.int8)
        for column, byte in enumerate(CRC_PROPERTY_PREFIX):
            alike += batch.array[at[doubtful] + column] == byte
        found[doubtful] = alike >= ALIKE_MIN
    return found


def have_record_crcs(batch: RecordColumns) -> Bools:
    """has_record_crc for each record."""
    found: Bools = batch.property_sizes >= CRC_PROPERTY_SIZE
    found &= _have_names(batch, batch.positions + batch.sizes - CRC_PROPERTY_SIZE)
    return found


def _have_names(batch: RecordColumns, at: Int64s) -> Bools:
    """Whether these positions have the CRC property's name."""
    found: Bools = sliding(batch.data, ">i8")[at] == _NAME_WORD
    found &= batch.array[at + 8] == CRC_PROPERTY_PREFIX[8]
    return found


def fill_record_crcs(view: memoryview, batch: RecordColumns) -> None:
    """Writes the digits into the reserved properties of records that have their final bytes otherwise."""
    has = have_record_crcs(batch)
    if not has.all():
        batch = batch.where(has)
    at = batch.positions + batch.sizes - CRC_PROPERTY_SIZE
    low, middle, high = crc_digits(_crcs(view, batch.positions, at))
    fours, twos = sliding(view, "<u4"), sliding(view, "<u2")
    fours[at + DIGITS_AT] = low
    fours[at + DIGITS_AT + 4] = middle
    twos[at + DIGITS_AT + 8] = high


def damaged_records(batch: RecordColumns) -> Bools:
    """The records whose CRC is wrong: that of the whole record if they have one, otherwise the body's (that
    of an empty body is not checked, as in RocketMQ)."""
    if not len(batch):
        return np.zeros(0, np.bool_)
    whole = look_like_record_crcs(batch)
    if whole.all():
        return _wrong_record_crcs(batch)
    if not whole.any():
        return _wrong_body_crcs(batch)
    damaged = np.empty(len(batch), np.bool_)
    damaged[whole] = _wrong_record_crcs(batch.where(whole))
    damaged[~whole] = _wrong_body_crcs(batch.where(~whole))
    return damaged


def _wrong_record_crcs(batch: RecordColumns) -> Bools:
    at = batch.positions + batch.sizes - CRC_PROPERTY_SIZE
    low, middle, high = crc_digits(_crcs(batch.data, batch.positions, at))
    fours, twos = sliding(batch.data, "<u4"), sliding(batch.data, "<u2")
    right: Bools = _have_names(batch, at) & (batch.array[at + _VALUE_END_AT] == VALUE_END)
    right &= fours[at + DIGITS_AT] == low
    right &= fours[at + DIGITS_AT + 4] == middle
    right &= twos[at + DIGITS_AT + 8] == high
    np.logical_not(right, out=right)
    return right


def _wrong_body_crcs(batch: RecordColumns) -> Bools:
    wrong: Bools = (batch.crcs() != batch.body_crcs) & (batch.body_sizes > 0)
    # A zero at the end of properties: their end was lost, and a CRC property with it.
    wrong |= (batch.array[batch.positions + batch.sizes - 1] == 0) & (batch.property_sizes > 0)
    return wrong


def _crcs(data: memoryview, begins: Int64s, ends: Int64s) -> Int64s:
    crcs = [crc32(data[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    return np.array(crcs, np.int64) & CRC_MASK


def crc_digits(crcs: Int64s) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint16]]:
    """The decimal digits of 31-bit numbers as four, four and two ASCII characters."""
    low, middle, high = crcs % 10_000, crcs // 10_000 % 10_000, crcs // 100_000_000
    return _FOUR_DIGITS[low], _FOUR_DIGITS[middle], _FOUR_DIGITS[high].astype(np.uint16)
