"""A topic that was created a moment ago: a broker knows of it, and the nameserver does not show it yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import Client, TransactionResolution, TroveError, errors
from trovemq_proto.v1 import admin_pb2, message_pb2

pytestmark = pytest.mark.asyncio

Call = Callable[[Client], Awaitable[object]]


async def send(client: Client) -> None:
    assert (await client.send("bills", b"x")).broker == "b2"


async def send_in_a_transaction(client: Client) -> None:
    async with client.producer("bills") as producer, producer.transaction() as transaction:
        assert (await transaction.send(b"x")).broker == "b2"


async def open_a_producer_with_a_checker(client: Client) -> None:
    async with client.producer("bills", checker=lambda _message: TransactionResolution.COMMIT):
        pass


async def subscribe(client: Client) -> None:
    async with client.subscribe("bills", group="billing"):
        pass


CALLS: list[Any] = [
    pytest.param(send, id="send"),
    pytest.param(send_in_a_transaction, id="transaction"),
    pytest.param(open_a_producer_with_a_checker, id="checker"),
    pytest.param(subscribe, id="subscribe"),
]


def refuse_sends(broker: FakeServer) -> None:
    """It does not have the topic."""

    async def on_frame(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        return broker.refusal(frame, TroveError(errors.TOPIC_NOT_FOUND, "not here", topic="bills"))

    broker.on_frame = on_frame


def described(placement: dict[str, int], *, system: bool = False) -> admin_pb2.TopicDescription:
    return admin_pb2.TopicDescription(
        topic="bills", queue_count=4, message_type="MIXED", system=system, broker="b1", placement=placement
    )


@pytest.mark.parametrize("call", CALLS)
async def test_a_topic_was_not_found_a_moment_after_its_creation(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect, call: Call
) -> None:
    """The broker that answers is not among those of the topic: it has the cluster's configuration."""

    def describe(_topic: str) -> admin_pb2.TopicDescription:
        routes = broker.route({"orders": 4}), other.route({"orders": 4, "bills": 4})
        asyncio.get_running_loop().call_soon(nameserver.set_routes, *routes)
        return described({"b2": 4})

    refuse_sends(broker)
    broker.on_describe = describe
    client = await connect(nameserver)
    await call(client)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(described({"b9": 4}), id="its broker is away"),
        pytest.param(described({}, system=True), id="a system topic"),
        pytest.param(None, id="nobody has it"),
    ],
)
@pytest.mark.parametrize("call", CALLS)
async def test_a_topic_that_will_not_come_soon_is_not_waited_for(
    nameserver: FakeServer,
    broker: FakeServer,
    other: FakeServer,
    connect: Connect,
    call: Call,
    found: admin_pb2.TopicDescription | None,
) -> None:
    """A wait would take longer than the test may."""
    for one in (broker, other):
        refuse_sends(one)
        one.on_describe = None if found is None else lambda _topic: found
    client = await connect(nameserver, connect_timeout_ms=3_600_000)
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        await call(client)


@pytest.mark.parametrize("call", CALLS)
async def test_the_wait_for_a_new_topic_ends(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect, call: Call
) -> None:
    refuse_sends(broker)
    broker.on_describe = lambda _topic: described({"b2": 4})
    client = await connect(nameserver)
    client._pool.options = replace(client._pool.options, connect_timeout_ms=20)
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        await call(client)
