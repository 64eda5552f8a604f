"""Remoting connections at a node that does not lead its replica group: their bytes go to the leader's port.

A client of RocketMQ 4 that was given this address so has the routes, sends, pulls, heartbeats and locks
of the leader. A connection is the leader's from its first byte to its end: when the node changes its role,
the leader is lost, or another one leads, it ends, and clients open another one.

Two nodes that each take the other one for the leader would pass a connection to and fro: RELAYS_MAX ends
that. So would a node at whose address the leader is said to be: it refuses.

Without authentication only: the leader would take this node's address for that of the client, whose rules may
name addresses. A connection by TLS is not relayed, because that to the leader has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, cast

from trovemq_daemon.addresses import Address
from trovemq_rpc.server.guest import Host

UNSENT_MAX: Final = 1 << 20
"""Bytes that a client has not taken; then the leader's are not read."""
CONNECT_S: Final = 5.0
RELAYS_MAX: Final = 1_000
"""Connections of clients that are relayed at a time."""


class RemotingRelay:
    """`leader`: the address of the node that leads, None where it is not known. `here`: the addresses of this
    node."""

    def __init__(
        self, leader: Callable[[], Address | None], here: Callable[[], Collection[Address]] = tuple
    ) -> None:
        self._leader = leader
        self._here = here
        self.open = 0

    def accept(self, host: Host) -> RelayedConnection:
        self.open += 1
        leader = self._leader()
        if host.is_secure or leader is None:
            return self._refused(host, "no leader is known, or the connection is by TLS")
        if leader in self._here():
            return self._refused(host, f"the leader's address {leader} is this node's")
        if self.open > RELAYS_MAX:
            return self._refused(host, f"{RELAYS_MAX} connections are relayed already")
        return RelayedConnection(host, leader, self._moved_from, self._ended)

    def _refused(self, host: Host, reason: str) -> RelayedConnection:
        return RelayedConnection(host, reason, self._moved_from, self._ended)

    def _moved_from(self, leader: Address) -> bool:
        """Whether another one is known to lead. While none is known, that one may lead still."""
        return self._leader() not in (None, leader)

    def _ended(self) -> None:
        self.open -= 1


class RelayedConnection(asyncio.Protocol):
    """The guest of the client's connection, and the protocol of that to the leader. `leader`: its address, or
    why the connection is refused. `moved_from`: whether another node leads instead. `ended`: is called at the
    end, once."""

    def __init__(
        self,
        host: Host,
        leader: Address | str,
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

    async def _connect(self, leader: Address | str) -> None:
        if isinstance(leader, str):
            self._refuse(leader)
            return
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(lambda: self, leader.host, leader.port)
        except (OSError, TimeoutError):
            self._refuse(f"the leader at {leader} does not listen")

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
        if not isinstance(self._leader, str) and self._moved_from(self._leader):
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
