"""Peers that speak something else, are not trusted or break a limit. Each gets a clear end, the log has one
line for all of them, and no other client notices.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

import trovemq_rpc as rpc
from tests.unit.rpc.memory_rpc import ADDRESS, TARGET, run, serving
from tests.unit.rpc.rpc_ends import Authority, authority
from tests.unit.rpc.test_hostile_peers import CALL, OPENING, Raw
from trovemq_rpc.http2 import frames
from trovemq_rpc.options import REFUSAL_LOG_INTERVAL_S
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.tls import Tls

END_S = 5
NAMED = [("grpc.ssl_target_name_override", "service")]
HEADERS = frames.frame_header(len(CALL), 1, 4, 1) + CALL
ANNOUNCED = (
    HEADERS + frames.frame_header(1_005, 0, 0, 1) + b"\0" + (130 << 20).to_bytes(4, "big") + bytes(1_000)
)
LARGE = [("grpc.max_receive_message_length", 140 << 20)]

OTHERS: dict[str, tuple[bytes, bytes]] = {
    "HTTP/1.1": (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"HTTP/1.1 505 "),
    "TLS on the plain port": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32), b""),
    "garbage": (b"garbage " * 10, b"preface"),
    "a flood": (OPENING + frames.ping(bytes(8)) * 1_000, b"too many PING frames"),
    "a frame that is too large": (
        OPENING + frames.frame_header(1 << 20, 0, 0, 1),
        b"a frame of 1048576 bytes",
    ),
}
"""The peer's bytes, and a part of the answer."""


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


async def lost(loop: MemoryLoop, peer: Raw) -> bool:
    began = loop.time()
    while not peer.lost and loop.time() - began < END_S:
        await asyncio.sleep(0.1)
    return peer.lost


def beside_an_open_stream(
    program: Callable[[MemoryLoop, Any], Awaitable[None]], credentials: Any = None, trust: Any = None
) -> None:
    """Runs the program while another client has a stream open, which must work to its end."""

    async def whole(loop: MemoryLoop) -> None:
        async with serving(loop, LARGE, credentials) as server:
            secure = trust and rpc.secure_channel(TARGET, trust, options=NAMED)
            async with secure or rpc.insecure_channel(TARGET) as channel:
                stream = channel.stream_stream("/t.T/Talk")()
                await stream.write(b"before")
                assert bytes(await stream.read()) == b"before"
                await program(loop, server)
                await stream.write(b"after")
                assert bytes(await stream.read()) == b"after"
                await stream.done_writing()
                assert await stream.read() is rpc.EOF
                assert server.metrics.connections_opened >= 2

    run(whole)


def test_garbage_and_floods_left_no_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def program(loop: MemoryLoop, _server: Any) -> None:
        for sent, answer in OTHERS.values():
            transport, peer = await loop.create_connection(Raw, *ADDRESS)
            transport.write(sent)
            assert await lost(loop, peer)
            assert answer in peer.came

    beside_an_open_stream(program)
    (line,) = lines(caplog)
    assert "127.0.0.1" in line


def test_a_line_comes_again_later_with_the_number_of_refusals(caplog: pytest.LogCaptureFixture) -> None:
    async def program(loop: MemoryLoop, server: Any) -> None:
        for _ in range(2):
            for _ in range(5):
                transport, peer = await loop.create_connection(Raw, *ADDRESS)
                transport.write(OTHERS["garbage"][0])
                assert await lost(loop, peer)
            server.endpoint_options._last_refusal -= REFUSAL_LOG_INTERVAL_S

    beside_an_open_stream(program)
    first, second = lines(caplog)
    assert first.endswith(": 1)")
    assert second.endswith(": 5)")


def test_a_message_that_is_announced_and_stops_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def program(loop: MemoryLoop, server: Any) -> None:
        transport, peer = await loop.create_connection(Raw, *ADDRESS)
        transport.write(OPENING + ANNOUNCED)
        await asyncio.sleep(END_S + 1)
        assert frames.rst_stream(1, 11) in peer.came
        assert server.metrics.calls_stalled == 1
        transport.close()

    beside_an_open_stream(program)
    (line,) = lines(caplog)
    assert "a call was ended: its message did not grow" in line


# --- TLS ------------------------------------------------------------------------------------------------
class TlsPeer(Raw):
    """A TLS client that does nothing after its handshake."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self.tls = Tls(context, False)
        self.end = ""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.step()

    def data_received(self, data: bytes) -> None:
        self.tls.feed(memoryview(data))
        self.step()

    def step(self) -> None:
        try:
            if (self.tls.established or self.tls.handshake()) and self.tls.has_input:
                self.end = "closed" if self.tls.read_into(memoryview(bytearray(1_000))) < 0 else ""
        except ssl.SSLError as error:
            self.end = error.reason or ""
        self.transport.write(self.tls.take_output())


def client_context(authority_of_it: Authority | None, protocol: str = "h2") -> ssl.SSLContext:
    identity = authority_of_it.issue("client") if authority_of_it is not None else (None, None)
    context = rpc.ssl_channel_credentials(authority().root, *identity).context
    context.set_alpn_protocols([protocol])
    return context


WRONG: dict[str, tuple[Callable[[], ssl.SSLContext], str]] = {
    "no certificate": (lambda: client_context(None), "TLSV13_ALERT_CERTIFICATE_REQUIRED"),
    "a certificate that another authority signed": (
        lambda: client_context(Authority()),
        "TLSV1_ALERT_DECRYPT_ERROR",
    ),
    "ALPN without h2": (lambda: client_context(authority(), "http/1.1"), "closed"),
}
"""A client of a server with mutual TLS, and how its connection ends."""


def test_each_client_that_is_not_trusted_gets_its_end(caplog: pytest.LogCaptureFixture) -> None:
    async def program(loop: MemoryLoop, server: Any) -> None:
        for make, end in WRONG.values():
            _, peer = await loop.create_connection(partial(TlsPeer, make()), *ADDRESS)
            assert await lost(loop, peer)
            assert peer.end == end
        transport, plain = await loop.create_connection(Raw, *ADDRESS)
        transport.write(OPENING)
        assert await lost(loop, plain)
        assert server.metrics.refused_connections == len(WRONG) + 1

    credentials = rpc.ssl_server_credentials(
        [authority().issue("service")], authority().root, require_client_auth=True
    )
    trust = rpc.ssl_channel_credentials(authority().root, *authority().issue("client"))
    beside_an_open_stream(program, credentials, trust)
    assert len(lines(caplog)) == 1
