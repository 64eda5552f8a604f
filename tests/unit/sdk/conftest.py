"""Servers that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest_asyncio

import trovemq
from tests.unit.sdk.fake_server import FakeServer
from trovemq import Backoff, Client, ClientOptions

Connect = Callable[..., Awaitable[Client]]

# Delays short and fixed; timeouts long enough for a busy machine: a test of one sets it.
QUICK = {
    "backoff": Backoff(delay_ms=1, delay_max_ms=8, uniform=lambda: 1.0),
    "call_timeout_ms": 30_000,
    "connect_timeout_ms": 30_000,
    "delivery_timeout_ms": 30_000,
    "send_attempts_max": 6,
}


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeServer]:
    """A broker with the topic `orders` of 4 queues."""
    async with FakeServer("b1") as server:
        yield server.serve_topics(orders=4)


@pytest_asyncio.fixture
async def other() -> AsyncIterator[FakeServer]:
    """A second broker."""
    async with FakeServer("b2") as server:
        yield server.serve_topics(orders=4)


@pytest_asyncio.fixture
async def nameserver(broker: FakeServer, other: FakeServer) -> AsyncIterator[FakeServer]:
    """A nameserver whose routes hold both brokers, `orders` with 4 queues on each."""
    async with FakeServer("ns", role="NAMESERVER") as server:
        server.set_routes(broker.route({"orders": 4}), other.route({"orders": 4}))
        yield server


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connects; the client is closed after the test. Keyword arguments are ClientOptions."""
    async with AsyncExitStack() as stack:

        async def make(*servers: FakeServer | str, **options: object) -> Client:
            addresses = [server if isinstance(server, str) else server.address for server in servers]
            settings = ClientOptions(**{**QUICK, **options})  # type: ignore[arg-type]
            given = addresses[0] if len(addresses) == 1 else addresses
            return await stack.enter_async_context(trovemq.connect(given, options=settings))

        yield make
