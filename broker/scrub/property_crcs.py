"""The CRC over a whole record that its last property holds (spec 2.3), where it has one.

The property takes the record's last 20 bytes: `__CRC32#`, 0x01, ten decimal digits of the CRC of all bytes
before it (31 bits), the least significant one first, 0x02.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from isal.isal_zlib import crc32

from trovemq_proto.records import RecordBatch
from trovemq_proto.records.check import CRC_MASK
from trovemq_proto.records.layout import (
    CRC_PROPERTY_DIGITS,
    CRC_PROPERTY_PREFIX,
    CRC_PROPERTY_SIZE,
    VALUE_END,
)

_ALIKE_MIN: Final = 6
"""So many bytes of the property's name are there: it is one, perhaps a damaged one."""


def wrong_property_crcs(records: RecordBatch) -> list[int]:
    """The indexes of the records whose own CRC property says that they are damaged."""
    data = records.data
    properties_at = records.positions + records.sizes - CRC_PROPERTY_SIZE
    names = np.frombuffer(data, np.uint8)[properties_at[:, None] + np.arange(len(CRC_PROPERTY_PREFIX))]
    alike = np.count_nonzero(names == np.frombuffer(CRC_PROPERTY_PREFIX, np.uint8), axis=1)
    wrong = []
    for index in np.flatnonzero(alike >= _ALIKE_MIN).tolist():
        begin, end = int(records.positions[index]), int(properties_at[index])
        crc = crc32(data[begin:end]) & CRC_MASK
        digits = f"{crc:0{CRC_PROPERTY_DIGITS}}"[::-1].encode()
        if data[end : end + CRC_PROPERTY_SIZE] != CRC_PROPERTY_PREFIX + digits + bytes([VALUE_END]):
            wrong.append(index)
    return wrong
