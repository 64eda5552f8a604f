"""The key index as it was before records.key_entries, with two functions from a batch to its entries."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.fields import store_timestamp
from trovemq_proto.records.index_entries import plain_index_hashes
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import StorageError
from trovemq_store.index.key_index import KeyIndex, _count_in_order
from trovemq_store.log.projection import DispatchBatch

Columns = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]
FEW_MAX = 24


class FormerIndex(KeyIndex):
    """Asks itself how many records a batch has."""

    def _put_all(self, batch: DispatchBatch) -> None:
        entries = self._entries_of_few if len(batch.records) <= FEW_MAX else self._entries
        hashes, physical, timestamps = entries(batch)
        done = 0
        try:
            while done < len(hashes):
                fault_point("index.before_put")
                file = self._writable_file(int(timestamps[done]))
                end = done + _count_in_order(timestamps[done:], file.end_timestamp)
                done += file.put(hashes[done:end], physical[done:end], timestamps[done:end])
                self._dirty.mark(file.path)
                if file.full:
                    self._full.append((file.path, file.end_timestamp))
                fault_point("index.after_put")
        except StorageError:
            self._stop_inside(np.asarray(physical[:done], np.int64))
            raise

    def _entries(self, batch: DispatchBatch) -> Columns:
        """(hashes, physical offsets, store timestamps) of the batch's entries that are still to be put."""
        records = batch.records
        found = records.index_entries()
        physical = batch.physical_offset + records.positions[found.record_index]
        timestamps = records.store_timestamps[found.record_index]
        hashes = found.hashes
        chosen: NDArray[np.bool_] | None = None
        if batch.alive is not None:
            chosen = batch.alive[found.record_index]
        if (batch.physical_offset < self._position or self._resume) and len(physical):
            new = physical >= self._position
            first = int(new.argmax()) if new.any() else len(new)
            at_position = int(np.count_nonzero(physical == self._position))
            new[first : first + min(self._resume, at_position)] = False
            chosen = new if chosen is None else chosen & new
        if chosen is not None and not chosen.all():
            return hashes[chosen], physical[chosen], timestamps[chosen]
        return hashes, physical, timestamps

    def _entries_of_few(self, batch: DispatchBatch) -> Columns:
        """_entries of a few records, in plain Python: they should not pay for columns."""
        records, alive = batch.records, batch.alive
        hashes: list[int] = []
        offsets: list[int] = []
        timestamps: list[int] = []
        for index, row in enumerate(records.rows):
            physical = batch.physical_offset + row.position
            if physical < self._position or (alive is not None and not alive[index]):
                continue
            own = plain_index_hashes(records, row, tags=True)
            if physical == self._position:
                own = own[self._resume :]
            hashes += own
            offsets += [physical] * len(own)
            timestamps += [store_timestamp(records.data, row.position, row.sys_flag)] * len(own)
        return np.array(hashes, np.int32), np.array(offsets, np.int64), np.array(timestamps, np.int64)
