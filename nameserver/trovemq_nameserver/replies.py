"""The replies to clients that ask for many topics, made on the event loop in steps.

The reply with all topics is made once for each version of the table, for all callers, and of the brokers
that have not changed since the version before, the bytes are used again. So 200 clients that watch 10,000
topics cost a change no more than one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence

from trovemq_daemon.turns import Turns
from trovemq_nameserver.routes import TOPICS_A_STEP, BrokerRoute, LostBroker, RouteTable
from trovemq_nameserver.wire import lost_to_wire, routes_to_wire
from trovemq_proto.v1 import route_pb2


class ClusterReplies:
    """Serialised ClusterReply messages of one table."""

    def __init__(self, table: RouteTable, clock: Callable[[], int], turns: Turns) -> None:
        self._table = table
        self._clock = clock
        self._turns = turns
        self._lock = asyncio.Lock()
        self._made_version = -1
        self._brokers = b""
        self._by_name: dict[str, tuple[BrokerRoute, bytes]] = {}
        self._lost_version = -1
        self._lost: list[tuple[LostBroker, int]] = []
        self.routes_made = 0
        """Of brokers, for the reply with all topics."""

    async def of_everything(self) -> tuple[int, bytes]:
        """The version, which is the present one or a later one, and the reply with all brokers of it, and
        the lost ones."""
        wanted = self._table.version
        async with self._lock:
            if self._made_version < wanted:
                version = self._table.version
                self._brokers = await self._turns.run(self._everything(self._table.routes()))
                self._made_version = version
            brokers, version = self._brokers, self._made_version
        rest = route_pb2.ClusterReply(version=version, lost=await self.lost())
        return version, brokers + rest.SerializeToString()

    def _everything(self, routes: Sequence[BrokerRoute]) -> Generator[None, None, bytes]:
        made: dict[str, tuple[BrokerRoute, bytes]] = {}
        for route in routes:
            before, wire = self._by_name.get(route.broker.name, (None, b""))
            if before is not route:
                self.routes_made += 1
                wire = yield from routes_to_wire([route])
            made[route.broker.name] = route, wire
        self._by_name = made
        return b"".join(wire for _, wire in made.values())

    async def of(self, routes: Sequence[BrokerRoute], version: int) -> bytes:
        """These routes, which are some topics' of that version."""
        brokers = await self._turns.run(routes_to_wire(routes))
        return brokers + route_pb2.ClusterReply(version=version).SerializeToString()

    async def lost(self, topic: str | None = None) -> list[route_pb2.LostBroker]:
        """The lost brokers; with `topic`, those that had it."""
        table, now = self._table, self._clock()
        if not table.lost(now, topic):
            return []
        if self._lost_version != table.version:
            version = table.version
            self._lost = await self._turns.run(_topics_alone(table.lost(now), table.routes()))
            self._lost_version = version
        known = {one.broker.name for one in table.lost(now, topic)}
        return [lost_to_wire(one, alone, now) for one, alone in self._lost if one.broker.name in known]


def _topics_alone(
    lost: Sequence[LostBroker], routes: Sequence[BrokerRoute]
) -> Generator[None, None, list[tuple[LostBroker, int]]]:
    """The lost brokers, each with the number of its topics that no live broker has."""
    counted: list[tuple[LostBroker, int]] = []
    for one in lost:
        alone = 0
        for number, topic in enumerate(one.topics, 1):
            alone += not any(topic in route.topics for route in routes)
            if number % TOPICS_A_STEP == 0:
                yield
        counted.append((one, alone))
    return counted
