"""Remoting connections that a follower passes to its leader, which echoes here."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Certificates
from trovemq_broker.cluster.remoting_relay import (
    RELAYS_MAX,
    UNSENT_MAX,
    RelayedConnection,
    RelayedTo,
    RelaysCollector,
    RemotingRelay,
    relay_context,
)
from trovemq_daemon.addresses import Address
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.codes import ResponseCode
from trovemq_proto.remoting.frame import encode_frame
from trovemq_proto.remoting.headers import IS_RESPONSE, Header
from trovemq_proto.tls import ClientTls

pytestmark = pytest.mark.asyncio

AWAY = Address("10.0.0.1", 8_081)


class Host:
    """It is the endpoint's side of a client's connection."""

    budget: Any = None
    size = 0

    def __init__(self, *, is_secure: bool = False) -> None:
        self.is_secure = is_secure
        self.unsent_size = 0
        self.sent = bytearray()
        self.reasons: list[str] = []
        self.calls: list[str] = []
        self.changed = asyncio.Event()

    def peer(self) -> str:
        return "ipv4:10.9.9.9:5000"

    def send(self, pieces: Any) -> None:
        self.sent += b"".join(pieces)
        self.changed.set()

    def refuse(self, reason: str) -> None:
        self.reasons.append(reason)
        self.changed.set()

    def close(self) -> None:
        self.calls.append("close")
        self.changed.set()

    def abort(self) -> None:
        self.calls.append("abort")

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


@asynccontextmanager
async def leader(
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[Address, list[asyncio.StreamWriter]]]:
    """It sends back the bytes that come."""
    writers: list[asyncio.StreamWriter] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    async with server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1]), writers


def relayed(host: Host, address: Address | None) -> RelayedConnection:
    return RemotingRelay(lambda: address).accept(as_host(host))


def as_host(host: Host) -> Any:
    return host


async def until_sent(host: Host, size: int) -> bytes:
    async with asyncio.timeout(60):
        while len(host.sent) < size:
            host.changed.clear()
            await host.changed.wait()
    return bytes(host.sent)


async def test_bytes_go_both_ways_also_those_before_the_connection() -> None:
    async with leader() as (address, writers):
        host = Host()
        connection = relayed(host, address)
        connection.receive(memoryview(b"early "))
        assert await until_sent(host, 6) == b"early "
        assert host.calls == ["pause", "resume"]
        connection.receive(memoryview(b"later"))
        assert await until_sent(host, 11) == b"early later"
        writers[0].close()
        async with asyncio.timeout(60):
            while "close" not in host.calls:
                host.changed.clear()
                await host.changed.wait()
        connection.lost()


def answer(code: int, remark: str = "") -> bytes:
    return encode_frame(Header(code, 1, IS_RESPONSE, remark=remark))


async def announce(peer: str, is_secure: bool) -> bytes:
    return f"{peer} {is_secure} ".encode()


@pytest.mark.parametrize(
    ("answered", "reason"),
    [
        (answer(ResponseCode.NO_PERMISSION, "mallory may not"), "does not take it: mallory may not"),
        (answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), "does not take it: code 3"),
        (b"HTTP/1.1 400 Bad Request", "does not take it: "),
        (b"", "does not take it: it closed the connection"),
    ],
)
async def test_no_byte_of_a_client_goes_to_a_leader_that_refuses_the_node(
    answered: bytes, reason: str
) -> None:
    taken = bytearray()

    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.extend(await reader.read(1 << 16))
        writer.write(answered)
        if not answered:
            writer.close()
        taken.extend(await reader.read(1 << 16))
        writer.close()

    server = await asyncio.start_server(refusing, "127.0.0.1", 0)
    async with server:
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        host = Host()
        connection = RemotingRelay(lambda: address, announce=announce).accept(as_host(host))
        connection.receive(memoryview(b"of the client"))
        async with asyncio.timeout(60):
            await host.changed.wait()
        (said,) = host.reasons
        assert reason in said
        connection.lost()
        assert bytes(taken) == b"ipv4:10.9.9.9:5000 False "
        assert not host.sent


async def test_the_bytes_of_a_client_follow_the_request_of_the_node() -> None:
    whole = answer(ResponseCode.SUCCESS)

    async def taking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(25) == b"ipv4:10.9.9.9:5000 False "
        writer.write(whole[:5])
        await writer.drain()
        writer.write(whole[5:])
        writer.write(await reader.readexactly(6))
        writer.write(await reader.readexactly(5))
        writer.close()

    server = await asyncio.start_server(taking, "127.0.0.1", 0)
    async with server:
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        host = Host()
        connection = RemotingRelay(lambda: address, announce=announce).accept(as_host(host))
        connection.receive(memoryview(b"early "))
        assert await until_sent(host, 6) == b"early "
        connection.receive(memoryview(b"later"))
        assert await until_sent(host, 11) == b"early later"
        assert not host.reasons
        connection.lost()


async def test_signatures_leave_the_machine_by_tls_only() -> None:
    host = Host()
    connection = RemotingRelay(lambda: AWAY, announce=announce).accept(as_host(host))
    async with asyncio.timeout(60):
        await host.changed.wait()
    (reason,) = host.reasons
    assert "it has signatures, and the leader is not reached by TLS" in reason
    connection.lost()


async def test_a_node_without_a_user_of_its_own_says_so() -> None:
    async def no_user(_peer: str, _is_secure: bool) -> bytes:
        raise TroveError(errors.AUTHENTICATION_FAILED, "set config_credentials_file")

    async with leader() as (address, writers):
        host = Host()
        connection = RemotingRelay(lambda: address, announce=no_user).accept(as_host(host))
        async with asyncio.timeout(60):
            await host.changed.wait()
        assert (host.reasons, writers) == (["set config_credentials_file"], [])
        connection.lost()


@pytest.mark.parametrize("address", [None, AWAY])
async def test_without_a_leader_or_a_way_by_tls_the_connection_is_refused(address: Address | None) -> None:
    host = Host(is_secure=address is not None)
    relay = RemotingRelay(lambda: address)
    connection = relay.accept(as_host(host))
    async with asyncio.timeout(60):
        await host.changed.wait()
    assert (len(host.reasons), relay.refused) == (1, 1)
    figures = {
        sample.name: sample.value for metric in RelaysCollector(relay).collect() for sample in metric.samples
    }
    assert figures == {"trovemq_relays_open": 1, "trovemq_relays_refused_total": 1}
    connection.lost()


async def test_a_connection_by_tls_was_refused(tmp_path: Path) -> None:
    """The leader is on another machine, or so its address for clients without TLS says."""
    made = Certificates.made(tmp_path)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(made.pem("server"), made.key("server"))
    others = Certificates.made(tmp_path / "others")
    async with leader(serving) as (address, _):
        for ca, is_trusted in ((made.ca, True), (others.ca, False)):
            context = relay_context(ClientTls(ca=ca.read_bytes()))
            to = RelayedTo(AWAY, address, context)
            relay = RemotingRelay(lambda: AWAY, by_tls={AWAY: to}.get)
            host = Host(is_secure=True)
            connection = relay.accept(as_host(host))
            connection.receive(memoryview(b"by TLS"))
            async with asyncio.timeout(60):
                await host.changed.wait()
            assert bool(host.reasons) is not is_trusted, host.reasons
            if is_trusted:
                assert await until_sent(host, 6) == b"by TLS"
            connection.lost()


async def test_two_nodes_passed_a_connection_to_and_fro_without_end() -> None:
    """Each took the other one for the leader, or itself."""
    async with leader() as (address, writers):
        relay = RemotingRelay(lambda: address, lambda: (address,))
        host, made = Host(), Host()
        relay.accept(as_host(host))
        async with asyncio.timeout(60):
            await host.changed.wait()
        assert (host.reasons, writers) == ([f"the leader's address {address} is this node's"], [])
        relay = RemotingRelay(lambda: address)
        relay.open = RELAYS_MAX - 1
        last = relay.accept(as_host(made))
        host = Host()
        refused = relay.accept(as_host(host))
        async with asyncio.timeout(60):
            await host.changed.wait()
        assert (host.reasons, made.reasons) == ([f"{RELAYS_MAX} connections are relayed already"], [])
        last.lost()
        refused.lost()
        assert relay.open == RELAYS_MAX - 1, "as before"


async def test_a_connection_stayed_at_a_leader_whose_machine_is_gone() -> None:
    async with leader() as (address, _):
        known: list[Address | None] = [address]
        host = Host()
        connection = RemotingRelay(lambda: known[0]).accept(as_host(host))
        connection.receive(memoryview(b"x"))
        await until_sent(host, 1)
        for one in (address, None):
            known[0] = one
            connection.tick(1.0)
            assert "close" not in host.calls
        known[0] = Address("127.0.0.1", 1)
        connection.tick(2.0)
        assert "close" in host.calls, "nothing came from the leader"
        connection.lost()


async def test_a_client_that_takes_nothing_stops_the_leader() -> None:
    async with leader() as (address, _):
        host = Host()
        connection = relayed(host, address)
        connection.receive(memoryview(b"x"))
        await until_sent(host, 1)
        host.unsent_size = UNSENT_MAX + 1
        connection.receive(memoryview(b"y"))
        await until_sent(host, 2)
        transport = connection._transport
        assert transport is not None
        assert not transport.is_reading()
        connection.writable(True)
        assert transport.is_reading()
        connection.lost()
