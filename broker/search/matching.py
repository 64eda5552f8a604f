"""Whether records answer a search: one by one, and many at once for parts of the log that are scanned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from broker.search.conditions import AllOf, Condition, Has, SearchQuery
from broker.trees.layout import KEY
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.fields import RecordFields, store_timestamp
from trovemq_proto.records.layout import (
    NAME_END,
    SYS_FLAG_TRANSACTION_MASK,
    SYS_FLAG_TRANSACTION_ROLLBACK,
    VALUE_END,
)
from trovemq_proto.records.property_scan import PropertyScan, Slices

Mask: TypeAlias = NDArray[np.bool_]

_NAME_END = bytes([NAME_END])
_VALUE_END = bytes([VALUE_END])


def answers(query: SearchQuery, record: memoryview, fields: RecordFields) -> bool:
    """Whether the record answers the search. One that was rolled back answers none."""
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
    """As properties.parse_properties, but for bytes."""
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
    return chosen & _meeting(query.where, batch)


def _meeting(condition: Condition, batch: RecordBatch) -> Mask:
    if isinstance(condition, Has):
        return _having(condition, batch)
    combine: Callable[[Mask, Mask], Mask] = np.logical_and if isinstance(condition, AllOf) else np.logical_or
    found = np.full(len(batch), isinstance(condition, AllOf), np.bool_)
    for part in condition.parts:
        found = combine(found, _meeting(part, batch))
    return found


def _having(condition: Has, batch: RecordBatch) -> Mask:
    found = np.zeros(len(batch), np.bool_)
    for scan in batch.property_scans:
        slices = _values(condition, scan)
        spans = zip(slices.records.tolist(), slices.starts.tolist(), slices.ends.tolist(), strict=True)
        joined = scan.joined
        for record, start, end in spans:
            if condition.is_met(joined[start:end]):
                found[record] = True
    return found


def _values(condition: Has, scan: PropertyScan) -> Slices:
    """Those that may meet the condition by their length."""
    slices = scan.find(condition.property_name)
    if condition.kind == KEY:
        slices = scan.words(slices)
    sizes = slices.ends - slices.starts
    wanted = len(condition.value)
    return slices.where(sizes >= wanted if condition.is_prefix else sizes == wanted)
