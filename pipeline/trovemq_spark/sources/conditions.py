"""Conditions on a record that need neither its body nor its properties: topic, queue, place, time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trovemq_proto.records import RecordBatch
from trovemq_spark.table.columns import arrow_batch

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
TOPIC: Final = "topic"
QUEUE_ID: Final = "queueId"
STORE_TIMESTAMP: Final = "storeTimestamp"
PHYSICAL_OFFSET: Final = "physicalOffset"


class Condition(Protocol):
    """A condition on a record. Picklable."""

    @property
    def column(self) -> str:
        """The column it is about."""
        ...

    def mask(self, batch: RecordBatch) -> Bools:
        """For each record whether it is true."""
        ...


def numbers(batch: RecordBatch, column: str) -> Int64s:
    """The column in the form that Spark compares: times in microseconds."""
    if column == STORE_TIMESTAMP:
        times = arrow_batch(batch, [STORE_TIMESTAMP]).column(0)
        return times.cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]
    if column == QUEUE_ID:
        return batch.queue_ids.astype(np.int64)
    assert column == PHYSICAL_OFFSET, column
    return batch.physical_offsets


@dataclass(frozen=True, slots=True)
class NumberBetween:
    """low <= column <= high."""

    column: str
    low: int = INT64_MIN
    high: int = INT64_MAX

    def mask(self, batch: RecordBatch) -> Bools:
        values = numbers(batch, self.column)
        low, high = max(self.low, INT64_MIN), min(self.high, INT64_MAX)
        if low > high:
            return np.zeros(len(batch), np.bool_)
        within: Bools = (values >= low) & (values <= high)
        return within


@dataclass(frozen=True, slots=True)
class NumberIn:
    """The column has one of these values."""

    column: str
    values: frozenset[int]

    def mask(self, batch: RecordBatch) -> Bools:
        wanted = np.array([value for value in self.values if INT64_MIN <= value <= INT64_MAX], np.int64)
        return np.isin(numbers(batch, self.column), wanted)


@dataclass(frozen=True, slots=True)
class IsThere:
    """The column is not null: true for every record, and for no damaged one."""

    column: str

    def mask(self, batch: RecordBatch) -> Bools:
        return np.ones(len(batch), np.bool_)


@dataclass(frozen=True, slots=True)
class TopicIn:
    """The topic is one of these."""

    names: frozenset[str]
    column: str = TOPIC

    def mask(self, batch: RecordBatch) -> Bools:
        codes, topics = coded_topics(batch)
        return np.array([topic in self.names for topic in topics], np.bool_)[codes]


@dataclass(frozen=True, slots=True)
class TopicBetween:
    """low <= topic (or <), topic <= high (or <), compared by the bytes of UTF-8, as Spark orders strings."""

    low: str | None = None
    high: str | None = None
    strict: bool = False
    column: str = TOPIC

    def mask(self, batch: RecordBatch) -> Bools:
        codes, topics = coded_topics(batch)
        return np.array([self._is_within(topic.encode()) for topic in topics], np.bool_)[codes]

    def _is_within(self, topic: bytes) -> bool:
        for bound, sign in ((self.low, 1), (self.high, -1)):
            if bound is None:
                continue
            order = sign * ((topic > bound.encode()) - (topic < bound.encode()))
            if order < 0 or (self.strict and order == 0):
                return False
        return True


@dataclass(frozen=True, slots=True)
class TopicMatches:
    """The whole topic matches a regular expression."""

    pattern: str
    column: str = TOPIC

    def mask(self, batch: RecordBatch) -> Bools:
        codes, topics = coded_topics(batch)
        matches = re.compile(self.pattern).fullmatch
        return np.array([matches(topic) is not None for topic in topics], np.bool_)[codes]


@dataclass(frozen=True, slots=True)
class QueueRanges:
    """The record's queue offset lies in its queue's range.

    ranges: (topic, queue id) -> [begin, end). Of queues without a range all records pass, or none (`only`).
    """

    ranges: Mapping[tuple[str, int], tuple[int, int]]
    only: bool
    column: str = TOPIC

    def mask(self, batch: RecordBatch) -> Bools:
        codes, topics = coded_topics(batch)
        chosen = np.full(len(batch), not self.only, np.bool_)
        for code, topic in enumerate(topics):
            for (name, queue_id), (begin, end) in self.ranges.items():
                if name == topic:
                    here = (codes == code) & (batch.queue_ids == queue_id)
                    offsets = batch.queue_offsets[here]
                    chosen[here] = (offsets >= begin) & (offsets < end)
        return chosen


def coded_topics(batch: RecordBatch) -> tuple[NDArray[np.int32], list[str]]:
    """(the number of each record's topic, the different topics)"""
    if batch.only_topic is not None:
        return np.zeros(len(batch), np.int32), [batch.only_topic]
    coded = arrow_batch(batch, [TOPIC]).column(0).dictionary_encode()
    return coded.indices.to_numpy(), coded.dictionary.to_pylist()


@dataclass(frozen=True)
class RowFilter:
    """Conditions that must all hold. `asked`: by options, for records; `pushed`: by Spark, for every row."""

    asked: Sequence[Condition] = ()
    pushed: Sequence[Condition] = ()

    def chosen(self, batch: RecordBatch) -> RecordBatch:
        """The records for which all conditions hold."""
        for condition in self._in_order:
            if not len(batch):
                return batch
            mask = condition.mask(batch)
            if not mask.all():
                batch = batch.where(mask)
        return batch

    @cached_property
    def _in_order(self) -> list[Condition]:
        """The conditions, those on numbers first because they cost least."""
        return sorted((*self.asked, *self.pushed), key=lambda condition: condition.column == TOPIC)

    def keeps_damage_at(self, physical_offset: int) -> bool:
        """Whether a row of which only the place is known stays: a comparison with null is never true."""
        if any(condition.column != PHYSICAL_OFFSET for condition in self.pushed):
            return False
        low, high = self.physical_range
        sets = [condition.values for condition in self.pushed if isinstance(condition, NumberIn)]
        return low <= physical_offset < high and all(physical_offset in values for values in sets)

    @property
    def physical_range(self) -> tuple[int, int]:
        """[begin, end) of the log outside of which no row can match."""
        low, high = 0, INT64_MAX
        for condition in (*self.asked, *self.pushed):
            if condition.column != PHYSICAL_OFFSET:
                continue
            if isinstance(condition, NumberBetween):
                low, high = max(low, condition.low), min(high, condition.high)
            elif isinstance(condition, NumberIn):
                low = max(low, min(condition.values, default=INT64_MAX))
                high = min(high, max(condition.values, default=-1))
        return low, max(low, high + 1)
