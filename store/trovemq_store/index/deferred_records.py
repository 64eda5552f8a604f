"""Records that wait for the key index, as they lie in memory: so they need not be found in the log again.

Invariants
- The batches are in log order.
- `size_bytes` and `count` are those of all of them; what forgets the batches sets both to 0.
"""

from __future__ import annotations

import numpy as np

from trovemq_proto.records.batch import RecordBatch
from trovemq_store.log.projection import DispatchBatch


class LeftRecords:
    """Who adds them bounds their bytes and their number."""

    def __init__(self) -> None:
        self._batches: list[DispatchBatch] = []
        self.size_bytes = self.count = 0

    def add(self, batch: DispatchBatch) -> None:
        assert len(batch.records) > 0, "a batch has records"
        assert not self._batches or self._batches[-1].end <= batch.physical_offset, "they are in log order"
        self._batches.append(batch)
        self.size_bytes += batch.records.nbytes
        self.count += len(batch.records.positions)

    def clear(self) -> None:
        self._batches = []
        self.size_bytes = self.count = 0

    def take(self) -> DispatchBatch | None:
        """All of them as one run; then none is left. None if they do not follow one another in the log: a
        blank lies between them."""
        batches = self._batches
        assert batches, "the caller knows that there are some"
        self.clear()
        if len(batches) == 1:
            return batches[0]
        sizes: list[int] = []
        end = batches[0].physical_offset
        for batch in batches:
            if batch.physical_offset != end or end + len(batch.records.data) != batch.end:
                return None
            sizes += _sizes(batch.records)
            end = batch.end
        data = b"".join([batch.records.data for batch in batches])
        all_sizes = np.array(sizes, np.int64)
        assert int(all_sizes.sum()) == len(data), "the records fill their buffers"
        topics = {batch.records.topic for batch in batches}
        topic = topics.pop() if len(topics) == 1 else None
        records = RecordBatch(data, np.cumsum(all_sizes) - all_sizes, all_sizes, topic)
        return DispatchBatch(records, batches[0].physical_offset, end)


def _sizes(records: RecordBatch) -> list[int]:
    """The bytes of each record."""
    if records.alike is not None:
        return [records.alike.size] * len(records.positions)
    if records.has_rows:
        return [row.size for row in records.rows]
    sizes: list[int] = records.sizes.tolist()
    return sizes
