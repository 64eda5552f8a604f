"""The entries of a step for the tree `unique-id`, in columns until they are sorted.

Invariant: of several entries with one key the one is kept whose record comes last in the log, whatever the
order in which they are added.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.batch import RecordBatch
from trovemq_store.files.trees import TreeChange
from trovemq_store.index.trees.layout import NUMBER, OFFSET, UNIQUE_ID
from trovemq_store.index.trees.rows import Int64s, Matrix, Rows, first_of_equal, order_of, rows_at, take_rows
from trovemq_store.index.trees.unique_keys import ID_SIZE_MAX, WITHDRAWN, own_ids, stored_id

VALUE_FIELDS: Final = np.dtype(
    [("physical_offset", ">i8"), ("queue_id", ">u4"), ("queue_offset", ">i8"), ("store_timestamp", ">i8")]
)


class UniqueColumns:
    """Keys and values, by the size of the keys."""

    def __init__(self) -> None:
        self._found: dict[int, list[tuple[Matrix, Matrix]]] = {}
        self.held_bytes = 0
        """Memory of the entries, as they are added and again when they are sorted."""

    def add(self, topic_number: int, batch: RecordBatch, chosen: NDArray[np.bool_], values: Matrix) -> None:
        """Adds the ids of the chosen records, without those of copies that the broker made."""
        prefix = np.frombuffer(NUMBER.pack(topic_number), np.uint8)
        for scan, slices in own_ids(batch, chosen):
            sizes = slices.ends - slices.starts
            for size in np.unique(sizes).tolist():
                same = slices.where(sizes == size)
                ids = _stored(rows_at(scan, same.starts, size))
                heads = np.broadcast_to(prefix, (len(ids), len(prefix)))
                self._add(np.concatenate((heads, ids), axis=1), take_rows(values, same.records))

    def add_named(self, topic_number: int, ids: Collection[tuple[int, bytes]], values: Matrix) -> None:
        """Adds the ids of messages that wait in another topic; ids: (record, id)."""
        prefix = NUMBER.pack(topic_number)
        by_size: dict[int, list[tuple[int, bytes]]] = {}
        for record, unique_id in ids:
            key = prefix + stored_id(unique_id)
            by_size.setdefault(len(key), []).append((record, key))
        for size, found in by_size.items():
            keys = np.frombuffer(b"".join([key for _, key in found]), np.uint8).reshape(len(found), size)
            self._add(keys, values[[record for record, _ in found]])

    def _add(self, keys: Matrix, values: Matrix) -> None:
        self._found.setdefault(keys.shape[1], []).append((keys, values))
        self.held_bytes += 2 * (keys.nbytes + values.nbytes)

    def change(self) -> TreeChange:
        """The added entries, sorted by key; each key once."""
        lots = [_sorted(found) for found in self._found.values()]
        if len(lots) == 1:
            return TreeChange(UNIQUE_ID, keys=lots[0][0], values=lots[0][1])
        entries = chain.from_iterable(zip(keys, values, strict=True) for keys, values in lots)
        return TreeChange(UNIQUE_ID, sorted(entries, key=itemgetter(0)))


def _sorted(found: list[tuple[Matrix, Matrix]]) -> tuple[Rows, Rows]:
    keys = np.concatenate([part for part, _ in found])
    values = np.concatenate([part for _, part in found])
    order = order_of(np.concatenate((keys, values[:, : OFFSET.size]), axis=1))
    keys = take_rows(keys, order)
    is_last = np.append(first_of_equal(keys)[1:], True)
    if not is_last.all():
        keys, order = keys[is_last], order[is_last]
    return Rows(keys), Rows(take_rows(values, order))


def _stored(ids: Matrix) -> Matrix:
    """The form that these ids, all of one size, have in the tree."""
    if ids.shape[1] <= ID_SIZE_MAX:
        return ids
    cut = b"".join([stored_id(row.tobytes()) for row in ids])
    return np.frombuffer(cut, np.uint8).reshape(len(ids), ID_SIZE_MAX + 1)


def values_of(batch: RecordBatch, offsets: Int64s) -> Matrix:
    """The value of each record's entry; offsets: where the records lie in the log."""
    values = np.empty(len(batch), VALUE_FIELDS)
    values["physical_offset"] = offsets
    values["queue_id"] = batch.queue_ids
    values["queue_offset"] = batch.queue_offsets
    values["store_timestamp"] = batch.store_timestamps
    return values.view(np.uint8).reshape(len(batch), VALUE_FIELDS.itemsize)


def free_again(values: Matrix) -> Matrix:
    """The values of records that withdraw messages: their ids may be stored again."""
    found = values.view(VALUE_FIELDS)[:, 0].copy()
    found["queue_id"] = WITHDRAWN
    return found.view(np.uint8).reshape(values.shape)
