"""A whole broker whose own tables follow the cluster's, as its clients see it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf import duration_pb2

from tests.support import fake_loop
from tests.support.services_here import BrokerServices, Outcome, in_process, small_broker_settings
from tests.unit.cluster_config.local_bench import ClusterTable
from trovemq_broker.admin.local_config import LocalConfig
from trovemq_broker.cluster_config.entries import Kind
from trovemq_broker.cluster_config.reconcile import plan
from trovemq_proto.positions import QueueId
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import message_pb2
from trovemq_store.files.memory import MemoryFileSystem

CLIENT: tuple[tuple[str, Any], ...] = (("x-mq-client-id", "c-1"),)


class Broker:
    """Broker `b` and the cluster's table."""

    def __init__(self) -> None:
        self.cluster = ClusterTable()
        self.services = BrokerServices(MemoryFileSystem(), small_broker_settings(flush_mode="async"))
        core = self.core = self.services.core
        self.local = LocalConfig(
            "b",
            core.store.topics,
            core.groups,
            core.topic_changes,
            core.group_changes,
            None,
            lambda: self.cluster.table,
        )

    async def follow(self) -> None:
        made = plan(self.cluster.table, "b", self.local.entries().values())
        assert await self.local.carry_out(made.actions) == []

    async def send(self) -> Outcome:
        sent = message_pb2.SendRequest(topic="orders", messages=[{"body": b"native"}])
        return await self._call("trovemq.v1.MessageService.Send", sent)

    async def pull(self) -> Outcome:
        return await self._call("trovemq.v1.MessageService.Pull", message_pb2.FetchRequest(topic="orders"))

    async def receive(self) -> Outcome:
        request = service_pb2.ReceiveMessageRequest(
            group=v2.Resource(name="billing"),
            message_queue=v2.MessageQueue(topic=v2.Resource(name="orders")),
            filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
            batch_size=1,
            invisible_duration=duration_pb2.Duration(seconds=30),
        )
        return await self._call("trovemq.rocketmq.v2.MessagingService.ReceiveMessage", request)

    async def _call(self, method: str, request: Any) -> Outcome:
        return await self.services.call(method, [request.SerializeToString()], CLIENT)


def run(scene: Callable[[Broker], Awaitable[None]]) -> None:
    async def begin() -> None:
        with in_process():
            broker = Broker()
            broker.cluster.create(Kind.TOPIC, "orders", {"b": 1})
            broker.cluster.create(Kind.GROUP, "billing")
            syncs = asyncio.create_task(broker.core.group_commit.run())
            await broker.follow()
            assert (await broker.send()).code == "OK"
            await scene(broker)
            syncs.cancel()

    fake_loop.run(begin())


def test_a_withheld_topic_is_neither_written_nor_read_and_says_why() -> None:
    async def scene(broker: Broker) -> None:
        broker.cluster.delete(Kind.TOPIC, "orders")
        broker.cluster.forget()
        await broker.follow()
        for outcome in (await broker.send(), await broker.pull(), await broker.receive()):
            assert "the cluster's configuration does not have it" in _text(outcome), outcome

    run(scene)


def test_a_withheld_group_may_not_consume() -> None:
    async def scene(broker: Broker) -> None:
        broker.cluster.delete(Kind.GROUP, "billing")
        broker.cluster.forget()
        await broker.follow()
        assert "group billing may not consume: the cluster's configuration" in _text(await broker.receive())

    run(scene)


def test_a_topic_placed_elsewhere_is_read_and_not_written() -> None:
    async def scene(broker: Broker) -> None:
        broker.cluster.alter(Kind.TOPIC, "orders", {"a": 1})
        await broker.follow()
        assert "has placed none of its queues on this broker" in _text(await broker.send())
        assert b"native" in (await broker.pull()).replies[0]
        assert b"native" in b"".join((await broker.receive()).replies)

    run(scene)


def test_a_topic_that_the_cluster_deletes_left_counts_and_waiting_calls() -> None:
    async def scene(broker: Broker) -> None:
        assert "orders" in broker.core.traffic.message_sizes
        woken: list[bool] = []
        broker.core.long_polls.wait("orders", QueueId(0), 60_000, woken.append)
        broker.cluster.delete(Kind.TOPIC, "orders")
        await broker.follow()
        assert broker.core.traffic.message_sizes == {}
        assert woken == [True]

    run(scene)


def _text(outcome: Outcome) -> str:
    return outcome.details + repr(outcome.replies)
