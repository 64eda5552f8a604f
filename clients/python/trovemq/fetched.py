"""A batch of records as a pull brought it: columns first, messages only on demand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records import Message, RecordBatch, decode_received

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class FetchedBatch:
    """Records of one queue in queue order.

    Attributes:
        data: The records' bytes, as they are in the broker's log.
        next_offset: Queue offset to continue from.
        min_offset: The queue's first offset.
        max_offset: One past the queue's last visible message.
        queue_offsets: int64[n] where the records' own QUEUEOFFSET fields are not right; else None.
        damaged_offsets: Queue offsets whose record could not be read; they are missing from `data`.
    """

    data: Buffer
    next_offset: int
    min_offset: int
    max_offset: int
    queue_offsets: NDArray[np.int64] | None = None
    damaged_offsets: tuple[int, ...] = ()

    @cached_property
    def records(self) -> RecordBatch:
        """The records with all their columns. Raises TroveError BATCH_ILLEGAL where they do not parse."""
        return RecordBatch.split(self.data)

    @property
    def nbytes(self) -> int:
        """Size of the records in bytes."""
        return len(self.data)

    def __len__(self) -> int:
        return len(self.records) if len(self.data) else 0

    @property
    def offsets(self) -> NDArray[np.int64]:
        """int64[n], each record's queue offset."""
        return self.records.queue_offsets if self.queue_offsets is None else self.queue_offsets

    def bodies(self) -> list[memoryview]:
        """The stored bodies (compressed ones as they are), without a copy."""
        return self.records.bodies() if len(self.data) else []

    def messages(self) -> Iterator[Message]:
        """One decoded message a record; one whose body does not inflate has a `body_error`. Raises TroveError
        RECORD_DAMAGED at a record that does not match its CRC."""
        if not len(self.data):
            return
        if self.queue_offsets is None:
            yield from self.records.received()
            return
        for i, queue_offset in enumerate(self.queue_offsets.tolist()):
            yield decode_received(self.records.record(i), queue_offset=queue_offset)
