"""A member's connection dies in silence, and the member notices that before the broker does."""

from __future__ import annotations

import asyncio

import pytest

import trovemq
from tests.world.black_hole import black_hole
from trovemq import ClientOptions, Subscription
from trovemq.testing import BrokerProcess
from trovemq_proto.channels import GrpcTransport

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

WAIT_S = 20
COUNT = 20
BROKER_TIMES = ("--set", "grpc_keepalive_time_ms=600000")  # it does not notice during the test


async def next_number(messages: Subscription) -> int:
    async with (await anext(messages)).process() as message:
        return int(message.body)


async def test_a_dead_stream_got_messages_beside_its_clients_next_one(transport: GrpcTransport) -> None:
    options = ClientOptions(grpc_transport=transport, keepalive_time_ms=1_000, keepalive_timeout_ms=1_000)
    with BrokerProcess(arguments=BROKER_TIMES) as broker:
        async with trovemq.connect(broker.address) as direct, black_hole(broker.address) as hole:
            await direct.admin.create_topic("orders", queue_count=1)
            await direct.admin.groups.create("g")
            async with (
                trovemq.connect(hole.address, options=options) as client,
                client.subscribe("orders", "g") as messages,
            ):
                await direct.send("orders", b"0")
                assert await next_number(messages) == 0
                hole.swallow()
                waiting, number = asyncio.ensure_future(next_number(messages)), 0
                while not waiting.done():  # the dead stream gets the first ones
                    number += 1
                    await direct.send("orders", b"%d" % number)
                    await asyncio.wait({waiting}, timeout=0.2)
                missing = set(range(number + 1, number + COUNT + 1))
                for each in sorted(missing):
                    await direct.send("orders", b"%d" % each)
                async with asyncio.timeout(WAIT_S):
                    while missing:
                        missing.discard(await next_number(messages))
