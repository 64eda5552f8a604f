"""Connections that die in silence: nothing is closed, and new connections work. Every long-lived stream finds
it out within 20 seconds.

`make soak` silences at more moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import count, pairwise
from typing import Any

import pytest

import trovemq
from tests.support.trials import SOAK
from tests.unit.nameserver.test_registration import local_broker
from tests.unit.sdk.test_pull import FakeQueue
from tests.world.memory_server import ADDRESS, MemoryServer, run
from trovemq import Client, ClientOptions, TroveError
from trovemq_broker.cluster.registration import Registrations, RegistrationSettings, registration_channels
from trovemq_daemon.addresses import Address
from trovemq_proto.channels import KEEPALIVE_TIME_MS, KEEPALIVE_TIMEOUT_MS
from trovemq_proto.v1 import query_pb2
from trovemq_rpc.testing.loop import MemoryLoop

SILENT_S_MAX = 20.0
OUTAGE_S = 150.0
EACH_S = 0.5  # interval of events at the server
# In tests the defaults are longer (client_times.py).
PRODUCTION = ClientOptions(
    connect_timeout_ms=5_000,
    call_timeout_ms=10_000,
    delivery_timeout_ms=30_000,
    keepalive_time_ms=KEEPALIVE_TIME_MS,
    keepalive_timeout_ms=KEEPALIVE_TIMEOUT_MS,
)
MOMENTS = [one * 0.13 for one in range(50 if SOAK else 5)]
DIRECTIONS = {
    "both_ways": {},
    "to_server": {"to_client": False},
    "to_client": {"to_server": False},
}

Mark = Callable[[], None]
Use = Callable[[Client, MemoryServer, Mark], Coroutine[Any, Any, None]]


def expect_passing(error: TroveError) -> None:
    assert error.retriable or error.fields.get("in_doubt"), error


async def sends(client: Client, _server: MemoryServer, mark: Mark) -> None:
    while True:
        try:
            await client.send("orders", b"1")
            mark()
        except TroveError as error:
            expect_passing(error)
        await asyncio.sleep(EACH_S)


async def looks_up(client: Client, server: MemoryServer, mark: Mark) -> None:
    server.on_query = lambda _request: [query_pb2.QueryPage(complete=True, last=True)]
    while True:
        try:
            if (await client.query("orders", "key")).complete:
                mark()
        except TroveError as error:
            expect_passing(error)
        await asyncio.sleep(EACH_S)


async def follows(client: Client, server: MemoryServer, mark: Mark) -> None:
    queue = FakeQueue(server, 1)
    offset = 0

    async def fill() -> None:
        while True:
            await asyncio.sleep(EACH_S)
            queue.append()

    filling = asyncio.create_task(fill())
    try:
        while True:
            try:
                async for message in client.pull("orders", offset=offset, follow=True):
                    assert message.queue_offset == offset
                    offset += 1
                    mark()
            except TroveError as error:  # after reconnect_timeout_ms
                expect_passing(error)
    finally:
        filling.cancel()


async def consumes(client: Client, server: MemoryServer, mark: Mark) -> None:
    async def offer() -> None:
        for number in count():
            await asyncio.sleep(EACH_S)
            await server.consuming.offer(b"%d" % number)

    offering = asyncio.create_task(offer())
    try:
        async with client.subscribe("orders", group="g") as messages:
            async for message in messages:
                mark()
                await asyncio.wait({asyncio.ensure_future(message.ack())}, timeout=EACH_S)
    finally:
        offering.cancel()


async def watches_routes(client: Client, server: MemoryServer, mark: Mark) -> None:
    for number in count(1):
        server.set_routes(server.route({"orders": 4, f"topic{number}": 1}))
        while not client._pool.routes.slots(f"topic{number}"):
            await asyncio.sleep(EACH_S / 10)
        mark()
        await asyncio.sleep(EACH_S)


async def registers(_client: Client, server: MemoryServer, mark: Mark) -> None:
    """A broker with its nameserver."""
    broker, _ = local_broker()
    channels = registration_channels(transport="trovemq")
    registrations = Registrations([Address(*ADDRESS)], broker, RegistrationSettings(), lambda: 1.0, channels)
    registrations.start()
    try:
        (registration,), before = registrations.registrations, 0
        while True:
            await asyncio.sleep(EACH_S)
            if registration.heartbeats > before:
                before = registration.heartbeats
                mark()
    finally:
        await registrations.stop()


USES: list[Use] = [sends, looks_up, follows, consumes, watches_routes, registers]


async def marks_of(
    loop: MemoryLoop, use: Use, directions: dict[str, bool], at_s: float, outage_s: float
) -> AsyncIterator[float]:
    """When something happened, from the moment of the silence on."""
    marks: list[float] = []
    async with MemoryServer() as server:
        server.serve_topics(orders=4)
        async with trovemq.connect(server.address, options=PRODUCTION) as client:
            using = asyncio.create_task(use(client, server, lambda: marks.append(loop.time())))
            await asyncio.sleep(10 * EACH_S + at_s)
            silent_at = loop.time()
            loop.silence(**directions)
            loop.unreachable = outage_s > 0
            await asyncio.sleep(outage_s)
            loop.unreachable = False
            await asyncio.sleep(2 * SILENT_S_MAX)
            assert not using.done()
            using.cancel()
            await asyncio.wait({using})
    assert any(mark < silent_at for mark in marks), "it never worked"
    yield silent_at
    for mark in marks:
        if mark > silent_at:
            yield mark
    yield silent_at + outage_s + 2 * SILENT_S_MAX


def longest_pause(use: Use, directions: dict[str, bool], at_s: float, outage_s: float = 0.0) -> float:
    found: list[float] = []

    async def program(loop: MemoryLoop) -> None:
        marks = [mark async for mark in marks_of(loop, use, directions, at_s, outage_s)]
        found.append(max(later - earlier for earlier, later in pairwise(marks)))

    run(program, int(at_s * 1_000))
    return found[0]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_connection_that_died_in_silence_held_up_its_streams_for_ever(use: Use, direction: str) -> None:
    for at_s in MOMENTS:
        assert longest_pause(use, DIRECTIONS[direction], at_s) < SILENT_S_MAX, at_s


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_after_an_outage_of_minutes_a_stream_did_not_come_back(use: Use) -> None:
    assert longest_pause(use, {}, 0.0, OUTAGE_S) < OUTAGE_S + SILENT_S_MAX
