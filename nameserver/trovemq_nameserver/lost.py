"""The brokers that the nameserver lost: their sessions ended without a leave.

A lost broker is known for LOST_KEPT_MS, or until a broker of its name registers, or until it is removed for
good. At most `brokers_max` are, with `topic_routes_max` topics together; the newest count.
"""

from __future__ import annotations

from collections.abc import Container, Sequence, Set
from dataclasses import dataclass
from typing import Final

from trovemq_nameserver.broker import Broker
from trovemq_proto.system_topics import is_system_topic, user_topic_count

LOST_KEPT_MS: Final = 24 * 3_600_000
ADJUSTED_MAX: Final = 4_096
"""The most look-ups that keep the counts of topics without a broker; after a larger change they are counted
again."""


@dataclass(frozen=True, slots=True)
class LostBroker:
    """A broker whose session ended without a leave, and its topics then. `lost_at`: by the table's clock."""

    broker: Broker
    topics: Set[str]
    lost_at: int


class RemovedBrokers:
    """The names of the brokers that were removed for good, the newest last, for LOST_KEPT_MS. A client that
    had one of them in its routes does not miss it any more, also where it had stopped regularly and was in no
    route by then. At most `brokers_max`; the newest count."""

    def __init__(self, brokers_max: int) -> None:
        self._brokers_max = brokers_max
        self._at: dict[str, int] = {}

    def add(self, name: str, now: int) -> bool:
        """Returns whether it is a new one."""
        known = self._at.pop(name, None)
        self._at[name] = now
        while len(self._at) > self._brokers_max:
            del self._at[next(iter(self._at))]
        return known is None or now - known >= LOST_KEPT_MS

    def returned(self, name: str) -> None:
        """A broker of that name has registered."""
        self._at.pop(name, None)

    def names(self, now: int) -> list[str]:
        return sorted(name for name, at in self._at.items() if now - at < LOST_KEPT_MS)


class LostBrokers:
    """The lost brokers by name, the newest last; limited in number and topics."""

    def __init__(self, brokers_max: int, topics_max: int) -> None:
        self._brokers_max = brokers_max
        self._topics_max = topics_max
        self._by_name: dict[str, LostBroker] = {}
        self._topics = 0  # of all of them together
        self._alone: dict[str, int] = {}  # as far as they are counted
        self._users: dict[str, int] = {}
        """How many topics users have made on each, as far as they are counted."""

    def add(self, lost: LostBroker) -> None:
        self._by_name[lost.broker.name] = lost
        self._topics += len(lost.topics)
        while len(self._by_name) > self._brokers_max or self._topics > self._topics_max:
            self.forget(next(iter(self._by_name)))

    def forget(self, name: str) -> bool:
        """Whether it was one."""
        lost = self._by_name.pop(name, None)
        if lost is None:
            return False
        self._topics -= len(lost.topics)
        self._alone.pop(name, None)
        self._users.pop(name, None)
        return True

    def expire(self, now: int) -> list[str]:
        """Forgets those that were lost too long ago. Returns their names."""
        aged = [name for name, one in self._by_name.items() if now - one.lost_at >= LOST_KEPT_MS]
        for name in aged:
            self.forget(name)
        return aged

    def at(self, now: int, topic: str | None = None) -> list[LostBroker]:
        """The lost brokers of this time, by name; with `topic`, those that had it."""
        everything = [self._by_name[name] for name in sorted(self._by_name)]
        return [
            one
            for one in everything
            if now - one.lost_at < LOST_KEPT_MS and (topic is None or topic in one.topics)
        ]

    def topics_changed(self, names: Sequence[str], change: int) -> None:
        """No broker in the routes has these topics any more (change: 1), or one has them now (-1)."""
        if len(names) * len(self._alone) > ADJUSTED_MAX:
            self._alone.clear()
        if not self._alone:
            return
        made = [name for name in names if not is_system_topic(name)]
        for name in self._alone:
            topics = self._by_name[name].topics
            self._alone[name] += change * sum(map(topics.__contains__, made))

    def topic_count(self, lost: LostBroker) -> int:
        """How many topics it had, system topics apart."""
        name = lost.broker.name
        if self._by_name.get(name) is not lost:
            return 0  # it has returned
        count = self._users.get(name)
        if count is None:
            count = self._users[name] = user_topic_count(lost.topics)
        return count

    def topics_alone(self, lost: LostBroker, present: Container[str]) -> int:
        """How many of these no broker in the routes has: those that are not `present`."""
        name = lost.broker.name
        if self._by_name.get(name) is not lost:
            return 0  # it has returned
        alone = self._alone.get(name)
        if alone is None:
            alone = self._alone[name] = user_topic_count(one for one in lost.topics if one not in present)
        return alone
