"""The units of a consume queue after a crash: how many of them can be the units that were written."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset

_BLANK_SIZE: Final = 0x7FFFFFFF


def valid_prefix(units: NDArray[np.void], physical_offset: PhysicalOffset, lowest: int) -> tuple[int, int]:
    """How many units, from the first, are valid: written, of records below physical_offset, each after the
    one before (the first at or after `lowest`). And where the last of these records ends."""
    physical = units["physical_offset"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    blank = sizes == _BLANK_SIZE
    ends = np.maximum.accumulate(np.r_[lowest, np.where(blank, 0, physical + sizes)])
    valid = (sizes > 0) & (blank | ((physical >= ends[:-1]) & (physical < physical_offset)))
    count = len(units) if valid.all() else int(valid.argmin())
    return count, int(ends[count])
