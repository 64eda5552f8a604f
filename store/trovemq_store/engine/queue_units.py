"""Reading a queue's units, where the disk does not return some of them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import QueueOffset
from trovemq_store.files.files import UnreadableError
from trovemq_store.index.consume_queue import UNIT_DTYPE, ConsumeQueue

UNITS_STEP: Final = 1_024
"""Units that are read at a time."""
# Filler where a queue's first offset is not 0 (docs/store-format.md, "Filler units").
BLANK_UNIT_SIZE: Final = 0x7FFFFFFF
UNREADABLE_UNIT_SIZE: Final = 0  # readable_units() uses it: no record is that small


def readable_units(queue: ConsumeQueue, offset: QueueOffset, count: int) -> NDArray[np.void]:
    """queue.units(), with units of UNREADABLE_UNIT_SIZE in the place of those that the disk does not
    return."""
    count = min(count, queue.max_offset - offset)
    try:
        return queue.units(offset, count)
    except UnreadableError:
        if count == 1:
            return np.array([(-1, UNREADABLE_UNIT_SIZE, 0)], UNIT_DTYPE)
        half = count // 2
        parts = (
            readable_units(queue, offset, half),
            readable_units(queue, QueueOffset(offset + half), count - half),
        )
        return np.concatenate(parts)
