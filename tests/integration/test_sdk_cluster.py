"""The SDK, by each transport, against two nameservers and two brokers, some of which die."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

import trovemq
from trovemq import ClientOptions, TroveError, errors
from trovemq.testing import BrokerProcess, NameserverProcess
from trovemq_proto.channels import TRANSPORTS, GrpcTransport

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


@dataclass
class Cluster:
    nameservers: list[NameserverProcess]
    brokers: list[BrokerProcess]
    transport: GrpcTransport

    @property
    def server(self) -> str:
        return ",".join(nameserver.address for nameserver in self.nameservers)

    def connect(self) -> trovemq.client.Connecting:
        options = ClientOptions(send_attempts_max=50, grpc_transport=self.transport)
        return trovemq.connect(self.server, options=options)


@pytest.fixture(params=TRANSPORTS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with ExitStack() as stack:
        nameservers = [stack.enter_context(NameserverProcess()) for _ in range(2)]
        brokers = [
            stack.enter_context(BrokerProcess(name=name, nameservers=nameservers)) for name in ("b1", "b2")
        ]
        yield Cluster(nameservers, brokers, request.param)


async def both_brokers(client: trovemq.Client) -> None:
    """Waits until the routes hold both."""
    names = {"b1", "b2"}
    routes = client._pool.routes
    assert await routes.wait_until(lambda: {r.broker.name for r in routes.state.brokers} == names, 10)


async def test_topics_over_both_brokers(cluster: Cluster) -> None:
    async with cluster.connect() as client:
        await both_brokers(client)
        created = await client.admin.create_topic("spread", queue_count=2)
        assert sorted(topic.broker for topic in created) == ["b1", "b2"]
        receipts = [await client.send("spread", b"%d" % i, keys="k", message_id=f"u{i}") for i in range(8)]
        assert len({(receipt.broker, receipt.queue_id) for receipt in receipts}) == 4
        found = [m.body async for m in client.query_all("spread", "k", page_size=3)]
        assert sorted(found) == [b"%d" % i for i in range(8)]
        for receipt in receipts:
            by_id = await client.get(receipt.offset_msg_id)
            by_key = await client.get(receipt.message_id)
            assert by_id.messages == by_key.messages
            assert by_id.messages[0].unique_key == receipt.message_id
        with pytest.raises(TroveError) as refused:
            await client.get_at("spread", 0, 0)
        assert refused.value.spec is errors.BROKER_AMBIGUOUS
        assert (await client.get_at("spread", 0, 0, broker="b2")).store_host == cluster.brokers[1].address
        assert len(await client.queue_offsets("spread")) == 4


async def test_producers_continue_when_a_broker_is_killed(cluster: Cluster) -> None:
    async with cluster.connect() as client:
        await both_brokers(client)
        await client.admin.create_topic("survives", queue_count=2)
        stored: list[str] = []
        doubtful = 0
        for i in range(300):
            if i == 100:
                cluster.brokers[0].kill()
            try:
                receipt = await client.send("survives", b"%d" % i, keys="k")
            except TroveError as error:
                if error.fields.get("in_doubt") != "true":
                    raise
                doubtful += 1
            else:
                stored.append(receipt.message_id)
                assert i < 100 or receipt.broker == "b2"
        assert doubtful <= 1
        answer = await client.query("survives", "k", max=1_000)
        assert (answer.complete, answer.unreachable) == (False, ("b1",))
        await asyncio.to_thread(cluster.brokers[0].start)
        await both_brokers(client)
        while not (answer := await client.query("survives", "k", max=1_000)).complete:
            await asyncio.sleep(0.01)
        assert {message.unique_key for message in answer.messages} >= set(stored)


async def test_a_nameserver_that_dies_is_not_missed(cluster: Cluster) -> None:
    async with cluster.connect() as client:
        await both_brokers(client)
        await client.admin.create_topic("steady", queue_count=1)
        cluster.nameservers[0].kill()
        receipts = [await client.send("steady", b"x") for _ in range(20)]
        assert {receipt.broker for receipt in receipts} == {"b1", "b2"}
        await client.admin.create_topic("later", queue_count=1)
        assert (await client.send("later", b"x")).queue_offset == 0


async def test_a_nameserver_that_stands_still_hid_a_broker_that_came_later(cluster: Cluster) -> None:
    """The first of the two hears of nothing any more; b3 registers."""
    first, second = cluster.nameservers
    async with cluster.connect() as client:
        await both_brokers(client)
        await client.admin.create_topic("orders", queue_count=1)
        first.send_signal(signal.SIGSTOP)
        try:
            with BrokerProcess(name="b3", nameservers=[second]):
                routes = client._pool.routes
                assert await routes.wait_until(lambda: routes.find("b3") is not None, 30)
                async with cluster.connect() as late:
                    assert late._pool.routes.find("b3") is not None, "one that connects now sees it too"
                await client.admin.create_topic("late", queue_count=1)
                receipts = [await client.send("late", b"x") for _ in range(6)]
                assert {receipt.broker for receipt in receipts} == {"b1", "b2", "b3"}
        finally:
            first.send_signal(signal.SIGCONT)
