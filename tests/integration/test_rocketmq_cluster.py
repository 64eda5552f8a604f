"""RocketMQ's protocol with several real brokers: a client that is given one address uses all of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

import trovemq
from tests.integration.rocketmq_cluster import ClusterClient
from tests.support.rocketmq_client import create_topics
from trovemq.testing import BrokerProcess, NameserverProcess
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

pytestmark = pytest.mark.slow

TOPIC, GROUP = "orders", "workers"
BROKER_BROKEN_MS = 200


@dataclass
class Cluster:
    processes: ExitStack
    nameserver: NameserverProcess
    brokers: dict[str, BrokerProcess]

    def add(self, name: str, *topics: str) -> BrokerProcess:
        # No step waits for a heartbeat.
        broker = BrokerProcess(
            name=name,
            nameservers=[self.nameserver],
            heartbeat_interval_ms=60_000,
            new_group_start="begin",
        )
        self.brokers[name] = self.processes.enter_context(broker)
        create_topics(broker.address, dict.fromkeys(topics, "NORMAL"))
        return broker

    def client(self, broker: str) -> ClusterClient:
        return self.processes.enter_context(ClusterClient(self.brokers[broker].address, GROUP, TOPIC))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as processes:
        nameserver = NameserverProcess(broker_broken_ms=BROKER_BROKEN_MS, broker_silent_ms=600_000)
        made = Cluster(processes, processes.enter_context(nameserver), {})
        made.add("b1", TOPIC)
        made.add("b2", TOPIC)
        yield made


def test_one_address_sends_to_and_receives_from_all_brokers(cluster: Cluster) -> None:
    client = cluster.client("b1")
    client.until(lambda shown: shown == {"b1": "READ_WRITE", "b2": "READ_WRITE"})
    sent = set()
    for number, message_queue in enumerate(client.route() * 5):
        body = f"{message_queue.broker.name} {number}".encode()
        reply = client.at(message_queue).send(TOPIC, body)
        assert reply.status.code == v2.OK
        sent.add(body)
    received = Counter[bytes]()
    assigned = client.assignments()
    assert [(one.broker.name, one.id) for one in assigned] == [("b1", -1), ("b2", -1)]
    for message_queue in assigned:
        assert client.heartbeat(message_queue).status.code == v2.OK
        messages = client.receive(message_queue, 10)
        assert {one.body.split()[0].decode() for one in messages} == {message_queue.broker.name}
        received.update(one.body for one in messages)
        changed = client.at(message_queue).change_invisible(GROUP, messages[0], 60)
        assert changed.status.code == v2.OK
        messages[0].system_properties.receipt_handle = changed.receipt_handle
        reply = client.acknowledge(message_queue, messages)
        assert (reply.status.code, {one.status.code for one in reply.entries}) == (v2.OK, {v2.OK})
        assert client.at(message_queue).receive(GROUP, TOPIC, poll_s=5) == []
    assert received == Counter(sent)


def test_the_next_route_shows_a_broker_that_joins_drains_or_dies(cluster: Cluster) -> None:
    client = cluster.client("b1")
    both = {"b1": "READ_WRITE", "b2": "READ_WRITE"}
    client.until(lambda shown: shown == both)
    third = cluster.add("b3", TOPIC)
    took = {"joined": client.until(lambda shown: shown == {**both, "b3": "READ_WRITE"})}
    asyncio.run(drain(third, undo=False))
    took["drains"] = client.until(lambda shown: shown == {**both, "b3": "READ"})
    assert {one.broker.name for one in client.assignments()} == {"b1", "b2", "b3"}, "it is still read"
    asyncio.run(drain(third, undo=True))
    took["returned"] = client.until(lambda shown: shown == {**both, "b3": "READ_WRITE"})
    third.kill()
    took["died"] = client.until(lambda shown: shown == both)
    cluster.brokers["b2"].stop()
    took["left"] = client.until(lambda shown: shown == {"b1": "READ_WRITE"})
    print(took)


async def drain(broker: BrokerProcess, *, undo: bool) -> None:
    async with trovemq.connect(broker.address) as operator:
        brokers = operator.admin.brokers
        await (brokers.undrain(broker.name) if undo else brokers.drain(broker.name, grace_ms=60_000))


def test_a_topic_of_another_broker_is_not_unknown(cluster: Cluster) -> None:
    create_topics(cluster.brokers["b2"].address, {"elsewhere": "NORMAL"})
    client = cluster.client("b1")
    client.until(lambda shown: shown == {"b2": "READ_WRITE"}, "elsewhere")


def test_any_broker_recalls_a_delayed_message_of_another(cluster: Cluster) -> None:
    create_topics(cluster.brokers["b2"].address, {"later": "DELAY"})
    client = cluster.client("b1")
    client.until(lambda shown: len(shown) == 1, "later")
    (message_queue, *_) = client.route("later")
    due_ms = int(time.time() * 1_000) + 3_600_000
    sent = client.at(message_queue).send("later", b"x", message_type=v2.DELAY, deliver_at_ms=due_ms)
    (entry,) = sent.entries
    reply = client.recall("later", entry.recall_handle)
    assert (reply.status.code, reply.message_id) == (v2.OK, entry.message_id)


def test_a_receipt_handle_at_the_wrong_broker_goes_to_the_right_one(cluster: Cluster) -> None:
    client = cluster.client("b1")
    client.until(lambda shown: len(shown) == 2)
    first, second = client.assignments()
    assert client.at(second).send(TOPIC, b"x").status.code == v2.OK
    received = client.receive(second, 1)
    assert client.acknowledge(first, received).status.code == v2.OK
    received[0].system_properties.receipt_handle += "0"
    (refused,) = client.acknowledge(first, received).entries
    assert refused.status.code == v2.INVALID_RECEIPT_HANDLE


def test_the_last_known_brokers_stay_without_nameservers(cluster: Cluster) -> None:
    client = cluster.client("b1")
    client.until(lambda shown: len(shown) == 2)
    cluster.nameserver.kill()
    while "routes.kept" not in cluster.brokers["b1"].log():
        assert len(client.permissions()) == 2
    assert len(client.permissions()) == 2
    for message_queue in client.route():
        assert client.at(message_queue).send(TOPIC, b"x").status.code == v2.OK
