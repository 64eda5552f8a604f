"""Finds which of many records need not be read: tests the conditions on columns.

A walk may name records that mostly do not match: every message of a topic, or the matches of only one of
several conditions. To test the columns of some hundred records costs a small part of reading each of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_broker.query.search.conditions import SearchQuery
from trovemq_broker.query.search.matching import Mask, answering
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.geometry import sliding
from trovemq_proto.records.layout import RECORD_SIZE_MIN
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import StorageError

SIFTED_MAX: Final = 256
"""Records that are tested at once."""
MISSES_MIN: Final = 8
"""After this many records in a row that did not answer, more are tested at once. No benchmark has a case for
it."""
_BYTES_A_RECORD_MAX: Final = 16 << 10
"""Records with a larger distance are read one by one: the bytes between them would be read, too."""


def may_answer(store: MessageStore, query: SearchQuery, offsets: NDArray[np.int64]) -> Mask:
    """Which of the records at these physical offsets (ascending) may match and must be read. Damaged and
    unreadable ones count as such: the caller reports them."""
    unknown = np.ones(len(offsets), np.bool_)
    begin, last = PhysicalOffset(int(offsets[0])), PhysicalOffset(int(offsets[-1]))
    if last - begin > _BYTES_A_RECORD_MAX * len(offsets):
        return unknown
    try:
        head = store.read(last, 4)
        data = store.read(begin, last - begin + int.from_bytes(head, signed=True)) if len(head) else head
    except StorageError:
        return unknown
    if len(data) < last - begin + RECORD_SIZE_MIN:
        return unknown  # in two segments, or damaged
    positions = offsets - begin
    sizes = sliding(data, ">i4")[positions].astype(np.int64)
    if (sizes < RECORD_SIZE_MIN).any() or (positions + sizes > len(data)).any():
        return unknown
    batch = RecordBatch(data, positions, sizes).well_formed_head()
    if len(batch):
        unknown[: len(batch)] = answering(query, batch)
    return unknown
