"""Which broker and which queues an atomic transaction takes, and its refusals before any call."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, cast

import pytest

from trovemq import AtomicTransaction, ClientOptions, TroveError, errors
from trovemq._net.connections import ConnectionPool
from trovemq._net.routes import RouteTable
from trovemq._wire import transactions as wire
from trovemq._wire.transactions import CommitReply
from trovemq.atomic import MESSAGES_MAX
from trovemq.models.cluster import BrokerInfo, BrokerRoute, ClusterState, TopicDescription, TopicRoute
from trovemq.received import ReceivedMessage
from trovemq_proto.records.priorities import PROPERTY_PRIORITY
from trovemq_proto.records.properties import parse_properties

pytestmark = pytest.mark.asyncio


class FakeConnection:
    """To a broker that has no more topics than the routes say."""

    address = "127.0.0.1:1"

    async def describe_topic(self, topic: str) -> TopicDescription:
        raise TroveError(errors.TOPIC_NOT_FOUND, f"topic {topic} is not here")


class FakeLinks:
    """Routes of two brokers: "a" has both topics, "b" has one of them and another one."""

    def __init__(self) -> None:
        self.routes = RouteTable()
        self.options = ClientOptions()
        self.closed = False
        on_a = (TopicRoute("orders", 4), TopicRoute("stock", 2))
        on_b = (TopicRoute("orders", 4), TopicRoute("alone", 1))
        names = (("a", on_a), ("b", on_b))
        routes = [BrokerRoute(BrokerInfo("c", name, "127.0.0.1:1"), topics) for name, topics in names]
        self.routes.apply(ClusterState(tuple(routes)))

    def check_loop(self) -> None:
        """It has one loop."""

    def suspect(self, broker: BrokerInfo) -> bool:
        return False

    def connection(self, broker: BrokerInfo) -> FakeConnection:
        return FakeConnection()

    def check_open(self) -> None:
        """It is never closed."""

    async def refresh(self) -> None:
        """The routes stay as they are."""

    def explaining(self) -> AbstractAsyncContextManager[None]:
        """No broker is lost."""
        return nullcontext()


def transaction(broker: str | None = None) -> AtomicTransaction:
    return AtomicTransaction(cast("ConnectionPool", FakeLinks()), broker=broker, timeout_ms=None)


async def refused(call: Coroutine[Any, Any, object]) -> TroveError:
    with pytest.raises(TroveError) as caught:
        await call
    return caught.value


async def test_it_goes_to_the_broker_that_has_all_topics() -> None:
    for _ in range(10):
        tx = transaction()
        await tx.send("orders", b"x")
        await tx.send("stock", b"x", queue_id=1)
        await tx.send("orders", b"x")
        broker, places = await tx._placed()
        assert broker.name == "a"
        assert places[1].queue_id == 1
        assert places[0] == places[2], "messages of a topic stay together"


async def test_topics_of_two_brokers_are_refused_with_both_names() -> None:
    tx = transaction()
    await tx.send("stock", b"x")
    await tx.send("alone", b"x")
    error = await refused(tx.commit())
    assert error.spec is errors.TRANSACTION_BROKERS
    assert "stock is on a" in error.message
    assert "alone is on b" in error.message
    assert error.fields["brokers"] == "a, b"


async def test_a_message_received_elsewhere_is_refused() -> None:
    class Group:
        group = "g"

    tx = transaction("a")
    message = cast("ReceivedMessage", type("M", (), {"settled": False, "broker": "b", "topic": "t"})())
    message.settlement = cast("Any", Group())
    with pytest.raises(TroveError) as caught:
        tx.ack(message)
    assert caught.value.spec is errors.TRANSACTION_BROKERS
    assert not message.settled


async def test_messages_of_an_ordering_key_go_where_a_producer_sends_them() -> None:
    places = []
    for _ in range(3):
        tx = transaction()
        await tx.send("orders", b"x", ordering_key="k")
        places += (await tx._placed())[1]
    assert len(set(places)) == 1


async def test_a_priority_is_stored_as_a_producer_stores_it() -> None:
    tx = transaction()
    await tx.send("orders", b"x", priority=9)
    await tx.send("orders", b"x")
    await tx.send_batch("orders", [b"x", b"x"], priority=0)
    await tx.send_batch("orders", [b"x", b"x"], priority=[None, 7])
    found = [parse_properties(message.block).get(PROPERTY_PRIORITY) for message in tx._messages]
    assert found == ["9", None, "0", "0", None, "7"]
    assert (await refused(tx.send("orders", b"x", priority=10))).spec is errors.PROPERTY_ILLEGAL
    in_a_group = tx.send("orders", b"x", priority=1, message_group="g")
    assert (await refused(in_a_group)).spec is errors.REQUEST_ILLEGAL
    assert (await refused(tx.send_batch("orders", [b"x"], priority=[1, 2]))).spec is errors.REQUEST_ILLEGAL
    assert len(tx._messages) == len(found)


async def test_what_is_wrong_is_refused_before_anybody_is_asked() -> None:
    tx = transaction()
    assert (await refused(tx.send("orders", b"x", queue_id=-1))).spec is errors.QUEUE_NOT_FOUND
    assert (await refused(tx.send("orders", b"x", tag="a|b"))).spec is errors.TAG_ILLEGAL
    for _ in range(MESSAGES_MAX):
        await tx.send("orders", b"")
    assert (await refused(tx.send("orders", b""))).spec is errors.TRANSACTION_SIZE_EXCEEDED
    tx.rollback()
    assert (await refused(tx.commit())).spec is errors.REQUEST_ILLEGAL
    nowhere = transaction()
    await nowhere.send("nowhere", b"x")
    assert (await refused(nowhere.commit())).spec is errors.TOPIC_NOT_FOUND
    with pytest.raises(TroveError):
        AtomicTransaction(cast("ConnectionPool", FakeLinks()), broker=None, timeout_ms=0)


@pytest.mark.parametrize(("remembered_ms", "tries"), [("0", 1), ("600000", 2), (None, 2)])
async def test_a_commit_with_a_lost_answer_is_not_resent_to_a_forgetful_broker(
    monkeypatch: pytest.MonkeyPatch, remembered_ms: str | None, tries: int
) -> None:
    asked: list[str] = []

    async def transact(_connection: object, _frames: object, _timeout_ms: int) -> CommitReply:
        asked.append("transact")
        if len(asked) == 1:
            raise TroveError(errors.BROKER_UNREACHABLE)
        return CommitReply(0, 0, bytes(8), "disk", "a", False, [0], [0])

    async def get_transaction(_connection: object, _transaction_id: str) -> CommitReply:
        asked.append("get")
        fields = {} if remembered_ms is None else {"remembered_ms": remembered_ms}
        raise TroveError(errors.TRANSACTION_NOT_FOUND, **fields)

    monkeypatch.setattr(wire, "transact", transact)
    monkeypatch.setattr(wire, "get_transaction", get_transaction)
    tx = transaction()
    await tx.send("orders", b"x")
    if tries == 1:
        error = await refused(tx.commit())
        assert error.spec is errors.TRANSACTION_NOT_FOUND
        assert error.fields["in_doubt"] == "true"
        assert asked == ["transact", "get"]
    else:
        await tx.commit()
        assert asked == ["transact", "get", "transact"]


async def test_an_empty_one_asks_nobody() -> None:
    async with transaction() as tx:
        pass
    assert tx.receipt is not None
    assert tx.receipt.messages == ()
