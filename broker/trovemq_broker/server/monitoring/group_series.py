"""Bounds the series of groups: clients choose group names, and with 10,000 of them a scrape had 14 MB.

At most GROUP_SERIES_MAX keys of a family have a separate series: those with the largest numbers, and of
equal ones those that were first. The others are one series, with the labels OTHERS: no group has such a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nlargest
from typing import Final, TypeVar

from trovemq_broker.groups.lag.backlog import GroupBacklog
from trovemq_broker.groups.lag.stored import ConsumerLag

GROUP_SERIES_MAX: Final = 1_000
PRIORITY_SERIES_MAX: Final = 100  # each has ten series
OTHERS: Final = "(others)"

Key = TypeVar("Key", bound=tuple[str, ...])
Value = TypeVar("Value")


def bounded(
    table: Mapping[Key, Value],
    size: Callable[[Value], float],
    together: Callable[[list[Value]], Value],
    series_max: int = GROUP_SERIES_MAX,
) -> dict[tuple[str, ...], Value]:
    """The entries that have a separate series, and the others `together` under one key."""
    kept = set(nlargest(series_max, table, key=lambda key: size(table[key])))
    shown: dict[tuple[str, ...], Value] = {key: value for key, value in table.items() if key in kept}
    others = [key for key in table if key not in kept]
    if others:
        shown[(OTHERS,) * len(others[0])] = together([table[key] for key in others])
    return shown


def lags_together(lags: list[ConsumerLag]) -> ConsumerLag:
    oldest = [lag.oldest for lag in lags if lag.oldest is not None]
    return ConsumerLag(sum(lag.messages for lag in lags), min(oldest, default=None))


def backlogs_together(backlogs: list[GroupBacklog]) -> GroupBacklog:
    joined = GroupBacklog()
    for backlog in backlogs:
        joined.add(backlog)
    return joined


def counts_together(counts: list[list[int]]) -> list[int]:
    """Counts of priorities 0 … 9."""
    return [sum(column) for column in zip(*counts, strict=True)]
