"""Tests whether records answer a search: one by one, or many at once in scanned parts of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trovemq_broker.query.search.conditions import AllOf, Condition, Has, SearchQuery
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.fields import RecordFields, store_timestamp
from trovemq_proto.records.layout import (
    NAME_END,
    PROPERTY_KEY_SIZES,
    SYS_FLAG_TRANSACTION_MASK,
    SYS_FLAG_TRANSACTION_ROLLBACK,
    VALUE_END,
)
from trovemq_proto.records.property_scan import PropertyScan, Slices
from trovemq_store.index.trees.layout import KEY

Mask: TypeAlias = NDArray[np.bool_]

_NAME_END = bytes([NAME_END])
_VALUE_END = bytes([VALUE_END])


def answers(query: SearchQuery, record: memoryview, fields: RecordFields) -> bool:
    """Whether the record answers the search. A record that was rolled back never does."""
    topic = record[fields.topic_position : fields.topic_position + fields.topic_size]
    if topic != query.topic.encode("utf-8", "replace"):
        return False
    if fields.sys_flag & SYS_FLAG_TRANSACTION_MASK == SYS_FLAG_TRANSACTION_ROLLBACK:
        return False
    if not query.in_time(store_timestamp(record, 0, fields.sys_flag)):
        return False
    if isinstance(query.where, AllOf) and not query.where.parts:
        return True
    begin = fields.property_position
    return query.where.accepts(_properties(bytes(record[begin : begin + fields.property_size])))


def _properties(block: bytes) -> dict[bytes, bytes]:
    """Name and value of each property of a record's properties."""
    found = {}
    for piece in block.split(_VALUE_END):
        name, _, value = piece.partition(_NAME_END)
        if name and value:
            found[name] = value
    return found


def answering(query: SearchQuery, batch: RecordBatch) -> Mask:
    """Which of the records answer the search, topic and time included."""
    chosen = np.zeros(len(batch), np.bool_)
    for topic, records in batch.topic_groups():
        if topic == query.topic:
            chosen[records] = True
    chosen &= batch.sys_flags & SYS_FLAG_TRANSACTION_MASK != SYS_FLAG_TRANSACTION_ROLLBACK
    if query.has_times:
        times = batch.store_timestamps
        chosen &= (times >= query.begin) & (times <= query.end)
    if not chosen.any():
        return chosen
    return chosen & _matching(query.where, _Values(batch))


class _Values:
    """The values of a batch's properties, found once for all conditions."""

    def __init__(self, batch: RecordBatch) -> None:
        self.count: Final = len(batch)
        self._scans = batch.property_scans
        self._found: dict[tuple[bytes, bool], list[tuple[PropertyScan, Slices]]] = {}

    def of(self, name: bytes, *, words: bool) -> list[tuple[PropertyScan, Slices]]:
        """words: the values are split at spaces."""
        found = self._found.get((name, words))
        if found is None:
            found = [(scan, scan.find(name)) for scan in self._scans]
            if words:
                found = [(scan, scan.words(slices)) for scan, slices in found]
            self._found[name, words] = found
        return found

    def texts(self, name: bytes) -> Iterator[tuple[int, bytes]]:
        """(record, value) of the records that have the property."""
        for scan, slices in self.of(name, words=False):
            for record, start, end in zip(*(part.tolist() for part in slices), strict=True):
                yield record, scan.joined[start:end]


def _matching(condition: Condition, values: _Values) -> Mask:
    if isinstance(condition, Has):
        return _having(condition, values)
    combine: Callable[[Mask, Mask], Mask] = np.logical_and if isinstance(condition, AllOf) else np.logical_or
    found = np.full(values.count, isinstance(condition, AllOf), np.bool_)
    for part in condition.parts:
        found = combine(found, _matching(part, values))
    return found


def _having(condition: Has, values: _Values) -> Mask:
    found = np.zeros(values.count, np.bool_)
    if condition.has_spaces:
        widths = dict(values.texts(PROPERTY_KEY_SIZES.encode()))
        for record, keys in values.texts(condition.property_name) if widths else ():
            found[record] = record in widths and condition.is_met_by_key(keys, widths[record])
        return found
    wanted = len(condition.value)
    for scan, slices in values.of(condition.property_name, words=condition.kind == KEY):
        sizes = slices.ends - slices.starts
        fit = np.flatnonzero(sizes >= wanted if condition.is_prefix else sizes == wanted)
        if len(fit):
            begins = np.ndarray((len(scan.joined) - wanted + 1,), f"S{wanted}", scan.joined, strides=(1,))
            # all have one size, so the trailing zeros that NumPy ignores make no two different ones equal
            met = begins[slices.starts[fit]] == condition.value
            found[slices.records[fit[met]]] = True
    return found
