"""The replies to clients that ask for many topics, made on the event loop in steps.

The reply with all topics is made once for each version of the table, for all callers, and of the brokers
that have not changed since it was made before, the bytes are used again. A reply with changes is made once
for all callers that have the same version. So 200 clients that watch 10,000 topics cost a change no more than
one of them.

While a reply is made the table may change: a reply is at least as new as its version, and the changes since
that version name all that it may lack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final

from trovemq_daemon.turns import Turns
from trovemq_nameserver.changes import Changed
from trovemq_nameserver.lost import LostBroker
from trovemq_nameserver.routes import BrokerRoute, RouteTable
from trovemq_nameserver.wire import changed_route_to_wire, lost_to_wire, routes_to_wire
from trovemq_proto.v1 import route_pb2

CHANGES_KEPT: Final = 64
"""Replies with changes that are kept for other callers, until the table changes."""
CHANGES_KEPT_SIZE: Final = 67_108_864
"""The bytes of these replies together; one that is larger is kept alone."""
TIMES_KEPT_MS: Final = 1_000
"""The times of lost brokers in the reply with all topics are at most as old as this."""


class ClusterReplies:
    """Serialised ClusterReply messages of one table."""

    def __init__(self, table: RouteTable, clock: Callable[[], int], turns: Turns) -> None:
        self._table = table
        self._clock = clock
        self._turns = turns
        self._lock = asyncio.Lock()
        self._made_version = -1
        self._made_at = 0
        self._has_lost = False
        self._brokers = b""
        self._by_name: dict[str, tuple[BrokerRoute, slice]] = {}
        """The brokers of the reply: their bytes are a part of `_brokers`."""
        self._changes_to = -1
        self._changes: dict[int, bytes] = {}
        self.routes_made = 0
        """Of brokers, for the reply with all topics."""
        self.changes_made = 0

    async def of_everything(self) -> tuple[int, bytes]:
        """The version, which is the present one or a later one, and the reply with all brokers of it, and
        the lost ones."""
        wanted = self._table.version
        async with self._lock:
            now = self._clock()
            has_lost = self._has_lost or bool(self._table.lost(now))
            if self._made_version < wanted or (has_lost and now - self._made_at >= TIMES_KEPT_MS):
                version = self._table.version
                await self._turns.run(self._everything(self._table.routes(), version))
                self._made_version, self._made_at = version, now
            return self._made_version, self._brokers

    def _everything(self, routes: Sequence[BrokerRoute], version: int) -> Generator[None, None, None]:
        before = memoryview(self._brokers)
        parts: list[bytes | memoryview] = []
        made: dict[str, tuple[BrokerRoute, slice]] = {}
        size = 0
        for route in routes:
            known, place = self._by_name.get(route.broker.name, (None, slice(0)))
            if known is route:
                parts.append(before[place])
            else:
                self.routes_made += 1
                parts.append((yield from routes_to_wire([route])))
            made[route.broker.name] = route, slice(size, size + len(parts[-1]))
            size += len(parts[-1])
        now = self._clock()
        lost = yield from self._lost(self._table.lost(now), now)
        removed = self._table.removed(now)
        rest = route_pb2.ClusterReply(version=version, lost=lost, forgotten_brokers=removed)
        parts.append(rest.SerializeToString())
        self._brokers, self._by_name, self._has_lost = b"".join(parts), made, bool(lost)

    async def since(self, version: int) -> tuple[int, bytes] | None:
        """The present version, and the reply with the changes since that one; None if that is too long
        ago."""
        async with self._lock:
            table = self._table
            if self._changes_to != table.version:
                self._changes_to = table.version
                self._changes.clear()
            to, known = table.version, self._changes.get(version)
            if known is not None:
                return to, known
            changed = table.changes.since(version)
            if changed is None:
                return None
            self.changes_made += 1
            reply = await self._turns.run_from_now(self._changed(changed))
            lost = await self.lost()
            removed = table.removed(self._clock())
            rest = route_pb2.ClusterReply(version=to, changes=True, lost=lost, forgotten_brokers=removed)
            reply += rest.SerializeToString()
            self._changes[version] = reply
            while len(self._changes) > 1 and self._keeps_too_much():
                del self._changes[next(iter(self._changes))]
            return to, reply

    def _keeps_too_much(self) -> bool:
        kept = self._changes
        return len(kept) > CHANGES_KEPT or sum(map(len, kept.values())) > CHANGES_KEPT_SIZE

    def _changed(self, changed: Mapping[str, Changed]) -> Generator[None, None, bytes]:
        """The brokers in their present state; a removed one, and one that is sent whole, is named first."""
        removed = [
            name for name, one in changed.items() if one.whole or self._table.route_named(name) is None
        ]
        parts = [route_pb2.ClusterReply(removed_brokers=removed).SerializeToString()]
        for name, one in changed.items():
            route = self._table.route_named(name)
            if route is None:
                continue
            if one.whole or name in removed:
                parts.append((yield from routes_to_wire([route])))
            else:
                some = changed_route_to_wire(route, one.topics)
                parts.append(route_pb2.ClusterReply(brokers=[some]).SerializeToString())
            yield
        return b"".join(parts)

    async def of(self, routes: Sequence[BrokerRoute], version: int) -> bytes:
        """These routes, which are some topics' of that version."""
        brokers = await self._turns.run(routes_to_wire(routes))
        return brokers + route_pb2.ClusterReply(version=version).SerializeToString()

    async def lost(self, topic: str | None = None) -> list[route_pb2.LostBroker]:
        """The lost brokers; with `topic`, those that had it."""
        now = self._clock()
        lost = self._table.lost(now, topic)
        return await self._turns.run_from_now(self._lost(lost, now)) if lost else []

    def _lost(
        self, lost: Sequence[LostBroker], now: int
    ) -> Generator[None, None, list[route_pb2.LostBroker]]:
        made = []
        for one in lost:
            made.append(lost_to_wire(one, self._table.topic_counts(one), now))
            yield
        return made
