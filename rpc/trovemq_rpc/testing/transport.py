"""The ends of connections in memory: asyncio transports over two pipes."""

import asyncio
from collections.abc import Iterable
from itertools import count
from random import Random
from typing import Any, Final, Protocol, cast

from trovemq_rpc.testing.pipe import Faults, Pipe

__all__ = ["MemoryTransport", "join"]

WRITE_BUFFER_HIGH: Final = 64 * 1024  # asyncio's default
_ports = count(49_152)


class _NoPeer:
    """The peer of an end whose connection is gone at both ends."""

    _lost = True

    def _lose(self, error: Exception | None) -> None: ...

    def _deliver_later(self) -> None: ...


_NO_PEER: Final = _NoPeer()


class _Clock(Protocol):
    """The part of a loop that an end needs."""

    def call_soon(self, callback: Any, *args: Any) -> Any: ...

    def call_later(self, delay: float, callback: Any, *args: Any) -> Any: ...


class MemoryTransport(asyncio.Transport):
    """One end. The loop delivers its writes, piece by piece, as the faults say; `silent`: none of them any
    more, and not its end, as if a firewall had forgotten the connection.
    """

    silent = False

    def __init__(self, loop: _Clock, outgoing: Pipe, names: dict[str, Any]) -> None:
        super().__init__(names)
        self._loop = loop
        self._pipe = outgoing
        self._peer: Any  # a MemoryTransport, until both are lost
        self._protocol: asyncio.BaseProtocol | None = None
        self._closing = False
        self._lost = False
        self._reading = True
        self._delivering = False
        self._peer_ended = False
        self._high, self._low = WRITE_BUFFER_HIGH, WRITE_BUFFER_HIGH // 4
        self._paused_writer = False
        self.bytes_written = 0

    # --- writing ------------------------------------------------------------------------------------------
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._closing or self._pipe.ended:
            return
        before = self._pipe.size
        self._pipe.write(list_of_data)
        self.bytes_written += self._pipe.size - before
        if self._pipe.size > self._high and not self._paused_writer:
            self._paused_writer = True
            cast(asyncio.Protocol, self._protocol).pause_writing()
        self._deliver_later()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._pipe.ended:
            self._pipe.end()
            self._deliver_later()

    def get_write_buffer_size(self) -> int:
        return self._pipe.size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = WRITE_BUFFER_HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    # --- reading ------------------------------------------------------------------------------------------
    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._peer._deliver_later()

    # --- the end ------------------------------------------------------------------------------------------
    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Earlier writes are still delivered."""
        if not self._closing:
            self._closing = True
            self.write_eof()
            if not self._pipe.size or self.silent:  # a kernel would try on, and our end is closed
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self._closing = True
        self._loop.call_soon(self._lose, None)
        if not self.silent:
            self._loop.call_soon(self._peer._lose, ConnectionResetError("connection reset by peer"))

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def _lose(self, error: Exception | None) -> None:
        self._closing = True
        if not self._lost:
            self._lost = True
            protocol, self._protocol = self._protocol, None
            if protocol is not None:
                protocol.connection_lost(error)
            if self._peer._lost:
                self._peer._peer = self._peer = _NO_PEER  # else the two are a cycle for the garbage collector

    @property
    def lost(self) -> bool:
        return self._lost

    # --- delivery -----------------------------------------------------------------------------------------
    def start(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def _deliver_later(self) -> None:
        if not self._delivering and (self._pipe.size or self._pipe.ended):
            self._delivering = True
            self._loop.call_later(self._pipe.faults.delay_s(self._pipe.random), self._deliver)

    def _deliver(self) -> None:
        """One piece for the peer, or the end."""
        self._delivering = False
        if self.silent:
            return
        peer = self._peer
        if self._lost and not self._pipe.size and self._peer_ended:
            return
        if peer._lost:
            if not self._lost:
                self._lose(ConnectionResetError("connection reset by peer"))
            return
        if self._pipe.faults.loses(self._pipe.random):
            self._lose(ConnectionResetError("connection lost"))
            peer._lose(ConnectionResetError("connection lost"))
            return
        if not peer._reading:
            return  # resume_reading delivers
        if self._pipe.size:
            self._pipe.put_back(peer._receive(self._pipe.take()))
            if self._paused_writer and self._pipe.size <= self._low and self._protocol is not None:
                self._paused_writer = False
                cast(asyncio.Protocol, self._protocol).resume_writing()
            self._deliver_later()
        elif self._pipe.ended and not self._peer_ended:
            self._peer_ended = True
            peer._receive_end()
        if self._closing and not self._pipe.size:
            self._lose(None)

    def _receive(self, data: bytes) -> memoryview:
        """Returns the bytes that the protocol does not read now."""
        rest = memoryview(data)
        if self._closing:
            return rest[:0]
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            cast(asyncio.Protocol, protocol).data_received(data)
            return rest[:0]
        while rest and self.is_reading():
            buffer = memoryview(cast(bytearray, protocol.get_buffer(len(rest)))).cast("B")
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            del buffer
            protocol.buffer_updated(size)
            rest = rest[size:]
        return rest[:0] if self._reading else rest

    def _receive_end(self) -> None:
        if not self._closing and not cast(asyncio.Protocol, self._protocol).eof_received():
            self.close()


def join(
    loop: _Clock, random: Random, faults: Faults, server_address: tuple[str, int]
) -> tuple[MemoryTransport, MemoryTransport]:
    """Make a connection; returns the client's end and the server's."""
    client_address = (server_address[0], next(_ports))
    client = MemoryTransport(
        loop, Pipe(random, faults), {"peername": server_address, "sockname": client_address}
    )
    server = MemoryTransport(
        loop, Pipe(random, faults), {"peername": client_address, "sockname": server_address}
    )
    client._peer, server._peer = server, client
    return client, server
