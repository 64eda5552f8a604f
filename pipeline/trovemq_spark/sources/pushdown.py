"""Spark's filters as conditions on records.

Spark passes the parts of a WHERE that are joined by AND. Conditions on topic, queueId, storeTimestamp and
physicalOffset are accepted if they have exactly the same meaning as in Spark; all others are returned to
Spark.

Off by default. Use pushdown=true only for a DataFrame with a single query: Spark 4.2 keeps the pushed
conditions with the loaded table, not with the query. A second query of the same load(), or the other side of
a union or join, would get the rows of the filters that were pushed last. So call load() again for each query,
or filter by options (subscribe, startingTimestamp, …), which always hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from trovemq_spark.sources.conditions import (
    PHYSICAL_OFFSET,
    QUEUE_ID,
    STORE_TIMESTAMP,
    TOPIC,
    Condition,
    IsThere,
    NumberBetween,
    NumberIn,
    TopicBetween,
    TopicIn,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_ONE_VALUE: Final = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def push(filters: Iterable[Filter]) -> tuple[list[Condition], list[Filter]]:
    """(the accepted conditions, the filters that Spark must apply itself)"""
    taken: list[Condition] = []
    left: list[Filter] = []
    for item in filters:
        condition = condition_of(item)
        if condition is None:
            left.append(item)
        else:
            taken.append(condition)
    return taken, left


def condition_of(item: Filter) -> Condition | None:
    """The equivalent condition; None if there is none."""
    attribute = getattr(item, "attribute", None)
    if attribute is None or len(attribute) != 1:
        return None
    column = attribute[0]
    if column not in (TOPIC, QUEUE_ID, STORE_TIMESTAMP, PHYSICAL_OFFSET):
        return None
    if isinstance(item, IsNotNull):
        return IsThere(column)
    if isinstance(item, In):
        # null in the list adds no row: a comparison with it is never true.
        values = [_comparable(column, value) for value in item.value if value is not None]
        if any(value is None for value in values):
            return None
        return TopicIn(frozenset(values)) if column == TOPIC else NumberIn(column, frozenset(values))
    if not isinstance(item, _ONE_VALUE):
        return None
    value = _comparable(column, item.value)
    if value is None:
        return None
    return _topic_condition(item, value) if column == TOPIC else _number_condition(item, column, value)


def _comparable(column: str, value: Any) -> Any:
    """The value in the form of the column; None if it is of another type."""
    if column == TOPIC:
        return value if isinstance(value, str) else None
    if column == STORE_TIMESTAMP:
        aware = isinstance(value, datetime) and value.tzinfo is not None
        return (value - _EPOCH) // _MICROSECOND if aware else None
    return value if type(value) is int else None


def _topic_condition(item: Filter, value: str) -> Condition | None:
    if isinstance(item, GreaterThan | GreaterThanOrEqual):
        return TopicBetween(low=value, strict=isinstance(item, GreaterThan))
    if isinstance(item, LessThan | LessThanOrEqual):
        return TopicBetween(high=value, strict=isinstance(item, LessThan))
    return TopicIn(frozenset((value,)))


def _number_condition(item: Filter, column: str, value: int) -> Condition | None:
    if isinstance(item, GreaterThan | GreaterThanOrEqual):
        return NumberBetween(column, low=value + isinstance(item, GreaterThan))
    if isinstance(item, LessThan | LessThanOrEqual):
        return NumberBetween(column, high=value - isinstance(item, LessThan))
    return NumberIn(column, frozenset((value,)))
