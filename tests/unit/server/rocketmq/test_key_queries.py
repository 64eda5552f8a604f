"""QueryMessage by key, which all brokers of the topic answer: two brokers in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.support.fake_loop import fake_time
from tests.support.rpc_context import RpcContext
from tests.unit.server.rocketmq.test_admin_forwards import ORDERS, admin, query, send
from tests.unit.server.rocketmq.test_forwards import Node, two
from trovemq_broker.server.rocketmq import key_queries as module
from trovemq_broker.server.wire.merged_queries import places_of, scroll_id_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2


class Cluster:
    """Two brokers with one clock, which each send moves on."""

    def __init__(self) -> None:
        self.nodes = two()
        self.sent: list[bytes] = []

    async def send(self, node: Node, topic: v2.Resource = ORDERS) -> None:
        for one in self.nodes:
            one.parts.now_ms = EpochMs(one.parts.now_ms + 1)
        request = send(topic)
        request.key, request.body = "k", f"{len(self.sent)}".encode()
        assert (await admin(node, "AdminSendMessage", request)).status.code == v2.OK
        self.sent.append(request.body)

    async def page(self, scroll_id: str = "", count: int = 0, code: Any = v2.OK, **fields: Any) -> Any:
        fields = {"message_key": "k", "scroll_id": scroll_id, "max_message_nums": count, **fields}
        reply = await admin(self.nodes[0], "QueryMessage", query(ORDERS, **fields))
        assert reply.status.code == code, reply.status
        return reply


def bodies(reply: Any) -> list[bytes]:
    return [one.body for one in reply.messages]


@pytest.mark.asyncio
async def test_a_query_by_key_has_the_messages_of_every_broker() -> None:
    """It answered for the broker that was called alone."""
    cluster = Cluster()
    for number in range(6):
        await cluster.send(cluster.nodes[number % 2])
    reply = await cluster.page()
    assert bodies(reply) == cluster.sent[::-1]
    assert reply.scroll_id == ""
    assert cluster.nodes[1].sent == [], "a forwarded call is never forwarded again"


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(8))
async def test_pages_of_all_brokers_leave_out_and_repeat_nothing(seed: int) -> None:
    source, cluster = random.Random(seed), Cluster()
    for _ in range(source.randint(3, 25)):
        await cluster.send(source.choice(cluster.nodes))
    expected, found, scroll_id = cluster.sent[::-1], list[bytes](), ""
    while True:
        reply = await cluster.page(scroll_id, source.randint(1, 6))
        assert reply.messages, "each page has messages"
        found, scroll_id = found + bodies(reply), reply.scroll_id
        if not scroll_id:
            break
    assert found == expected


@pytest.mark.asyncio
async def test_messages_that_arrive_between_both_rounds_are_not_lost() -> None:
    cluster = Cluster()
    for number in range(8):
        await cluster.send(cluster.nodes[number % 2])
    there, arriving = cluster.nodes[1], iter(range(2))
    forward = there.forwarded.forward

    async def then_send(request: Any, context: Any) -> Any:
        async for reply in forward(request, context):
            yield reply
        if next(arriving, None) is not None:
            await cluster.send(there)

    there.forwarded.forward = then_send  # type: ignore[method-assign]
    first = await cluster.page(count=3)
    found, scroll_id = bodies(first), first.scroll_id
    while scroll_id:
        reply = await cluster.page(scroll_id, 3)
        found, scroll_id = found + bodies(reply), reply.scroll_id
    assert len(found) == len(set(found)), "none is given twice"
    assert set(found) >= set(cluster.sent[:8]), "none is left out"


@pytest.mark.asyncio
async def test_a_broker_that_does_not_answer_a_query_by_key_is_named() -> None:
    cluster = Cluster()
    await cluster.send(cluster.nodes[1])
    await cluster.send(cluster.nodes[0])
    here = cluster.nodes[0]
    away = here.nodes.pop("broker-b")
    reply = await cluster.page(code=v2.MULTIPLE_RESULTS)
    assert bodies(reply) == cluster.sent[1:]
    assert "broker broker-b" in reply.status.message
    here.nodes["broker-b"] = away
    reply = await cluster.page(reply.scroll_id)
    assert (bodies(reply), reply.scroll_id) == (cluster.sent[:1], "")


@pytest.mark.asyncio
async def test_a_broker_of_the_placement_that_is_away_is_named() -> None:
    cluster = Cluster()
    await cluster.send(cluster.nodes[0])
    cluster.nodes[0].placements["orders"] = {"broker-a": 2, "broker-b": 2, "broker-d": 2}
    reply = await cluster.page(code=v2.MULTIPLE_RESULTS)
    assert "broker broker-d" in reply.status.message
    assert "broker-b" not in reply.status.message


@fake_time
async def test_a_broker_that_hangs_costs_a_part_of_the_deadline() -> None:
    began, cluster = asyncio.get_running_loop().time(), Cluster()
    await cluster.send(cluster.nodes[0])

    async def hang(request: Any, context: Any) -> AsyncGenerator[Any, None]:
        await asyncio.Event().wait()
        yield None

    cluster.nodes[1].forwarded.forward = hang  # type: ignore[method-assign]
    reply = await cluster.page(code=v2.MULTIPLE_RESULTS)
    assert bodies(reply) == cluster.sent
    assert "broker broker-b: it did not answer in time" in reply.status.message
    assert asyncio.get_running_loop().time() - began < 2 * module.ASK_S_MAX


@pytest.mark.asyncio
async def test_a_topic_that_all_lack_and_one_that_only_the_other_has() -> None:
    cluster = Cluster()
    here, there = cluster.nodes
    await cluster.send(there, v2.Resource(name="there"))
    reply = await admin(here, "QueryMessage", query(v2.Resource(name="there"), message_key="k"))
    assert (reply.status.code, bodies(reply)) == (v2.OK, cluster.sent)
    here.others.topics["gone"] = here.others.topics["there"]
    gone = query(v2.Resource(name="gone"), message_key="k")
    reply = await admin(here, "QueryMessage", gone)
    assert reply.status.code == v2.TOPIC_NOT_FOUND
    here.nodes.clear()
    reply = await admin(here, "QueryMessage", gone)
    assert reply.status.code == v2.PROXY_TIMEOUT, "the broker that is away may have it"


@pytest.mark.asyncio
async def test_an_answer_ends_at_the_bytes_of_a_page() -> None:
    cluster = Cluster()
    for number in range(6):
        await cluster.send(cluster.nodes[number % 2])
    size = (await cluster.page(count=1)).messages[0].ByteSize()
    here = cluster.nodes[0]
    limits = module.Limits(64, size * 5 // 2)
    queries = module.KeyQueries(here.forwards, limits, here.service.admin.query_message)
    found, request = list[bytes](), query(ORDERS, message_key="k")
    while True:
        reply = await queries.call(request, RpcContext("", deadline_s=30.0))
        assert len(reply.messages) == 2
        found += bodies(reply)
        if not reply.scroll_id:
            break
        request.scroll_id = reply.scroll_id
    assert found == cluster.sent[::-1]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "scroll_id", ["b", "b!", "bAAAA", "b" + "e30=", scroll_id_of({"x": ""})[:-4], "bMQ=="]
)
async def test_a_scroll_id_that_was_not_given_is_refused(scroll_id: str) -> None:
    with pytest.raises(TroveError) as caught:
        places_of(scroll_id)
    assert caught.value.spec is errors.CURSOR_ILLEGAL
    assert places_of(scroll_id_of({"b": "1.x", "a": ""})) == {"a": "", "b": "1.x"}
    assert places_of("") is None
