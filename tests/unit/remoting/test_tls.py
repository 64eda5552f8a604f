"""Remoting by TLS: its clients offer no protocol by ALPN, on the port where those of gRPC do."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import grpc

from tests.support.broker_here import broker_here
from tests.support.certificates import Certificates
from tests.support.remoting_client import remoting_client
from tests.support.stubs import ADMIN, stub_of
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


def test_a_client_without_alpn_is_refused_where_remoting_is_not_served(tmp_path: Path) -> None:
    async def main() -> None:
        certificates = Certificates.made(tmp_path / "certificates")
        context = ssl.create_default_context(cafile=str(certificates.ca))
        async with broker_here(tmp_path, **settings_of(certificates)) as broker:
            address = str((await broker.app.serving).tls)
            async with remoting_client(address, tls=context) as client:
                client.begin_send("orders", b"one")
                await client.closed()

    asyncio.run(main())
