"""The route table: the live brokers and their topics. No clock, no network, no disk.

A broker is in the routes from its registration until it leaves, is silent for `broker_silent_ms` on an open
stream, or its stream has been broken for `broker_broken_ms`. Each stream is a *session*, with a number from
the caller.

Invariants
- One broker name belongs to at most one session, and a session to at most one name.
- `version` is raised by one with every change that a client can see, and only then; `changes` names each.
- Times are milliseconds of one monotonic clock and never go back.
- A change of some topics of a broker takes time for those only.

States of a name:  absent -register-> live -stream_broken-> broken -register (same address)-> live;
live -leave, silent-> absent;  broken -broker_broken_ms later-> absent. A broker that becomes absent without a
leave is lost (lost.py). In each state the leader of a replica group takes the name from one of a lower epoch
(leaders.py).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Annotated, Final

from trovemq_daemon.settings import setting
from trovemq_nameserver.broker import Broker, check_broker
from trovemq_nameserver.changes import ChangeLog
from trovemq_nameserver.leaders import KnownLeaders, takes_over
from trovemq_nameserver.lost import LostBroker, LostBrokers, RemovedBrokers
from trovemq_nameserver.topics import NO_QUEUES, TopicNames, TopicRoute, places_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

READ_TIMES: Final = 4
"""A heartbeat may have this many times the topics that are kept of it."""


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """A live broker with its topics by name, which change while it is in the table. `data_version`: the one
    that the broker has sent."""

    broker: Broker
    topics: dict[str, TopicRoute]
    data_version: int

    def only(self, names: Sequence[str]) -> BrokerRoute:
        topics = self.topics
        some = {name: topics[name] for name in names if name in topics}
        return BrokerRoute(self.broker, some, self.data_version)


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """The topics of a broker that changed since it had sent `base_version`."""

    base_version: int
    topics: Mapping[str, TopicRoute]
    removed: Collection[str]


@dataclass(frozen=True, kw_only=True)
class RouteLimits:
    """Times in milliseconds; the table refuses entries beyond the counts with LIMIT_EXCEEDED."""

    broker_silent_ms: Annotated[int, setting("ms", 50, 600_000)] = 10_000
    """A broker that is silent on its open stream for this long leaves the routes."""
    broker_broken_ms: Annotated[int, setting("ms", 0, 600_000)] = 2_000
    """A broker whose stream broke leaves the routes after this."""
    brokers_max: Annotated[int, setting("brokers", 1, 10_000)] = 256
    """Brokers that may be registered."""
    topics_per_broker_max: Annotated[int, setting("topics", 1, 1_000_000)] = 65_536
    """Topics of one broker."""
    topic_routes_max: Annotated[int, setting("topics", 1, 10_000_000)] = 2_000_000
    """Topics of all brokers together."""
    topic_places_max: Annotated[int, setting("brokers", 1, 100_000_000)] = 4_000_000
    """Brokers in the placements of all topics of all brokers together: a FIFO topic on 3 brokers has 3 in the
    route of each."""


@dataclass(slots=True)
class _Registration:
    session: int
    route: BrokerRoute
    heard_at: int
    removals_seen: int
    broken_at: int | None = None

    def ends_at(self, limits: RouteLimits) -> int:
        silent_at = self.heard_at + limits.broker_silent_ms
        return silent_at if self.broken_at is None else self.broken_at + limits.broker_broken_ms


class RouteTable:
    """All registrations of one nameserver."""

    def __init__(self, limits: RouteLimits) -> None:
        self._limits = limits
        self._by_name: dict[str, _Registration] = {}
        self._name_by_session: dict[int, str] = {}
        self.names = TopicNames()
        self.changes = ChangeLog()
        self._lost = LostBrokers(limits.brokers_max, limits.topic_routes_max)
        self._removed = RemovedBrokers(limits.brokers_max)
        self._leaders = KnownLeaders(limits.brokers_max)
        self.topic_routes = 0
        """Topics of all brokers together."""
        self.topic_places = 0
        """Brokers in the placements of these."""
        self.topics_left_out = 0
        """Topics of live brokers that the limits leave out."""
        self._removals = 0
        """Topics that left the routes, and placements that got smaller: there may be space for more."""
        self.version = 0

    # --- for brokers -------------------------------------------------------------------------------------
    def fitting(self, broker: str, topics: Mapping[str, TopicRoute]) -> tuple[Mapping[str, TopicRoute], str]:
        """The topics of all those of this broker that the limits allow, and the limit that leaves out the
        others, or an empty text. Topics that are in its routes already come first."""
        limits, before = self._limits, self._by_name.get(broker)
        known = {} if before is None else before.route.topics
        free = limits.topic_routes_max - self.topic_routes + len(known)
        places = max(limits.topic_places_max - self.topic_places, 0) + places_of(known.values())
        most = min(limits.topics_per_broker_max, free)
        if len(topics) <= most and places_of(topics.values()) <= places:
            return topics, ""
        name = "topics_per_broker_max" if most == limits.topics_per_broker_max else "topic_routes_max"
        name = name if len(topics) > most else "topic_places_max"
        kept: dict[str, TopicRoute] = {}
        for are_known in (True, False):  # each in the sender's order
            for topic, route in topics.items():
                if (topic in known) is are_known and len(kept) < most and len(route.placement) <= places:
                    kept[topic] = route
                    places -= len(route.placement)
        return kept, f"{name} = {getattr(limits, name)}"

    def may_hold_more(self, session: int) -> bool:
        """Whether topics of the session's broker were left out, and there may be space for them now."""
        found = self._registration(session)
        return (
            found is not None
            and found.route.broker.topics_left_out > 0
            and len(found.route.topics) < self._limits.topics_per_broker_max
            and found.removals_seen != self._removals
        )

    def register(
        self, session: int, broker: Broker, topics: Mapping[str, TopicRoute], data_version: int, now: int
    ) -> int | None:
        """Registers a broker by the first message of a session; its topics are those of `checked_topics`.
        Returns the session of a leader of a lower epoch, which has lost the name.

        Raises TroveError BROKER_NAME_TAKEN, EPOCH_STALE, LIMIT_EXCEEDED, REQUEST_ILLEGAL; the table is then
        unchanged.
        """
        assert session not in self._name_by_session, "a session registers once"
        check_broker(broker)
        self._leaders.check(broker, now)
        before = self._by_name.get(broker.name)
        is_later = before is not None and takes_over(broker, before.route.broker)
        if before is not None and not is_later and not self._may_replace(before, broker, now):
            raise TroveError(
                errors.BROKER_NAME_TAKEN,
                f"broker name {broker.name!r} belongs to the live broker at {before.route.broker.address}",
                name=broker.name,
                address=before.route.broker.address,
            )
        if before is None and len(self._by_name) >= self._limits.brokers_max:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"{self._limits.brokers_max} brokers are registered already"
            )
        known = {} if before is None else before.route.topics
        self._check_counts(len(topics), len(known))
        self._check_places(topics, known)
        route = BrokerRoute(broker, dict(topics), data_version)
        if before is not None:
            del self._name_by_session[before.session]
        if before is not None and before.route == route:
            route = before.route
        else:
            changed = self._replace_topics(known, route.topics)
            is_whole = before is None or before.route.broker.cluster != broker.cluster
            described = before is not None and before.route.broker != broker
            self._changed(broker.name, None if is_whole else changed, described=described)
        self.topics_left_out += broker.topics_left_out - _left_out_of(before)
        self._by_name[broker.name] = _Registration(session, route, now, self._removals)
        self._name_by_session[session] = broker.name
        self._lost.forget(broker.name)
        self._removed.returned(broker.name)
        self._leaders.registered(broker, now)
        return before.session if before is not None and is_later else None

    def _may_replace(self, before: _Registration, broker: Broker, now: int) -> bool:
        """Whether it is the same broker, which returns: its old stream broke, or is a dead connection that
        was not noticed yet. If the old stream had a heartbeat recently it is alive, so the new one is another
        broker, whatever its address."""
        if before.route.broker.address != broker.address:
            return False
        return before.broken_at is not None or now - before.heard_at > self._limits.broker_silent_ms // 2

    def heartbeat(
        self,
        session: int,
        now: int,
        *,
        broker: Broker | None = None,
        topics: Mapping[str, TopicRoute] | TopicChanges | None = None,
        data_version: int = 0,
    ) -> bool:
        """Handles a later message of a session; `topics` counts if `data_version` has changed, or if some are
        left out. False: changes were ignored, for the broker's topics are not those of their base version.

        Raises TroveError BROKER_NOT_FOUND if the session is no longer registered, REQUEST_ILLEGAL,
        LIMIT_EXCEEDED; the table is then unchanged.
        """
        found = self._registration(session)
        if found is None:
            raise TroveError(errors.BROKER_NOT_FOUND, "this stream's broker is no longer registered")
        route, changed = found.route, list[str]()
        if broker is not None and broker != route.broker:
            check_broker(broker)
            if (broker.name, broker.epoch) != (route.broker.name, route.broker.epoch):
                text = "a broker cannot change its name, or its epoch, within one stream"
                raise TroveError(errors.REQUEST_ILLEGAL, text)
            route = replace(route, broker=broker)
        missing = found.route.broker.topics_left_out > 0 and topics is not None
        if data_version != route.data_version or missing:
            if isinstance(topics, TopicChanges):
                if topics.base_version != route.data_version:
                    found.heard_at = now
                    return False
                changed = self._change_topics(route.topics, topics)
                route = replace(route, data_version=data_version)
            else:
                self._check_counts(len(topics or {}), len(route.topics))
                self._check_places(topics or {}, route.topics)
                changed = self._replace_topics(route.topics, topics or {})
                if changed or data_version != route.data_version:
                    route = replace(route, topics=dict(topics or {}), data_version=data_version)
                found.removals_seen = self._removals
        found.heard_at = now
        if route is not found.route:
            self.topics_left_out += route.broker.topics_left_out - _left_out_of(found)
            described = route.broker is not found.route.broker
            is_whole = route.broker.cluster != found.route.broker.cluster
            found.route = route
            self._changed(route.broker.name, None if is_whole else changed, described=described)
        return True

    def _change_topics(self, known: dict[str, TopicRoute], changes: TopicChanges) -> list[str]:
        """Applies the changes to a broker's topics. Returns the names of those that changed."""
        added = [name for name in changes.topics if name not in known]
        removed = [
            name for name in dict.fromkeys(changes.removed) if name in known and name not in changes.topics
        ]
        self._check_counts(len(known) + len(added) - len(removed), len(known))
        before = {name: known[name] for name in (*changes.topics, *removed) if name in known}
        self._set_places(self._check_places(changes.topics, before))
        self._add_names(added)
        self._remove_names(removed)
        known.update(changes.topics)
        for name in removed:
            del known[name]
        return [*changes.topics, *removed]

    def _replace_topics(self, known: Mapping[str, TopicRoute], topics: Mapping[str, TopicRoute]) -> list[str]:
        """A broker has these topics instead of the known ones. Returns the names of those that differ."""
        added = [name for name in topics if name not in known]
        removed = [name for name in known if name not in topics]
        altered = [
            name
            for name, route in topics.items()
            if (before := known.get(name, route)) is not route and before != route
        ]
        self._set_places(self.topic_places + places_of(topics.values()) - places_of(known.values()))
        self._add_names(added)
        self._remove_names(removed)
        return [*added, *removed, *altered]

    def _add_names(self, names: Sequence[str]) -> None:
        self.topic_routes += len(names)
        self._lost.topics_changed(self.names.add(names), -1)

    def _remove_names(self, names: Collection[str]) -> None:
        self.topic_routes -= len(names)
        self._removals += len(names)
        self._lost.topics_changed(self.names.remove(names), 1)

    def _set_places(self, places: int) -> None:
        self._removals += places < self.topic_places
        self.topic_places = places

    def _changed(self, broker: str, topics: Collection[str] | None, *, described: bool = False) -> None:
        """The next version: these topics of the broker changed, or its description; None: all of it, as where
        it came into a cluster whose members have not kept its topics."""
        self.version += 1
        self.changes.add(self.version, broker, topics, described=described)

    def heard(self, session: int, now: int) -> None:
        """A message of the session has arrived, and is not read yet."""
        found = self._registration(session)
        if found is not None:
            found.heard_at = now

    def stream_broken(self, session: int, now: int) -> None:
        """Notes that the session's stream ended without unregistering: the broker may return within
        `broker_broken_ms`."""
        found = self._registration(session)
        if found is not None and found.broken_at is None:
            found.broken_at = now

    def leave(self, session: int) -> str | None:
        """Removes a broker at once, for a clean shutdown or a session that was ended. Returns the broker's
        name."""
        name = self._name_by_session.pop(session, None)
        if name is not None:
            gone = self._by_name.pop(name)
            topics = gone.route.topics
            self.topics_left_out -= _left_out_of(gone)
            self._set_places(self.topic_places - places_of(topics.values()))
            self._remove_names(topics.keys())
            self._changed(name, None)
            self._leaders.left(name, gone.heard_at)
        return name

    def expire(self, now: int) -> list[str]:
        """Removes the brokers that are overdue at `now`; returns their names. Forgets those that were lost
        too long ago."""
        overdue = [found for found in self._by_name.values() if found.ends_at(self._limits) <= now]
        for found in overdue:
            self.lose(found.session, now)
        for name in self._lost.expire(now):
            self._changed(name, ())
        return [found.route.broker.name for found in overdue]

    def lose(self, session: int, now: int) -> None:
        """Removes the broker of a session that ended without a leave, and keeps it as a lost one."""
        found = self._registration(session)
        if found is None:
            return
        self.leave(session)
        topics = found.route.topics
        if places_of(topics.values()):
            topics = dict.fromkeys(topics, NO_QUEUES)  # the view of the names keeps the routes
        self._lost.add(LostBroker(found.route.broker, topics.keys(), now))

    def forget(self, name: str, now: int) -> bool:
        """Forgets a broker that does not come back, and its epoch: a lost one, or one that has left. Returns
        whether it was lost."""
        if name in self._by_name:
            return False
        self._leaders.forget(name)
        is_new, was_lost = self._removed.add(name, now), self._lost.forget(name)
        if is_new or was_lost:
            self._changed(name, ())
        return was_lost

    def removed(self, now: int) -> list[str]:
        """The brokers that do not come back, by name."""
        return self._removed.names(now)

    def next_expiry(self) -> int | None:
        """When `expire` will next have something to do, if no message arrives before."""
        return min((found.ends_at(self._limits) for found in self._by_name.values()), default=None)

    def registered(self, session: int) -> bool:
        return session in self._name_by_session

    def route_of(self, session: int) -> BrokerRoute | None:
        """The session's broker as it is registered."""
        found = self._registration(session)
        return None if found is None else found.route

    # --- for clients --------------------------------------------------------------------------------
    def routes(self) -> list[BrokerRoute]:
        """Live brokers by name."""
        return [self._by_name[name].route for name in sorted(self._by_name)]

    def routes_of(self, topics: Sequence[str]) -> Generator[None, None, list[BrokerRoute]]:
        """The live brokers that have any of these topics, reduced to them; in steps."""
        wanted = list(dict.fromkeys(topics))
        found = []
        for route in self.routes():
            if (some := route.only(wanted)).topics:
                found.append(some)
            yield
        return found

    def lost(self, now: int, topic: str | None = None) -> list[LostBroker]:
        """Lost brokers by name; with `topic`, those that had it."""
        return self._lost.at(now, topic)

    def topic_counts(self, lost: LostBroker) -> tuple[int, int]:
        """How many topics a lost broker had, and how many of these no live broker has; without system
        topics."""
        return self._lost.topic_count(lost), self._lost.topics_alone(lost, self.names)

    def route_named(self, broker: str) -> BrokerRoute | None:
        """The live broker of this name."""
        found = self._by_name.get(broker)
        return None if found is None else found.route

    def may_concern(self, topics: Set[str], version: int) -> bool:
        """Whether a change after that version may have altered the routes of these topics."""
        changed = self.changes.since(version)
        return changed is None or any(
            one.whole or one.described or not topics.isdisjoint(one.topics) for one in changed.values()
        )

    def _check_places(self, topics: Mapping[str, TopicRoute], before: Mapping[str, TopicRoute]) -> int:
        """The brokers of all placements, with these topics instead of those before. TroveError
        LIMIT_EXCEEDED."""
        together = self.topic_places + places_of(topics.values()) - places_of(before.values())
        if together > max(self._limits.topic_places_max, self.topic_places):
            raise TroveError(
                errors.LIMIT_EXCEEDED,
                f"{together} brokers in the placements of all topics; the limit is topic_places_max = "
                f"{self._limits.topic_places_max}",
            )
        return together

    @property
    def broker_count(self) -> int:
        return len(self._by_name)

    # ----------------------------------------------------------------------------------------------------
    def _registration(self, session: int) -> _Registration | None:
        name = self._name_by_session.get(session)
        return None if name is None else self._by_name[name]

    def _check_counts(self, topics: int, before: int) -> None:
        """Raises TroveError LIMIT_EXCEEDED if a broker may not have this number of topics, with another
        number before."""
        check_topic_count(topics, self._limits)
        together = self.topic_routes - before + topics
        if together > self._limits.topic_routes_max:
            raise TroveError(
                errors.LIMIT_EXCEEDED,
                f"{together} topics of all brokers; the limit is topic_routes_max = "
                f"{self._limits.topic_routes_max}",
            )


def _left_out_of(one: _Registration | None) -> int:
    return 0 if one is None else one.route.broker.topics_left_out


def check_topics_read(count: int, limits: RouteLimits) -> None:
    """Raises TroveError LIMIT_EXCEEDED if a heartbeat has too many topics to choose those that fit."""
    if count > READ_TIMES * limits.topics_per_broker_max:
        raise TroveError(
            errors.LIMIT_EXCEEDED,
            f"{count} topics of one broker, of which none is registered; the limit is {READ_TIMES} times "
            f"topics_per_broker_max = {limits.topics_per_broker_max}",
        )


def check_topic_count(count: int, limits: RouteLimits) -> None:
    """Raises TroveError LIMIT_EXCEEDED if `count` is more than a broker may have."""
    if count > limits.topics_per_broker_max:
        raise TroveError(
            errors.LIMIT_EXCEEDED,
            f"{count} topics of one broker; the limit is topics_per_broker_max = "
            f"{limits.topics_per_broker_max}",
        )
