"""The priorities of all records of a batch at once; see priorities.py."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.priorities import (
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    PROPERTY_PRIORITY,
    illegal_priority,
    read_priority,
)

_NAME: Final = PROPERTY_PRIORITY.encode()
_ZERO: Final = ord("0")


def priorities_of(batch: RecordBatch) -> NDArray[np.uint8]:
    """uint8[n]: the priority of each record."""
    found = np.full(len(batch), PRIORITY_DEFAULT, np.uint8)
    for scan in batch.property_scans:
        values = scan.find(_NAME)
        if not len(values.starts):
            continue
        first = scan.flat[values.starts] - np.uint8(_ZERO)
        digits = (values.ends - values.starts == 1) & (first <= PRIORITY_MAX)
        found[values.records[digits]] = first[digits]
        for index in np.flatnonzero(~digits).tolist():
            text = scan.joined[values.starts[index] : values.ends[index]]
            found[values.records[index]] = read_priority(text)
    return found


def check_priorities(batch: RecordBatch) -> None:
    """Raises TroveError PROPERTY_ILLEGAL if a record of the batch has a priority that is not 0 to 9."""
    for scan in batch.property_scans:
        values = scan.find(_NAME)
        if not len(values.starts):
            continue
        legal = (values.ends - values.starts == 1) & (
            scan.flat[values.starts] - np.uint8(_ZERO) <= PRIORITY_MAX
        )
        if not legal.all():
            index = int(np.argmin(legal))
            text = scan.joined[values.starts[index] : values.ends[index]]
            raise illegal_priority(text[:40].decode("utf-8", "replace"))
