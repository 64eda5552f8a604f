"""The cluster for the pages: one client, connected when it is first needed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from trovemq import (
    BrokerInfo,
    BrokerRoute,
    BrokerStatistics,
    Client,
    ClusterState,
    TopicDescription,
    TroveError,
    errors,
)
from trovemq_proto.system_topics import is_system_topic, user_topic_count

T = TypeVar("T")

ROUTES_KEPT_S: Final = 10.0  # with 10,000 topics the routes are large
HOLDING_KEPT_S: Final = 60.0
"""A broker needs 40 ms to list 10,000 topics."""
HOLDING_MAX: Final = 100
UNTIL_ACKNOWLEDGED: Final = "until_acknowledged"
CALLS_AT_ONCE: Final = 16
Connect = Callable[[], Awaitable[Client]]


class Clock(Protocol):
    """Seconds that only grow."""

    def __call__(self) -> float: ...


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic in the routes, over all its brokers."""

    name: str
    brokers: tuple[str, ...]
    queue_count: int
    message_type: str

    @property
    def system(self) -> bool:
        """Whether it is a system topic: users cannot create topics of such names."""
        return is_system_topic(self.name)


@dataclass(frozen=True, slots=True)
class Holding:
    """Topics that are kept until they are acknowledged, those that hold most first; `left_out`: how many more
    there are; `asked_at`: by the console's clock."""

    topics: list[TopicDescription]
    left_out: int
    asked_at: float


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """A broker's counters, or the reason for their absence; `refused`: this user may not see them."""

    info: BrokerInfo
    topic_count: int
    counters: dict[str, int] | None
    problem: str = ""
    refused: bool = False


class Cluster:
    """The connection, and the requests that several pages share.

    Args:
        connect: Makes a client. It is called again after a failure.
        clock: Measures the age of the routes.
    """

    def __init__(self, connect: Connect, clock: Clock) -> None:
        self._connect = connect
        self._clock = clock
        self._connecting = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._state: ClusterState | None = None
        self._state_at = 0.0
        self._all_topics: list[TopicEntry] = []
        self._topics: list[TopicEntry] = []
        self._holding: Holding | None = None

    async def client(self) -> Client:
        """The client. Raises TroveError if no server answers."""
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def close(self) -> None:
        """Disconnects."""
        if self._asking is not None:
            self._asking.cancel()
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def state(self, age_max_s: float = ROUTES_KEPT_S) -> ClusterState:
        """The routes, of this age at most; requests that need them at once share one call."""
        client = await self.client()
        if self._state is None or self._clock() - self._state_at > age_max_s:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask_state(client))
                self._asking.add_done_callback(self._asked)
            await asyncio.shield(self._asking)
        assert self._state is not None, "the call returned it, or an earlier one did"
        return self._state

    async def _ask_state(self, client: Client) -> None:
        state = await client.admin.cluster()
        is_newest = asyncio.current_task() is self._asking
        if not is_newest and self._state is not None:
            return
        if state != self._state:
            self._all_topics = merged_topics(state)
            self._topics = [topic for topic in self._all_topics if not topic.system]
        self._state, self._state_at = state, self._clock() if is_newest else -math.inf

    def _asked(self, asking: asyncio.Task[None]) -> None:
        if asking is self._asking:
            self._asking = None
        if not asking.cancelled():
            asking.exception()  # of a call whose requests are all gone

    def expire(self) -> None:
        """Everything is asked for again when it is needed next: something was changed."""
        self._asking = None
        self._state_at = -math.inf
        self._holding = None

    async def holding(self) -> tuple[Holding, float]:
        """The topics that hold the disk, and how many seconds ago they were asked for: HOLDING_KEPT_S at
        most."""
        if self._holding is None or self._clock() - self._holding.asked_at > HOLDING_KEPT_S:
            self._holding = await self._ask_holding()
        return self._holding, self._clock() - self._holding.asked_at

    async def _ask_holding(self) -> Holding:
        client, asked_at = await self.client(), self._clock()
        listed = await client.admin.list_topics()
        names = sorted({one.topic for one in listed if one.options.get("retention") == UNTIL_ACKNOWLEDGED})
        answers = await gather_bounded(client.admin.describe_topic(name) for name in names[:HOLDING_MAX])
        topics = [one for answer in answers if not isinstance(answer, TroveError) for one in answer]
        topics.sort(key=lambda one: -(one.hold.bytes if one.hold else 0))
        return Holding(topics, max(len(names) - HOLDING_MAX, 0), asked_at)

    async def topics(self, *, system: bool = False) -> list[TopicEntry]:
        """The topics in the routes, by name; with `system` also system topics."""
        await self.state()
        return self._all_topics if system else self._topics

    async def brokers(self, age_max_s: float = ROUTES_KEPT_S) -> list[BrokerAnswer]:
        """Every broker of the routes with its counters; a broker that does not answer hides no other. The
        routes have this age at most."""
        client, state = await self.client(), await self.state(age_max_s)

        async def ask(name: str) -> BrokerStatistics | TroveError:
            try:
                (statistics,) = await client.admin.statistics(broker=name)
            except TroveError as error:
                return error
            return statistics

        answers = await asyncio.gather(*(ask(route.broker.name) for route in state.brokers))
        return [
            BrokerAnswer(route.broker, user_topics(route), None, str(answer), is_refusal(answer))
            if isinstance(answer, TroveError)
            else BrokerAnswer(route.broker, user_topics(route), answer.counters)
            for route, answer in zip(state.brokers, answers, strict=True)
        ]


def is_refusal(error: TroveError) -> bool:
    """Whether the user lacks a right."""
    return error.spec is errors.ACCESS_DENIED


def user_topics(route: BrokerRoute) -> int:
    """How many of the broker's topics are no system topics."""
    return user_topic_count(topic.topic for topic in route.topics)


def merged_topics(state: ClusterState) -> list[TopicEntry]:
    """One entry per topic: queues are counted over its brokers."""
    found: dict[str, list[tuple[str, int, str]]] = {}
    for route in state.brokers:
        for topic in route.topics:
            found.setdefault(topic.topic, []).append(
                (route.broker.name, topic.queue_count, topic.message_type)
            )
    return [
        TopicEntry(name, tuple(place[0] for place in places), sum(place[1] for place in places), places[0][2])
        for name, places in sorted(found.items())
    ]


async def gather_bounded(calls: Iterable[Awaitable[T]]) -> list[T | TroveError]:
    """The results in order, with a few concurrent calls; a failure is a result, too."""
    slots = asyncio.Semaphore(CALLS_AT_ONCE)

    async def one(call: Awaitable[T]) -> T | TroveError:
        async with slots:
            try:
                return await call
            except TroveError as error:
                return error

    return await asyncio.gather(*(one(call) for call in calls))


def number_of(counters: dict[str, int] | None, name: str) -> int:
    """A counter; 0 if the broker does not have it."""
    return (counters or {}).get(name, 0)
