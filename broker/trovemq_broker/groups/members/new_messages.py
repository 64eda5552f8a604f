"""Finds which filters match new messages of a queue, so that only their receives are woken.

Tag filters are tested on the consume queue's tags codes (two tags with one hash count as one: an unneeded
wake-up does no harm), SQL filters on the records' properties. The work is bounded; beyond that every filter
counts as matching, and the woken receives find out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from trovemq_broker.filters.filter import Filter
from trovemq_proto.errors import DamagedError
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import parse_properties
from trovemq_proto.records.fields import read_fields
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_units import readable_units
from trovemq_store.files.files import ScarceError

UNITS_MAX: Final = 8_192
"""The most units that are tested; with more, every filter counts as matching."""
RECORDS_MAX: Final = 64
"""The most records whose properties are read at a time."""


class FilterMatches(NamedTuple):
    """The filters that match a new message. `end`: messages below this queue offset were tested."""

    filters: list[Filter]
    end: int


class NewMessages:
    """Reads one store. `next_offset`: (group, topic, queue) -> the queue offset of the first message that is
    new to the group; None if that is not known."""

    def __init__(self, store: MessageStore, next_offset: Callable[[str, str, QueueId], int | None]) -> None:
        self._store = store
        self._next_offset = next_offset

    def matching_filters(
        self, group: str, topic: str, queue_id: QueueId, seen: int, filters: Sequence[Filter]
    ) -> FilterMatches:
        """The filters that match a message of the queue which is new to the group and has the queue offset
        `seen` or a higher one. All filters if no descriptor, map or memory is free for the read."""
        try:
            return self._match(group, topic, queue_id, filters, seen)
        except ScarceError:
            return FilterMatches(list(filters), seen)

    def _match(
        self, group: str, topic: str, queue_id: QueueId, filters: Sequence[Filter], seen: int
    ) -> FilterMatches:
        queue = self._store.consume_queues.get(topic, queue_id)
        first = self._next_offset(group, topic, queue_id)
        if queue is None or first is None:
            return FilterMatches(list(filters), seen)
        begin, end = max(seen, first, queue.min_offset), queue.max_offset
        if end - begin > UNITS_MAX:
            return FilterMatches(list(filters), end)
        if begin >= end:
            return FilterMatches([], end)
        units = readable_units(queue, QueueOffset(begin), end - begin)
        codes = units["tags_code"].astype(np.int64)
        by_properties = [one for one in filters if one.tag_hashes is None and not one.takes_all]
        matching = [one for one in filters if one.takes_all or _has_tag(one, codes)]
        if by_properties:
            matching += self._by_properties(by_properties, units["physical_offset"].tolist())
        return FilterMatches(matching, end)

    def _by_properties(self, filters: list[Filter], places: list[PhysicalOffset]) -> list[Filter]:
        if len(places) > RECORDS_MAX:
            return filters
        taking: list[Filter] = []
        for physical_offset in places:
            properties = self._properties_at(physical_offset)
            taking += [one for one in filters if one not in taking and one.matches(properties)]
        return taking

    def _properties_at(self, physical_offset: PhysicalOffset) -> dict[str, str]:
        try:
            record = self._store.record_at(physical_offset)
        except DamagedError:
            return {}
        fields = read_fields(record, 0, len(record)) if record is not None else None
        if record is None or fields is None:
            return {}
        return parse_properties(bytes(record[fields.property_position :]))


def _has_tag(filter_: Filter, codes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
    hashes = filter_.tag_hashes
    return hashes is not None and bool(np.isin(codes, np.fromiter(hashes, np.int64, len(hashes))).any())
