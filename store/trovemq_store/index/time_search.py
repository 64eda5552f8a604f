"""Which message of a queue belongs to a time: RocketMQ's search by store time with both boundaries.

LOWER: the smallest offset with time >= t; UPPER: the largest with time <= t. The file is chosen first, by
the times of its first or last unit, then a binary search continues in that file; the steps and corner cases
are RocketMQ's own, because its answers are the contract. Times are those of the records in the log.
Source: RocketMQ 5.4.0, ConsumeQueue.binarySearchInQueueByTime,
MappedFileQueue.getConsumeQueueMappedFileByTime, DefaultMessageStore.getOffsetInQueueByTime.

Where store times step back along the log, a binary search over all of it would skip messages. There each run
of rising times (trovemq_store.log.time_runs) is searched: the first one that has an answer counts, or with
UPPER the last one. In a run whose times are not quite in order the answer lies earlier (UPPER: later), never
so that a message of the time is skipped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_store.index.consume_queue import ConsumeQueue
from trovemq_store.log.time_runs import TimeRun

_UNREADABLE = -1


class _Span(NamedTuple):
    """The units of one file that are searched: offsets first..last; `file_start` may lie below first."""

    file_start: int
    first: int
    last: int


def search_offset(
    queue: ConsumeQueue,
    timestamp: EpochMs,
    upper: bool,
    store_timestamp_at: Callable[[PhysicalOffset], int | None],
    min_physical_offset: PhysicalOffset,
) -> QueueOffset:
    """The queue offset for `timestamp` (epoch ms), in [min_offset, max_offset].

    store_timestamp_at gives the store time of the record at a physical offset, None if it has none.
    """
    if not queue.has_units:
        return queue.min_offset
    search = _Search(queue, timestamp, upper, store_timestamp_at, min_physical_offset)
    offset = max(min(QueueOffset(search.run()), queue.max_offset), queue.min_offset)
    return queue.written_before(offset) if upper and offset < queue.max_offset else offset


def search_in_runs(
    queue: ConsumeQueue,
    timestamp: EpochMs,
    upper: bool,
    store_timestamp_at: Callable[[PhysicalOffset], int | None],
    runs: Sequence[TimeRun],
) -> QueueOffset:
    """The queue offset for `timestamp` (epoch ms), in [min_offset, max_offset], where store times step back.
    A record whose time cannot be read counts as one of that time."""
    begins = [max(queue.min_offset, queue.lower_bound(run.begin)) for run in runs]
    bounds = list(zip(begins, [*begins[1:], queue.max_offset], runs, strict=True))

    def first_later(begin: int, end: int, bound_ms: int) -> int:
        """The first offset of a record whose time is bound_ms or later; `end` if there is none."""

        def is_later(offset: int) -> bool:
            time = store_timestamp_at(queue.physical_before(QueueOffset(offset)))
            return time is None or time >= bound_ms

        return begin + bisect_left(range(begin, end), True, key=is_later)

    if upper:
        for begin, end, run in reversed(bounds):
            found = first_later(begin, end, timestamp + run.slack_ms + 1)
            if found > begin:
                return queue.written_before(QueueOffset(found - 1))
        return queue.min_offset
    for begin, end, run in bounds:
        found = first_later(begin, end, timestamp - run.slack_ms)
        if found < end:
            return QueueOffset(found)
    return queue.max_offset


class _Search:
    def __init__(
        self,
        queue: ConsumeQueue,
        timestamp: EpochMs,
        upper: bool,
        store_timestamp_at: Callable[[PhysicalOffset], int | None],
        min_physical_offset: PhysicalOffset,
    ) -> None:
        self._queue = queue
        self._timestamp = timestamp
        self._upper = upper
        self._store_timestamp_at = store_timestamp_at
        self._min_physical = min_physical_offset

    def run(self) -> int:
        span = self._choose_file()
        if span is None:
            return 0
        if self._time(span.last) < self._timestamp:
            return span.last if self._upper else span.last + 1
        if self._time(span.first) > self._timestamp:
            return 0 if self._upper else span.file_start
        return self._search_file(span)

    def _time(self, offset: int) -> int:
        """The store time of the record; a blank has that of the unit before it."""
        time = self._store_timestamp_at(self._queue.physical_before(QueueOffset(offset)))
        return _UNREADABLE if time is None else time

    def _spans(self) -> list[_Span]:
        queue = self._queue
        starts = queue.file_offsets
        ends = [*starts[1:], queue.max_offset]
        return [
            _Span(start, max(start, min(queue.min_offset, end - 1)), end - 1)
            for start, end in zip(starts, ends, strict=True)
            if end > start
        ]

    def _choose_file(self) -> _Span | None:
        spans = self._spans()
        if self._upper:
            return next((s for s in reversed(spans) if self._time(s.file_start) <= self._timestamp), None)
        return next((s for s in spans[:-1] if self._time(s.last) >= self._timestamp), spans[-1])

    def _search_file(self, span: _Span) -> int:
        low, high = span.first, span.last
        left = right = span.file_start - 1
        while low <= high:
            # RocketMQ takes the middle of positions within the file.
            middle = span.file_start + (low - span.file_start + high - span.file_start) // 2
            if self._queue.physical_before(QueueOffset(middle)) < self._min_physical:
                left, low = middle, middle + 1
                continue
            time = self._time(middle)
            if time < 0:
                return 0
            if time == self._timestamp:
                return self._end_of_equal_times(middle, span)
            if time > self._timestamp:
                right, high = middle, middle - 1
            else:
                left, low = middle, middle + 1
        return left if self._upper else right

    def _end_of_equal_times(self, offset: int, span: _Span) -> int:
        """The last offset with the same time as this one, in the direction of the search. Steps double until
        a message has another time, then they halve: a million messages of one time take forty steps.
        """
        direction, last = (1, span.last) if self._upper else (-1, span.first)
        time, step = self._time(offset), 1
        while step:
            there = offset + direction * step
            if (last - there) * direction >= 0 and self._time(there) == time:
                offset, step = there, 2 * step
            else:
                step //= 2
        return offset
