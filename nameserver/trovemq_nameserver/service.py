"""The nameserver's service for clients, who ask for routes and watch them, and the state shared with the
service for brokers (registration.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Final

from grpc.aio import Server, ServicerContext

from trovemq_daemon import clocks
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.logging import get_logger
from trovemq_daemon.turns import Turns
from trovemq_daemon.watchers import Watch, Watchers
from trovemq_nameserver.outgoing import Outgoing, OutgoingReplies
from trovemq_nameserver.replies import ClusterReplies
from trovemq_nameserver.routes import BrokerRoute, RouteLimits, RouteTable
from trovemq_nameserver.wire import route_to_wire
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import route_pb2

Clock = Callable[[], int]
"""Returns the milliseconds of a monotonic clock."""

EXPIRY_INTERVAL_MS: Final = 100
HEARTBEATS_WAITING_SIZE: Final = 268_435_456
"""In bytes: those of 100 brokers with 20,000 topics each have 100 MB with long names."""
TOPICS_ASKED_MAX: Final = 1_024
ROUTE_SERVICE: Final = route_pb2.DESCRIPTOR.services_by_name["RouteService"]


class Registry:
    """The route table and the common state of the services: sessions, watchers, expiry, counters."""

    def __init__(self, limits: RouteLimits, watchers_max: int, clock: Clock) -> None:
        self.table = RouteTable(limits)
        self.limits = limits
        self.clock = clock
        self.started = clock()
        self.turns = Turns()
        self.replies = ClusterReplies(self.table, clock, self.turns)
        self.outgoing = OutgoingReplies()
        self.watchers = Watchers(watchers_max)
        self.registrations = 0
        self.refusals = 0
        self.changes = 0
        """Heartbeats with changes alone."""
        self.all_topics_asked = 0
        """Heartbeats with changes of another base than this nameserver has."""
        self.expirations = 0
        self.leader_changes = 0
        """Leaders of replica groups that took a name from one of a lower epoch."""
        self._sessions = 0
        self._open: set[int] = set()
        self._superseded: dict[int, TroveError] = {}
        """Open sessions whose name a later leader has, and their errors."""
        self._version_notified = 0
        self._awaited: dict[int, tuple[int, asyncio.Timeout]] = {}
        """Sessions whose next message is awaited: when they count as silent, and the timeout that then ends
        the wait."""
        self._reading: dict[int, int] = {}
        """Sessions whose message has arrived and is not read yet, and its size."""

    def new_session(self) -> int:
        self._sessions += 1
        self._open.add(self._sessions)
        return self._sessions

    def ended(self, session: int) -> None:
        """The stream of the session has ended."""
        self._open.discard(session)
        self._superseded.pop(session, None)
        self.table.stream_broken(session, self.clock())

    def supersede(self, session: int, error: TroveError) -> None:
        """A later leader has the name of the session, which gets this error at once."""
        self.leader_changes += 1
        if session in self._open:
            self._superseded[session] = error
        if (awaited := self._awaited.pop(session, None)) is not None:
            awaited[1].reschedule(asyncio.get_running_loop().time())

    def check_current(self, session: int) -> None:
        """Raises TroveError EPOCH_STALE."""
        if (error := self._superseded.get(session)) is not None:
            raise error

    def changed(self) -> None:
        """Wakes the watchers if the table's version has changed."""
        if self.table.version != self._version_notified:
            self._version_notified = self.table.version
            self.watchers.notify()

    @asynccontextmanager
    async def awaiting(self, session: int) -> AsyncIterator[None]:
        """The block waits for the session's next message. TimeoutError: none came for `broker_silent_ms`."""
        async with asyncio.timeout(None) as timeout:
            self._awaited[session] = self.clock() + self.limits.broker_silent_ms, timeout
            try:
                yield
            finally:
                self._awaited.pop(session, None)

    @contextmanager
    def reading(self, session: int, size: int) -> Iterator[None]:
        """The block reads a message of the session, after those before it: meanwhile it is not silent.
        Raises TroveError LIMIT_EXCEEDED if too many bytes wait."""
        waiting = self.bytes_waiting
        if waiting and waiting + size > HEARTBEATS_WAITING_SIZE:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"heartbeats of {waiting} bytes wait to be read: register again later"
            )
        self._reading[session] = size
        try:
            yield
        finally:
            del self._reading[session]
            self.table.heard(session, self.clock())

    @property
    def bytes_waiting(self) -> int:
        """Of the heartbeats that have arrived and are not read yet."""
        return sum(self._reading.values())

    def expire(self) -> None:
        """Removes overdue brokers, and ends the wait for the messages of silent sessions."""
        now = self.clock()
        for session in self._reading:
            self.table.heard(session, now)
        for name in self.table.expire(now):
            self.expirations += 1
            get_logger().warning("broker.lost", broker=name)
        self.changed()
        silent = [session for session, (silent_at, _) in self._awaited.items() if silent_at <= now]
        for session in silent:
            _, timeout = self._awaited.pop(session)
            timeout.reschedule(asyncio.get_running_loop().time())

    async def run_expiry(self) -> None:
        """Removes overdue brokers, until it is cancelled.

        If this process did not run for a time, unread heartbeats wait: they get one more interval first. So
        no other timer decides that a broker is silent.
        """
        last = self.clock()
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_MS / 1000)
            now = self.clock()
            stalled, last = now - last > 5 * EXPIRY_INTERVAL_MS, now
            if not stalled:
                self.expire()


class RouteService:
    """The service for clients. The reply for a topic without brokers is empty: that is not an error."""

    def __init__(self, registry: Registry, *, name: Callable[[], str], version: str) -> None:
        self._registry = registry
        self._name = name
        self._version = version

    def add_to(self, server: Server) -> None:
        add_service(server, ROUTE_SERVICE, self)

    async def get_server_info(
        self, request: route_pb2.GetServerInfoRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.ServerInfo:
        return route_pb2.ServerInfo(
            role=route_pb2.NAMESERVER,
            version=self._version,
            name=self._name(),
            now=clocks.wall_ms(),
            up_ms=max(self._registry.clock() - self._registry.started, 1),
        )

    async def get_route(
        self, request: route_pb2.GetRouteRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.RouteReply:
        if not request.topic:
            raise TroveError(errors.REQUEST_ILLEGAL, "topic is missing")
        registry = self._registry
        routes = await registry.turns.run_from_now(registry.table.routes_of([request.topic]))
        lost = await registry.replies.lost(request.topic)
        return route_pb2.RouteReply(brokers=map(route_to_wire, routes), lost=lost)

    async def get_cluster(
        self, request: route_pb2.GetClusterRequest, context: ServicerContext[Any, Any]
    ) -> bytes:
        _, reply = await self._registry.replies.of_everything()
        return reply

    async def watch_routes(
        self, request: route_pb2.WatchRoutesRequest, context: ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        """The present state, and after each change of the requested topics the latest one; of all topics, the
        changes alone where that is asked for. A large reply comes in parts where the client joins them."""
        topics = list(request.topics)
        if len(topics) > TOPICS_ASKED_MAX:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"at most {TOPICS_ASKED_MAX} topics can be watched at once"
            )
        with self._registry.watchers.watch() as watch:
            changes = request.changes and request.removed_brokers
            states = self._some(topics, watch) if topics else self._all(watch, changes=changes)
            async with aclosing(states):
                async for state in states:
                    for message in state.messages(parts=request.parts):
                        yield message
                    del state  # it is not in memory while its watcher waits
        raise TroveError(errors.SERVICE_NOT_AVAILABLE, "this nameserver is stopping")

    async def _all(self, watch: Watch, *, changes: bool) -> AsyncGenerator[Outgoing]:
        sent, state = await self._everything()
        yield state
        del state
        while await watch.changed():
            if self._registry.table.version == sent:
                continue
            some = await self._since(sent) if changes else None
            version, state = some or await self._everything()
            if version != sent:
                sent = version
                yield state
            del state, some

    async def _everything(self) -> tuple[int, Outgoing]:
        version, reply = await self._registry.replies.of_everything()
        return version, self._registry.outgoing.of(reply)

    async def _since(self, version: int) -> tuple[int, Outgoing] | None:
        found = await self._registry.replies.since(version)
        return None if found is None else (found[0], self._registry.outgoing.of(found[1]))

    async def _some(self, topics: Sequence[str], watch: Watch) -> AsyncGenerator[Outgoing]:
        table, registry = self._registry.table, self._registry
        wanted = frozenset(topics)
        sent: list[BrokerRoute] | None = None
        while True:
            version = table.version
            routes = await registry.turns.run(table.routes_of(topics))
            if routes != sent:
                sent = routes
                yield registry.outgoing.of(await registry.replies.of(routes, version))
            while True:
                if not await watch.changed():
                    return
                before, version = version, table.version
                if table.may_concern(wanted, before):
                    break
