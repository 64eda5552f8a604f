"""The topics of brokers, in little memory: equal names are one object, and so are equal routes.

A hundred brokers with the same 20,000 topics have 2,000,000 routes, but only 20,000 names and a few pairs of
queue count and message type. So a route costs one place in its broker's dictionary. A FIFO topic has a route
with its placement, which its brokers share.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

TOPIC_LENGTH_MAX: Final = 255
MESSAGE_TYPE_LENGTH_MAX: Final = 64
QUEUE_COUNT_MAX: Final = 65_536
TOPICS_A_STEP: Final = 256
"""Topics that are read, compared or written in one step of long work, as far as they have no placement."""
PLACES_AS_A_TOPIC: Final = 8
"""Brokers of a placement that are as much work as a topic."""
PLACES_MAX: Final = 1_000
"""Brokers of a placement."""
BROKER_LENGTH_MAX: Final = 127
ROUTES_KEPT: Final = 1_024
"""Routes of which equal ones are one object."""

Placement: TypeAlias = tuple[tuple[str, int], ...]
"""Brokers and how many queues of a topic lie there, by the brokers' names."""
TopicFields: TypeAlias = tuple[str, int, str, Placement]
"""Name, queue count, message type and placement, as a broker sent them."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One topic's queues on one broker: 0 .. queue_count - 1. `placement`: as common.proto has it."""

    queue_count: int
    message_type: str = "NORMAL"
    placement: Placement = ()


NO_QUEUES: Final = TopicRoute(0)


class TopicNames:
    """The names of the topics that brokers in the routes have; each is one object."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._more: dict[str, int] = {}
        """How many brokers beyond the first have the topic, if any."""

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def shared(self, name: str) -> str:
        """The equal name that is kept, or this one."""
        return self._names.get(name, name)

    def add(self, names: Iterable[str]) -> list[str]:
        """One more broker has these. Returns those that no broker had."""
        appeared = []
        for name in names:
            if name in self._names:
                self._more[name] = self._more.get(name, 0) + 1
            else:
                self._names[name] = name
                appeared.append(name)
        return appeared

    def remove(self, names: Iterable[str]) -> list[str]:
        """One broker less has these. Returns those that no broker has now."""
        vanished = []
        for name in names:
            more = self._more.get(name)
            if more is None:
                del self._names[name]
                vanished.append(name)
            elif more == 1:
                del self._more[name]
            else:
                self._more[name] = more - 1
        return vanished


def checked_topics(
    topics: Iterable[TopicFields], names: TopicNames
) -> Generator[None, None, dict[str, TopicRoute]]:
    """The topics by name, in steps. Raises TroveError REQUEST_ILLEGAL."""
    found: dict[str, TopicRoute] = {}
    work = 0
    for name, queue_count, message_type, placement in topics:
        check_topic_name(name)
        if placement:
            _check_placement(name, placement)
        route, problem = _route(queue_count, message_type[: MESSAGE_TYPE_LENGTH_MAX + 1], placement)
        if problem:
            raise TroveError(errors.REQUEST_ILLEGAL, f"topic {name!r} {problem}")
        found[names.shared(name)] = route
        work += work_of(route)
        if work >= TOPICS_A_STEP:
            work = 0
            yield
    return found


def work_of(route: TopicRoute) -> int:
    """The work with the route, in topics that have no placement."""
    return 1 + len(route.placement) // PLACES_AS_A_TOPIC


def places_of(routes: Iterable[TopicRoute]) -> int:
    """Brokers of all placements together."""
    return sum(len(route.placement) for route in routes)


def check_topic_name(name: str) -> None:
    """Raises TroveError REQUEST_ILLEGAL."""
    if not 1 <= len(name) <= TOPIC_LENGTH_MAX or not name.isprintable():
        raise TroveError(
            errors.REQUEST_ILLEGAL,
            f"a topic's name must have 1 to {TOPIC_LENGTH_MAX} printable characters",
        )


def _check_placement(name: str, placement: Placement) -> None:
    """Raises TroveError REQUEST_ILLEGAL: placements are kept."""
    if len(placement) > PLACES_MAX or not all(
        0 < len(broker) <= BROKER_LENGTH_MAX and broker.isprintable() and 0 <= count <= QUEUE_COUNT_MAX
        for broker, count in placement
    ):
        raise TroveError(errors.REQUEST_ILLEGAL, f"topic {name!r} has an illegal placement")


@lru_cache(maxsize=ROUTES_KEPT)
def _route(queue_count: int, message_type: str, placement: Placement) -> tuple[TopicRoute, str]:
    """The route, and its fault or an empty text."""
    route = TopicRoute(queue_count, message_type, placement)
    return route, next(_route_problems(queue_count, message_type), "")


def _route_problems(queue_count: int, message_type: str) -> Iterator[str]:
    if not 0 <= queue_count <= QUEUE_COUNT_MAX:
        yield f"has a queue count of {queue_count}"
    if len(message_type) > MESSAGE_TYPE_LENGTH_MAX or not message_type.isprintable():
        yield "has an illegal message type"
