"""Topics of a cluster whose configuration has an owner: other brokers for them, while messages flow."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest

import trovemq
from tests.integration.test_grow_and_shrink import named, run, until
from trovemq import Client, GroupSettings
from trovemq.testing import BrokerProcess, NameserverProcess
from trovemq_broker.server.wire.routes import AWAY_FIRST
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

pytestmark = pytest.mark.slow

GROUPS = [f"g{number}" for number in range(8)]


@pytest.fixture
def cluster() -> Iterator[tuple[str, dict[str, BrokerProcess]]]:
    """A nameserver's address, and two brokers; b1 owns the configuration."""
    with ExitStack() as processes:
        nameserver = processes.enter_context(NameserverProcess())
        brokers = {
            name: processes.enter_context(
                BrokerProcess(name=name, nameservers=[nameserver], config_owner="b1")
            )
            for name in ("b1", "b2")
        }
        yield nameserver.address, brokers


async def ready(client: Client) -> None:
    """Both brokers have the configuration, and the topic `steps` lies on both."""
    await until(
        client,
        lambda state: named(state) == {"b1", "b2"} and all(one.broker.config for one in state.brokers),
    )
    await client.admin.create_topic("steps", queue_count=2, message_type="FIFO")
    await client.admin.groups.create("workers", GroupSettings(orderly=True))
    await until(client, lambda _: len(client._pool.routes.ordered_slots("steps")) == 4)
    assert client._pool.routes.placement("steps") == {"b1": 2, "b2": 2}


class Flow:
    """Sends to every group, a message after the other, and receives all of it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.sent: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.received: dict[str, list[int]] = defaultdict(list)
        self.stopping = False

    async def send(self, group: str) -> None:
        number = 0
        while not self.stopping:
            receipt = await self.client.send(
                "steps", b"%s %d" % (group.encode(), number), message_group=group
            )
            self.sent[group].append((number, receipt.broker))
            number += 1
            await asyncio.sleep(0.01)

    async def receive(self) -> None:
        async with self.client.subscribe("steps", group="workers", start="earliest") as messages:
            async for message in messages:
                group, number = message.body.decode().split()
                self.received[group].append(int(number))
                await message.ack()

    def is_complete(self) -> bool:
        return all(len(self.received[group]) >= len(self.sent[group]) for group in GROUPS)


def test_a_fifo_topic_keeps_its_order_while_it_gets_other_brokers(
    cluster: tuple[str, dict[str, BrokerProcess]],
) -> None:
    server, _ = cluster

    async def scene() -> None:
        async with trovemq.connect(server) as client:
            await ready(client)
            flow = Flow(client)
            senders = [asyncio.ensure_future(flow.send(group)) for group in GROUPS]
            receiver = asyncio.ensure_future(flow.receive())
            await asyncio.sleep(1)
            states = [step.state async for step in client.admin.spreading("steps", ["b2"], settle_s=1)]
            assert list(dict.fromkeys(states))[-2:] == ["settling", "done"]
            await asyncio.sleep(1)
            flow.stopping = True
            await asyncio.gather(*senders)
            async with asyncio.timeout(60):
                while not flow.is_complete():
                    await asyncio.sleep(0.05)
            receiver.cancel()
            for group in GROUPS:
                brokers = list(dict.fromkeys(broker for _, broker in flow.sent[group]))
                assert brokers in (["b2"], ["b1", "b2"]), "the new broker is the last one"
                assert flow.received[group] == [number for number, _ in flow.sent[group]]
            used = {broker for sent in flow.sent.values() for _, broker in sent}
            assert used == {"b1", "b2"}
            described = await client.admin.describe_topic("steps")
            assert {one.broker for one in described} == {"b1", "b2"}, "nothing was deleted"
            assert all(one.placement == {"b2": 2} and not one.options for one in described)

    asyncio.run(scene())


def queues_at(address: str, topic: str) -> list[tuple[str, int, str]]:
    """The queues that a client of RocketMQ sees there: broker, number, endpoints."""
    with grpc.insecure_channel(address) as channel:
        stub = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/QueryRoute",
            request_serializer=service_pb2.QueryRouteRequest.SerializeToString,
            response_deserializer=service_pb2.QueryRouteResponse.FromString,
        )
        reply = stub(
            service_pb2.QueryRouteRequest(topic=v2.Resource(name=topic)),
            metadata=(("x-mq-client-id", "test"),),
            timeout=30,
        )
    return [
        (queue.broker.name, queue.id, str(queue.broker.endpoints))
        for queue in reply.message_queues
        if queue.permission in (v2.WRITE, v2.READ_WRITE)
    ]


def test_clients_of_rocketmq_see_the_queues_of_a_broker_that_died(
    cluster: tuple[str, dict[str, BrokerProcess]],
) -> None:
    server, brokers = cluster

    async def scene() -> None:
        async with trovemq.connect(server) as client:
            await ready(client)
            before = await asyncio.to_thread(queues_at, brokers["b1"].address, "steps")
            assert [one[:2] for one in before] == [("b1", 0), ("b2", 0), ("b1", 1), ("b2", 1)]
            await client.admin.create_topic("orders", queue_count=1)
            brokers["b2"].kill()
            await until(client, lambda state: named(state) == {"b1"})
            while {one[0] for one in await asyncio.to_thread(queues_at, brokers["b1"].address, "orders")} != {
                "b1"
            }:
                await asyncio.sleep(0.1)
            after = await asyncio.to_thread(queues_at, brokers["b1"].address, "steps")
            assert [(name, number % AWAY_FIRST) for name, number, _ in after] == [one[:2] for one in before]
            assert {at for *_, at in after} == {before[0][2]}, "each address answers"
            assert client._pool.routes.placement("steps") == {"b1": 2, "b2": 2}

    asyncio.run(scene())


def test_a_topic_leaves_a_broker_whose_messages_are_still_read(
    cluster: tuple[str, dict[str, BrokerProcess]], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    server, _ = cluster

    async def fill() -> None:
        async with trovemq.connect(server) as client:
            await ready(client)
            await client.admin.create_topic("orders", queue_count=2, brokers=["b1"])
            await client.admin.groups.create("billing")
            await client.admin.groups.reset("billing", "orders", to_min=True)
            await client.producer("orders").send_batch([b"x"] * 20)

    asyncio.run(fill())
    here = ("--server", server)
    code, rows, _ = run(capsysbinary, *here, "topic", "spread", "orders", "--brokers", "b2")
    assert (code, rows[-1]["state"], rows[-1]["placement"]) == (0, "done", {"b2": 2})

    async def use() -> None:
        async with trovemq.connect(server) as client:
            routes = client._pool.routes
            await until(client, lambda _: {one.broker for one in routes.writable_slots("orders")} == {"b2"})
            assert {(await client.send("orders", b"y")).broker for _ in range(8)} == {"b2"}
            async with client.subscribe("orders", group="billing") as messages:
                bodies: list[bytes] = []
                while len(bodies) < 28:
                    message = await asyncio.wait_for(anext(messages), 60)
                    bodies.append(message.body)
                    await message.ack()
            assert (bodies.count(b"x"), bodies.count(b"y")) == (20, 8)

    asyncio.run(use())
    code, _, note = run(capsysbinary, *here, "broker", "drain", "b2", "--grace", "0s")
    assert (code, note["fifoTopics"]) == (0, ["steps"])
