"""The key index's entries of a batch that are still to be put: hashes, physical offsets, store times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.columns import Int32s, Int64s, RecordColumns
from trovemq_proto.records.index_entries import index_entries

Mask = NDArray[np.bool_]


class KeyEntries(NamedTuple):
    """In log order, and in each record in the order of index_entries()."""

    hashes: Int32s
    physical_offsets: Int64s
    store_timestamps: Int64s


def key_entries(
    batch: RecordColumns,
    physical_offset: PhysicalOffset,
    applied: PhysicalOffset,
    applied_keys: int,
    alive: Mask | None,
) -> KeyEntries:
    """The entries, tags too, of the records at or after `applied` for which `alive`, bool[n], is true (None:
    of all), without the first `applied_keys` of the record at `applied`. physical_offset: that of the
    buffer."""
    records, hashes = index_entries(batch, tags=True)
    physical = physical_offset + batch.positions[records]
    timestamps = batch.store_timestamps[records]
    chosen = None if alive is None else alive[records]
    if physical_offset < applied or applied_keys:
        new = physical >= applied
        new[np.flatnonzero(physical == applied)[:applied_keys]] = False
        chosen = new if chosen is None else chosen & new
    if chosen is not None and not chosen.all():
        return KeyEntries(hashes[chosen], physical[chosen], timestamps[chosen])
    return KeyEntries(hashes, physical, timestamps)
