"""The lag of one consumer group on one queue, without the messages that its filter drops.

Messages in flight count, and those that wait for their retry, also as delayed messages: so a clean stop,
which turns the messages in flight into retries, does not change the lag. For messages that were never
delivered, the consume queue's tags codes show which ones a tag filter takes (two tags with one hash count as
one tag); for an SQL filter their properties are read. The work of one answer is bounded: beyond that, the lag
is estimated from the part of the queue that was read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trovemq_broker.filters.filter import Filter
from trovemq_broker.groups.delivery.request import QueueProgress
from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import QUEUE_ORIGIN, EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import parse_properties
from trovemq_proto.records.fields import read_fields
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE
from trovemq_store.engine.queues import find_queue, queue_ids
from trovemq_store.index.consume_queue import ConsumeQueue
from trovemq_store.topics.names import RETRY_PREFIX, retry_topics

UNITS_EXAMINED_MAX: Final = 1_000_000
RECORDS_EXAMINED_MAX: Final = 20_000
"""The most units and records that one answer examines."""
UNITS_STEP: Final = 8_192
RECORDS_STEP: Final = 256
BYTES_STEP: Final = 65_536
"""Units, records, and bytes of records that are read in one step."""
BYTES_OF_RECORD: Final = 2_048
"""A large record is charged as one record for each part of this many bytes."""
QUEUES_MAX: Final = 10_000
"""The most queues of one answer."""


@dataclass(slots=True)
class Work:
    """The remaining budget of one answer, over all its queues."""

    units_remaining: int = UNITS_EXAMINED_MAX
    records_remaining: int = RECORDS_EXAMINED_MAX


@dataclass(frozen=True, slots=True)
class Position:
    """The progress of a group: everything below `committed` is consumed (None: it never read the queue),
    `next_offset` is the next one to be delivered for the first time."""

    committed: QueueOffset | None
    next_offset: QueueOffset
    in_flight: int = 0  # invisible to other members now
    held: int = 0  # below next_offset: not delivered yet, or returned


@dataclass(frozen=True, slots=True)
class QueueLag:
    """`lag`: the number of messages; `lag_ms`: the age of the oldest of them in the queue, 0 if there is
    none."""

    topic: str
    queue_id: QueueId
    min_offset: int
    max_offset: int
    position: Position
    lag: int
    lag_ms: int
    estimated: bool


@dataclass(frozen=True, slots=True)
class _Undelivered:
    """Messages that were never delivered and pass the filter; `first`: the offset of the first of them."""

    count: int
    first: int | None
    estimated: bool = False


class GroupLags:
    """Lags of groups in one store. `progress`: (group, topic, now_ms) -> the progress in delivery.
    `filters_of`: (group, topic) -> the filters of the group's members. `delayed`: topic -> the number of its
    delayed messages."""

    def __init__(
        self,
        store: MessageStore,
        progress: Callable[[str, str, EpochMs], Iterable[QueueProgress]],
        filters_of: Callable[[str, str], Sequence[Filter]],
        delayed: Callable[[str], int],
    ) -> None:
        self._store = store
        self._delayed = delayed
        self._progress = progress
        self._filters_of = filters_of

    def steps(
        self, group: str, topics: Sequence[str], now_ms: EpochMs
    ) -> Generator[None, None, list[QueueLag]]:
        """The lags of all queues of these topics and of the group's retry topics for them; yields between
        steps, so that the caller may do other work. Raises TroveError TOPIC_NOT_FOUND, LIMIT_EXCEEDED."""
        work = Work()
        places: dict[tuple[str, QueueId], Sequence[Filter]] = {}
        for topic in topics:
            filters = self._filters_of(group, topic)
            places |= {(topic, number): filters for number in queue_ids(self._store, topic)}
            for retry in retry_topics(group, topic):
                # messages in a retry topic have passed the filter
                queues = self._store.consume_queues.queues(retry)
                places |= {(retry, queue.queue_id): () for queue in queues}
                if not queues and self._delayed(retry) and self._store.topics.get(retry) is not None:
                    places[retry, QueueId(0)] = ()
            if len(places) > QUEUES_MAX:
                text = f"the group reads more than {QUEUES_MAX} queues; name one topic"
                raise TroveError(errors.LIMIT_EXCEEDED, text)
        positions: dict[str, dict[int, QueueProgress]] = {}
        lags = []
        for (topic, queue_id), filters in places.items():
            if topic not in positions:
                positions[topic] = {row.queue_id: row for row in self._progress(group, topic, now_ms)}
            position = self._position(group, topic, queue_id, positions[topic].get(queue_id))
            lags.append((yield from queue_lag(self._store, topic, queue_id, position, filters, now_ms, work)))
            yield
        return lags

    def _position(self, group: str, topic: str, queue_id: QueueId, row: QueueProgress | None) -> Position:
        # A delayed retry was in flight when it was made; it is counted in the first queue.
        delayed = self._delayed(topic) if topic.startswith(RETRY_PREFIX) and queue_id == 0 else 0
        if row is None:
            committed = self._store.offsets.get(group, topic, queue_id)
            return Position(committed, committed or QUEUE_ORIGIN, delayed)
        in_flight = row.in_flight_count - row.visible_count + delayed
        return Position(row.committed, row.next_offset, in_flight, row.held_count + row.visible_count)


def queue_lag(
    store: MessageStore,
    topic: str,
    queue_id: QueueId,
    position: Position,
    filters: Sequence[Filter],
    now_ms: EpochMs,
    work: Work,
) -> Generator[None, None, QueueLag]:
    """The lag of one queue; yields between steps, so that the caller may do other work.

    `filters` are those of the group's members: a message counts if one of them takes it, or if there are
    none. Raises TroveError TOPIC_NOT_FOUND, QUEUE_NOT_FOUND.
    """
    outstanding = position.in_flight + position.held
    queue = find_queue(store, topic, queue_id)
    if queue is None:
        return QueueLag(topic, queue_id, 0, 0, position, outstanding, 0, estimated=False)
    low, high = queue.min_offset, queue.max_offset
    begin = max(position.next_offset, low)
    waiting = yield from _waiting(store, queue, begin, high, filters, work)
    oldest = waiting.first
    if outstanding and position.committed is not None:
        oldest = max(position.committed, low)
    return QueueLag(
        topic,
        queue_id,
        low,
        high,
        position,
        outstanding + waiting.count,
        _age_ms(store, queue, oldest, now_ms),
        waiting.estimated,
    )


def messages_between(
    store: MessageStore, queue: ConsumeQueue, begin: int, end: int, filters: Sequence[Filter]
) -> Generator[None, None, tuple[int, bool]]:
    """(the number of messages in [begin, end) that one of the filters takes, whether that is an estimate);
    without filters all count."""
    waiting = yield from _waiting(store, queue, max(begin, queue.min_offset), end, filters, Work())
    return waiting.count, waiting.estimated


def _waiting(
    store: MessageStore,
    queue: ConsumeQueue,
    begin: int,
    end: int,
    filters: Sequence[Filter],
    work: Work,
) -> Generator[None, None, _Undelivered]:
    if begin >= end:
        return _Undelivered(0, None)
    if not filters or any(one.takes_all for one in filters):
        return _Undelivered(end - begin, QueueOffset(begin))
    hashes: set[int] = set()
    for one in filters:
        if one.tag_hashes is None:
            return (yield from _by_properties(store, queue, begin, end, filters, work))
        hashes |= one.tag_hashes
    return (yield from _by_tags_codes(queue, begin, end, hashes, work))


def _by_tags_codes(
    queue: ConsumeQueue, begin: int, end: int, hashes: set[int], work: Work
) -> Generator[None, None, _Undelivered]:
    wanted = np.fromiter(hashes, np.int64, len(hashes))
    offset, count, first = begin, 0, None
    while offset < end and work.units_remaining > 0:
        units = queue.units(QueueOffset(offset), min(end - offset, UNITS_STEP, work.units_remaining))
        if not len(units):
            break
        taken = np.isin(units["tags_code"].astype(np.int64), wanted) & (units["size"] != BLANK_UNIT_SIZE)
        if first is None and taken.any():
            first = offset + int(taken.argmax())
        count += int(taken.sum())
        offset += len(units)
        work.units_remaining -= len(units)
        yield
    return _extrapolated(begin, offset, end, count, first)


def _by_properties(
    store: MessageStore,
    queue: ConsumeQueue,
    begin: int,
    end: int,
    filters: Sequence[Filter],
    work: Work,
) -> Generator[None, None, _Undelivered]:
    offset, count, first, bytes_read = begin, 0, None, 0
    while offset < end and work.records_remaining > 0:
        units = queue.units(QueueOffset(offset), min(end - offset, RECORDS_STEP, work.records_remaining))
        if not len(units):
            break
        places = zip(units["physical_offset"].tolist(), units["size"].tolist(), strict=True)
        for index, (physical_offset, size) in enumerate(places):
            if size == BLANK_UNIT_SIZE:
                continue
            properties = _properties_at(store, physical_offset)
            bytes_read += size
            if bytes_read > BYTES_STEP:  # all bytes of the record count: its CRC is checked
                work.records_remaining -= bytes_read // BYTES_OF_RECORD
                bytes_read = 0
                yield
            if properties is not None and any(one.matches(properties) for one in filters):
                first = offset + index if first is None else first
                count += 1
        offset += len(units)
        work.records_remaining -= len(units)
        yield
    return _extrapolated(begin, offset, end, count, first)


def _extrapolated(begin: int, examined_to: int, end: int, count: int, first: int | None) -> _Undelivered:
    if examined_to >= end:
        return _Undelivered(count, first)
    if examined_to == begin:
        return _Undelivered(end - begin, begin, estimated=True)  # nothing was read: the most that it can be
    return _Undelivered(round(count * (end - begin) / (examined_to - begin)), first, estimated=True)


def _properties_at(store: MessageStore, physical_offset: PhysicalOffset) -> dict[str, str] | None:
    """The record's properties; None if the record was removed or is damaged, so that it cannot be
    delivered."""
    try:
        record = store.record_at(physical_offset)
    except DamagedError:
        return None
    fields = read_fields(record, 0, len(record)) if record is not None else None
    if record is None or fields is None:
        return None
    return parse_properties(bytes(record[fields.property_position :]))


def _age_ms(store: MessageStore, queue: ConsumeQueue, offset: int | None, now_ms: EpochMs) -> int:
    if offset is None or offset >= queue.max_offset:
        return 0
    stored = store.store_timestamp_at(queue.unit(QueueOffset(offset))[0])
    return 0 if stored is None else max(now_ms - stored, 0)
