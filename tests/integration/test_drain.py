"""A rolling restart: two brokers under load are drained, stopped and started, one after the other."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

import trovemq
from trovemq import Client, ClientOptions
from trovemq.testing import BrokerProcess, NameserverProcess

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

SENDERS = 4
LOOK_UPS = 32  # at once
LEASE_MS = 10_000
LEASED_S_MAX = (
    240  # a message whose acknowledgement met the restart is delivered again when its lease is over
)


class Load:
    """Senders, in order and in no order, and a consumer."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stopping = False
        self.acknowledged: set[str] = set()
        self.bodies: set[bytes] = set()
        self.consumed: set[bytes] = set()

    async def send(self, number: int) -> None:
        count = 0
        while not self._stopping:
            group = f"group-{number}" if number % 2 else None
            body = b"%d %d" % (number, count)
            receipt = await self._client.send("orders", body, message_group=group)
            self.bodies.add(body)
            self.acknowledged.add(receipt.message_id)
            count += 1
            await asyncio.sleep(0.05)

    async def consume(self) -> None:
        async with self._client.subscribe("orders", group="billing", invisible_ms=LEASE_MS) as messages:
            async for message in messages:
                self.consumed.add(message.body)
                await message.ack()

    def stop(self) -> None:
        self._stopping = True


async def until_only(client: Client, *names: str) -> None:
    """The client knows that these brokers, and no others, take messages."""
    routes = client._pool.routes
    assert await routes.wait_until(
        lambda: {r.broker.name for r in routes.state.brokers if not r.broker.draining} == set(names), 20
    )


async def test_a_rolling_restart_loses_nothing_and_fails_no_send() -> None:
    with ExitStack() as processes:
        nameserver = processes.enter_context(NameserverProcess())
        brokers = [
            processes.enter_context(BrokerProcess(name=name, nameservers=[nameserver]))
            for name in ("b1", "b2")
        ]
        async with trovemq.connect(nameserver.address, options=ClientOptions(send_attempts_max=20)) as client:
            await until_only(client, "b1", "b2")
            await client.admin.create_topic("orders", queue_count=2)
            load = Load(client)
            consumer = asyncio.create_task(load.consume())
            senders = [asyncio.create_task(load.send(number)) for number in range(SENDERS)]
            for broker in brokers:
                await client.admin.brokers.drain(broker.name, grace_ms=400)
                await until_only(client, "b2" if broker.name == "b1" else "b1")
                await client.admin.brokers.drain(broker.name, grace_ms=400, stop_wait_max_ms=1_000)
                assert await asyncio.to_thread(broker.wait) == 0
                await asyncio.to_thread(broker.start)  # a restart ends the drain
                await until_only(client, "b1", "b2")
            load.stop()
            await asyncio.gather(*senders)  # raises the error of a send that failed for good
            await client.admin.brokers.drain("b2", grace_ms=0)
            async with trovemq.connect(
                nameserver.address, options=ClientOptions(send_attempts_max=1)
            ) as other:
                with pytest.raises(trovemq.TroveError, match="is drained"):
                    await other.send("orders", b"to a drained broker by name", queue_id=0, broker="b2")
            assert (await client.admin.brokers.undrain("b2")).state == "serving"
            keys = sorted(load.acknowledged)
            for begin in range(0, len(keys), LOOK_UPS):
                found = await asyncio.gather(*(client.get(key) for key in keys[begin : begin + LOOK_UPS]))
                assert all(answer.messages for answer in found), "one was acknowledged, and is lost"
            async with asyncio.timeout(LEASED_S_MAX):
                while not load.consumed >= load.bodies:
                    await asyncio.sleep(0.02)
            consumer.cancel()
