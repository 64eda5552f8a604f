"""The route table: the live brokers and their topics. No clock, no network, no disk.

A broker is in the routes from its registration until it leaves, is silent for `broker_silent_ms` on an open
stream, or its stream has been broken for `broker_broken_ms`. Each stream is a *session*, with a number from
the caller.

Invariants
- One broker name belongs to at most one session, and a session to at most one name.
- `version` is raised by one with every change that a client can see, and only then.
- Times are milliseconds of one monotonic clock and never go back.

A broker whose session ended without a leave is *lost*: it is known for LOST_KEPT_MS more, or until a broker
of its name registers, or until it is removed for good (`forget`). At most `brokers_max` are, with
`topic_routes_max` topics together; the newest count.

States of a name:  absent -register-> live -stream_broken-> broken -register (same address)-> live;
live -leave, silent-> absent;  broken -broker_broken_ms later-> absent.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from trovemq_daemon.addresses import parse_address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.settings import setting
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

NAME_LENGTH_MAX: Final = 127
TOPIC_LENGTH_MAX: Final = 255
ADDRESS_LENGTH_MAX: Final = 262
TEXT_LENGTH_MAX: Final = 64
QUEUE_COUNT_MAX: Final = 65_536
LOST_KEPT_MS: Final = 24 * 3_600_000
TOPICS_A_STEP: Final = 256
"""Topics that are read, compared or written in one step of long work."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One topic's queues on one broker: 0 .. queue_count - 1."""

    topic: str
    queue_count: int
    message_type: str = "NORMAL"


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's description of itself; the fields are those of BrokerInfo in common.proto."""

    cluster: str
    name: str
    address: str
    store_host_ipv6: bool = False
    append_property_crc: bool = False
    body_size_max: int = 0
    batch_size_max: int = 0
    flush_mode: str = ""
    version: str = ""
    tls_address: str = ""
    draining: bool = False
    drained: bool = False


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """A live broker with its topics by name. `data_version`: the one that the broker has sent."""

    broker: Broker
    topics: dict[str, TopicRoute]
    data_version: int

    def only(self, names: Sequence[str]) -> BrokerRoute:
        return replace(self, topics={name: self.topics[name] for name in names if name in self.topics})


@dataclass(frozen=True, slots=True)
class LostBroker:
    """A broker whose session ended without a leave, and its topics then. `lost_at`: by the table's clock."""

    broker: Broker
    topics: frozenset[str]
    lost_at: int


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
    topic_routes_max: Annotated[int, setting("topics", 1, 10_000_000)] = 262_144
    """Topics of all brokers together."""


@dataclass(slots=True)
class _Registration:
    session: int
    route: BrokerRoute
    heard_at: int
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
        self._lost: dict[str, LostBroker] = {}  # the newest last
        self._lost_topics = 0  # of all of them together
        self.version = 0

    # --- for brokers -------------------------------------------------------------------------------------
    def register(
        self, session: int, broker: Broker, topics: Mapping[str, TopicRoute], data_version: int, now: int
    ) -> None:
        """Registers a broker by the first message of a session; its topics are those of `checked_topics`.

        Raises TroveError BROKER_NAME_TAKEN, LIMIT_EXCEEDED, REQUEST_ILLEGAL; the table is then unchanged.
        """
        assert session not in self._name_by_session, "a session registers once"
        check_broker(broker)
        before = self._by_name.get(broker.name)
        if before is not None and not self._may_replace(before, broker, now):
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
        self._check_counts(topics, before)
        route = BrokerRoute(broker, dict(topics), data_version)
        if before is not None:
            del self._name_by_session[before.session]
        if before is not None and before.route == route:
            route = before.route
        else:
            self.version += 1
        self._by_name[broker.name] = _Registration(session, route, heard_at=now)
        self._name_by_session[session] = broker.name
        self._forget(broker.name)

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
        topics: Mapping[str, TopicRoute] | None = None,
        data_version: int = 0,
    ) -> None:
        """Handles a later message of a session; `topics` counts if `data_version` has changed.

        Raises TroveError BROKER_NOT_FOUND if the session is no longer registered, REQUEST_ILLEGAL,
        LIMIT_EXCEEDED.
        """
        found = self._registration(session)
        if found is None:
            raise TroveError(errors.BROKER_NOT_FOUND, "this stream's broker is no longer registered")
        route = found.route
        if broker is not None and broker != route.broker:
            check_broker(broker)
            if broker.name != route.broker.name:
                raise TroveError(errors.REQUEST_ILLEGAL, "a broker cannot change its name within one stream")
            route = replace(route, broker=broker)
        if data_version != route.data_version:
            self._check_counts(topics or {}, found)
            route = replace(route, topics=dict(topics or {}), data_version=data_version)
        found.heard_at = now
        if route != found.route:
            found.route = route
            self.version += 1

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
            del self._by_name[name]
            self.version += 1
        return name

    def expire(self, now: int) -> list[str]:
        """Removes the brokers that are overdue at `now`; returns their names."""
        overdue = [found for found in self._by_name.values() if found.ends_at(self._limits) <= now]
        for found in overdue:
            self.lose(found.session, now)
        return [found.route.broker.name for found in overdue]

    def lose(self, session: int, now: int) -> None:
        """Removes the broker of a session that ended without a leave, and keeps it as a lost one."""
        found = self._registration(session)
        if found is None:
            return
        self.leave(session)
        lost = LostBroker(found.route.broker, frozenset(found.route.topics), now)
        self._lost[lost.broker.name] = lost
        self._lost_topics += len(lost.topics)
        while len(self._lost) > self._limits.brokers_max or self._lost_topics > self._limits.topic_routes_max:
            self._forget(next(iter(self._lost)))

    def forget(self, name: str) -> bool:
        """Forgets a lost broker that does not come back. Returns whether it was one."""
        if name not in self._lost:
            return False
        self._forget(name)
        self.version += 1
        return True

    def _forget(self, name: str) -> None:
        lost = self._lost.pop(name, None)
        if lost is not None:
            self._lost_topics -= len(lost.topics)

    def next_expiry(self) -> int | None:
        """When `expire` will next have something to do, if no message arrives before."""
        return min((found.ends_at(self._limits) for found in self._by_name.values()), default=None)

    def registered(self, session: int) -> bool:
        return session in self._name_by_session

    def route_of(self, session: int) -> BrokerRoute | None:
        """The session's broker as it is registered."""
        found = self._registration(session)
        return None if found is None else found.route

    def topics_of(self, name: str) -> Mapping[str, TopicRoute]:
        """The topics of the live broker of this name."""
        found = self._by_name.get(name)
        return {} if found is None else found.route.topics

    # --- for clients --------------------------------------------------------------------------------
    def routes(self) -> list[BrokerRoute]:
        """Live brokers by name."""
        return [self._by_name[name].route for name in sorted(self._by_name)]

    def routes_of(self, topics: Sequence[str]) -> Generator[None, None, list[BrokerRoute]]:
        """The live brokers that have any of these topics, reduced to them; in steps."""
        wanted = list(dict.fromkeys(topics))
        found = []
        for route in self.routes():
            some = route.only(wanted)
            if some.topics:
                found.append(some)
            yield
        return found

    def lost(self, now: int, topic: str | None = None) -> list[LostBroker]:
        """Lost brokers by name; with `topic`, those that had it."""
        for name in [name for name, one in self._lost.items() if now - one.lost_at >= LOST_KEPT_MS]:
            self._forget(name)
        everything = [self._lost[name] for name in sorted(self._lost)]
        return [one for one in everything if topic is None or topic in one.topics]

    @property
    def broker_count(self) -> int:
        return len(self._by_name)

    @property
    def topic_names(self) -> set[str]:
        return {topic for found in self._by_name.values() for topic in found.route.topics}

    # ----------------------------------------------------------------------------------------------------
    def _registration(self, session: int) -> _Registration | None:
        name = self._name_by_session.get(session)
        return None if name is None else self._by_name[name]

    def _check_counts(self, topics: Mapping[str, TopicRoute], before: _Registration | None) -> None:
        check_topic_count(len(topics), self._limits)
        others = sum(len(found.route.topics) for found in self._by_name.values() if found is not before)
        if others + len(topics) > self._limits.topic_routes_max:
            raise TroveError(
                errors.LIMIT_EXCEEDED,
                f"{others + len(topics)} topics of all brokers; the limit is {self._limits.topic_routes_max}",
            )


def check_topic_count(count: int, limits: RouteLimits) -> None:
    """Raises TroveError LIMIT_EXCEEDED if `count` is more than a broker may have."""
    if count > limits.topics_per_broker_max:
        raise TroveError(
            errors.LIMIT_EXCEEDED,
            f"{count} topics of one broker; the limit is {limits.topics_per_broker_max}",
        )


def checked_topics(
    topics: Iterable[TopicRoute], known: Mapping[str, TopicRoute]
) -> Generator[None, None, dict[str, TopicRoute]]:
    """The topics by name, in steps. A topic that the broker had before, in `known`, keeps its object:
    a comparison of two routes finds it equal at once. Raises TroveError REQUEST_ILLEGAL."""
    found: dict[str, TopicRoute] = {}
    for number, topic in enumerate(topics, 1):
        for problem in _topic_problems(topic):
            raise TroveError(errors.REQUEST_ILLEGAL, problem)
        before = known.get(topic.topic)
        found[topic.topic] = before if before is not None and before == topic else topic
        if number % TOPICS_A_STEP == 0:
            yield
    return found


def check_broker(broker: Broker) -> None:
    """Raises TroveError REQUEST_ILLEGAL if names are too long or the address cannot be dialled."""
    for problem in _broker_problems(broker):
        raise TroveError(errors.REQUEST_ILLEGAL, problem)


def _broker_problems(broker: Broker) -> Iterator[str]:
    for what, text, length_min, length_max in (
        ("name", broker.name, 1, NAME_LENGTH_MAX),
        ("cluster", broker.cluster, 1, NAME_LENGTH_MAX),
        ("address", broker.address, 1, ADDRESS_LENGTH_MAX),
        ("tls_address", broker.tls_address, 0, ADDRESS_LENGTH_MAX),
        ("flush_mode", broker.flush_mode, 0, TEXT_LENGTH_MAX),
        ("version", broker.version, 0, TEXT_LENGTH_MAX),
    ):
        if not length_min <= len(text) <= length_max or not text.isprintable():
            yield f"a broker's {what} must have {length_min} to {length_max} printable characters"
            return
    for text in filter(None, (broker.address, broker.tls_address)):
        try:
            address = parse_address(text)
        except SettingsError as error:
            yield f"a broker's address must be HOST:PORT: {error}"
            return
        if address.port == 0 or address.is_unspecified:
            yield f"a broker's address {text} cannot be dialled"


def _topic_problems(topic: TopicRoute) -> Iterator[str]:
    if not 1 <= len(topic.topic) <= TOPIC_LENGTH_MAX or not topic.topic.isprintable():
        yield f"a topic's name must have 1 to {TOPIC_LENGTH_MAX} printable characters"
    if not 0 <= topic.queue_count <= QUEUE_COUNT_MAX:
        yield f"topic {topic.topic!r} has a queue count of {topic.queue_count}"
    if len(topic.message_type) > TEXT_LENGTH_MAX or not topic.message_type.isprintable():
        yield f"topic {topic.topic!r} has an illegal message type"
