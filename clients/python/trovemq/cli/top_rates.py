"""The rates between two readings of a cluster, broker by broker, topic by topic and group by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from trovemq.cli.figures import growth
from trovemq.models.cluster import TopicTraffic
from trovemq.models.group import QueueLag

AWAY: Final = "away"
LOST: Final = "lost"
COUNTERS: Final = ("messages_in", "bytes_in", "messages_out", "bytes_out")


class By(StrEnum):
    """The order of the rows: new messages, delivered messages, lag, or name."""

    IN = "in"
    OUT = "out"
    LAG = "lag"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class BrokerReading:
    """One broker at one time.

    Attributes:
        name: Its name.
        state: `serving`, `draining`, `drained`, `away` (it does not answer) or `lost` (nameservers lost it).
        note: More about its state; empty if there is no more.
        at: The time of its answer, in seconds.
        counters: Its counters; None without an answer.
        topics: The traffic of its topics.
        lags: The lag of each group there; None if they are not known.
    """

    name: str
    state: str
    note: str = ""
    at: float = 0.0
    counters: Mapping[str, int] | None = None
    topics: Mapping[str, TopicTraffic] = field(default_factory=dict)
    lags: Mapping[str, Sequence[QueueLag]] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it gave everything."""
        return self.counters is not None and self.lags is not None


@dataclass(slots=True)
class Rates:
    """Messages and bytes a second; None if not known. `lag`: messages that groups have not consumed."""

    messages_in: float | None = None
    bytes_in: float | None = None
    messages_out: float | None = None
    bytes_out: float | None = None
    lag: int | None = None

    def add(self, other: Rates) -> None:
        """Adds those of another broker."""
        for name in COUNTERS:
            setattr(self, name, _sum(getattr(self, name), getattr(other, name)))


@dataclass(slots=True)
class BrokerRow:
    """A broker between two readings."""

    name: str
    state: str
    note: str
    rates: Rates


@dataclass(slots=True)
class TopicRow:
    """A topic between two readings, over all brokers that answered."""

    name: str
    brokers: int = 0
    rates: Rates = field(default_factory=Rates)


@dataclass(slots=True)
class GroupRow:
    """A group in one topic, over all brokers that answered. `consumed`: messages a second."""

    name: str
    topic: str
    lag: int = 0
    lag_ms: int = 0
    in_flight: int = 0
    consumed: float | None = None
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """The difference of two readings. `missing`: the brokers that are not in the sums."""

    seconds: float
    brokers: Sequence[BrokerRow]
    topics: Sequence[TopicRow]
    groups: Sequence[GroupRow]
    missing: Sequence[str]


def sample(before: Iterable[BrokerReading], after: Iterable[BrokerReading], seconds: float, by: By) -> Sample:
    """The rates from one reading to the next, sorted."""
    former, now = {one.name: one for one in before}, list(after)
    topics: dict[str, TopicRow] = {}
    groups: dict[tuple[str, str], GroupRow] = {}
    brokers = []
    for one in now:
        earlier = former.get(one.name, BrokerReading(one.name, AWAY))
        brokers.append(BrokerRow(one.name, one.state, one.note, _broker_rates(earlier, one)))
        _add_topics(topics, earlier, one)
        _add_groups(groups, earlier, one)
    for group in groups.values():
        if (row := topics.get(group.topic)) is not None:
            row.rates.lag = (row.rates.lag or 0) + group.lag
    return Sample(
        seconds,
        _sorted(brokers, by, lambda row: row.rates),
        _sorted(topics.values(), by, lambda row: row.rates),
        _sorted_groups(groups.values(), by),
        sorted(one.name for one in now if not one.is_complete),
    )


def _broker_rates(before: BrokerReading, now: BrokerReading) -> Rates:
    seconds = now.at - before.at
    rates = Rates()
    for name in COUNTERS:
        earlier = None if before.counters is None else before.counters.get(name, 0)
        count = None if now.counters is None else now.counters.get(name, 0)
        setattr(rates, name, growth(earlier, count, seconds))
    if now.lags is not None:
        rates.lag = sum(queue.lag for queues in now.lags.values() for queue in queues)
    return rates


def _add_topics(rows: dict[str, TopicRow], before: BrokerReading, now: BrokerReading) -> None:
    """A topic without traffic in the first reading had none."""
    seconds, is_known = now.at - before.at, before.counters is not None
    for name, traffic in now.topics.items():
        earlier = before.topics.get(name, TopicTraffic(name, 0, 0, 0, 0)) if is_known else None
        rates = Rates()
        for counter in COUNTERS:
            was = None if earlier is None else getattr(earlier, counter)
            setattr(rates, counter, growth(was, getattr(traffic, counter), seconds))
        row = rows.setdefault(name, TopicRow(name))
        row.brokers += 1
        row.rates.add(rates)


def _add_groups(rows: dict[tuple[str, str], GroupRow], before: BrokerReading, now: BrokerReading) -> None:
    seconds = now.at - before.at
    for group, queues in (now.lags or {}).items():
        earlier = {(one.topic, one.queue_id): one.committed for one in (before.lags or {}).get(group, ())}
        for queue in queues:
            row = rows.setdefault((group, queue.topic), GroupRow(group, queue.topic))
            row.lag += queue.lag
            row.lag_ms = max(row.lag_ms, queue.lag_ms)
            row.in_flight += queue.in_flight
            row.estimated |= queue.estimated
            was = earlier.get((queue.topic, queue.queue_id))
            row.consumed = _sum(row.consumed, growth(was, queue.committed, seconds))


def _sum(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return one + other


_Row = TypeVar("_Row", BrokerRow, TopicRow)


def _sorted(rows: Iterable[_Row], by: By, rates_of: Callable[[_Row], Rates]) -> list[_Row]:
    def key(row: _Row) -> tuple[float, str]:
        rates = rates_of(row)
        value = {By.IN: rates.messages_in, By.OUT: rates.messages_out, By.LAG: rates.lag}.get(by)
        return (-(value or 0), row.name)

    return sorted(rows, key=key)


def _sorted_groups(rows: Iterable[GroupRow], by: By) -> list[GroupRow]:
    """By lag unless another order of groups is asked for: new messages are not a group's."""

    def key(row: GroupRow) -> tuple[float, str, str]:
        value = {By.OUT: row.consumed, By.NAME: 0.0}.get(by, row.lag)
        return (-(value or 0), row.name, row.topic)

    return sorted(rows, key=key)
