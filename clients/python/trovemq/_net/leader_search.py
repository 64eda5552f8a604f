"""Finds the leader of a replica group after the one before is lost: asks all known nodes at the same time.

A node that says itself that it leads a later epoch is the leader. Their words about each other do not
count: two followers that name each other are asked again, until the patience is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from trovemq._net.leaders import LOST, Leaders
from trovemq._wire.connection import Connection
from trovemq.models.cluster import ServerInfo
from trovemq.options import ClientOptions
from trovemq_proto.errors import TroveError

ASK_S: Final = 1.0
"""For one node: a paused one does not hold up the search."""
PAUSE_S_MAX: Final = 0.1
NODES_ASKED_MAX: Final = 16


class Nodes(Protocol):
    """The parts of the client's connections that a search needs."""

    @property
    def options(self) -> ClientOptions: ...

    @property
    def closed(self) -> bool: ...

    def node(self, address: str) -> Connection: ...

    def dialled(self, name: str) -> str:
        """The address of the known leader; empty without one."""
        ...


class LeaderSearch:
    """The searches of one client, one for each group. `servers`: were given by the program; nameservers among
    them lead no group. `found`: called when a later leader is known."""

    def __init__(
        self, pool: Nodes, leaders: Leaders, servers: Sequence[str], found: Callable[[], None]
    ) -> None:
        self._pool = pool
        self._leaders = leaders
        self._servers = servers
        self._found = found
        self._searches: dict[str, asyncio.Task[None]] = {}

    def failed(self, address: str, error: TroveError) -> None:
        """A call has failed at that address: another node may lead now."""
        if error.spec not in LOST or self._pool.closed:
            return
        for name in self._leaders.names():
            if name not in self._searches and self._pool.dialled(name) == address:
                self._begin(name)

    def lost(self, name: str) -> None:
        """The group has left the routes."""
        if name not in self._searches and not self._pool.closed:
            self._begin(name)

    async def close(self) -> None:
        tasks = list(self._searches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, name: str) -> None:
        task = asyncio.get_running_loop().create_task(self._search(name), name=f"leader of {name}")
        self._searches[name] = task
        task.add_done_callback(lambda _: self._searches.pop(name, None))

    async def _search(self, name: str) -> None:
        loop, options = asyncio.get_running_loop(), self._pool.options
        until, failures = loop.time() + options.failover_timeout_ms / 1000, 0
        while loop.time() < until and self._leaders.has(name) and not self._pool.closed:
            if await self._ask_all(name):
                return
            failures += 1
            await asyncio.sleep(min(options.backoff.seconds(failures), PAUSE_S_MAX))

    async def _ask_all(self, name: str) -> bool:
        """Whether the leader is known: a later one, or the one before, which answers again."""
        addresses = list(dict.fromkeys([*self._leaders.nodes(name), *self._servers]))[:NODES_ASKED_MAX]
        tasks = [asyncio.create_task(self._ask(one), name=one) for one in addresses]
        is_known = False
        try:
            for next_one in asyncio.as_completed(tasks):
                address, answer = await next_one
                if answer is None:
                    continue
                if self._leaders.adopt(name, address, answer):
                    self._found()
                    return True
                is_known |= self._leaders.is_known(name, answer)
            return is_known
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, address: str) -> tuple[str, ServerInfo | None]:
        try:
            async with asyncio.timeout(ASK_S):
                return address, await self._pool.node(address).server_info()
        except (TroveError, TimeoutError):
            return address, None
