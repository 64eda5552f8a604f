"""A batch of records from a pull: columns first, message objects only on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trovemq._common.numpy_extra import int64s
from trovemq_proto.numpy_extra import has_numpy
from trovemq_proto.positions import QueueOffset
from trovemq_proto.records.cached import cached_property
from trovemq_proto.records.compression import inflate_body
from trovemq_proto.records.fields import (
    RecordFields,
    has_few_records,
    queue_offset,
    read_fields,
    split_fields,
)
from trovemq_proto.records.layout import BODY_SIZE_MAX_DEFAULT, SYS_FLAG_COMPRESSED
from trovemq_proto.records.message import Message, received_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trovemq.models.replica import ReplicaLag
    from trovemq_proto.records.batch import RecordBatch

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class FetchedBatch:
    """Records of one queue in queue order. `records` and `offsets` need NumPy (`trovemq[numpy]`).

    Attributes:
        data: The bytes of the records, as in the broker's log.
        next_offset: Queue offset to continue from.
        min_offset: The queue's first offset.
        max_offset: One past the queue's last visible message.
        queue_offsets: One per record, if the records' own QUEUEOFFSET fields are wrong; else None.
        damaged_offsets: Queue offsets whose record could not be read; they are missing from `data`.
        topic_identity: Which topic of that name on that broker the offsets are of; it changes when the topic
            is deleted and recreated. None from a broker that does not know it.
        replica: The lag of the replica that answered; None from a leader.
    """

    data: Buffer
    next_offset: int
    min_offset: int
    max_offset: int
    queue_offsets: Sequence[int] | NDArray[np.int64] | None = None
    damaged_offsets: tuple[int, ...] = ()
    topic_identity: int | None = None
    replica: ReplicaLag | None = None

    @cached_property
    def records(self) -> RecordBatch:
        """The records with all their columns. Raises TroveError BATCH_ILLEGAL where they do not parse,
        ImportError without NumPy."""
        from trovemq_proto.records import RecordBatch

        return RecordBatch.split(self.data)

    @cached_property
    def rows(self) -> list[RecordFields]:
        """Where the parts of each record lie. Raises TroveError BATCH_ILLEGAL where they do not parse."""
        return list(split_fields(memoryview(self.data)))

    @property
    def nbytes(self) -> int:
        """Size of the records in bytes."""
        return len(self.data)

    @cached_property
    def _has_columns(self) -> bool:
        """Whether the records are read at once. Few need no NumPy, whose import takes a tenth of a second."""
        return not has_few_records(memoryview(self.data)) and has_numpy()

    @property
    def body_nbytes(self) -> int:
        """Size of the stored bodies in bytes."""
        if self._has_columns:
            return int(self.records.body_sizes.sum())
        return sum(row.body_size for row in self.rows)

    def __len__(self) -> int:
        if self._has_columns:
            return len(self.records)
        return len(self.rows)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """int64[n], each record's queue offset. Raises ImportError without NumPy."""
        return self.records.queue_offsets if self.queue_offsets is None else int64s(self.queue_offsets)

    @property
    def offset_list(self) -> list[QueueOffset]:
        """Each record's queue offset."""
        if self.queue_offsets is not None:
            return [QueueOffset(int(offset)) for offset in self.queue_offsets]
        data = memoryview(self.data)
        return [queue_offset(data, row.position) for row in self.rows]

    def split(self) -> list[tuple[QueueOffset, memoryview]]:
        """Queue offset and bytes of each record. Raises TroveError BATCH_ILLEGAL where they do not parse."""
        data = memoryview(self.data)
        records = [data[row.position : row.position + row.size] for row in self.rows]
        return list(zip(self.offset_list, records, strict=True))

    def bodies(self) -> list[memoryview]:
        """The bodies as they were sent; without a copy unless they are compressed."""
        if self._has_columns:
            return self.records.bodies()
        return [self._body(row) for row in self.rows]

    def _body(self, row: RecordFields) -> memoryview:
        stored = memoryview(self.data)[row.body_position : row.body_position + row.body_size]
        if row.sys_flag & SYS_FLAG_COMPRESSED:
            return memoryview(inflate_body(bytes(stored), row.sys_flag, BODY_SIZE_MAX_DEFAULT))
        return stored

    def messages(self) -> Iterator[Message]:
        """One decoded message per record; a message whose body does not inflate has a `body_error`. Raises
        TroveError RECORD_DAMAGED at a record that does not match its CRC."""
        if self.queue_offsets is None and self._has_columns:
            yield from self.records.received()
            return
        data, offsets = memoryview(self.data), self.queue_offsets
        only = read_fields(data, 0, len(data)) if offsets is None else None
        if only is not None and only.size == len(data):
            yield received_of(data, only, None)
            return
        for index, row in enumerate(self.rows):
            yield received_of(data, row, None if offsets is None else QueueOffset(int(offsets[index])))
