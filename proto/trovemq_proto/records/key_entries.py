"""The key index's entries of a batch that are still to be put: hashes, physical offsets, store times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.columns import RecordColumns
from trovemq_proto.records.fields import SMALL_BATCH_MAX, store_timestamp
from trovemq_proto.records.index_entries import index_entries, plain_index_hashes

Mask = NDArray[np.bool_]
Integers = Sequence[int] | NDArray[np.int32] | NDArray[np.int64]


class KeyEntries(NamedTuple):
    """In log order, and in each record in the order of index_entries(); all lists, or all arrays."""

    hashes: Integers
    physical_offsets: Integers
    store_timestamps: Integers


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
    entries = _of_rows if len(batch.positions) <= SMALL_BATCH_MAX else _of_columns
    return entries(batch, physical_offset, applied, applied_keys, alive)


def _of_rows(
    batch: RecordColumns,
    physical_offset: PhysicalOffset,
    applied: PhysicalOffset,
    applied_keys: int,
    alive: Mask | None,
) -> KeyEntries:
    hashes: list[int] = []
    offsets: list[int] = []
    timestamps: list[int] = []
    for index, row in enumerate(batch.rows):
        physical = physical_offset + row.position
        if physical < applied or (alive is not None and not alive[index]):
            continue
        own = plain_index_hashes(batch, row, tags=True)
        if physical == applied:
            own = own[applied_keys:]
        hashes += own
        offsets += [physical] * len(own)
        timestamps += [store_timestamp(batch.data, row.position, row.sys_flag)] * len(own)
    return KeyEntries(hashes, offsets, timestamps)


def _of_columns(
    batch: RecordColumns,
    physical_offset: PhysicalOffset,
    applied: PhysicalOffset,
    applied_keys: int,
    alive: Mask | None,
) -> KeyEntries:
    records, hashes = index_entries(batch, tags=True)
    physical = physical_offset + batch.positions[records]
    timestamps = batch.store_timestamps[records]
    chosen = None if alive is None else alive[records]
    if (physical_offset < applied or applied_keys) and len(physical):
        new = physical >= applied
        first = int(new.argmax()) if new.any() else len(new)
        at_position = int(np.count_nonzero(physical == applied))
        new[first : first + min(applied_keys, at_position)] = False
        chosen = new if chosen is None else chosen & new
    if chosen is not None and not chosen.all():
        return KeyEntries(hashes[chosen], physical[chosen], timestamps[chosen])
    return KeyEntries(hashes, physical, timestamps)
