"""RocketMQ's protocol through forwarded ports: two real brokers, of which clients reach only one."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

import trovemq.sync
from tests.conformance.cluster import metric
from tests.integration.port_forwarder import PortForwarder
from tests.integration.rocketmq_cluster import WAIT_S_MAX, ClusterClient
from tests.support.rocketmq_client import create_topics, message
from tests.support.stubs import GROUPS, stub_of
from trovemq.testing import BrokerProcess, NameserverProcess
from trovemq_proto.rocketmq.v2 import admin_pb2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_proto.v1 import group_pb2

pytestmark = pytest.mark.slow

TOPIC, GROUP = "orders", "workers"
BROKER_BROKEN_MS = 200
EACH = 6
RESET = "/apache.rocketmq.v2.Admin/ResetGroupOffset"


@dataclass
class Cluster:
    processes: ExitStack
    nameserver: NameserverProcess
    brokers: dict[str, BrokerProcess] = field(default_factory=dict)
    ports: dict[str, PortForwarder] = field(default_factory=dict)

    def add(self, name: str, topics: dict[str, str]) -> None:
        broker = BrokerProcess(
            name=name,
            nameservers=[self.nameserver],
            heartbeat_interval_ms=60_000,
            new_group_start="begin",
        )
        self.brokers[name] = self.processes.enter_context(broker)
        create_topics(broker.address, topics)
        self.ports[name] = self.processes.enter_context(PortForwarder(broker.address))

    def client(self, broker: str, *, topic: str = TOPIC, by_port: bool = True) -> ClusterClient:
        address = self.ports[broker].address if by_port else self.brokers[broker].address
        return self.processes.enter_context(ClusterClient(address, GROUP, topic))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as processes:
        nameserver = NameserverProcess(broker_broken_ms=BROKER_BROKEN_MS, broker_silent_ms=600_000)
        made = Cluster(processes, processes.enter_context(nameserver))
        made.add("b1", {TOPIC: "NORMAL"})
        made.add("b2", {TOPIC: "NORMAL", "elsewhere": "NORMAL", "deals": "TRANSACTION", "later": "DELAY"})
        yield made


def both(client: ClusterClient, topic: str | None = None) -> None:
    client.until(lambda shown: shown == {"b1": "READ_WRITE", "b2": "READ_WRITE"}, topic)


def addresses(queues: list[Any]) -> set[str]:
    return {f"{at.host}:{at.port}" for one in queues for at in one.broker.endpoints.addresses}


def test_all_messages_of_both_brokers_come_through_one_port(cluster: Cluster) -> None:
    client = cluster.client("b1")
    both(client)
    assert addresses(client.route()) == {cluster.ports["b1"].address}
    for name in ("b1", "b2"):
        direct = cluster.client(name, by_port=False)
        both(direct)
        (queue, *_) = [one for one in direct.route() if one.broker.name == name]
        for number in range(EACH):
            assert direct.at(queue).send(TOPIC, f"{name} {number}".encode()).status.code == v2.OK
    received = Counter[str]()
    assigned = client.assignments()
    assert [(one.broker.name, one.id) for one in assigned] == [("b1", -1), ("b2", -1)]
    for queue in assigned:
        messages = receive(client, queue, EACH)
        received.update(one.body.decode() for one in messages)
        assert {one.body.split()[0].decode() for one in messages} == {queue.broker.name}
        changed = client.at(queue).change_invisible(GROUP, messages[0], 60)
        assert changed.status.code == v2.OK, changed.status
        messages[0].system_properties.receipt_handle = changed.receipt_handle
        reply = client.acknowledge(queue, messages)
        assert (reply.status.code, {one.status.code for one in reply.entries}) == (v2.OK, {v2.OK})
    assert receive_replies(client.at(assigned[1]), assigned[1])[0].status.code == v2.MESSAGE_NOT_FOUND
    assert received == Counter(f"{name} {number}" for name in ("b1", "b2") for number in range(EACH))


def test_receipts_of_both_brokers_are_acknowledged_by_one_call(cluster: Cluster) -> None:
    client = cluster.client("b1")
    both(client)
    taken = []
    for name in ("b1", "b2"):
        direct = cluster.client(name, by_port=False)
        both(direct)
        (queue, *_) = [one for one in direct.route() if one.broker.name == name]
        assert direct.at(queue).send(TOPIC, name.encode()).status.code == v2.OK
    first, second = client.assignments()
    taken = [*receive(client, second, 1), *receive(client, first, 1)]
    forged = service.AckMessageEntry(message_id="x", receipt_handle="no handle")
    request = service.AckMessageRequest(group=v2.Resource(name=GROUP), topic=v2.Resource(name=TOPIC))
    for one in taken:
        system = one.system_properties
        request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
    request.entries.append(forged)
    reply = client.at(first).call("AckMessage", request, service.AckMessageResponse)
    assert [one.status.code for one in reply.entries] == [v2.OK, v2.OK, v2.INVALID_RECEIPT_HANDLE]
    assert [one.message_id for one in reply.entries] == [one.message_id for one in request.entries]


def test_a_topic_of_the_other_broker_is_sent_to(cluster: Cluster) -> None:
    client = cluster.client("b1", topic="elsewhere")
    client.until(lambda shown: shown == {"b2": "READ_WRITE"})
    (queue, *_) = client.route()
    sent = client.at(queue).send("elsewhere", b"x", b"y")
    assert (sent.status.code, [one.status.code for one in sent.entries]) == (v2.OK, [v2.OK] * 2)
    messages = receive(client, queue, 2)
    assert sorted(one.body for one in messages) == [b"x", b"y"]
    assert client.acknowledge(queue, messages).status.code == v2.OK


def test_delayed_messages_and_transactions_of_the_other_broker_end_there(cluster: Cluster) -> None:
    client = cluster.client("b1", topic="later")
    client.until(lambda shown: shown == {"b2": "READ_WRITE"})
    at = client.at(client.route()[0])
    due_ms = int(time.time() * 1_000) + 3_600_000
    sent = at.send("later", b"x", message_type=v2.DELAY, deliver_at_ms=due_ms)
    assert sent.status.code == v2.OK, sent.status
    recalled = client.recall("later", sent.entries[0].recall_handle)
    assert (recalled.status.code, recalled.message_id) == (v2.OK, sent.entries[0].message_id)

    sent = at.send("deals", b"half", message_type=v2.TRANSACTION)
    assert sent.status.code == v2.OK, sent.status
    (entry,) = sent.entries
    assert at.end_transaction("deals", entry, v2.COMMIT).status.code == v2.OK
    refused = at.end_transaction("deals", entry, v2.COMMIT)
    assert refused.status.code == v2.INVALID_TRANSACTION_ID


def test_a_dead_broker_is_an_error_of_a_call_and_no_wait(cluster: Cluster) -> None:
    client = cluster.client("b1")
    both(client)
    first, second = client.assignments()
    at = client.at(second)
    cluster.nameserver.kill()  # so that the dead broker stays in the routes
    cluster.brokers["b2"].kill()
    began = time.monotonic()
    status = receive_status(at, second)
    assert status.code == v2.PROXY_TIMEOUT
    assert "broker b2 at" in status.message
    assert time.monotonic() - began < 20
    assert at.send(TOPIC, b"x").status.code == v2.OK
    (message,) = receive(client, first, 1)
    assert message.body == b"x"


def test_offsets_of_both_brokers_are_reset_by_one_call(cluster: Cluster) -> None:
    client = cluster.client("b1")
    both(client)
    for name in ("b1", "b2"):
        direct = cluster.client(name, by_port=False)
        both(direct)
        (queue, *_) = [one for one in direct.route() if one.broker.name == name]
        assert direct.at(queue).send(TOPIC, name.encode()).status.code == v2.OK
    for queue in client.assignments():
        (message,) = receive(client, queue, 1)
        assert client.acknowledge(queue, [message]).status.code == v2.OK
    request = admin_pb2.ResetGroupOffsetRequest(group=v2.Resource(name=GROUP), topic=v2.Resource(name=TOPIC))
    request.reset_timestamp.FromSeconds(0)
    with grpc.insecure_channel(cluster.ports["b1"].address) as channel:
        data = channel.unary_unary(RESET)(request.SerializeToString(), timeout=60)
    assert admin_pb2.ResetGroupOffsetResponse.FromString(data).status.code == v2.OK
    bodies = [one.body for queue in client.assignments() for one in receive(client, queue, 1)]
    assert bodies == [b"b1", b"b2"]


def admin(address: str, method: str, request: Any, reply_type: Any) -> Any:
    with grpc.insecure_channel(address) as channel:
        data = channel.unary_unary(f"/apache.rocketmq.v2.Admin/{method}")(
            request.SerializeToString(), timeout=60
        )
    return reply_type.FromString(data)


def test_a_key_is_found_on_both_brokers_through_one_port(cluster: Cluster) -> None:
    topic = v2.Resource(name=TOPIC)
    both(cluster.client("b1"))
    for number in range(EACH):
        send = admin_pb2.AdminSendMessageRequest(topic=topic, body=f"{number}".encode(), key="k")
        address = cluster.brokers[f"b{number % 2 + 1}"].address
        sent = admin(address, "AdminSendMessage", send, admin_pb2.AdminSendMessageResponse)
        assert sent.status.code == v2.OK, sent.status
    port, bodies = cluster.ports["b1"].address, list[bytes]()
    request = admin_pb2.ListMessageRequest(topic=topic, message_key="k", max_message_nums=4)
    for count in (4, EACH - 4):
        found = admin(port, "QueryMessage", request, admin_pb2.ListMessageResponse)
        assert (found.status.code, len(found.messages)) == (v2.OK, count), found.status
        bodies += [one.body for one in found.messages]
        request.scroll_id = found.scroll_id
    assert bodies == [f"{number}".encode() for number in reversed(range(EACH))]
    assert request.scroll_id == ""
    cluster.nameserver.kill()  # so that the dead broker stays in the routes
    cluster.brokers["b2"].kill()
    found = admin(port, "QueryMessage", request, admin_pb2.ListMessageResponse)
    assert (found.status.code, len(found.messages)) == (v2.MULTIPLE_RESULTS, EACH // 2)
    assert "broker b2" in found.status.message


def test_native_look_ups_by_one_port_find_messages_of_the_other_broker(cluster: Cluster) -> None:
    """Only the broker of the port was asked, and each answer said that it lacked another one."""
    both(cluster.client("b1"))
    ids = {}
    for name, broker in cluster.brokers.items():
        with trovemq.sync.connect(broker.address) as direct:
            ids[name] = direct.send(TOPIC, name.encode(), keys=["k"], tag="t").message_id
    with trovemq.sync.connect(cluster.ports["b1"].address) as client:
        for found in (client.query(TOPIC, "k"), client.search(TOPIC, tag="t")):
            assert (sorted(one.body for one in found.messages), found.complete) == ([b"b1", b"b2"], True)
        assert [one.body for one in client.query(TOPIC, "k", broker="b2").messages] == [b"b2"]
        assert [one.body for one in client.get(ids["b2"]).messages] == [b"b2"]
        assert [copy.broker for copy in client.track(ids["b2"]).copies] == ["b2"]
        cluster.nameserver.kill()  # so that the dead broker stays in the routes
        cluster.brokers["b2"].kill()
        found = client.query(TOPIC, "k")
        assert ([one.body for one in found.messages], found.unreachable) == ([b"b1"], ("b2",))


def test_a_recall_by_the_port_of_another_broker_was_refused(
    cluster: Cluster,
) -> None:
    """Its look-up by one port gave the handle, and the recall by the same port was refused."""
    both(cluster.client("b1"))
    with trovemq.sync.connect(cluster.brokers["b2"].address) as direct:
        sent = direct.send("later", b"x", keys=["k"], deliver_after=3_600)
    with trovemq.sync.connect(cluster.ports["b1"].address) as client:
        (found,), complete = client.admin.groups.find_delayed("later", "k")
        assert (found.recall_handle, complete) == (sent.recall_handle, True)
        assert client.recall("later", sent.recall_handle) == sent.message_id
        assert list(client.admin.groups.find_delayed("later", "k")[0]) == []


def test_look_ups_left_out_a_broker_that_joined_after_the_client_connected() -> None:
    """And said nothing of it, neither while it was there nor when it was lost."""
    with ExitStack() as processes:
        nameserver = processes.enter_context(NameserverProcess(broker_broken_ms=BROKER_BROKEN_MS))
        made = Cluster(processes, nameserver)
        made.add("b1", {TOPIC: "NORMAL"})
        client = processes.enter_context(trovemq.sync.connect(made.ports["b1"].address))
        assert client.query(TOPIC, "k").complete
        made.add("b2", {TOPIC: "NORMAL"})
        with trovemq.sync.connect(made.brokers["b2"].address) as direct:
            direct.send(TOPIC, b"b2", keys=["k"])
        until(lambda: [one.body for one in client.query(TOPIC, "k").messages] == [b"b2"])
        made.brokers["b2"].kill()
        until(lambda: metric(made.brokers["b1"], "trovemq_routes_brokers") == 0)
        found = client.query(TOPIC, "k")
        assert (list(found.messages), found.complete, found.unreachable) == ([], False, ("b2",))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.05)


def receive(client: ClusterClient, queue: Any, count: int) -> list[Any]:
    """Messages of this queue, as an official client asks: it names the queue's broker."""
    taken: list[Any] = []
    end = time.monotonic() + WAIT_S_MAX
    while len(taken) < count and time.monotonic() < end:
        replies = receive_replies(client.at(queue), queue)
        assert replies[0].status.code in (v2.OK, v2.MESSAGE_NOT_FOUND), replies[0].status
        taken += [reply.message for reply in replies if reply.WhichOneof("content") == "message"]
    return taken


def receive_status(at: Any, queue: Any) -> Any:
    return receive_replies(at, queue)[0].status


def receive_replies(at: Any, queue: Any, *, poll_s: float = 5) -> list[Any]:
    request = service.ReceiveMessageRequest(
        group=v2.Resource(name=GROUP),
        message_queue=queue,
        filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
        batch_size=32,
    )
    request.invisible_duration.FromMilliseconds(30_000)
    request.long_polling_timeout.FromMilliseconds(int(poll_s * 1000))
    found: list[Any] = at.stream(
        "ReceiveMessage", request, service.ReceiveMessageResponse, seconds=poll_s + 25
    )
    return found


def test_the_other_broker_knows_the_client_until_it_goes(cluster: Cluster) -> None:
    client = cluster.client("b1")
    both(client)
    _, second = client.assignments()
    direct = cluster.client("b2", by_port=False)
    both(direct)
    queue = next(one for one in direct.route() if one.broker.name == "b2")
    assert direct.at(queue).send(TOPIC, b"x").status.code == v2.OK
    receive(client, second, 1)
    wait_until(lambda: client.client_id in members(cluster.brokers["b2"].address))
    assert client.heartbeat(second).status.code == v2.OK
    client.__exit__()
    wait_until(lambda: client.client_id not in members(cluster.brokers["b2"].address))


def members(address: str) -> set[str]:
    with grpc.insecure_channel(address) as channel:
        request = group_pb2.ListMembersRequest(group=GROUP)
        reply = stub_of(GROUPS, channel).ListMembers(request, timeout=60)
        return {one.client_id for one in reply.members}


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_broker_that_stands_still_is_an_error_within_the_deadline(cluster: Cluster) -> None:
    client = cluster.client("b1", topic="elsewhere")
    client.until(lambda shown: shown == {"b2": "READ_WRITE"})
    at = client.at(client.route()[0])
    assert at.send("elsewhere", b"x").status.code == v2.OK
    cluster.nameserver.kill()  # so that the broker stays in the routes
    pid = cluster.brokers["b2"].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        request = service.SendMessageRequest(messages=[message("elsewhere", b"y")])
        reply = at.call("SendMessage", request, service.SendMessageResponse, seconds=3)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert reply.status.code == v2.PROXY_TIMEOUT, reply.status
    assert "broker b2" in reply.status.message
