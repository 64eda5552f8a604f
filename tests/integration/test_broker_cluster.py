"""Two nameservers and two brokers as real processes: who is in the routes, and for how long."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.broker_process import Stubs
from trovemq.testing import BrokerProcess, NameserverProcess
from trovemq_proto.v1 import admin_pb2, message_pb2, route_pb2

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

Routes = dict[str, list[str]]
"""Topics by the name of the broker."""


@dataclass
class Cluster:
    nameservers: list[NameserverProcess]
    brokers: list[BrokerProcess]
    asks: list[Stubs]  # one a nameserver

    async def routes(self, number: int) -> Routes:
        """As this nameserver returns them."""
        reply = await self.asks[number].routes.GetCluster(route_pb2.GetClusterRequest())
        return {entry.broker.name: [topic.topic for topic in entry.topics] for entry in reply.brokers}

    async def until(self, condition: Callable[[Routes], bool], *numbers: int) -> None:
        """Returns when it holds at each of these nameservers."""
        async with asyncio.timeout(240):
            for number in numbers or range(len(self.asks)):
                while not condition(await self.routes(number)):
                    await asyncio.sleep(0.02)


@asynccontextmanager
async def cluster(heartbeat_interval_ms: int = 3_000, **nameserver_settings: Any) -> AsyncIterator[Cluster]:
    with ExitStack() as processes:
        nameservers = [processes.enter_context(NameserverProcess(**nameserver_settings)) for _ in range(2)]
        brokers = [
            processes.enter_context(
                BrokerProcess(name=name, nameservers=nameservers, heartbeat_interval_ms=heartbeat_interval_ms)
            )
            for name in ("b1", "b2")
        ]
        async with AsyncExitStack() as connections:
            asks = [
                await connections.enter_async_context(Stubs(nameserver.address)) for nameserver in nameservers
            ]
            made = Cluster(nameservers, brokers, asks)
            await made.until(lambda routes: routes.keys() == {"b1", "b2"})
            yield made


async def test_brokers_register_new_topics_with_each_nameserver() -> None:
    # No step waits for a heartbeat, nor for the end of a silence.
    async with cluster(heartbeat_interval_ms=60_000, broker_silent_ms=600_000) as made:
        async with Stubs(made.brokers[0].address) as broker:
            await broker.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders"))
        await made.until(lambda routes: routes == {"b1": ["orders"], "b2": []})
        made.nameservers[0].kill()
        async with Stubs(made.brokers[1].address) as broker:
            await broker.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders"))
            await broker.messages.Send(message_pb2.SendRequest(topic="orders", messages=[{"body": b"x"}]))
        await made.until(lambda routes: routes == {"b1": ["orders"], "b2": ["orders"]}, 1)
        await asyncio.to_thread(made.nameservers[0].start)
        await made.until(lambda routes: routes == {"b1": ["orders"], "b2": ["orders"]}, 0)


async def test_a_stopped_broker_leaves_at_once_a_killed_one_after_two_seconds() -> None:
    async with cluster(broker_silent_ms=600_000) as made:  # it is the broken stream that counts
        killing = time.monotonic()
        made.brokers[0].kill()
        await made.until(lambda routes: routes.keys() == {"b2"})
        assert time.monotonic() - killing > 1
        assert await asyncio.to_thread(made.brokers[1].stop) == 0
        await made.until(lambda routes: not routes)


async def test_a_broker_silent_on_an_open_stream_leaves_and_may_come_back() -> None:
    async with cluster(heartbeat_interval_ms=500, broker_silent_ms=4_000) as made:
        made.brokers[0].send_signal(signal.SIGSTOP)
        try:
            stopped = time.monotonic()
            await made.until(lambda routes: routes.keys() == {"b2"})
            assert time.monotonic() - stopped > 0.5
        finally:
            made.brokers[0].send_signal(signal.SIGCONT)
        await made.until(lambda routes: routes.keys() == {"b1", "b2"})


async def test_a_second_live_broker_of_a_name_is_refused_until_the_name_is_free() -> None:
    async with cluster() as made:
        other = BrokerProcess(name="b1", nameservers=made.nameservers)
        try:
            other.start(wait=False)
            async with asyncio.timeout(240):
                while "name_taken" not in other.log():
                    await asyncio.sleep(0.02)
            assert not await asyncio.to_thread(other.ready)
            reply = await made.asks[0].routes.GetCluster(route_pb2.GetClusterRequest())
            addresses = {entry.broker.name: entry.broker.address for entry in reply.brokers}
            assert addresses["b1"] == made.brokers[0].address
            assert await asyncio.to_thread(made.brokers[0].stop) == 0
            async with asyncio.timeout(240):
                while not await asyncio.to_thread(other.ready):
                    await asyncio.sleep(0.02)
            await made.until(lambda routes: routes.keys() == {"b1", "b2"})
        finally:
            await asyncio.to_thread(other.close)
