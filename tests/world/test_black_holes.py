"""A real broker and a proxy that stops forwarding and closes nothing, with short times: subscriptions,
followers, sends, look-ups, the synchronous client and `tail` come back, on both transports.

`make soak` has silence in one direction, too: `test_silent_networks.py` tries that by made-up time.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

import trovemq
from tests.support.trials import SOAK
from tests.world.black_hole import BlackHole, black_hole
from trovemq import Client, ClientOptions, TroveError, sync
from trovemq.testing import BrokerProcess
from trovemq_proto.channels import GrpcTransport

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

TIMES: dict[str, Any] = {"keepalive_time_ms": 1_000, "keepalive_timeout_ms": 1_000}
BROKER_TIMES = ("--set", "grpc_keepalive_time_ms=1000", "--set", "grpc_keepalive_timeout_ms=1000")
SILENCES: list[dict[str, bool]] = [{}, {"to_client": False}, {"to_server": False}]
WAIT_S = 120  # for a busy machine


@pytest_asyncio.fixture
async def direct() -> AsyncIterator[Client]:
    """A client whose network works."""
    # The broker gives the dead stream's messages to another one when it notices, too.
    with BrokerProcess(arguments=BROKER_TIMES) as broker:
        async with trovemq.connect(broker.address) as client:
            await client.admin.create_topic("orders", queue_count=1)
            yield client


async def subscribes(client: Client, came: asyncio.Queue[str]) -> None:
    async with client.subscribe("orders", "g", start="latest") as messages:
        came.put_nowait("subscribed")
        async for message in messages:
            await message.ack()
            came.put_nowait(f"subscribed {message.body.decode()}")


async def broadcasts(client: Client, came: asyncio.Queue[str]) -> None:
    async with client.subscribe("orders", "everyone", broadcast=True) as messages:
        came.put_nowait("broadcast")
        async for message in messages:
            came.put_nowait(f"broadcast {message.body.decode()}")


async def follows(client: Client, came: asyncio.Queue[str]) -> None:
    came.put_nowait("followed")
    async with aclosing(client.pull("orders", follow=True)) as messages:
        async for message in messages:
            came.put_nowait(f"followed {message.body.decode()}")


def uses(client: Client, came: asyncio.Queue[str]) -> list[Coroutine[Any, Any, None]]:
    return [subscribes(client, came), broadcasts(client, came), follows(client, came)]


async def until(came: asyncio.Queue[str], *expected: str) -> None:
    missing = set(expected)
    async with asyncio.timeout(WAIT_S):
        while missing:
            missing.discard(await came.get())


async def stored(client: Client) -> None:
    """Sends until it succeeds."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await client.send("orders", b"mine")
                return
            except TroveError as error:
                if not error.retriable:
                    raise


async def check_streams(direct: Client, client: Client, hole: BlackHole, **silence: bool) -> None:
    came: asyncio.Queue[str] = asyncio.Queue()
    using = [asyncio.ensure_future(use) for use in uses(client, came)]
    try:
        await until(came, "subscribed", "broadcast", "followed")
        await client.send("orders", b"before")
        await until(came, "subscribed before", "broadcast before", "followed before")
        hole.swallow(**silence)
        await direct.send("orders", b"after")
        sending = asyncio.ensure_future(stored(client))
        await until(came, "subscribed after", "broadcast after", "followed after", "subscribed mine")
        await sending
        assert (await client.query("orders", "nothing")).complete
    finally:
        for use in using:
            use.cancel()
        await asyncio.gather(*using, return_exceptions=True)


@pytest.mark.parametrize("silence", SILENCES if SOAK else SILENCES[:1], ids=str)
async def test_all_streams_of_a_client_hung_on_a_dead_connection(
    direct: Client, transport: GrpcTransport, silence: dict[str, bool]
) -> None:
    (route,) = (await direct.admin.cluster()).brokers
    async with black_hole(route.broker.address) as hole:
        options = ClientOptions(**TIMES, grpc_transport=transport)
        async with trovemq.connect(hole.address, options=options) as client:
            await check_streams(direct, client, hole, **silence)
            assert hole.connections > 1


async def test_the_synchronous_client_and_tail_hung_on_a_dead_connection(direct: Client) -> None:
    (route,) = (await direct.admin.cluster()).brokers
    async with black_hole(route.broker.address) as hole:
        server = f"trovemq://{hole.address}?keepalive_time_ms=1000&keepalive_timeout_ms=1000"
        client = await asyncio.to_thread(sync.connect, server)
        command = ("-m", "trovemq.cli", "--server", server, "tail", "orders", "-o", "body")
        tail = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE)
        assert tail.stdout is not None
        try:
            async with asyncio.timeout(WAIT_S):
                waiting = asyncio.ensure_future(tail.stdout.readline())
                while not waiting.done():  # tail begins at the end, some time after its start
                    await asyncio.to_thread(client.send, "orders", b"before")
                    await asyncio.wait({waiting}, timeout=0.2)
                hole.swallow()
                await direct.send("orders", b"after")
                while (await tail.stdout.readline()).strip() != b"after":
                    pass
                while not (await asyncio.to_thread(client.query, "orders", "nothing")).complete:
                    pass  # the one that found it out
        finally:
            tail.terminate()
            await tail.wait()
            await asyncio.to_thread(client.close)
