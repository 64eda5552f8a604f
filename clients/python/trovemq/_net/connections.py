"""The client's connections: to the given servers and to the brokers in their routes, and to no others."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from trovemq._net.append_stream import AppendStream
from trovemq._net.first_answer import first_of
from trovemq._net.leader_connection import LeaderConnection
from trovemq._net.leader_search import LeaderSearch
from trovemq._net.leaders import Leaders
from trovemq._net.relays import Relays
from trovemq._net.routes import RouteTable
from trovemq._net.views import KEPT_SECONDS, Views
from trovemq._wire.connection import Connection
from trovemq.models.cluster import BrokerInfo, ClusterState, LostBroker, ServerInfo
from trovemq.options import ClientOptions
from trovemq_proto import errors
from trovemq_proto.channels import ChannelSettings
from trovemq_proto.errors import TroveError
from trovemq_proto.tls_diagnosis import explain

_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)

SUSPECT_SECONDS = 1.0
# A broker that stops cleanly leaves the routes first and acknowledges its open appends afterwards. A starting
# nameserver knows no broker at first.
LEAVING_SECONDS = 30.0
LEADER_GRACE_S = 1.0
"""For this time a former leader may acknowledge frames; then they are sent to its successor."""
LEARN_S = 0.5
LEADER_S_MAX = 1.0
"""How long a client that was given a follower waits for routes, once the leader has answered it."""
LEADER_LOOK_S = 0.1
NODES_FOLLOWED_MAX = 16
FILLING_S = 10.0
"""Time after a nameserver's start by which brokers have registered again: they try every 5 s at least."""


class ConnectionPool:
    """Connections by address, the routes from the given servers, one Append stream per broker.

    Args:
        servers: Addresses of nameservers or of one broker; all of them are followed.
        options: The client's options.
        channels: Settings of its channels; None: those of the options.
    """

    def __init__(
        self, servers: Sequence[str], options: ClientOptions, channels: ChannelSettings | None = None
    ) -> None:
        self.servers = tuple(servers)
        self.options = options
        credentials = options.credentials()
        self.access_key = None if credentials is None else credentials.access_key
        self._channels = channels or options.channel_settings()
        self.routes = RouteTable()
        self._views = Views()
        self._leaders = Leaders(options.failover_timeout_ms / 1000, by_tls=self._channels.tls is not None)
        self._search = LeaderSearch(self, self._leaders, self.servers, self._see)
        self._groups: dict[str, LeaderConnection] = {}  # by broker name
        self.relays = Relays(self)
        self._nodes: set[str] = set()  # that are followed, beside the given servers
        self._away: set[str] = set()  # servers that could not be entered the last time
        self._connections: dict[str, Connection] = {}
        self._streams: dict[str, AppendStream] = {}  # by address
        self.suspect_until: dict[str, float] = {}  # by address, in the loop's time
        self._followers: list[asyncio.Task[None]] = []
        self._asking: set[asyncio.Task[Any]] = set()
        self._leaving: set[str] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._filled_at = 0.0
        self.closed = False
        self.loop: asyncio.AbstractEventLoop | None = None  # the one in which it is used, from `open` on

    async def open(self, wait_ms: int) -> None:
        """Reaches at least one of the servers and gets the routes; continues to try the others.

        Raises:
            TroveError: BROKER_UNREACHABLE or REQUEST_TIMEOUT if none answered within `wait_ms` (each is tried
                at least once); TLS_FAILED if that was because of TLS.
        """
        loop = self.loop = asyncio.get_running_loop()
        give_up, failures = loop.time() + wait_ms / 1000, 0
        while True:
            tries = [self._task(self._enter(server)) for server in self.servers]
            try:
                await first_of(tries)
                break
            except TroveError as error:
                failures += 1
                if failures == 1:
                    await self._explain(error)
                delay = self.options.backoff.seconds(failures)
                if loop.time() + delay > give_up:
                    raise
                await asyncio.sleep(delay)
        self._followers = [
            loop.create_task(self._follow(server, entering))
            for server, entering in zip(self.servers, tries, strict=True)
        ]

    async def _explain(self, error: TroveError) -> None:
        """Raises TLS_FAILED if a server was reached and only TLS failed."""
        if error.spec not in (errors.BROKER_UNREACHABLE, errors.REQUEST_TIMEOUT):
            return
        for sentence in await asyncio.gather(
            *(explain(server, self._channels.tls) for server in self.servers)
        ):
            if sentence is not None:
                raise TroveError(errors.TLS_FAILED, sentence) from error

    async def _enter(self, address: str) -> AsyncIterator[ClusterState]:
        """Begins to follow the server, and applies its first routes. Raises TroveError."""
        self._away.discard(address)
        try:
            return await self._enter_now(address)
        except TroveError:
            self._away.add(address)
            raise

    async def _enter_now(self, address: str) -> AsyncIterator[ClusterState]:
        connection = self._connection(address)
        server = await connection.server_info()
        if server.up_ms:
            self._filled_at = max(self._filled_at, self._now() + FILLING_S - server.up_ms / 1000)
        watch = connection.watch_routes()
        state = await anext(watch)
        self._views.check_name(address, state, server)
        self._apply(address, state, server)
        await self._follow_nodes(address, server)
        return watch

    async def _follow_nodes(self, address: str, server: ServerInfo) -> None:
        """Without a nameserver, follows all nodes of a replica group of which one was given, and waits for
        the routes of their leader. Not where reads are to come from the given node."""
        is_elsewhere = self._channels.tls is not None or self._views.nameservers()
        if not server.node or self.options.replica or is_elsewhere:
            return
        if server.leader is None:
            self._task(self._learn(address))
            return
        loop = asyncio.get_running_loop()
        for one in server.leader.nodes:
            known = {*self.servers, *self._nodes}
            if one.address not in known and len(self._nodes) < NODES_FOLLOWED_MAX:
                self._nodes.add(one.address)
                entering = self._task(self._enter(one.address))
                self._followers.append(loop.create_task(self._follow(one.address, entering)))
        if address in self.servers:
            at = {one.node: one.address for one in server.leader.nodes}
            await self._until_led(server.name, at.get(server.leader.node, ""))

    async def _until_led(self, name: str, leader: str) -> None:
        """Until the leader's routes are there. It may be slow, or gone: then the client has none at first."""
        is_entered = leader in self.servers or leader in self._nodes
        until = self._now() + (self.options.failover_timeout_ms / 1000 if is_entered else LEADER_S_MAX)
        has_answered = False
        while leader not in self._away and (left_s := until - self._now()) > 0:
            if self._views.is_known(leader) and not has_answered:
                has_answered, until = True, min(until, self._now() + LEADER_S_MAX)
            look_s = min(left_s, LEADER_LOOK_S)
            if await self.routes.wait_until(lambda: self.routes.find(name) is not None, look_s):
                return

    async def _learn(self, address: str) -> None:
        """Asks a node that knows no leader until it does, or does not answer: then it is entered again."""
        while not self.closed:
            await asyncio.sleep(LEARN_S)
            server = await self._connection(address).server_info()
            if server.leader is not None:
                await self._follow_nodes(address, server)
                return

    def _is_followed(self, address: str) -> bool:
        """Whether the server was given, or is a node of a group."""
        groups = self._leaders.names()
        return (
            address in self.servers
            or not groups
            or any(address in self._leaders.nodes(name) for name in groups)
        )

    async def _follow(self, address: str, entering: asyncio.Task[AsyncIterator[ClusterState]]) -> None:
        """Applies the server's routes, and connects again when the stream breaks."""
        failures = 0
        while not self.closed:
            if not self._is_followed(address):
                self._nodes.discard(address)
                self._broken(address)
                return
            try:
                async for state in await entering:
                    failures = 0
                    self._apply(address, state)
            except TroveError as error:
                if error.spec is errors.BROKER_NAME_TAKEN and not failures:
                    _log.warning("%s. %s", error.message, error.spec.what_to_do)
                self._broken(address)
            failures += 1
            await asyncio.sleep(self.options.backoff.seconds(failures))
            entering = self._task(self._enter(address))

    def _apply(self, address: str, state: ClusterState, server: ServerInfo | None = None) -> None:
        """Applies one server's routes; without `server` the server has identified itself before."""
        self._views.update(address, state, server)
        self._see()

    def _broken(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        if self._views.broken(address, loop.time()):
            loop.call_later(KEPT_SECONDS + 1, self._see)

    def _see(self) -> None:
        """Applies the merged routes of all servers."""
        loop = asyncio.get_running_loop()
        if self.closed:
            return
        before = {name: self.dialled(name) for name in self._leaders.names()}
        state, again_at = self._leaders.applied(self._views.whole(loop.time()), loop.time())
        self.routes.apply(state)
        if again_at is not None:
            loop.call_at(again_at, self._see)
        for name in self._leaders.missing():
            self._search.lost(name)
        for name, address in before.items():
            if address and self.dialled(name) != address:
                loop.call_later(LEADER_GRACE_S, self._end_stream, address)
        for address in self._connections.keys() - self._known() - self._leaving:
            self._leaving.add(address)
            loop.call_later(LEAVING_SECONDS, self._drop_if_gone, address)

    def _known(self) -> set[str]:
        return {self._address_of(route.broker) for route in self.routes.state.brokers} | set(self.servers)

    def _end_stream(self, address: str) -> None:
        """Ends the Append stream to a former leader: unanswered frames are sent to its successor."""
        if address in {self.dialled(name) for name in self._leaders.names()} or self.closed:
            return
        if (stream := self._streams.pop(address, None)) is not None:
            self._close_later(stream.close())

    def _close_later(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _drop_if_gone(self, address: str) -> None:
        """Closes the connections to a broker that left the routes and did not return."""
        self._leaving.discard(address)
        if address in self._known() or self.closed:
            return
        stream, connection = self._streams.pop(address, None), self._connections.pop(address)
        self.routes.version += 1
        self.suspect_until.pop(address, None)
        self._close_later(_close(stream, connection))

    @property
    def filling_s(self) -> float:
        """For how long the routes may lack brokers, because a nameserver has just started; 0: they do not."""
        return max(self._filled_at - self._now(), 0.0)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def refresh(self) -> None:
        """Requests the present routes from the servers. Raises TroveError if none of them answers."""

        async def ask(address: str) -> None:
            state = await self._connection(address).cluster()
            if self._views.is_known(address):
                self._apply(address, state)

        await first_of([self._task(ask(server)) for server in self.servers])

    @asynccontextmanager
    async def explaining(self) -> AsyncIterator[None]:
        """Raises the errors of its block as `explained` returns them."""
        try:
            yield
        except TroveError as error:
            raise await self.explained(error) from error.__cause__

    async def explained(self, error: TroveError) -> TroveError:
        """The error; TOPIC_NOT_FOUND says so if the topic was last seen on a lost broker."""
        topic = error.fields.get("topic")
        if error.spec is not errors.TOPIC_NOT_FOUND or not topic or self.closed:
            return error
        lost = min(await self.lost_brokers_of(topic), key=lambda one: one.lost_ms, default=None)
        if lost is None:
            return error
        since = datetime.fromtimestamp(time.time() - lost.lost_ms / 1000, UTC).isoformat(" ", "seconds")
        text = (
            f"{error.message}; it was last seen on broker {lost.name} at {lost.address}, which is lost since"
            f" {since}: start that broker again (trovemq doctor says more)"
        )
        return TroveError(error.spec, text, **{**error.fields, "lost_broker": lost.name})

    async def lost_brokers_of(self, topic: str) -> list[LostBroker]:
        """The lost brokers that had the topic, as the nameservers know them: every caller of theirs may read
        all routes. None if no nameserver answers."""
        asked = [self._task(self._connection(server).lost_brokers_of(topic)) for server in self.servers]
        try:
            await first_of(asked)
        except TroveError:
            return []
        answers = [one.result() for one in asked if one.done() and one.exception() is None]
        return [one for answer in answers for one in answer]

    def _task(self, asking: Coroutine[Any, Any, _Answer]) -> asyncio.Task[_Answer]:
        """A task that ends with the client."""
        task = asyncio.get_running_loop().create_task(asking)
        self._asking.add(task)
        task.add_done_callback(self._asked)
        return task

    def _asked(self, task: asyncio.Task[Any]) -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()  # it may be set when no caller waits any more

    def connection(self, broker: BrokerInfo) -> Connection:
        """The connection to a broker of the routes, or of the relays; that of a replica group leads to its
        leader.

        Raises:
            TroveError: TLS_FAILED if the client connects by TLS and the broker has no TLS port.
        """
        if self.routes.find(broker.name) is None and (relayed := self.relays.find(broker.name)):
            return relayed
        if not self._leaders.has(broker.name):
            return self._to(broker)
        connection = self._groups.get(broker.name)
        if connection is None:
            connection = self._groups[broker.name] = LeaderConnection(self, broker.name)
        return connection

    def leader(self, name: str) -> Connection:
        """The connection to the node that leads a replica group. Raises TroveError BROKER_NOT_FOUND,
        TLS_FAILED."""
        return self._to(self.routes.broker(name))

    def node(self, address: str) -> Connection:
        """The connection to a node of a group, or to a given server."""
        return self._connection(address)

    def dialled(self, name: str) -> str:
        """The address of a group's leader; empty without one."""
        broker = self._leaders.broker(name)
        return "" if broker is None else self._address_of(broker)

    def note_failure(self, broker: str, error: TroveError) -> None:
        """A frame of a stream to a replica group was refused: another node may lead."""
        self._search.failed(self.dialled(broker), error)

    def has_nodes(self, broker: str) -> bool:
        """Whether the broker is a replica group of several nodes."""
        return self._leaders.has(broker)

    def _to(self, broker: BrokerInfo) -> Connection:
        address = self._address_of(broker)
        if not address:
            raise TroveError(
                errors.TLS_FAILED,
                f"broker {broker.name} has no TLS port, and this client connects by TLS only: "
                f"start the broker with --tls-listen, or connect to {broker.address} without TLS",
                broker=broker.name,
            )
        return self._connection(address)

    def unseen(self) -> int:
        """How many live brokers of the cluster are not in the routes, at least."""
        return self._views.unseen()

    def unasked(self) -> int:
        """How many of them look-ups have left out: a broker that does not forward them was given."""
        return self.relays.unasked()

    def server(self, address: str) -> Connection:
        """The connection to one of the given servers."""
        return self._connection(address)

    def stream(self, broker: BrokerInfo) -> AppendStream:
        """The Append stream to a broker of the routes."""
        address = self._address_of(broker)
        stream = self._streams.get(address)
        if stream is None:
            stream = AppendStream(self._to(broker), lambda ok: self._note(address, ok))
            self._streams[address] = stream
        return stream

    def suspect(self, broker: BrokerInfo) -> bool:
        """Whether the broker could not be reached a moment ago."""
        if not self.suspect_until:
            return False
        until = self.suspect_until.get(self._address_of(broker))
        return until is not None and asyncio.get_running_loop().time() < until

    def _note(self, address: str, reached: bool) -> None:
        if reached:
            self.suspect_until.pop(address, None)
        else:
            self.suspect_until[address] = asyncio.get_running_loop().time() + SUSPECT_SECONDS
            self._search.failed(address, TroveError(errors.BROKER_UNREACHABLE))

    def _address_of(self, broker: BrokerInfo) -> str:
        """The address to dial. A broker that was given by its address is dialled there, whatever it
        advertises."""
        given = self._views.address_of(broker)
        if given is not None or self._channels.tls is None:
            return given or broker.address
        return broker.tls_address

    def check_open(self) -> None:
        """Raises TroveError CLIENT_CLOSED."""
        if self.closed:
            raise TroveError(errors.CLIENT_CLOSED, "the client is closed")

    def check_loop(self) -> None:
        """Raises TroveError EVENT_LOOP_ILLEGAL outside of the client's event loop: futures and connections of
        one loop never wake another."""
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self.loop and self.loop is not None:
            ended = "has ended" if self.loop.is_closed() else "is another one"
            text = f"the client belongs to the event loop in which it was connected, which {ended}"
            raise TroveError(errors.EVENT_LOOP_ILLEGAL, text)

    def abandon(self) -> None:
        """Ends it where its loop has ended, and with that all its tasks."""
        self.closed = True
        self.routes.version += 1
        self._connections.clear()
        self._groups.clear()
        self._streams.clear()

    def _connection(self, address: str) -> Connection:
        self.check_open()
        self.check_loop()
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection(
                address, self.options, self._channels, lambda error: self._search.failed(address, error)
            )
        return connection

    async def close(self) -> None:
        """Ends every stream and connection."""
        self.closed = True
        self.routes.version += 1
        tasks = [*self._followers, *self._asking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._search.close(), return_exceptions=True)
        streams, connections = list(self._streams.values()), list(self._connections.values())
        await asyncio.gather(*(stream.close() for stream in streams), *self._closing)
        await asyncio.gather(*(connection.close() for connection in connections))


async def _close(stream: AppendStream | None, connection: Connection) -> None:
    if stream is not None:
        await stream.close()
    await connection.close()
