"""Records that another node's frame brought, as records that are known to be alike, where they are.

A producer's batch is: its consume queue units and its index entries are then computed at once, as on the node
that took the batch from the producer. Others, also those of which one differs, stay as they are.
"""

from __future__ import annotations

import numpy as np

from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.fields import ROWS_MAX


def as_alike(batch: RecordBatch) -> RecordBatch:
    """The same well-formed records, `alike` (RecordColumns) if they fill the buffer and are. It is not known
    whether one is `special`."""
    if len(batch) <= ROWS_MAX or batch.nbytes != len(batch.data) or not batch.uniform:
        return batch
    topic, queue_ids = batch.only_topic, batch.queue_ids
    if topic is None or (queue_ids != queue_ids[0]).any() or (np.diff(batch.queue_offsets) != 1).any():
        return batch
    properties = batch.uniform_properties
    if properties is None or properties.odd:
        return batch
    alike = RecordBatch.of_uniform(batch.data, batch.row(0), len(batch), topic, checked=False)
    alike.__dict__ |= {"special": True, "geometry": batch.geometry, "uniform_properties": properties}
    return alike
