"""Finds the part of the log that may have records of a time range.

Within a run of the log store times rise, or step back by at most the run's slack
(trovemq_store.log.time_runs). So in the first run that reaches `begin` no record of the range lies before one
that is earlier than `begin` by more than the slack; in the last run that begins before `end` none lies after
one that is later than `end` by more than that. The tree `location` has the positions of the records; a record
whose time cannot be trusted narrows nothing.
"""

from __future__ import annotations

from trovemq_broker.query.search.conditions import SearchQuery
from trovemq_proto.errors import DamagedError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.fields import read_fields, store_timestamp
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.trees import TreeReader
from trovemq_store.index.trees.layout import LOCATION, OFFSET

_FINE: int = 1 << 16
"""A part of the log of this many bytes is not divided any further."""


def within_time(
    store: MessageStore, query: SearchQuery, reader: TreeReader, low: PhysicalOffset, high: PhysicalOffset
) -> tuple[PhysicalOffset, PhysicalOffset]:
    """[low, high) without records before or after the query's times; both are indexed."""
    first, last = store.time_span(query.begin, query.end)
    if first is None or last is None:
        return high, high
    if query.begin > 0:
        run_end, run = first
        low = max(low, min(high, store.lowest_offset_at(query.begin)))
        below, above = low, min(high, run_end)
        while above - below > _FINE:
            middle = PhysicalOffset((below + above) // 2)
            at, time = _first_at(store, reader, middle, min(high, run_end))
            if time is not None and time < query.begin - run.slack_ms:
                below = low = max(at, middle)
            else:
                above = middle
    run_end, run = last
    high = max(low, min(high, run_end))
    if query.end < run.highest_ms:
        below, above = max(low, run.begin), high
        while above - below > _FINE:
            middle = PhysicalOffset((below + above) // 2)
            at, time = _first_at(store, reader, middle, high)
            if time is not None and time > query.end + run.slack_ms:
                above, high = middle, min(high, at)
            else:
                below = middle
    return low, high


def _first_at(
    store: MessageStore, reader: TreeReader, begin: PhysicalOffset, end: PhysicalOffset
) -> tuple[PhysicalOffset, int | None]:
    """The physical offset of a record at or after `begin`, and its store time; None if there is none."""
    found = next(reader.items(LOCATION, OFFSET.pack(begin), OFFSET.pack(end)), None)
    if found is None:
        return end, None
    at = OFFSET.unpack(found[0])[0]
    try:
        record = store.record_at(at)
    except DamagedError:
        return at, None
    fields = read_fields(record, 0, len(record)) if record is not None else None
    if record is None or fields is None:
        return at, None
    return at, store_timestamp(record, 0, fields.sys_flag)
