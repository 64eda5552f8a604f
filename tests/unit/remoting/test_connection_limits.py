"""Limits of the port that remoting shares: connections, and the time before a connection's first request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, TypeVar

import pytest

from tests.support.broker_here import broker_here
from tests.support.certificates import Certificates
from tests.support.remoting_client import RemotingClient, remoting_client
from tests.unit.remoting.test_tls import settings_of
from trovemq_daemon.limits import ConnectionLimit
from trovemq_proto.remoting.codes import ResponseCode
from trovemq_proto.remoting.frame import encode_frame
from trovemq_proto.remoting.headers import Header

CONNECTIONS: Final = 1_000
ABOVE: Final = 20
AT_ONCE: Final = 50
UNSUPPORTED: Final = 999
TIME_MAX_S: Final = 120.0
Found = TypeVar("Found")


async def in_time(work: Awaitable[Found]) -> Found:
    return await asyncio.wait_for(work, TIME_MAX_S)


async def is_served(client: RemotingClient) -> bool:
    answer = await in_time(client.begin(UNSUPPORTED))
    return answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def answer_to(address: str, first: bytes) -> bytes:
    """The first byte that a connection gets after it has sent these; none: it is closed."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(first)
        return await in_time(reader.read(1))
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_connections_above_the_limit_are_closed_and_the_others_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with broker_here(tmp_path, remoting_enable=True) as broker, AsyncExitStack() as opened:
            await broker.create_topic("orders", 1)  # gRPC's client has a connection, too
            clients: list[RemotingClient] = []
            while len(clients) < CONNECTIONS:
                some = [opened.enter_async_context(remoting_client(broker.address)) for _ in range(AT_ONCE)]
                clients += await asyncio.gather(*some)
                assert all(await asyncio.gather(*(is_served(one) for one in clients[-AT_ONCE:])))
            monkeypatch.setattr(ConnectionLimit, "limit", property(lambda _limit: CONNECTIONS + 1))
            for _ in range(ABOVE):
                assert await answer_to(broker.address, b"\0\0\0\x20") == b""
            assert all(await asyncio.gather(*(is_served(one) for one in clients)))
            await clients[0].close()
            while not await answer_to(broker.address, encode_frame(Header(UNSUPPORTED))):
                await asyncio.sleep(0)  # the broker is to read that the other one is closed

    asyncio.run(main())


@pytest.mark.parametrize("by_tls", [False, True])
def test_a_connection_without_a_first_request_is_closed(tmp_path: Path, by_tls: bool) -> None:
    """Also one that begins a handshake and sends no more of it. Clients that are served stay."""

    async def main() -> None:
        settings = settings_of(Certificates.made(tmp_path / "certificates"))
        settings["grpc_handshake_timeout_ms"] = 100
        async with broker_here(tmp_path, remoting_enable=True, **settings) as broker:
            address = str((await broker.app.serving).tls) if by_tls else broker.address
            async with remoting_client(broker.address) as client:
                assert await is_served(client)
                begins = (b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03") if by_tls else (b"",)
                for first in begins:
                    assert await answer_to(address, first) == b""
                assert await is_served(client)

    asyncio.run(main())
