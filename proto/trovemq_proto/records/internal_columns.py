"""TroveMQ's own properties in many records at once (internal_properties.py)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.columns import RecordColumns
from trovemq_proto.records.internal_properties import INTERNAL_PREFIX, OF_SDK

_PREFIX: Final = INTERNAL_PREFIX.encode()
_PREFIX_BYTES: Final = np.frombuffer(_PREFIX, np.uint8)


def forbidden_names(batch: RecordColumns) -> NDArray[np.bool_]:
    """bool[n]: the records of which forbidden_name() finds something."""
    found = np.zeros(len(batch), np.bool_)
    if _PREFIX not in batch.property_bytes:
        return found
    for scan in batch.property_scans:
        names, _ = scan.names_and_values()
        names = names.where(names.ends - names.starts >= len(_PREFIX))
        same = scan.flat[names.starts[:, None] + np.arange(len(_PREFIX))] == _PREFIX_BYTES
        for record, start, end in zip(*names.where(same.all(axis=1)), strict=True):
            found[record] |= scan.joined[start:end] not in OF_SDK
    return found
