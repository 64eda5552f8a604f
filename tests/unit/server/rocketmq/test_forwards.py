"""Calls that belong to another broker: two brokers in memory, of which one forwards to the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.call_forms import grpc_form
from tests.support.engine import NOW_MS, flush
from tests.support.memory_broker import ROOMY, TestBroker
from tests.support.rocketmq_client import message
from tests.support.rpc_context import RpcContext
from tests.unit.server.rocketmq.test_routes import Other, Others
from trovemq_broker.server.core.forwarding import ForwardedCall
from trovemq_broker.server.rocketmq import forwards as module
from trovemq_broker.server.rocketmq.forwarded_service import ForwardedService
from trovemq_broker.server.rocketmq.forwards import Forwards
from trovemq_broker.server.rocketmq.service import RocketmqService
from trovemq_broker.timers.recall_handle import encode_recall_handle
from trovemq_daemon.addresses import Address
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_proto.v1 import forwarding_pb2

pytestmark = pytest.mark.asyncio

PORT = v2.Endpoints(scheme=v2.DOMAIN_NAME, addresses=[v2.Address(host="port.example", port=1)])
CAME_BY = [Address("port.example", 1)]
REPLIES: dict[str, Any] = {
    "SendMessage": service.SendMessageResponse,
    "ReceiveMessage": service.ReceiveMessageResponse,
    "AckMessage": service.AckMessageResponse,
    "ChangeInvisibleDuration": service.ChangeInvisibleDurationResponse,
    "EndTransaction": service.EndTransactionResponse,
    "PullMessage": service.PullMessageResponse,
    "QueryOffset": service.QueryOffsetResponse,
    "UpdateOffset": service.UpdateOffsetResponse,
    "QueryRoute": service.QueryRouteResponse,
    "RecallMessage": service.RecallMessageResponse,
}


class Node:
    """A broker. `sent`: the calls that it has forwarded."""

    def __init__(self, name: str) -> None:
        self.parts = parts = TestBroker(replace(ROOMY, broker=name))
        parts.sync_by(self._durable)
        self.name = name
        self.others = Others()
        self.placements: dict[str, Mapping[str, int]] = {}
        self.nodes: dict[str, Node] = {}
        self.sent: list[tuple[str, ForwardedCall]] = []
        self.has_tls = False
        own = Address(f"{name}.example", 8_081), None
        self.forwards = Forwards(name, self.others, self, lambda topic: self.placements.get(topic, {}), own)
        self.service = RocketmqService(parts, others=self.others, forwards=self.forwards)
        self.handlers = {name: grpc_form(one) for name, one in self.service.messaging_handlers().items()}
        self.forwarded = ForwardedService(self.service.forwarded_handlers(), self.service.telemetry.forwarded)

    async def _durable(self, _end: int) -> None:
        flush(self.parts.store)

    # --- as ForwardCalls ------------------------------------------------------------------------------
    async def forward(self, broker: str, call: ForwardedCall) -> AsyncGenerator[bytes, None]:
        self.sent.append((broker, call))
        if broker not in self.nodes:
            raise TroveError(errors.BROKER_UNREACHABLE, f"broker {broker} is dead", broker=broker)
        client = forwarding_pb2.ForwardedClient(
            caller=call.client.caller, peer=call.client.peer, metadata=dict(call.client.metadata)
        )
        request = forwarding_pb2.ForwardRequest(client=client, method=call.method, request=call.request)
        outer: Any = RpcContext("", deadline_s=call.remaining_s)
        replies = self.nodes[broker].forwarded.forward(request, outer)
        try:
            async for reply in replies:
                yield reply.reply
        finally:
            outer.is_done = True
            await replies.aclose()

    async def open_telemetry(self, broker: str, client: Any, *, by_tls: bool) -> Any:
        raise TroveError(errors.BROKER_UNREACHABLE, "telemetry is not tested here")

    # --- as a client ------------------------------------------------------------------------------------
    async def call(self, name: str, request: Any, context: Any = None) -> list[Any]:
        handler, data = self.handlers[name], request.SerializeToString()
        context = context or RpcContext(deadline_s=30.0)
        if handler.unary_unary is not None:
            replies = [await handler.unary_unary(data, context)]
        else:
            context.written.clear()
            found = handler.unary_stream(data, context)
            if hasattr(found, "__aiter__"):
                replies = [reply async for reply in found]
            else:
                await found
                replies = context.written
        return [REPLIES[name].FromString(handler.response_serializer(reply)) for reply in replies]

    async def send(self, topic: str, body: bytes = b"x", **properties: Any) -> Any:
        request = service.SendMessageRequest(messages=[message(topic, body, **properties)])
        (reply,) = await self.call("SendMessage", request)
        return reply


def two() -> tuple[Node, Node]:
    """Brokers a and b, each of which forwards to the other. Topic `there` is on b only."""
    a, b = Node("broker-a"), Node("broker-b")
    a.nodes["broker-b"], b.nodes["broker-a"] = b, a
    b.parts.store.topics.create("there", 2, "MIXED")
    topics = ("orders", "steps", "deals", "there")
    a.others.topics = {name: [Other("broker-b", Address("10.0.0.2", 8_081))] for name in topics}
    b.others.topics = {name: [Other("broker-a", Address("10.0.0.1", 8_081))] for name in topics[:3]}
    return a, b


def receive_request(topic: str, broker: str) -> service.ReceiveMessageRequest:
    queue = v2.MessageQueue(topic=v2.Resource(name=topic), id=-1, broker=v2.Broker(name=broker))
    request = service.ReceiveMessageRequest(
        group=v2.Resource(name="workers"),
        message_queue=queue,
        filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
        batch_size=8,
    )
    request.invisible_duration.FromSeconds(30)
    request.long_polling_timeout.FromSeconds(5)
    return request


async def received(at: Node, topic: str, broker: str) -> list[Any]:
    replies = await at.call("ReceiveMessage", receive_request(topic, broker))
    assert replies[0].status.code == v2.OK, replies[0].status
    return [one.message for one in replies if one.WhichOneof("content") == "message"]


async def test_a_topic_of_another_broker_is_stored_there_with_its_client() -> None:
    a, b = two()
    reply = await a.send("there", b"hello")
    assert reply.status.code == v2.OK
    ((broker, call),) = a.sent
    assert (broker, call.method, call.client.peer) == ("broker-b", "SendMessage", RpcContext.address)
    assert dict(call.client.metadata)["x-mq-client-id"] == "client-1"
    (one,) = await received(b, "there", "broker-b")
    assert one.body == b"hello"
    assert "there" not in a.parts.store.topics


async def test_a_topic_that_is_here_stays_here() -> None:
    a, _ = two()
    assert (await a.send("orders")).status.code == v2.OK
    assert a.sent == []


async def test_a_forwarded_call_is_never_forwarded_again() -> None:
    a, b = two()
    for node, other in ((a, "broker-b"), (b, "broker-a")):
        node.others.topics["nowhere"] = [Other(other, Address("10.0.0.9", 1))]
    await a.send("nowhere")
    assert [broker for broker, _ in a.sent] == ["broker-b"]
    assert b.sent == []


async def test_a_receipt_goes_back_to_the_broker_that_gave_it() -> None:
    a, b = two()
    await b.send("orders", b"of b")
    await a.send("orders", b"of a")
    of_b, of_a = await received(a, "orders", "broker-b"), await received(a, "orders", "broker-a")
    assert [one.body for one in (*of_b, *of_a)] == [b"of b", b"of a"]
    resources: dict[str, Any] = {"group": v2.Resource(name="workers"), "topic": v2.Resource(name="orders")}
    change = service.ChangeInvisibleDurationRequest(
        **resources, receipt_handle=of_b[0].system_properties.receipt_handle
    )
    change.invisible_duration.FromSeconds(60)
    (changed,) = await a.call("ChangeInvisibleDuration", change)
    assert changed.status.code == v2.OK, changed.status
    request = service.AckMessageRequest(**resources)
    handles = [of_a[0].system_properties.receipt_handle, "forged", changed.receipt_handle]
    for number, handle in enumerate(handles):
        request.entries.add(message_id=str(number), receipt_handle=handle)
    (reply,) = await a.call("AckMessage", request)
    codes = [one.status.code for one in reply.entries]
    assert codes == [v2.OK, v2.INVALID_RECEIPT_HANDLE, v2.OK]
    assert reply.status.code == v2.MULTIPLE_RESULTS


async def test_a_receipt_of_a_broker_that_is_away_is_not_refused_for_good() -> None:
    """Clients repeat an acknowledgement unless its receipt handle is illegal."""
    a, b = two()
    await b.send("orders", b"of b")
    (of_b,) = await received(a, "orders", "broker-b")
    a.others.topics.clear()
    a.others.away["broker-b"] = Address("10.0.0.2", 8_081)
    a.nodes.clear()
    resources: dict[str, Any] = {"group": v2.Resource(name="workers"), "topic": v2.Resource(name="orders")}
    handle = of_b.system_properties.receipt_handle
    request = service.AckMessageRequest(**resources)
    request.entries.add(message_id="1", receipt_handle=handle)
    (reply,) = await a.call("AckMessage", request)
    assert [one.status.code for one in reply.entries] == [v2.PROXY_TIMEOUT]
    change = service.ChangeInvisibleDurationRequest(**resources, receipt_handle=handle)
    change.invisible_duration.FromSeconds(60)
    (changed,) = await a.call("ChangeInvisibleDuration", change)
    assert changed.status.code == v2.PROXY_TIMEOUT


async def test_a_cancelled_receive_leaves_the_line_of_the_other_broker() -> None:
    a, b = two()
    pair = ("workers", "orders")
    waiting = asyncio.ensure_future(a.call("ReceiveMessage", receive_request("orders", "broker-b")))
    async with asyncio.timeout(60):
        while not b.parts.waits.any_for(pair):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        for _ in range(20):
            await asyncio.sleep(0)
    assert not b.parts.waits.any_for(pair)
    await b.send("orders", b"later")
    (one,) = await received(b, "orders", "broker-b")
    assert (one.body, one.system_properties.delivery_attempt) == (b"later", 1)


async def test_a_transaction_ends_where_it_is_open() -> None:
    a, _ = two()
    (entry,) = (await a.send("there", message_type=v2.TRANSACTION)).entries
    request = service.EndTransactionRequest(
        topic=v2.Resource(name="there"),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=v2.COMMIT,
    )
    (ended,) = await a.call("EndTransaction", request)
    (again,) = await a.call("EndTransaction", request)
    assert (ended.status.code, again.status.code) == (v2.OK, v2.INVALID_TRANSACTION_ID)


def recall_of(handle: str, topic: str = "there") -> service.RecallMessageRequest:
    return service.RecallMessageRequest(topic=v2.Resource(name=topic), recall_handle=handle)


async def test_a_recall_goes_to_the_broker_that_made_the_handle() -> None:
    a, _ = two()
    deliver_ms = NOW_MS + 10_000
    (entry,) = (await a.send("there", message_type=v2.DELAY, deliver_at_ms=deliver_ms)).entries
    a.sent.clear()
    request = recall_of(entry.recall_handle)
    context: Any = RpcContext("m\xe9", authorization="signed", x_other="secret", deadline_s=30.0)
    for _ in range(2):
        (reply,) = await a.call("RecallMessage", request, context)
        assert (reply.status.code, reply.message_id) == (v2.OK, entry.message_id), (
            "the second changes nothing"
        )
    broker, call = a.sent[0]
    assert (broker, call.request) == ("broker-b", request.SerializeToString())
    assert dict(call.client.metadata) == {"x-mq-client-id": "m\xe9"}, "the client's signature stays here"


@pytest.mark.parametrize(
    ("handle", "expected", "forwarded"),
    [
        ("no handle", v2.TOPIC_NOT_FOUND, 0),
        (encode_recall_handle("orders", "broker-b", NOW_MS + 10_000, "D1"), v2.TOPIC_NOT_FOUND, 0),
        (encode_recall_handle("there", "broker-x", NOW_MS + 10_000, "D1"), v2.TOPIC_NOT_FOUND, 0),
        (encode_recall_handle("there", "broker-b", NOW_MS + 10_000, "x"), v2.BAD_REQUEST, 1),
    ],
)
async def test_a_recall_that_another_broker_does_not_take(handle: str, expected: Any, forwarded: int) -> None:
    a, _ = two()
    (reply,) = await a.call("RecallMessage", recall_of(handle))
    assert (reply.status.code, len(a.sent)) == (expected, forwarded), reply.status
    (reply,) = await a.call("RecallMessage", recall_of(handle, "a b"))
    assert (reply.status.code, len(a.sent)) == (v2.ILLEGAL_TOPIC, forwarded)


async def test_a_recall_of_a_broker_that_is_away_is_not_refused_for_good() -> None:
    """With the error of an illegal handle a client would not repeat it."""
    a, _ = two()
    a.others.topics.clear()
    a.others.away["broker-b"] = Address("10.0.0.2", 8_081)
    a.nodes.clear()
    handle = encode_recall_handle("there", "broker-b", NOW_MS + 10_000, "D1")
    (reply,) = await a.call("RecallMessage", recall_of(handle))
    assert reply.status.code == v2.PROXY_TIMEOUT, reply.status


async def test_a_dead_broker_is_a_named_error() -> None:
    a, _ = two()
    a.nodes.clear()
    (status, *_) = await a.call("ReceiveMessage", receive_request("orders", "broker-b"))
    assert status.status.code == v2.PROXY_TIMEOUT
    assert "broker-b is dead" in status.status.message
    assert (await a.send("there")).status.code == v2.PROXY_TIMEOUT
    queue = v2.MessageQueue(topic=v2.Resource(name="orders"), broker=v2.Broker(name="broker-b"))
    (offset,) = await a.call("QueryOffset", service.QueryOffsetRequest(message_queue=queue))
    assert offset.status.code == v2.PROXY_TIMEOUT


async def test_an_offset_of_a_broker_that_is_not_known_yet_is_not_set_here() -> None:
    """After a start this broker serves clients before it has the routes."""
    a, _ = two()
    for number in range(4):
        await a.send("orders", b"%d" % number)
    (reply,) = await a.call("QueryRoute", service.QueryRouteRequest(topic=v2.Resource(name="orders")))
    taken = next(one for one in reply.message_queues if one.broker.name == "broker-a")
    a.others.topics.clear()
    queue = v2.MessageQueue(topic=v2.Resource(name="orders"), id=taken.id, broker=v2.Broker(name="broker-b"))
    update = service.UpdateOffsetRequest(group=v2.Resource(name="workers"), message_queue=queue, offset=0)
    (refused,) = await a.call("UpdateOffset", update)
    assert refused.status.code == v2.NOT_FOUND
    assert "broker-b" in refused.status.message
    pull = service.PullMessageRequest(group=v2.Resource(name="workers"), message_queue=queue, batch_size=1)
    (status, *_) = await a.call("PullMessage", pull)
    assert status.status.code == v2.NOT_FOUND
    for name in ("", "broker-a"):
        queue.broker.name = name
        update.message_queue.CopyFrom(queue)
        (done,) = await a.call("UpdateOffset", update)
        assert done.status.code == v2.OK, done.status


async def test_a_forwarded_port_shows_every_queue_at_that_address() -> None:
    a, _ = two()
    request = service.QueryRouteRequest(topic=v2.Resource(name="orders"), endpoints=PORT)
    (reply,) = await a.call("QueryRoute", request)
    assert {one.broker.name for one in reply.message_queues} == {"broker-a", "broker-b"}
    assert all(one.broker.endpoints == PORT for one in reply.message_queues)


@pytest.mark.parametrize("has_tls", [False, True])
async def test_clients_by_tls_get_the_queues_that_can_be_forwarded_by_tls(has_tls: bool) -> None:
    a, _ = two()
    a.has_tls = has_tls
    secure = Other("broker-c", Address("10.0.0.3", 8_081), Address("10.0.0.3", 8_443))
    a.others.topics["orders"].append(secure)
    context = RpcContext()
    context.by_tls = True
    request = service.QueryRouteRequest(topic=v2.Resource(name="orders"), endpoints=PORT)
    (reply,) = await a.call("QueryRoute", request, context)
    names = {one.broker.name for one in reply.message_queues}
    assert names == ({"broker-a", "broker-c"} if has_tls else {"broker-a"})
    request.topic.name = "there"
    (reply,) = await a.call("QueryRoute", request, context)
    assert reply.status.code == v2.TOPIC_NOT_FOUND, "it is on brokers without TLS only"


async def test_a_message_group_has_the_same_broker_by_every_port() -> None:
    a, b = two()
    context: Any = RpcContext("noted")
    for node in (a, b):
        node.placements["steps"] = {"broker-a": 2, "broker-b": 2}
        node.forwards.note(context, CAME_BY)
        node.forwards.note(RpcContext("another"), [Address("BROKER-A.example", 8_081)])
    owners = set()
    for number in range(40):
        by_a = a.forwards.group_broker("steps", f"g{number}", "noted") or "broker-a"
        by_b = b.forwards.group_broker("steps", f"g{number}", "noted") or "broker-b"
        assert by_a == by_b
        owners.add(by_a)
        assert a.forwards.group_broker("steps", f"g{number}", "another") == "", "it reaches both brokers"
    assert owners == {"broker-a", "broker-b"}
    a.others.topics.clear()
    groups = [f"g{number}" for number in range(40)]
    there = next(one for one in groups if b.forwards.group_broker("steps", one, "noted") == "")
    with pytest.raises(TroveError, match="FIFO_BROKER_AWAY"):
        a.forwards.group_broker("steps", there, "noted")


async def test_a_message_group_of_a_topic_that_comes_soon_went_to_another_broker() -> None:
    a, _ = two()
    a.placements["there"] = {"broker-a": 2, "broker-b": 2, "broker-c": 2}
    brokers = set()
    for number in range(40):
        try:
            brokers.add(a.forwards.topic_broker("there", f"g{number}", "id"))
        except TroveError as error:
            brokers.add(error.symbol)
    assert brokers == {"", "broker-b", "FIFO_BROKER_AWAY"}, "of a, of b, and of c, which is away"


async def test_few_messages_get_another_broker_when_one_goes() -> None:
    a, _ = two()
    names = [f"broker-{letter}" for letter in "bcd"]
    a.others.topics["many"] = [Other(name, Address("10.0.0.9", 1)) for name in names]
    keys = [f"id-{number}" for number in range(60)]
    before = {key: a.forwards.topic_broker("many", "", key) for key in keys}
    assert set(before.values()) == set(names)
    a.others.topics["many"].pop()
    for key, broker in before.items():
        if broker != names[-1]:
            assert a.forwards.topic_broker("many", "", key) == broker


async def test_the_clients_that_are_noted_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTED_MAX", 2)
    a, _ = two()
    a.placements["steps"] = {"broker-b": 1, "broker-c": 1}
    a.others.topics["steps"].append(Other("broker-c", Address("10.0.0.3", 1)))
    for name in ("first", "second", "third"):
        context: Any = RpcContext(name)
        a.forwards.note(context, CAME_BY)
    with pytest.raises(TroveError, match="FIFO_SENDER_UNKNOWN"):
        a.forwards.group_broker("steps", "g", "first")
    assert a.forwards.group_broker("steps", "g", "third") != ""


async def test_a_group_of_another_broker_was_stored_here_after_a_start() -> None:
    """Until the client asked for routes again, they were stored here: the order of the group was lost."""
    a, b = two()
    for node in (a, b):
        node.placements["steps"] = {"broker-a": 2, "broker-b": 2}
    b.forwards.note(RpcContext(), CAME_BY)
    groups = [f"g{number}" for number in range(20)]
    there = next(one for one in groups if not b.forwards.group_broker("steps", one, "client-1"))
    here = next(one for one in groups if b.forwards.group_broker("steps", one, "client-1"))
    codes = [(await a.send("steps", message_group=group)).status.code for group in (there, here)]
    assert codes == [v2.TOO_MANY_REQUESTS, v2.OK]
    assert a.sent == []
    a.forwards.note(RpcContext(), CAME_BY)
    assert (await a.send("steps", message_group=there)).status.code == v2.OK
    assert [broker for broker, _ in a.sent] == ["broker-b"]


@pytest.mark.parametrize(
    ("dialled", "direct"),
    [
        ([], True),
        ([Address("broker-a.example", 8_081)], True),
        ([Address("10.0.0.2", 8_081)], True),
        ([Address("port.example", 1), Address("10.0.0.9", 8_081)], True),
        (CAME_BY, False),
    ],
)
async def test_a_client_of_an_advertised_address_chooses_the_broker(
    dialled: list[Address], direct: bool
) -> None:
    """Of this broker, of another one, of one that is away; or of none."""
    a, _ = two()
    a.others.away["broker-x"] = Address("10.0.0.9", 8_081)
    a.placements["steps"] = {"broker-b": 2, "broker-x": 0}
    a.forwards.note(RpcContext(), dialled)
    assert a.forwards.group_broker("steps", "g", "client-1") == ("" if direct else "broker-b")


@pytest.mark.parametrize(
    ("method", "metadata", "reason"),
    [("Telemetry", {}, "not a method"), ("SendMessage", {"k": "v" * 300}, "256 characters")],
)
async def test_a_forwarded_call_that_is_illegal(method: str, metadata: dict[str, str], reason: str) -> None:
    client = forwarding_pb2.ForwardedClient(metadata=metadata)
    request = forwarding_pb2.ForwardRequest(client=client, method=method)
    context: Any = RpcContext()
    with pytest.raises(TroveError, match=reason):
        async for _ in Node("broker-a").forwarded.forward(request, context):
            pass


class Security:
    """Knows alice, whose rights are checked in `admitted`."""

    def __init__(self) -> None:
        self.admitted: list[tuple[str, str, str]] = []
        self.table: Any = self

    def user(self, name: str) -> Any:
        return SimpleNamespace(enabled=True, is_super=False) if name == "alice" else None

    def admit(self, user: str, source: str, _row: Any, request: Any, path: str) -> None:
        self.admitted.append((user, source, path.rpartition("/")[2]))
        topic = request.messages[0].topic if hasattr(request, "messages") else request.topic
        if topic.name == "secret":
            raise TroveError(errors.ACCESS_DENIED, "alice may not")


@pytest.mark.parametrize("method", ["SendMessage", "RecallMessage"])
@pytest.mark.parametrize(
    ("caller", "topic", "reason"),
    [
        ("alice", "orders", ""),
        ("alice", "secret", "alice may not"),
        ("bob", "orders", "not known"),
        ("", "orders", "does not authenticate"),
    ],
)
async def test_the_second_broker_checks_the_clients_user(
    caller: str, topic: str, reason: str, method: str
) -> None:
    node, security = Node("broker-b"), Security()
    made: Any = security
    forwarded = ForwardedService(node.service.forwarded_handlers(), node.service.telemetry.forwarded, made)
    sent: Any = service.SendMessageRequest(messages=[message(topic, b"x")])
    if method == "RecallMessage":
        sent = recall_of(encode_recall_handle(topic, "broker-b", NOW_MS + 10_000, "D1"), topic)
    client = forwarding_pb2.ForwardedClient(
        caller=caller, peer="ipv4:10.0.0.9:5000", metadata={"x-mq-client-id": "me"}
    )
    request = forwarding_pb2.ForwardRequest(client=client, method=method, request=sent.SerializeToString())
    context: Any = RpcContext()
    outcome = pytest.raises(TroveError, match=reason) if reason else nullcontext()
    replies: list[bytes] = []
    with outcome:
        replies = [one.reply async for one in forwarded.forward(request, context)]
    assert len(replies) == (not reason)
    assert security.admitted == ([("alice", "10.0.0.9", method)] if caller == "alice" else [])
