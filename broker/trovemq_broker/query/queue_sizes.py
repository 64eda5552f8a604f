"""How many bytes of the log the messages of a queue take: the sizes in its units, added up once.

Of each file of a queue the sum of its first units is kept, and continued when it has more. All that is kept
goes with the queue, or when there are sums of KEPT_QUEUES_MAX queues.

Invariants
- A kept sum is that of the file's units from its first one up to `end`; blanks have no size.
- The units between are written, and a written unit never changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueOffset
from trovemq_store.engine.steps import Steps
from trovemq_store.files.files import StorageError
from trovemq_store.index.consume_queue import BLANK_SIZE, ConsumeQueue

UNITS_STEP: Final = 32_768
KEPT_QUEUES_MAX: Final = 16_384


@dataclass(slots=True)
class _Sum:
    """Of the units from a file's first one up to `end`."""

    end: QueueOffset
    size: int = 0


@dataclass(slots=True)
class _Kept:
    """Sums by the offset at which their file begins: of its units so far, and of those below the minimum."""

    written: dict[QueueOffset, _Sum] = field(default_factory=dict)
    below: dict[QueueOffset, _Sum] = field(default_factory=dict)

    def forget(self, files: set[QueueOffset]) -> None:
        """Forgets the sizes of all other files."""
        for sums in (self.written, self.below):
            for gone in sums.keys() - files:
                del sums[gone]


class QueueSizes:
    """Used on the event loop only."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[ConsumeQueue, _Kept] = WeakKeyDictionary()

    def size_of(self, queue: ConsumeQueue) -> Steps[int | None]:
        """The bytes of the messages from the queue's minimum to its end; those that come meanwhile may count.
        None where the disk does not give the units, as of a queue that was deleted meanwhile."""
        if queue not in self._kept and len(self._kept) >= KEPT_QUEUES_MAX:
            self._kept.clear()
        kept = self._kept.setdefault(queue, _Kept())
        while True:
            try:
                return (yield from _size_of(queue, kept))
            except StorageError:
                return None
            except TroveError as error:
                if error.spec is not errors.OFFSET_OUT_OF_RANGE:
                    raise
                yield  # the beginning of the queue was removed meanwhile: once more


def _size_of(queue: ConsumeQueue, kept: _Kept) -> Steps[int]:
    low, high, files = queue.min_offset, queue.max_offset, queue.file_offsets
    kept.forget(set(files))
    size = 0
    for first, end in zip(files, [*files[1:], high], strict=False):
        if end <= low:
            continue
        size += yield from _summed(queue, kept.written, first, end)
        if first < low:
            size -= yield from _summed(queue, kept.below, first, low)
    return size


def _summed(
    queue: ConsumeQueue, sums: dict[QueueOffset, _Sum], first: QueueOffset, end: QueueOffset
) -> Steps[int]:
    """The sum of the units from the file's first one up to `end`, or further."""
    kept = sums.setdefault(first, _Sum(first))
    while kept.end < end:
        units = queue.units(kept.end, min(end - kept.end, UNITS_STEP))
        sizes = units["size"]
        kept.size += int(sizes.sum(where=sizes != BLANK_SIZE, dtype=np.int64))
        kept.end = QueueOffset(kept.end + len(units))
        yield
    return kept.size
