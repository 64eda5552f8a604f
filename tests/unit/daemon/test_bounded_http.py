"""Bounds of the HTTP servers of daemons and console: time for a head, space for a probe, records of TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from tests.support import fake_loop
from tests.support.certificates import Certificates
from tests.support.fake_loop import fake_time
from tests.support.hostile_tls import HostileTls
from trovemq_daemon.addresses import Address
from trovemq_daemon.metrics import new_registry
from trovemq_daemon.ops_http import OpsHttp, Readiness
from trovemq_proto.bounded_http import (
    CONNECTIONS_MAX,
    HEAD_TIME_MAX_S,
    REQUEST_TIME_MAX_S,
    BoundedHttp,
    HttpsCertificate,
    config_of,
)
from trovemq_rpc.tls import SILENT_RECORDS_MAX

WHOLE = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
WITHOUT_BODY = b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 5\r\n\r\n"


class Wire:
    """The transport of one connection."""

    def __init__(self) -> None:
        self.sent = b""
        self.ended = False
        self.protocol: Any = None

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.ended

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads the whole request and replies."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class Server:
    """Connections of one server in the running loop."""

    def __init__(self, certificate: HttpsCertificate | None = None) -> None:
        self._config = uvicorn.Config(**config_of(answer, certificate, lifespan="off"))
        self._config.load()
        self._state = ServerState()

    def connect(self) -> Wire:
        make: Any = self._config.http_protocol_class
        wire = Wire()
        wire.protocol = make(config=self._config, server_state=self._state, app_state={})
        wire.protocol.connection_made(wire)
        return wire

    @property
    def open_count(self) -> int:
        return len(self._state.connections)


async def seconds_until_it_ends(wire: Wire, dripping: bytes = b"") -> float:
    """The client sends these bytes again each second."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not wire.ended:
        if dripping:
            wire.protocol.data_received(dripping)
        await asyncio.sleep(1)
    return loop.time() - began


@fake_time
@pytest.mark.parametrize("dripping", [b"", b"x-field: 1\r\n"])
async def test_a_head_that_never_ends_is_not_waited_for(dripping: bytes) -> None:
    wire = Server().connect()
    wire.protocol.data_received(b"GET / HTTP/1.1\r\n")
    assert await seconds_until_it_ends(wire, dripping) == HEAD_TIME_MAX_S


@fake_time
async def test_a_second_head_has_as_long_as_the_first() -> None:
    wire = Server().connect()
    for _ in range(3):
        await asyncio.sleep(4)
        wire.protocol.data_received(WHOLE)
        await fake_loop.turns()
        assert wire.sent.endswith(b"ok")
    assert await seconds_until_it_ends(wire, b"x") == HEAD_TIME_MAX_S


@fake_time
async def test_a_body_that_never_comes_ends_the_connection_after_a_minute() -> None:
    wire = Server().connect()
    wire.protocol.data_received(WITHOUT_BODY)
    assert await seconds_until_it_ends(wire) == REQUEST_TIME_MAX_S
    await fake_loop.turns()


@fake_time
async def test_a_new_connection_takes_the_place_of_the_longest_idle_one() -> None:
    server = Server()
    busy = server.connect()
    busy.protocol.data_received(WITHOUT_BODY)
    idle = []
    for _ in range(CONNECTIONS_MAX - 1):
        idle.append(server.connect())
        await asyncio.sleep(0.001)
    probe = server.connect()
    probe.protocol.data_received(WHOLE)
    await fake_loop.turns()
    assert probe.sent.endswith(b"ok")
    assert [wire.ended for wire in idle] == [True] + [False] * (CONNECTIONS_MAX - 2)
    busy.protocol.data_received(b"12345")
    await fake_loop.turns()
    assert busy.sent.endswith(b"ok"), "a request under way is not ended while others wait"
    assert server.open_count == CONNECTIONS_MAX


@fake_time
async def test_where_all_have_a_request_under_way_the_oldest_of_them_ends() -> None:
    server = Server()
    wires = []
    for _ in range(2 * CONNECTIONS_MAX):
        wires.append(server.connect())
        wires[-1].protocol.data_received(WITHOUT_BODY)
        await asyncio.sleep(0.001)
    assert [wire.ended for wire in wires] == [True] * CONNECTIONS_MAX + [False] * CONNECTIONS_MAX
    assert server.open_count == CONNECTIONS_MAX


@fake_time
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_records_of_tls_without_data_end_the_connection(
    version: ssl.TLSVersion, tmp_path: Path
) -> None:
    certificates = Certificates.made(tmp_path)
    files = certificates.pem("server"), certificates.key("server")
    server = Server(HttpsCertificate(*files))
    wire, client, done = server.connect(), HostileTls(version, tmp_path / "keys", "http/1.1"), False
    while not done:
        received, wire.sent = wire.sent, b""
        sent, done = client.handshake(received)
        wire.protocol.data_received(sent)
    wire.sent = b""
    wire.protocol.data_received(client.data(WHOLE))
    await fake_loop.turns()
    assert wire.sent, "the reply, sealed"
    wire.protocol.data_received(b"".join(client.silent() for _ in range(1_000)))
    assert wire.ended
    protocol: BoundedHttp = wire.protocol
    assert protocol._tls is not None
    assert protocol._tls.silent_records == SILENT_RECORDS_MAX + 1


@asynccontextmanager
async def idle_connections(address: Address, count: int) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(count):
            _, writer = await asyncio.open_connection(address.host, address.port)
            stack.callback(writer.close)
        yield


@pytest.mark.asyncio
@pytest.mark.parametrize("by_tls", [False, True])
async def test_130_idle_connections_kept_a_probe_from_its_answer(by_tls: bool, tmp_path: Path) -> None:
    certificates = Certificates.made(tmp_path)
    files = (certificates.pem("server"), certificates.key("server")) if by_tls else None
    http = OpsHttp(new_registry("1"), Readiness())
    address = await http.start(Address("127.0.0.1", 0), files)
    scheme = "https" if by_tls else "http"
    try:
        async with (
            idle_connections(address, CONNECTIONS_MAX + 2),
            httpx.AsyncClient(base_url=f"{scheme}://{address}", trust_env=False, verify=False) as probe,
        ):
            for _ in range(2):
                assert (await probe.get("/healthz")).status_code == 200
                assert (await probe.get("/readyz")).status_code == 200
    finally:
        await http.stop()
