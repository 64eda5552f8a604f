"""Remoting by TLS: its clients offer no protocol by ALPN, on the port where those of gRPC do."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.broker_here import broker_here, small_settings
from tests.support.certificates import Certificates
from tests.support.remoting_client import remoting_client
from tests.support.stubs import ADMIN, stub_of
from trovemq.testing import free_port
from trovemq_broker.daemon.app import BrokerApp
from trovemq_daemon.addresses import parse_address
from trovemq_daemon.lifecycle import Stop
from trovemq_daemon.tls_settings import TlsMode, TlsSettings
from trovemq_proto.remoting.codes import ResponseCode
from trovemq_proto.v1 import admin_pb2


def settings_of(certificates: Certificates, **more: Any) -> dict[str, Any]:
    return {
        "tls_listen": "127.0.0.1:0",
        "tls_certificate": str(certificates.pem("server")),
        "tls_key": str(certificates.key("server")),
        **more,
    }


def test_a_client_without_alpn_sends_and_pulls_where_grpc_is_served(tmp_path: Path) -> None:
    """Also more than a TLS record, and more frames than one iteration handles."""

    async def main() -> None:
        certificates = Certificates.made(tmp_path / "certificates")
        context = ssl.create_default_context(cafile=str(certificates.ca))
        bodies = [b"%d" % number + bytes(200) for number in range(600)] + [b"x" * 16_000] * 20
        async with broker_here(tmp_path, remoting_enable=True, **settings_of(certificates)) as broker:
            await broker.create_topic("orders", 4)
            address = str((await broker.app.serving).tls)
            async with remoting_client(address, tls=context) as client:
                waiting = [client.begin_send("orders", body) for body in bodies]
                answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
                assert {one.code for one in answers} == {ResponseCode.SUCCESS}
                assert [int(one.fields["queueOffset"]) for one in answers] == list(range(len(bodies)))
                found: list[bytes] = []
                while len(found) < len(bodies):
                    found += (await client.pull("orders", len(found))).bodies
                assert found == bodies
            credentials = grpc.ssl_channel_credentials(certificates.ca.read_bytes())
            async with grpc.aio.secure_channel(address, credentials) as channel:
                admin: Any = stub_of(ADMIN, channel)
                assert (await admin.GetStatistics(admin_pb2.GetStatisticsRequest())).counters

    asyncio.run(main())


def test_a_client_without_alpn_is_refused_where_remoting_is_not_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        certificates = Certificates.made(tmp_path / "certificates")
        context = ssl.create_default_context(cafile=str(certificates.ca))
        async with broker_here(tmp_path, **settings_of(certificates)) as broker:
            address = str((await broker.app.serving).tls)
            async with remoting_client(address, tls=context) as client:
                client.begin_send("orders", b"one")
                await client.closed()

    asyncio.run(main())
    assert "remoting_enable = true" in caplog.text


@pytest.mark.parametrize("mode", ["auto", "permissive", "enforcing"])
def test_one_port_serves_tls_grpc_and_remoting_by_the_first_byte(tmp_path: Path, mode: str) -> None:
    """On loopback `auto` takes plain connections, too."""

    async def main() -> None:
        certificates = Certificates.made(tmp_path / "certificates")
        context = ssl.create_default_context(cafile=str(certificates.ca))
        address = f"127.0.0.1:{free_port()}"
        settings = settings_of(certificates, listen=address, tls_listen=address, tls_mode=mode)
        app = BrokerApp(small_settings(tmp_path / "store", remoting_enable=True, **settings))
        stop = Stop()
        running = asyncio.create_task(app.run(stop))
        await app.serving
        try:
            credentials = grpc.ssl_channel_credentials(certificates.ca.read_bytes())
            async with grpc.aio.secure_channel(address, credentials) as channel:
                admin: Any = stub_of(ADMIN, channel)
                await admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders", queue_count=1))
            async with remoting_client(address, tls=context) as client:
                bodies = [bytes([number]) * 5_000 for number in range(40)]
                for body in bodies:
                    assert (await client.send("orders", body)).code == ResponseCode.SUCCESS
                assert (await client.pull("orders", 0)).bodies == bodies[:32]
            if mode == "enforcing":
                await _refused(address)
            else:
                await _served(address)
        finally:
            stop.request("the test is over")
            await running

    asyncio.run(main())


async def _served(address: str) -> None:
    async with remoting_client(address) as plain, grpc.aio.insecure_channel(address) as channel:
        assert (await plain.pull("orders", 0)).code == ResponseCode.SUCCESS
        admin: Any = stub_of(ADMIN, channel)
        assert (await admin.GetStatistics(admin_pb2.GetStatisticsRequest())).counters


async def _refused(address: str) -> None:
    for first in (b"\0\0\0\x20", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\xff"):
        async with remoting_client(address) as plain:
            plain.writer.write(first)
            with suppress(ConnectionError):
                await plain.closed()


@pytest.mark.parametrize(
    ("listen", "mode", "is_only"),
    [
        ("127.0.0.1:8081", "auto", False),
        ("10.0.0.1:8081", "auto", True),
        ("10.0.0.1:8081", "permissive", False),
        ("127.0.0.1:8081", "enforcing", True),
    ],
)
def test_a_port_for_both_elsewhere_than_on_loopback_takes_tls_alone(
    listen: str, mode: TlsMode, is_only: bool
) -> None:
    settings = TlsSettings(tls_listen=listen, tls_mode=mode)
    address = parse_address(listen)
    assert (settings.shares_port(address), settings.is_tls_only(address)) == (True, is_only)
