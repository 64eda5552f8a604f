"""RocketMQ's clients and topics, queues and groups that come and go: the statuses by which they ask again.

Their libraries ask again after each status of a receive, a route or an assignment. So the broker answers with
a status, ends no stream of theirs, and keeps their settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.support.rocketmq_client import RawClient, receive_request
from tests.support.stubs import GROUPS, stub_of
from tests.world.cluster_here import cluster_here
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_proto.v1 import admin_pb2, group_pb2

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

GROUP, TOPIC = "workers", "orders"


def status_of_receive(client: RawClient, poll_s: float = 5) -> v2.Code:
    request = receive_request(GROUP, TOPIC, poll_s=poll_s)
    replies = client.stream("ReceiveMessage", request, service.ReceiveMessageResponse)
    code: v2.Code = replies[0].status.code
    return code


def statuses(client: RawClient, address: str) -> dict[str, v2.Code]:
    """The statuses of the calls that a push consumer repeats."""
    host, port = address.rsplit(":", 1)
    endpoints = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host=host, port=int(port))])
    topic, group = v2.Resource(name=TOPIC), v2.Resource(name=GROUP)
    asked: dict[str, tuple[Any, Any]] = {
        "Heartbeat": (
            service.HeartbeatRequest(group=group, client_type=v2.PUSH_CONSUMER),
            service.HeartbeatResponse,
        ),
        "QueryRoute": (
            service.QueryRouteRequest(topic=topic, endpoints=endpoints),
            service.QueryRouteResponse,
        ),
        "QueryAssignment": (
            service.QueryAssignmentRequest(topic=topic, group=group, endpoints=endpoints),
            service.QueryAssignmentResponse,
        ),
    }
    found = {name: client.call(name, *question).status.code for name, question in asked.items()}
    return {**found, "ReceiveMessage": status_of_receive(client)}


@contextmanager
def telemetry(client: RawClient) -> Iterator[Any]:
    """The open stream of a push consumer, after its settings were answered."""
    topic, group = v2.Resource(name=TOPIC), v2.Resource(name=GROUP)
    everything = v2.FilterExpression(type=v2.TAG, expression="*")
    entry = v2.SubscriptionEntry(topic=topic, expression=everything)
    subscription = v2.Subscription(group=group, subscriptions=[entry])
    settings = v2.Settings(client_type=v2.PUSH_CONSUMER, subscription=subscription)
    commands: SimpleQueue[service.TelemetryCommand | None] = SimpleQueue()
    commands.put(service.TelemetryCommand(settings=settings))
    stream = client.telemetry(iter(commands.get, None))
    try:
        assert next(stream).settings.subscription.group == group
        yield stream
    finally:
        commands.put(None)
        stream.cancel()


async def test_a_client_goes_on_when_its_topic_or_group_is_back(tmp_path: Path) -> None:
    async with cluster_here(tmp_path, auto_create_group=False) as cluster:
        broker = await cluster.start("a")
        groups = stub_of(GROUPS, broker.stubs.channel)
        await broker.create_topic(TOPIC, 2)
        await groups.CreateGroup(group_pb2.CreateGroupRequest(group=GROUP))
        with RawClient(broker.address) as client, RawClient(broker.address) as sender, ExitStack() as end:

            async def exchange(*sent: bytes) -> None:
                await asyncio.to_thread(sender.send, TOPIC, *sent)
                got = await asyncio.to_thread(client.receive_until, GROUP, TOPIC, len(sent))
                assert sorted(one.body for one in got) == sorted(sent)
                await asyncio.to_thread(client.acknowledge, GROUP, got)

            stream = await asyncio.to_thread(end.enter_context, telemetry(client))
            await exchange(b"1", b"2")
            for round_ in range(2):
                waiting = asyncio.create_task(asyncio.to_thread(status_of_receive, client, 20))
                await broker.stubs.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic=TOPIC))
                assert await waiting == v2.TOPIC_NOT_FOUND
                codes = await asyncio.to_thread(statuses, client, broker.address)
                assert codes.pop("Heartbeat") == v2.OK
                assert set(codes.values()) == {v2.TOPIC_NOT_FOUND}
                await broker.create_topic(TOPIC, 2)
                await exchange(b"3%d" % round_, b"4%d" % round_)
            waiting = asyncio.create_task(asyncio.to_thread(status_of_receive, client, 20))
            await groups.DeleteGroup(group_pb2.DeleteGroupRequest(group=GROUP))
            assert await waiting == v2.CONSUMER_GROUP_NOT_FOUND
            codes = await asyncio.to_thread(statuses, client, broker.address)
            assert codes.pop("QueryRoute") == v2.OK
            assert codes.pop("Heartbeat") == v2.OK
            assert set(codes.values()) == {v2.CONSUMER_GROUP_NOT_FOUND}
            await groups.CreateGroup(group_pb2.CreateGroupRequest(group=GROUP))
            got = await asyncio.to_thread(client.receive_until, GROUP, TOPIC, 2)
            assert sorted(one.body for one in got) == [b"31", b"41"]  # a new group, in a recent topic
            assert stream.is_active()


@pytest.mark.parametrize("start", ["end", "rocketmq"])
async def test_a_client_reads_queues_that_came_while_it_was_away(tmp_path: Path, start: str) -> None:
    async with cluster_here(
        tmp_path, new_group_start=start, recent_memory_percent=0, receive_poll_min_ms=100
    ) as cluster:
        broker = await cluster.start("a")
        await broker.create_topic(TOPIC, 1)
        with RawClient(broker.address) as client:
            assert await asyncio.to_thread(client.receive, GROUP, TOPIC, poll_s=1) == []
        await broker.stubs.admin.AlterTopic(admin_pb2.AlterTopicRequest(topic=TOPIC, queue_count=4))
        with RawClient(broker.address) as client:
            sent = [b"%d" % number for number in range(20)]
            for body in sent:
                await asyncio.to_thread(client.send, TOPIC, body)
        await cluster.stop("a")
        broker = await cluster.start("a")
        with RawClient(broker.address) as client:
            got = await asyncio.to_thread(client.receive_until, GROUP, TOPIC, len(sent))
            assert sorted(one.body for one in got) == sorted(sent)
