"""Records that are visible and not yet indexed, in memory: they need not be read from the log again.

Invariants
- The batches are in log order.
- `size_bytes` and `count` are the sums over the batches; both are 0 once the batches are indexed.
"""

from __future__ import annotations

from trovemq_proto.records.joined import join_batches
from trovemq_store.log.projection import DispatchBatch


class DeferredRecords:
    """The unindexed tail of the log. A caller that adds batches bounds their bytes and their number."""

    def __init__(self) -> None:
        self._batches: list[DispatchBatch] = []
        self.size_bytes = self.count = 0

    def add(self, batch: DispatchBatch, size_bytes: int, count: int) -> None:
        """A batch of `count` records, `size_bytes` in all."""
        assert count > 0, "a batch has records"
        assert not self._batches or self._batches[-1].end <= batch.physical_offset, "they are in log order"
        self._batches.append(batch)
        self.size_bytes += size_bytes
        self.count += count

    def clear(self) -> None:
        self._batches = []
        self.size_bytes = self.count = 0

    def take(self) -> DispatchBatch | None:
        """Removes all batches and returns their records as one run. None if a blank of the log lies between
        them."""
        batches = self._batches
        assert batches, "the caller knows that there are some"
        self.clear()
        if len(batches) == 1:
            return batches[0]
        end = batches[0].physical_offset
        for batch in batches:
            if batch.physical_offset != end or end + len(batch.records.data) != batch.end:
                return None
            end = batch.end
        joined = join_batches([batch.records for batch in batches])
        assert batches[0].physical_offset + len(joined.data) == end, "the run has all bytes of the batches"
        return DispatchBatch(joined, batches[0].physical_offset, end)
