"""A batch of messages that were sent together as columns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct

from trovemq._net.routes import Slot
from trovemq._produce.outgoing import Batch, Encoded, Owner
from trovemq._wire.frames import append_head
from trovemq.receipts import AppendOutcome, FrameReceipt, MessageIds, Sizes
from trovemq.send_arguments import Keys
from trovemq_proto.errors import TroveError
from trovemq_proto.records import BatchEncoder
from trovemq_proto.records.internal_properties import Writer

_TOTAL_SIZE = Struct(">i")


@dataclass(frozen=True, slots=True)
class Columns:
    """The inputs of a batch, those of message i at index i; tags and properties may be one for all.

    `size` is their size in bytes.
    """

    bodies: Sequence[bytes]
    message_ids: MessageIds
    keys: Sequence[Keys] | None
    tags: Sequence[str | None] | str | None
    properties: Sequence[Mapping[str, str] | None] | Mapping[str, str] | None
    size: int


class ColumnBatch(Batch):
    """Messages that were sent together as columns: one future, and no object per message."""

    def __init__(
        self,
        topic: str,
        owner: Owner,
        slot: Slot,
        deadline: float,
        columns: Columns,
        movable: bool = False,
        ordered: bool = False,
    ) -> None:
        super().__init__(topic, owner, slot, deadline, movable, ordered)
        self.size = columns.size
        self.receipt: asyncio.Future[FrameReceipt] = asyncio.get_running_loop().create_future()
        self._born_timestamp = time.time_ns() // 1_000_000
        self._columns = columns
        self._sequences = range(0)

    @property
    def count(self) -> int:
        return len(self._columns.bodies)

    @property
    def message_ids(self) -> MessageIds:
        return self._columns.message_ids

    def encode(self) -> Encoded | None:
        if self.receipt.cancelled():
            return None
        assert self.route is not None
        form = self.route.form
        encoder = BatchEncoder(
            self.topic,
            store_host_ipv6=form.store_host_ipv6,
            append_property_crc=form.append_property_crc,
            born_host_ipv6=form.born_host_ipv6,
            writer=Writer.SDK,
        )
        columns = self._columns
        properties = columns.properties
        if self.sequence_assigner is not None:
            if self.numbered_for != self.broker:
                self._sequences = self.sequence_assigner.take(self.broker, self.count)
                self.numbered_for = self.broker
            properties = self.sequence_assigner.with_numbers(properties, self._sequences)
        records = encoder.encode(
            columns.bodies,
            queue_id=self.slot.queue_id,
            unique_keys=columns.message_ids,
            keys=columns.keys,
            tags=columns.tags,
            properties=properties,
            born_timestamp=self._born_timestamp,
        )
        self.sizes = _sizes_of(records, self.count)
        return append_head(self.topic, self.slot.queue_id), (records,), len(records)

    def resolve(self, outcome: AppendOutcome) -> None:
        if not self.receipt.done():
            self.receipt.set_result(self.frame_receipt(outcome))

    def reject(self, error: TroveError) -> None:
        if not self.receipt.done():
            self.receipt.set_exception(error)


def _sizes_of(records: bytearray, count: int) -> Sizes:
    """The sizes of the records in these bytes, which were just encoded."""
    sizes: list[int] = []
    position, end = 0, len(records)
    while position < end:
        (size,) = _TOTAL_SIZE.unpack_from(records, position)
        sizes.append(size)
        position += size
    assert position == end, "the records are whole"
    assert len(sizes) == count, "each message has its record"
    return sizes
