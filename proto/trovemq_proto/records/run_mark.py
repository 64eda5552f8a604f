"""Which atomic transaction a record belongs to: properties that the broker writes into each of its records.

| property            | value                                                          |
|---------------------|----------------------------------------------------------------|
| `TROVEMQ_TX_ID`     | the transaction's id: 1 to 64 letters, digits, `-`, `_` or `.` |
| `TROVEMQ_TX_NUMBER` | 4 digits: the record's number, from 0                          |
| `TROVEMQ_TX_COUNT`  | 4 digits: how many records the transaction has                 |
| `TROVEMQ_TX_BEGIN`  | 20 digits: physical offset of the record with number 0         |

They come in this order at the end of the properties, before the whole record's CRC if there is one. All
values but the id have fixed widths, so that count and begin can be filled in when they are known.

A client can write properties, so they alone prove nothing. The *seal* proves a mark: the record's
PREPAREDTRANSACTIONOFFSET is -1 - TROVEMQ_TX_BEGIN. RocketMQ has no negative value there, no protocol accepts
one, and the append of anything but a transaction's run replaces it by 0 (patch.py).

Invariants
- A mark counts only if the record comes after its TROVEMQ_TX_BEGIN in the same run, with the seal of that
  begin: a copy of the record that lies elsewhere (a retry, a dead letter, a message forwarded by RocketMQ) is
  not part of a transaction, nor is a record whose marks were forged.
- Stores that an older version wrote last (StoreState.runs_sealed) have marks without seals; there, and until
  the first start that ends, the properties count alone.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.fields import RecordFields
from trovemq_proto.records.geometry import sliding
from trovemq_proto.records.layout import (
    CRC_PROPERTY_SIZE,
    NAME_END,
    PREPARED_OFFSET_AT,
    PROPERTY_TX_BEGIN,
    PROPERTY_TX_COUNT,
    PROPERTY_TX_ID,
    PROPERTY_TX_NUMBER,
    VALUE_END,
    header_shift,
)
from trovemq_proto.records.properties import check_block_size
from trovemq_proto.records.record_crc import has_record_crc

ID_SIZE_MAX: Final = 64
RECORDS_MAX: Final = 9_999
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_NAME_END: Final = bytes([NAME_END])
_VALUE_END: Final = bytes([VALUE_END])
_COUNT_DIGITS: Final = 4
_BEGIN_DIGITS: Final = 20
_BEGIN_NAME: Final = PROPERTY_TX_BEGIN.encode() + _NAME_END
_BEGIN_SIZE: Final = len(_BEGIN_NAME) + _BEGIN_DIGITS + 1
_BEGIN_EIGHT: Final = int.from_bytes(_BEGIN_NAME[-8:], signed=True)
_MARK: Final = re.compile(
    rb"%s\x01([A-Za-z0-9._-]{1,64})\x02%s\x01(\d{4})\x02%s\x01(\d{4})\x02%s\x01(\d{20})\x02\Z"
    % tuple(
        name.encode() for name in (PROPERTY_TX_ID, PROPERTY_TX_NUMBER, PROPERTY_TX_COUNT, PROPERTY_TX_BEGIN)
    )
)
_MARK_SIZE_MAX: Final = 256


class RunMark(NamedTuple):
    """A record's place in its transaction; `begin` is the physical offset of the first record."""

    transaction_id: str
    number: int
    record_count: int
    begin: PhysicalOffset


def check_transaction_id(transaction_id: str) -> str:
    """The id itself. TroveError TRANSACTION_ILLEGAL."""
    if not _ID.fullmatch(transaction_id):
        text = (
            f"{transaction_id[:80]!r} is not a transaction id: 1 to {ID_SIZE_MAX} letters, digits, '-', "
            "'_', '.'"
        )
        raise TroveError(errors.TRANSACTION_ILLEGAL, text)
    return transaction_id


def mark_block(transaction_id: str, number: int) -> bytes:
    """The four properties; count and begin are filled in by seal_marks()."""
    assert number >= 0, "records are numbered from 0"
    assert number < RECORDS_MAX, "its number has four digits"
    return (
        f"{PROPERTY_TX_ID}\x01{transaction_id}\x02{PROPERTY_TX_NUMBER}\x01{number:04d}\x02"
        f"{PROPERTY_TX_COUNT}\x01{'0' * _COUNT_DIGITS}\x02{PROPERTY_TX_BEGIN}\x01{'0' * _BEGIN_DIGITS}\x02"
    ).encode()


def with_mark(data: memoryview, row: RecordFields, block: bytes) -> tuple[bytes, int]:
    """The record at `row` with the block of properties, and where in it the block ends.

    TroveError PROPERTIES_SIZE_EXCEEDED if there is no space for it.
    """
    end = row.position + row.size
    crc_size = CRC_PROPERTY_SIZE if has_record_crc(data, row) else 0
    mark_at = end - crc_size
    own = bytes(data[row.property_position : mark_at])
    if own and own[-1] != VALUE_END:
        own += _VALUE_END
    properties_size = len(own) + len(block) + crc_size
    check_block_size(properties_size)
    head = bytes(data[row.position + 4 : row.property_position - 2])
    size = 4 + len(head) + 2 + properties_size
    marked = b"".join(
        (size.to_bytes(4), head, properties_size.to_bytes(2), own, block, bytes(data[mark_at:end]))
    )
    return marked, size - crc_size


def seal_marks(view: memoryview, mark_ends: NDArray[np.int64], count: int, begin: PhysicalOffset) -> None:
    """Fills in the number of records and where the first one lies; mark_ends: where each block ends."""
    assert len(mark_ends) == count, "each record has a mark"
    assert 0 < count <= RECORDS_MAX, "the count has four digits"
    data = np.frombuffer(view, np.uint8)
    _write_digits(data, mark_ends - 1 - _BEGIN_DIGITS, begin, _BEGIN_DIGITS)
    _write_digits(data, mark_ends - _BEGIN_SIZE - 1 - _COUNT_DIGITS, count, _COUNT_DIGITS)


def _write_digits(data: NDArray[np.uint8], at: NDArray[np.int64], number: int, width: int) -> None:
    data[at[:, None] + np.arange(width)] = np.frombuffer(f"{number:0{width}d}".encode(), np.uint8)


def marked_records(batch: RecordBatch) -> list[int]:
    """Indexes of the records that end as marked ones do; read_mark() decides."""
    if not len(batch):
        return []
    eights = sliding(batch.data, ">i8")
    ends = batch.positions + batch.sizes - _BEGIN_DIGITS - 1 - 8
    found = (eights[ends] == _BEGIN_EIGHT) | (eights[ends - CRC_PROPERTY_SIZE] == _BEGIN_EIGHT)
    return np.flatnonzero(found).tolist()


def seal_of(begin: PhysicalOffset) -> int:
    """The seal of a transaction whose first record lies at `begin`."""
    return -1 - begin


def read_mark(
    batch: RecordBatch, index: int, physical_offset: PhysicalOffset, *, sealed: bool = True
) -> RunMark | None:
    """The mark of the record that lies at physical_offset; None if it has none that counts there. sealed: it
    counts only with a seal."""
    row = batch.row(index)
    end = row.position + row.size
    end -= CRC_PROPERTY_SIZE if has_record_crc(batch.data, row) else 0
    start = max(row.property_position, end - _MARK_SIZE_MAX)
    found = _MARK.search(bytes(batch.data[start:end]))
    if found is None:
        return None
    number, count, begin = int(found[2]), int(found[3]), PhysicalOffset(int(found[4]))
    if number >= count or (number == 0) != (begin == physical_offset) or begin > physical_offset:
        return None
    if sealed and _prepared_offset(batch.data, row) != seal_of(begin):
        return None
    return RunMark(found[1].decode(), number, count, begin)


def _prepared_offset(data: memoryview, row: RecordFields) -> int:
    at = row.position + PREPARED_OFFSET_AT + header_shift(row.sys_flag)
    return int.from_bytes(data[at : at + 8], signed=True)
