"""Batches of several queues that are appended as one run: single sends that arrive together, for example.

Invariants
- A queue has one part, and its records keep their order.
- The records are in the log whole, or none of them is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.patch import patch_batch

_QueueKey = tuple[str, QueueId]


class JoinedBatches:
    """A validated batch (validate_parts' result over `data`) that is appended once."""

    def __init__(self, data: bytearray, batch: RecordBatch, parts: Sequence[QueuePart]) -> None:
        self.data = data
        self._batch = batch
        self.counts: dict[_QueueKey, int] = {(topic, QueueId(queue)): count for topic, queue, count in parts}
        assert len(self.counts) == len(parts), "a queue has one part"
        assert sum(self.counts.values()) == len(batch), "each record has its part"

    def patch(
        self,
        physical_offset: PhysicalOffset,
        first_queue_offsets: Mapping[_QueueKey, QueueOffset],
        *,
        store_timestamp: EpochMs,
        store_host: bytes,
        append_property_crc: bool,
    ) -> RecordBatch:
        """Fills in all values that depend on the place in the log. Returns all records, in log order."""
        parts = zip(first_queue_offsets.values(), self.counts.values(), strict=True)
        return patch_batch(
            self.data,
            self._batch,
            first_queue_offset=QueueOffset(0),
            queue_offsets=list(chain.from_iterable(range(first, first + count) for first, count in parts)),
            physical_offset=physical_offset,
            store_timestamp=store_timestamp,
            store_host=store_host,
            born_host=None,
            append_property_crc=append_property_crc,
        )
