"""How a query's conditions reduce the reads from the brokers: by queues, offsets and tags.

Spark evaluates every condition again, so this module may select too many rows, never too few.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from trovemq import Client
from trovemq_spark.sources.live_client import offsets_at
from trovemq_spark.sources.live_ranges import QueueRange
from trovemq_spark.sources.offsets import Queue

_CHOICES: Final = ("topic", "brokerName", "queueId", "tags")
_TAGS_MAX: Final = 64  # the most tags that a broker compares
_PLAIN_TAG: Final = re.compile(r"[\w.%-]+")


@dataclass(slots=True)
class Bounds:
    """The combined limits of all conditions; None: no limit. Picklable."""

    chosen: dict[str, frozenset[Any]] = field(default_factory=dict)
    """For a column (one of _CHOICES): the possible values."""
    offset_min: int | None = None
    offset_max: int | None = None
    stored_min_ms: int | None = None
    stored_max_ms: int | None = None

    def add(self, filters: Iterable[Filter]) -> None:
        """Uses the conditions that help; ignores the others."""
        for condition in filters:
            path: tuple[str, ...] = getattr(condition, "attribute", ())
            column, value = ".".join(path), getattr(condition, "value", None)
            if value is None:
                continue
            if column in _CHOICES:
                self._choose(column, condition, value)
            elif column == "queueOffset" and isinstance(value, int):
                self._bound_offset(condition, value)
            elif column == "storeTimestamp" and isinstance(value, datetime) and value.tzinfo is not None:
                self._bound_time(condition, value.timestamp() * 1000)

    def _choose(self, column: str, condition: Filter, value: Any) -> None:
        if isinstance(condition, In):
            values = frozenset(value)
        elif isinstance(condition, EqualTo | EqualNullSafe):
            values = frozenset([value])
        else:
            return
        self.chosen[column] = self.chosen.get(column, values) & values

    def _bound_offset(self, condition: Filter, value: int) -> None:
        low, high = _interval(condition, value, value)
        self.offset_min, self.offset_max = _highest(self.offset_min, low), _lowest(self.offset_max, high)

    def _bound_time(self, condition: Filter, milliseconds: float) -> None:
        low, high = _interval(condition, math.floor(milliseconds), math.ceil(milliseconds))
        self.stored_min_ms = _highest(self.stored_min_ms, low)
        self.stored_max_ms = _lowest(self.stored_max_ms, high)

    def tags(self, wanted: tuple[str, ...]) -> tuple[str, ...] | None:
        """The tags to fetch, of those in the options (none: all); None if no message can match."""
        chosen = self.chosen.get("tags")
        if chosen is None or len(chosen) > _TAGS_MAX or not all(map(_PLAIN_TAG.fullmatch, chosen)):
            return wanted
        return tuple(sorted(chosen & set(wanted) if wanted else chosen)) or None

    def queues(self, queues: Iterable[Queue]) -> list[Queue]:
        """The queues that the conditions allow."""
        return [
            queue
            for queue in queues
            if self._allows("topic", queue.topic)
            and self._allows("brokerName", queue.broker)
            and self._allows("queueId", queue.queue_id)
        ]

    def _allows(self, column: str, value: object) -> bool:
        return column not in self.chosen or value in self.chosen[column]

    async def narrowed(self, client: Client, ranges: Iterable[QueueRange]) -> list[QueueRange]:
        """The ranges without the offsets that the conditions rule out; times are looked up by the brokers."""
        by_queue = {part.queue: part for part in ranges}
        starts = {queue: max(part.start, self.offset_min or 0) for queue, part in by_queue.items()}
        ends = {queue: part.end for queue, part in by_queue.items()}
        if self.offset_max is not None:
            ends = {queue: min(end, self.offset_max + 1) for queue, end in ends.items()}
        if self.stored_min_ms is not None:
            for queue, offset in (await offsets_at(client, by_queue, max(self.stored_min_ms, 0))).items():
                starts[queue] = max(starts[queue], offset)
        if self.stored_max_ms is not None:
            last = await offsets_at(client, by_queue, max(self.stored_max_ms, 0), upper=True)
            ends = {queue: min(end, last[queue] + 1) for queue, end in ends.items()}
        narrowed = [replace(part, start=starts[queue], end=ends[queue]) for queue, part in by_queue.items()]
        return [part for part in narrowed if part.size]


def _interval(condition: Filter, low: int, high: int) -> tuple[int | None, int | None]:
    """(lowest, highest) value that the condition allows; strict comparisons allow one too many."""
    if isinstance(condition, EqualTo | EqualNullSafe):
        return low, high
    if isinstance(condition, GreaterThan | GreaterThanOrEqual):
        return low, None
    if isinstance(condition, LessThan | LessThanOrEqual):
        return None, high
    return None, None


def _highest(one: int | None, other: int | None) -> int | None:
    return max((bound for bound in (one, other) if bound is not None), default=None)


def _lowest(one: int | None, other: int | None) -> int | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)
