"""The brokers that a look-up asks, where the client was given brokers only: one of these forwards it to the
others of the cluster, to which no route leads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol, TypeVar

from trovemq._net.routes import RouteTable
from trovemq._wire.connection import Connection, Metadata, Request
from trovemq.models.cluster import BrokerInfo
from trovemq.options import ClientOptions
from trovemq_proto.errors import TroveError
from trovemq_proto.forwarding import BROKER_KEY

_Reply = TypeVar("_Reply")


class Reaching(Protocol):
    """The parts of the client's connections that it needs."""

    @property
    def options(self) -> ClientOptions: ...

    @property
    def routes(self) -> RouteTable: ...

    def unseen(self) -> int: ...

    def leader(self, name: str) -> Connection: ...


class RelayedConnection(Connection):
    """The look-ups at one broker, by the connection to another one."""

    def __init__(self, through: Connection, options: ClientOptions, broker: str) -> None:
        self._through = through
        self._options = options
        self._key = (BROKER_KEY, broker)

    @property
    def address(self) -> str:
        return self._through.address

    async def close(self) -> None:
        """The connection is the client's."""

    async def call(
        self,
        method: str,
        request: Request,
        decode: Callable[[bytes], _Reply],
        *,
        timeout_ms: int | None = None,
        metadata: Metadata = (),
    ) -> _Reply:
        asked = (*metadata, self._key)
        return await self._through.call(method, request, decode, timeout_ms=timeout_ms, metadata=asked)

    async def replies(
        self,
        method: str,
        request: Request,
        decode: Callable[[bytes], _Reply],
        *,
        timeout_ms: int | None = None,
        metadata: Metadata = (),
    ) -> AsyncGenerator[_Reply, None]:
        asked = (*metadata, self._key)
        made = self._through.replies(method, request, decode, timeout_ms=timeout_ms, metadata=asked)
        async with aclosing(made) as replies:
            async for reply in replies:
                yield reply


class Relays:
    """The look-ups of one client. `pool`: its connections."""

    def __init__(self, pool: Reaching) -> None:
        self._pool = pool
        self._connections: dict[str, RelayedConnection] = {}

    async def brokers(self, name: str | None, topic: str = "") -> list[BrokerInfo]:
        """The brokers that have the topic, or all, or the named one: those of the routes, and those that one
        of them reaches. Raises TroveError BROKER_NOT_FOUND."""
        routes = self._pool.routes
        if self._pool.unseen() and (name is None or routes.find(name) is None):
            relayed = [one for one in await self._others(routes.brokers()) if name in (None, one.name)]
            if name is not None and relayed:
                return relayed
        else:
            relayed = []
        return [*(routes.brokers_of(topic, name) if topic else routes.brokers(name)), *relayed]

    async def _others(self, given: Sequence[BrokerInfo]) -> list[BrokerInfo]:
        """The brokers that the first one of the given ones knows which answers: as it knows them now."""
        for broker in given:
            connection = self._pool.leader(broker.name)
            try:
                names = {*(await connection.server_info()).other_names} - {one.name for one in given}
            except TroveError:
                continue
            options = self._pool.options
            self._connections = {one: RelayedConnection(connection, options, one) for one in sorted(names)}
            return [BrokerInfo(broker.cluster, one, "") for one in self._connections]
        return []

    def find(self, name: str) -> Connection | None:
        """To a broker of the last answer; None for another one."""
        return self._connections.get(name)

    def unasked(self) -> int:
        """How many brokers of the cluster the look-ups have left out. At least that many."""
        return max(0, self._pool.unseen() - len(self._connections))
