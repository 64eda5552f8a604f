"""A topic that only a lost broker has: TOPIC_NOT_FOUND says which broker that is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer, wire_error
from trovemq import Client, TroveError
from trovemq_proto import errors
from trovemq_proto.v1 import message_pb2, route_pb2

pytestmark = pytest.mark.asyncio

LOST = route_pb2.LostBroker(name="b9", cluster="c", address="10.0.0.9:8081", lost_ms=90_000, topics=1)
Call = Callable[[Client], Awaitable[object]]


async def pull(client: Client) -> None:
    async for _ in client.pull("bills", broker="b1"):
        pass


async def send_batch(client: Client) -> None:
    async with client.producer("bills") as producer:
        await producer.send_batch([b"x", b"y"])


async def subscribe(client: Client) -> None:
    async with client.subscribe("bills", group="billing"):
        pass


async def commit(client: Client) -> None:
    async with client.transaction() as tx:
        await tx.send("bills", b"x")


CALLS: list[Any] = [
    pytest.param(lambda client: client.send("bills", b"x"), id="send"),
    pytest.param(send_batch, id="send_batch"),
    pytest.param(lambda client: client.query("bills", "k"), id="query"),
    pytest.param(lambda client: client.get("A" * 32, topic="bills"), id="get"),
    pytest.param(lambda client: client.get_at("bills", 0, 1, broker="b1"), id="get_at"),
    pytest.param(pull, id="pull"),
    pytest.param(subscribe, id="subscribe"),
    pytest.param(commit, id="transaction"),
]


def refuse_all(*brokers: FakeServer) -> None:
    """The brokers do not have the topic."""
    error = TroveError(errors.TOPIC_NOT_FOUND, "topic 'bills' does not exist here", topic="bills")

    def refuse(_request: object) -> Any:
        raise error

    for broker in brokers:

        async def on_frame(
            frame: message_pb2.AppendFrame, broker: FakeServer = broker
        ) -> message_pb2.AppendReply:
            return broker.refusal(frame, error)

        async def on_fetch(request: message_pb2.FetchRequest) -> message_pb2.FetchReply:
            return message_pb2.FetchReply(fetch_id=request.fetch_id, error=wire_error(error))

        broker.on_frame, broker.on_fetch = on_frame, on_fetch
        broker.on_query = broker.on_get = refuse


@pytest.mark.parametrize("call", CALLS)
async def test_a_topic_of_a_lost_broker_was_not_found_and_nothing_more_was_said(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect, call: Call
) -> None:
    refuse_all(broker, other)
    nameserver.lost["bills"] = LOST
    client = await connect(nameserver)
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND") as e:
        await call(client)
    assert "it was last seen on broker b9 at 10.0.0.9:8081, which is lost since 20" in e.value.message
    assert e.value.fields["lost_broker"] == "b9"
    assert "start that broker again" in e.value.message
    assert nameserver.routes_asked == ["bills"], "it is asked once, whatever the number of brokers"


@pytest.mark.parametrize("call", CALLS)
async def test_a_topic_that_nobody_had_is_simply_not_found(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect, call: Call
) -> None:
    refuse_all(broker, other)
    client = await connect(nameserver)
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND") as e:
        await call(client)
    assert "last seen" not in e.value.message


async def test_nobody_learns_of_a_topic_whose_look_up_was_denied(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    def deny(_request: object) -> Any:
        raise TroveError(errors.ACCESS_DENIED, "alice may not query bills", topic="bills")

    broker.on_query = other.on_query = deny
    nameserver.lost["bills"] = LOST
    client = await connect(nameserver)
    with pytest.raises(TroveError, match="ACCESS_DENIED") as e:
        await client.query("bills", "k")
    assert "b9" not in e.value.message
    assert nameserver.routes_asked == []


async def test_without_a_nameserver_the_error_is_the_brokers(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    refuse_all(broker, other)
    nameserver.lost["bills"] = LOST
    client = await connect(nameserver, connect_timeout_ms=1_000)
    await nameserver.stop()
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND") as e:
        await client.query("bills", "k")
    assert "last seen" not in e.value.message
