"""Idle connections: the server's memory, and its processor for keepalive."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import cast

from bench.measure import allow_open_files, resident_bytes, scheduled_seconds
from bench.report import Report
from bench.rpc.processes import Certificate, Server, serving
from bench.rpc.server import KEEPALIVE_S

CONNECTIONS = 10_000
CONNECTIONS_TLS = 500
CONNECTIONS_WARM = 20
"""Opened before the memory is read the first time: modules and pools that the first ones load are not
counted."""
AT_ONCE = 100
FILES_BESIDE = 200
SETTLE_S = 2.0
WATCH_ROUNDS = 2

# Frame header (RFC 9113 section 4.1): length (3 bytes), type, flags, stream id (4 bytes).
HEADER_SIZE = 9
SETTINGS, PING, ACK = 4, 6, 1
OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, SETTINGS, 0, 0, 0, 0, 0))
SETTINGS_ACK = bytes((0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0))


@dataclass(slots=True)
class Pings:
    """How many PINGs the clients answered."""

    answered: int = 0


class IdleClient(asyncio.Protocol):
    """An HTTP/2 client that calls nothing and acknowledges SETTINGS and PING."""

    def __init__(self, pings: Pings) -> None:
        self._pings = pings
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(OPENING)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        while len(data) >= HEADER_SIZE:
            size = HEADER_SIZE + int.from_bytes(data[:3], "big")
            if len(data) < size:
                break
            self._frame(data[:size])
            data = data[size:]
        self._rest = data

    def _frame(self, frame: bytes) -> None:
        kind, flags = frame[3], frame[4]
        if flags & ACK:
            return
        if kind == SETTINGS:
            self._transport.write(SETTINGS_ACK)
        elif kind == PING:
            self._pings.answered += 1
            self._transport.write(frame[:4] + bytes((ACK,)) + frame[5:])


class IdleClients:
    """Clients of one server that stay connected."""

    def __init__(self, server: Server) -> None:
        self.pings = Pings()
        self._server = server
        self._open: list[asyncio.BaseTransport] = []
        self._tls: ssl.SSLContext | None = None
        if server.certificate is not None:
            self._tls = ssl.create_default_context(cafile=server.certificate.chain)
            self._tls.set_alpn_protocols(["h2"])

    async def connect(self, count: int) -> None:
        for begin in range(0, count, AT_ONCE):
            batch = range(begin, min(begin + AT_ONCE, count))
            self._open += await asyncio.gather(*(self._connect() for _ in batch))
        await asyncio.sleep(SETTLE_S)

    async def _connect(self) -> asyncio.BaseTransport:
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: IdleClient(self.pings), "127.0.0.1", self._server.port, ssl=self._tls
        )
        return transport

    async def close(self) -> None:
        """Every connection has to be open still: a server that closed some would look cheap."""
        closed = sum(transport.is_closing() for transport in self._open)
        assert not closed, f"the server closed {closed} of {len(self._open)} connections"
        for transport in self._open:
            cast("asyncio.Transport", transport).abort()
        await asyncio.sleep(0)


async def measure_idle(report: Report, certificate: Certificate, *, quick: bool) -> None:
    if not allow_open_files(CONNECTIONS + FILES_BESIDE):
        report.notes.append(f"idle connections were not measured: they need {CONNECTIONS:,} open files")
        return
    with serving("native") as server:
        clients = IdleClients(server)
        each_kib = await _memory_kib(clients, server, CONNECTIONS)
        report.add("idle connection: the server's memory", each_kib, "KiB", at_most=20)
        whole = resident_bytes(server.pid) / (1 << 20)
        title = f"{CONNECTIONS:,} idle connections"
        report.add(f"{title}: the server's whole memory", whole, "MiB", at_most=200)
        share, pings = await _watch(clients, server, 1 if quick else WATCH_ROUNDS)
        report.add(f"{title}, a PING each {KEEPALIVE_S} s: of a processor", share, "%", at_most=5)
        report.add(f"{title}: PINGs answered", pings, "/s")
        await clients.close()
    with serving("native", certificate) as server:
        clients = IdleClients(server)
        each_kib = await _memory_kib(clients, server, CONNECTIONS_TLS)
        report.add("idle TLS connection: the server's memory", each_kib, "KiB", at_most=45)
        await clients.close()


async def _memory_kib(clients: IdleClients, server: Server, count: int) -> float:
    """How much each connection adds to the server's resident memory."""
    await clients.connect(CONNECTIONS_WARM)
    before = resident_bytes(server.pid)
    await clients.connect(count - CONNECTIONS_WARM)
    return (resident_bytes(server.pid) - before) / (count - CONNECTIONS_WARM) / 1024


async def _watch(clients: IdleClients, server: Server, rounds: int) -> tuple[float, float]:
    """Per cent of a processor that the server takes, and the PINGs a second that it sends."""
    cpu, answered, begun = scheduled_seconds(server.pid), clients.pings.answered, time.perf_counter()
    await asyncio.sleep(rounds * KEEPALIVE_S)
    seconds = time.perf_counter() - begun
    cpu_s = scheduled_seconds(server.pid) - cpu
    return cpu_s / seconds * 100, (clients.pings.answered - answered) / seconds
