"""The CRC of a whole record, in its last property (RocketMQ's enabledAppendPropCRC).

It takes the record's last 20 bytes; RocketMQ reads it as any other property.

| offset from the end | width | content                                                               |
|---------------------|-------|-----------------------------------------------------------------------|
| -20                 | 8     | `__CRC32#`                                                            |
| -12                 | 1     | 0x01                                                                  |
| -11                 | 10    | CRC-32 of all bytes before the property & 0x7FFFFFFF, decimal digits, |
|                     |       | the least significant one first                                       |
| -1                  | 1     | 0x02                                                                  |

A damaged name must not switch the check off: the last property counts as the CRC property if six of the nine
bytes of its name and 0x01 are right. No record is appended that has those by chance (validate.py).
Source: RocketMQ 5.4.0, CommitLog, MessageExtEncoder, MessageDecoder.
"""

from __future__ import annotations

from typing import Final

from zlib_ng.zlib_ng import crc32

from trovemq_proto.records.fields import RecordFields
from trovemq_proto.records.layout import (
    CRC_MASK,
    CRC_PROPERTY_DIGITS,
    CRC_PROPERTY_PREFIX,
    CRC_PROPERTY_SIZE,
    VALUE_END,
)

ALIKE_MIN: Final = 6
DIGITS_AT: Final = len(CRC_PROPERTY_PREFIX)
CRC_VALUE_SIZE: Final = CRC_PROPERTY_SIZE - DIGITS_AT
_DIGITS_FORM: Final = b"%%0%dd" % CRC_PROPERTY_DIGITS
_VALUE_END: Final = bytes([VALUE_END])


def looks_like_record_crc(data: bytes | memoryview, end: int) -> bool:
    """Whether the properties that end at `end`, and have 20 bytes or more, end with the CRC property."""
    name = bytes(data[end - CRC_PROPERTY_SIZE : end - CRC_PROPERTY_SIZE + DIGITS_AT])
    if name == CRC_PROPERTY_PREFIX:
        return True
    return sum(map(int.__eq__, name, CRC_PROPERTY_PREFIX)) >= ALIKE_MIN


def has_record_crc(data: bytes | memoryview, fields: RecordFields) -> bool:
    """Whether the record's properties end with the CRC property, its name undamaged."""
    at = fields.position + fields.size - CRC_PROPERTY_SIZE
    name = data[at : at + DIGITS_AT]
    return fields.property_size >= CRC_PROPERTY_SIZE and name == CRC_PROPERTY_PREFIX


def record_crc_property(data: bytes | memoryview, begin: int, end: int) -> bytes:
    """The 20 bytes that belong at the end of the record [begin, end)."""
    return CRC_PROPERTY_PREFIX + crc_value(crc32(data[begin : end - CRC_PROPERTY_SIZE]) & CRC_MASK)


def crc_value(crc: int) -> bytes:
    """The digits, and the byte that ends them."""
    return (_DIGITS_FORM % crc)[::-1] + _VALUE_END
