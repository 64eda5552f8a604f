"""The calls of a replica group's leader, whichever node that is.

| a call ended with               | and                                         | then                       |
|---------------------------------|---------------------------------------------|----------------------------|
| NOT_LEADER, NOT_ENOUGH_REPLICAS | nothing was done                            | it is repeated             |
| BROKER_UNREACHABLE, REQUEST_    | no server has looked at it, or it only reads | it is repeated            |
| TIMEOUT, SERVICE_NOT_AVAILABLE  | it may have been done                       | its caller decides         |

It is repeated at the leader that is known then, `failover_timeout_ms` after the first failure at most. A
stream is opened at the present leader, and its owner opens it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Final, Protocol, TypeVar

from trovemq._net.leaders import LOST
from trovemq._net.routes import RouteTable
from trovemq._wire.connection import Connection, Metadata, Request, Stream
from trovemq.options import ClientOptions
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_Reply = TypeVar("_Reply")

PAUSE_S_MAX: Final = 0.25
"""Between two attempts: a new leader is often there sooner than a pause that doubles."""
_NOT_DONE: Final = (errors.NOT_LEADER, errors.NOT_ENOUGH_REPLICAS)
_READING: Final = ("Get", "List", "Describe", "Search", "Query", "Find", "Authenticate")
"""How the names of methods begin that change nothing."""


class Leading(Protocol):
    """The parts of the client's connections that it needs."""

    @property
    def options(self) -> ClientOptions: ...

    @property
    def routes(self) -> RouteTable: ...

    @property
    def closed(self) -> bool: ...

    def leader(self, name: str) -> Connection:
        """The connection to the node that leads. Raises TroveError BROKER_NOT_FOUND, TLS_FAILED."""
        ...


class Patience:
    """The repeats of one call: `waits` after each failure."""

    def __init__(self, pool: Leading) -> None:
        self._pool = pool
        self._failures = 0
        self._until = 0.0

    async def waits(self, error: TroveError, *, may_repeat: bool) -> None:
        """Waits until the call may be repeated, or raises the error."""
        loop, options = asyncio.get_running_loop(), self._pool.options
        if not self._failures:
            self._until = loop.time() + options.failover_timeout_ms / 1000
        self._failures += 1
        pause_s = min(options.backoff.seconds(self._failures), PAUSE_S_MAX)
        is_refused = error.spec in _NOT_DONE or (error.spec in LOST and errors.UNREAD in error.fields)
        again = is_refused or (may_repeat and error.spec in LOST)
        if not again or self._pool.closed or loop.time() + pause_s > self._until:
            raise error
        version = self._pool.routes.version
        await self._pool.routes.wait_until(lambda: self._pool.routes.version != version, pause_s)


class LeaderConnection(Connection):
    """The connection to one group. `pool`: knows its leader."""

    def __init__(self, pool: Leading, name: str) -> None:
        self._pool = pool
        self._name = name
        self._options = pool.options

    @property
    def address(self) -> str:
        return self._pool.leader(self._name).address

    async def close(self) -> None:
        """The connections to its nodes are the client's."""

    async def call(
        self,
        method: str,
        request: Request,
        decode: Callable[[bytes], _Reply],
        *,
        timeout_ms: int | None = None,
        metadata: Metadata = (),
    ) -> _Reply:
        patience = Patience(self._pool)
        while True:
            try:
                leader = self._pool.leader(self._name)
                return await leader.call(method, request, decode, timeout_ms=timeout_ms, metadata=metadata)
            except TroveError as error:
                await patience.waits(error, may_repeat=_only_reads(method))

    async def upload(
        self, method: str, frames: Iterable[bytes], decode: Callable[[bytes], _Reply], *, timeout_ms: int
    ) -> _Reply:
        leader = self._pool.leader(self._name)
        return await leader.upload(method, frames, decode, timeout_ms=timeout_ms)

    async def replies(
        self,
        method: str,
        request: Request,
        decode: Callable[[bytes], _Reply],
        *,
        timeout_ms: int | None = None,
        metadata: Metadata = (),
    ) -> AsyncGenerator[_Reply, None]:
        patience, has_begun = Patience(self._pool), False
        while True:
            try:
                leader = self._pool.leader(self._name)
                answers = leader.replies(method, request, decode, timeout_ms=timeout_ms, metadata=metadata)
                async with aclosing(answers):
                    async for reply in answers:
                        has_begun = True
                        yield reply
                return
            except TroveError as error:
                if has_begun:
                    raise
                await patience.waits(error, may_repeat=_only_reads(method))

    def open(self, method: str, decode: Callable[[bytes], object], *, metadata: Metadata = ()) -> Stream:
        return self._pool.leader(self._name).open(method, decode, metadata=metadata)


def _only_reads(method: str) -> bool:
    return method.rpartition("/")[2].startswith(_READING)
