"""What a broker owes to consumers and producers survives its restart, clean or not: offsets, messages in
flight, delayed messages, half messages."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import pytest

from tests.support.rocketmq_client import RawClient, create_orderly_group, create_topics
from trovemq.testing import BrokerProcess
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import admin_pb2, admin_pb2_grpc

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])]


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(transactionCheckInterval=1000, transactionTimeOut=1000) as process:
        types = {"orders": "NORMAL", "later": "DELAY", "paid": "TRANSACTION", "steps": "FIFO"}
        create_topics(process.address, types)
        yield process


def bodies(messages: list[v2.Message]) -> list[bytes]:
    return sorted(message.body for message in messages)


def events_written(broker: BrokerProcess) -> None:
    """Events go into the log every 100 ms: a kill before that means that messages come again."""
    with grpc.insecure_channel(broker.address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        end = time.monotonic() + 30
        while stub.GetStatistics(admin_pb2.GetStatisticsRequest()).counters["events_pending"]:
            assert time.monotonic() < end, "events stay in memory"
            time.sleep(0.02)


def test_what_was_acknowledged_does_not_come_again(broker: BrokerProcess, kill: bool) -> None:
    with RawClient(broker.address) as client:
        client.send("orders", *(b"%02d" % i for i in range(20)))
        taken = client.receive_until("group", "orders", 20)
        client.acknowledge("group", taken[:12])
        acknowledged = bodies(taken[:12])
        events_written(broker)
    broker.restart(kill=kill)
    with RawClient(broker.address) as client:
        client.send("orders", b"new")
        again = client.receive_until("group", "orders", 1, poll_s=5)
        assert b"new" in bodies(again)
        assert not set(bodies(again)) & set(acknowledged)


def test_what_was_in_flight_comes_back_when_its_time_is_over(broker: BrokerProcess, kill: bool) -> None:
    with RawClient(broker.address) as client:
        client.send("orders", b"one", b"two", tag="t", keys=["k"], user_properties={"colour": "blue"})
        taken = client.receive_until("group", "orders", 2, invisible_s=10)
        received_at = time.monotonic()
        assert [message.system_properties.delivery_attempt for message in taken] == [1, 1]
        ids = sorted(message.system_properties.message_id for message in taken)
        events_written(broker)
    broker.restart(kill=kill)
    with RawClient(broker.address) as client:
        again = client.receive_until("group", "orders", 2, within_s=60, invisible_s=60)
        assert time.monotonic() - received_at >= 9.5, "not before its time"
        assert bodies(again) == [b"one", b"two"]
        assert sorted(message.system_properties.message_id for message in again) == ids
        for message in again:
            assert message.topic.name == "orders"
            assert message.system_properties.delivery_attempt == 2
            assert message.system_properties.tag == "t"
            assert list(message.system_properties.keys) == ["k"]
            assert dict(message.user_properties) == {"colour": "blue"}
        done = client.acknowledge("group", again)
        assert done.status.code == v2.OK
        assert client.receive("group", "orders") == []


def test_a_delayed_message_comes_once_and_not_early(broker: BrokerProcess, kill: bool) -> None:
    with RawClient(broker.address) as client:
        assert client.receive("group", "later") == []
        due_ms = int(time.time() * 1000) + 4_000
        past_ms = int(time.time() * 1000) + 300
        client.send("later", b"soon", deliver_at_ms=past_ms)
        client.send("later", b"later", deliver_at_ms=due_ms)
        (soon,) = client.receive_until("group", "later", 1)
        assert soon.body == b"soon"
        client.acknowledge("group", [soon])
        events_written(broker)
    broker.restart(kill=kill)
    with RawClient(broker.address) as client:
        (later,) = client.receive_until("group", "later", 1)
        assert time.time() * 1000 >= due_ms
        assert later.body == b"later"
        assert later.system_properties.delivery_timestamp.ToMilliseconds() == due_ms
        client.acknowledge("group", [later])
        assert client.receive("group", "later") == []


def test_a_half_message_can_be_committed_or_rolled_back_afterwards(broker: BrokerProcess, kill: bool) -> None:
    with RawClient(broker.address) as client:
        assert client.receive("group", "paid") == []
        entries = [
            client.send("paid", body, message_type=v2.TRANSACTION).entries[0]
            for body in (b"yes", b"no", b"before")
        ]
        assert client.end_transaction("paid", entries[2], v2.COMMIT).status.code == v2.OK
        assert bodies(client.receive_until("group", "paid", 1)) == [b"before"]
        events_written(broker)
    broker.restart(kill=kill)
    with RawClient(broker.address) as client:
        assert client.end_transaction("paid", entries[0], v2.COMMIT).status.code == v2.OK
        assert client.end_transaction("paid", entries[1], v2.ROLLBACK).status.code == v2.OK
        assert bodies(client.receive_until("group", "paid", 1)) == [b"yes"]
        settled = client.end_transaction("paid", entries[2], v2.COMMIT)
        assert settled.status.code == v2.INVALID_TRANSACTION_ID
        assert client.receive("group", "paid") == []


def test_order_within_a_message_group_survives(broker: BrokerProcess, kill: bool) -> None:
    create_orderly_group(broker.address, "ordered")
    with RawClient(broker.address) as client:
        for number in range(6):
            client.send("steps", b"a%d" % number, message_group="a")
            client.send("steps", b"b%d" % number, message_group="b")
        first = client.receive_until("ordered", "steps", 4, invisible_s=10)
        kept = first[:2]
        client.acknowledge("ordered", kept)
        events_written(broker)
    broker.restart(kill=kill)
    order = [message.body for message in kept]
    with RawClient(broker.address) as client:
        end = time.monotonic() + 30
        while len(order) < 12 and time.monotonic() < end:
            taken = client.receive("ordered", "steps", count=4)
            if taken:
                client.acknowledge("ordered", taken)
            order += [message.body for message in taken]
    for name in (b"a", b"b"):
        assert [body for body in order if body.startswith(name)] == [name + b"%d" % i for i in range(6)]
