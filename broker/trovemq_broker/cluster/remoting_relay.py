"""Remoting connections at a node that does not lead its replica group: their bytes go to the leader's port.

A client of RocketMQ 4 that was given this address so has the routes, sends, pulls, heartbeats and locks
of the leader. A connection is the leader's from its first byte to its end: when the node changes its role,
the leader is lost, or another one leads, it ends, and clients open another one.

Two nodes that each take the other one for the leader would pass a connection to and fro: RELAYS_MAX ends
that. So would a node at whose address the leader is said to be: it refuses.

Without authentication only: the leader would take this node's address for that of the client, whose rules may
name addresses. A connection by TLS goes to the leader by TLS, or on loopback.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trovemq_daemon.addresses import Address
from trovemq_proto.tls import ClientTls
from trovemq_rpc.server.guest import Host

UNSENT_MAX: Final = 1 << 20
"""Bytes that a client has not taken; then the leader's are not read."""
CONNECT_S: Final = 5.0
RELAYS_MAX: Final = 1_000
"""Connections of clients that are relayed at a time."""


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
    by TLS, None where it is not. `here`: the addresses of this node."""

    def __init__(
        self,
        leader: Callable[[], Address | None],
        here: Callable[[], Collection[Address]] = tuple,
        by_tls: Callable[[Address], RelayedTo | None] = lambda _leader: None,
    ) -> None:
        self._leader = leader
        self._here = here
        self._by_tls = by_tls
        self.open = 0
        self.refused = 0
        """Connections that were refused, since the start of this role."""

    def accept(self, host: Host) -> RelayedConnection:
        self.open += 1
        leader = self._leader()
        if leader is None:
            return self._refused(host, "no leader is known")
        to = RelayedTo.plain(leader)
        if host.is_secure and not leader.is_loopback:
            if (way := self._by_tls(leader)) is None:
                return self._refused(
                    host,
                    "it came by TLS, and the leader is not reached so: tls_listen there, nameserver_tls here",
                )
            to = way
        if {to.leader, to.address} & set(self._here()):
            return self._refused(host, f"the leader's address {leader} is this node's")
        if self.open > RELAYS_MAX:
            return self._refused(host, f"{RELAYS_MAX} connections are relayed already")
        return RelayedConnection(host, to, self._moved_from, self._ended)

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
    ) -> None:
        self._host = host
        self._leader = leader
        self._moved_from = moved_from
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._early = bytearray()
        self._is_lost = False
        self._connecting = asyncio.get_running_loop().create_task(self._connect(leader), name="relay")

    async def _connect(self, leader: RelayedTo | str) -> None:
        if isinstance(leader, str):
            self._refuse(leader)
            return
        loop, at, context = asyncio.get_running_loop(), leader.address, leader.context
        name = None if context is None else at.host
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(
                    lambda: self, at.host, at.port, ssl=context, server_hostname=name
                )
        except ssl.SSLError as error:
            self._refuse(f"the leader at {at} is not reached by TLS: {error.reason}")
        except (OSError, TimeoutError):
            self._refuse(f"the leader at {at} does not listen")

    def _refuse(self, reason: str) -> None:
        if not self._is_lost:
            self._host.refuse(reason)

    # --- of the client --------------------------------------------------------------------------------------
    def receive(self, data: memoryview) -> None:
        if self._transport is not None:
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
        if self._early:
            made.write(bytes(self._early))
            self._early.clear()
            self._host.resume()

    def data_received(self, data: bytes) -> None:
        if self._is_lost:
            return
        self._host.send((data,))
        if self._transport is not None and self._host.unsent_size > UNSENT_MAX:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._host.pause()

    def resume_writing(self) -> None:
        if not self._is_lost:
            self._host.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_lost:
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
