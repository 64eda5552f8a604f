"""Remoting connections at a node that does not lead its replica group: their bytes go to the leader's port.

A client of RocketMQ 4 that was given this address so has the routes, sends, pulls, heartbeats and locks
of the leader. A connection is the leader's from its first byte to its end: when the node changes its role,
the leader is lost, or another one leads, it ends, and clients open another one.

Two nodes that each take the other one for the leader would pass a connection to and fro: RELAYS_MAX ends
that. So would a node at whose address the leader is said to be: it refuses.

With authentication a connection begins with a request of this node, which names the client's address and is
signed (trovemq_proto.remoting.relayed): the leader checks the signatures and rules of all later ones. Such a
connection, and one that came by TLS, goes to the leader by TLS, or on loopback.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trovemq_daemon.addresses import Address
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.codes import ResponseCode
from trovemq_proto.remoting.errors import FrameError
from trovemq_proto.remoting.frame import FrameSplitter
from trovemq_proto.tls import ClientTls
from trovemq_rpc.server.guest import Host

UNSENT_MAX: Final = 1 << 20
"""Bytes that a client has not taken; then the leader's are not read."""
CONNECT_S: Final = 5.0
RELAYS_MAX: Final = 1_000
"""Connections of clients that are relayed at a time."""
Announce: TypeAlias = Callable[[str, bool], Awaitable[bytes]]
"""The first request of a connection, for the client's address, and whether it came by TLS. TroveError."""


@dataclass(frozen=True, slots=True)
class RelayedTo:
    """The leader: the address that it gives to clients, and how it is reached: by TLS with a `context`."""

    leader: Address
    address: Address
    context: ssl.SSLContext | None = None

    @classmethod
    def plain(cls, leader: Address) -> RelayedTo:
        return cls(leader, leader)


class RemotingRelay:
    """`leader`: the address of the node that leads, None where it is not known. `by_tls`: how it is reached
    by TLS, None where it is not. `here`: the addresses of this node. `announce`: None: there are no users."""

    def __init__(
        self,
        leader: Callable[[], Address | None],
        here: Callable[[], Collection[Address]] = tuple,
        by_tls: Callable[[Address], RelayedTo | None] = lambda _leader: None,
        announce: Announce | None = None,
    ) -> None:
        self._leader = leader
        self._here = here
        self._by_tls = by_tls
        self._announce = announce
        self.open = 0
        self.refused = 0
        """Connections that were refused, since the start of this role."""

    def accept(self, host: Host) -> RelayedConnection:
        self.open += 1
        leader = self._leader()
        if leader is None:
            return self._refused(host, "no leader is known")
        to = RelayedTo.plain(leader)
        if (host.is_secure or self._announce is not None) and not leader.is_loopback:
            if (way := self._by_tls(leader)) is None:
                cause = "it came by TLS" if host.is_secure else "it has signatures"
                text = "and the leader is not reached by TLS: tls_listen there, nameserver_tls here"
                return self._refused(host, f"{cause}, {text}")
            to = way
        if {to.leader, to.address} & set(self._here()):
            return self._refused(host, f"the leader's address {leader} is this node's")
        if self.open > RELAYS_MAX:
            return self._refused(host, f"{RELAYS_MAX} connections are relayed already")
        return RelayedConnection(host, to, self._moved_from, self._ended, self._announce)

    def _refused(self, host: Host, reason: str) -> RelayedConnection:
        self.refused += 1
        return RelayedConnection(host, reason, self._moved_from, self._ended)

    def _moved_from(self, leader: Address) -> bool:
        """Whether another one is known to lead. While none is known, that one may lead still."""
        return self._leader() not in (None, leader)

    def _ended(self) -> None:
        self.open -= 1


class RelayedConnection(asyncio.Protocol):
    """The guest of the client's connection, and the protocol of that to the leader. `leader`: how it is
    reached, or why the connection is refused. `moved_from`: whether another node leads instead. `ended`: is
    called at the end, once."""

    def __init__(
        self,
        host: Host,
        leader: RelayedTo | str,
        moved_from: Callable[[Address], bool],
        ended: Callable[[], None],
        announce: Announce | None = None,
    ) -> None:
        self._host = host
        self._leader = leader
        self._moved_from = moved_from
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._early = bytearray()
        self._is_lost = self._is_open = False
        self._announce = announce
        self._admission: tuple[FrameSplitter, asyncio.Future[str]] | None = None
        """While the leader has not answered the request of this node; its result: why it refuses."""
        self._connecting = asyncio.get_running_loop().create_task(self._connect(leader), name="relay")

    async def _connect(self, leader: RelayedTo | str) -> None:
        if isinstance(leader, str):
            self._refuse(leader)
            return
        loop, at, context = asyncio.get_running_loop(), leader.address, leader.context
        host, announce = self._host, self._announce
        name = None if context is None else at.host
        try:
            async with asyncio.timeout(CONNECT_S):
                first = b"" if announce is None else await announce(host.peer(), host.is_secure)
                await loop.create_connection(
                    lambda: self, at.host, at.port, ssl=context, server_hostname=name
                )
                if first and (refusal := await self._admitted(first)):
                    self._refuse(f"the leader at {at} does not take it: {refusal}")
                    return
                self._begin()
        except TroveError as error:
            self._refuse(error.message)
        except ssl.SSLError as error:
            self._refuse(f"the leader at {at} is not reached by TLS: {error.reason}")
        except (OSError, TimeoutError):
            self._refuse(f"the leader at {at} does not listen")

    async def _admitted(self, request: bytes) -> str:
        """Why the leader refuses; empty: it does not."""
        assert self._transport is not None, "it is connected"
        self._admission = FrameSplitter(), asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._admission[1]

    def _begin(self) -> None:
        """From now on the connection is the client's."""
        self._admission = None
        self._is_open = self._transport is not None
        if self._early and self._transport is not None:
            self._transport.write(bytes(self._early))
            self._early.clear()
            self._host.resume()

    def _refuse(self, reason: str) -> None:
        if not self._is_lost:
            self._host.refuse(reason)

    # --- of the client --------------------------------------------------------------------------------------
    def receive(self, data: memoryview) -> None:
        if self._is_open and self._transport is not None:
            self._transport.write(bytes(data))
            return
        self._early += data
        self._host.pause()

    def writable(self, can_write: bool) -> None:
        if self._transport is not None and can_write:
            self._transport.resume_reading()

    def tick(self, now: float) -> None:
        """A machine that is gone closes no connection: the client would wait for its own time-outs."""
        if not isinstance(self._leader, str) and self._moved_from(self._leader.leader):
            self._host.close()

    def drain(self) -> None:
        self._host.close()

    def budget_free(self) -> None:
        pass

    def lost(self) -> None:
        self._is_lost = True
        self._ended()
        self._connecting.cancel()
        if self._transport is not None:
            self._transport.close()

    # --- of the leader --------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.Transport", transport)
        if self._is_lost:
            made.abort()
            return
        self._transport = made

    def data_received(self, data: bytes) -> None:
        if self._is_lost:
            return
        if self._admission is not None:
            self._read_admission(*self._admission, data)
            return
        self._host.send((data,))
        if self._transport is not None and self._host.unsent_size > UNSENT_MAX:
            self._transport.pause_reading()

    @staticmethod
    def _read_admission(splitter: FrameSplitter, answer: asyncio.Future[str], data: bytes) -> None:
        try:
            header = next((frame.header() for frame in splitter.feed(memoryview(data))), None)
        except FrameError as error:
            header, refusal = None, str(error)
        else:
            if header is None:
                return
            refusal = "" if header.code == ResponseCode.SUCCESS else header.remark or f"code {header.code}"
        if not answer.done():
            answer.set_result(refusal)

    def pause_writing(self) -> None:
        self._host.pause()

    def resume_writing(self) -> None:
        if not self._is_lost:
            self._host.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._admission is not None and not self._admission[1].done():
            self._admission[1].set_result("it closed the connection")
        elif not self._is_lost:
            self._host.close()


def relay_context(tls: ClientTls) -> ssl.SSLContext:
    """For connections to the leader, which are not HTTP/2."""
    context = tls.context()
    context.set_alpn_protocols([])
    return context


class RelaysCollector(Collector):
    """The figures of a relay."""

    def __init__(self, relay: RemotingRelay) -> None:
        self._relay = relay

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "trovemq_relays_open",
            "Connections of remoting clients that this node passes on to the leader of its group.",
            value=self._relay.open,
        )
        yield CounterMetricFamily(
            "trovemq_relays_refused",
            "Connections of remoting clients that this node could not pass on.",
            value=self._relay.refused,
        )
