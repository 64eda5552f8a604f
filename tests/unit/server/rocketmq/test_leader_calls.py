"""RocketMQ's calls at a node that does not lead: two brokers in memory, of which one is the leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.support.call_forms import grpc_form
from tests.support.rocketmq_client import message
from tests.support.rpc_context import RpcContext
from tests.unit.server.rocketmq.test_forwards import REPLIES, Node, receive_request
from trovemq_broker.server.core.forwarding import ForwardedCall
from trovemq_broker.server.rocketmq import leader_calls
from trovemq_broker.server.rocketmq.leader_calls import FORWARDED, LeaderCalls
from trovemq_broker.server.rocketmq.service import RocketmqService
from trovemq_broker.server.wire.rocketmq_services import MESSAGING
from trovemq_daemon.addresses import Address
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

pytestmark = pytest.mark.asyncio

GROUP = "g1"


class Stream:
    """The telemetry stream at the leader: answers each command with the same one."""

    def __init__(self) -> None:
        self.commands: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.is_cancelled = False

    async def write(self, command: bytes) -> None:
        self.commands.put_nowait(command)

    async def read(self) -> bytes | None:
        return await self.commands.get()

    def cancel(self) -> None:
        self.is_cancelled = True


class Follower:
    """A node that follows. `refusals`: its answers before each call, the last one for ever."""

    has_tls = False

    def __init__(self, leader: Node, *refusals: TroveError | None) -> None:
        self.leader = leader
        leader.nodes = {GROUP: leader}
        self.refusals = list(refusals) or [None]
        self.stream = Stream()
        self.stopping = asyncio.Event()
        self.calls = LeaderCalls(self, GROUP, self._refusal, self.stopping)
        self.handlers = {
            name: grpc_form(one) for name, one in self.calls.handlers().items() if name != "Telemetry"
        }

    def _refusal(self) -> TroveError | None:
        return self.refusals.pop(0) if len(self.refusals) > 1 else self.refusals[0]

    async def forward(self, broker: str, call: ForwardedCall) -> AsyncGenerator[bytes, None]:
        async for reply in self.leader.forward(broker, call):
            yield reply

    async def open_telemetry(self, broker: str, client: Any, *, by_tls: bool) -> Any:
        assert (broker, by_tls) == (GROUP, False)
        return self.stream

    async def call(self, name: str, request: Any, context: Any = None) -> list[Any]:
        handler, data = self.handlers[name], request.SerializeToString()
        context = context or RpcContext(deadline_s=30.0)
        if handler.unary_unary is not None:
            replies = [await handler.unary_unary(data, context)]
        else:
            found = handler.unary_stream(data, context)
            if hasattr(found, "__aiter__"):
                replies = [reply async for reply in found]
            else:
                await found
                replies = context.written
        return [REPLIES[name].FromString(handler.response_serializer(reply)) for reply in replies]

    async def send(self, body: bytes = b"x") -> Any:
        (reply,) = await self.call("SendMessage", service.SendMessageRequest(messages=[message("t", body)]))
        return reply


def leading() -> Node:
    leader = Node(GROUP)
    leader.parts.store.topics.create("t", 1, "MIXED")
    return leader


def not_leader() -> TroveError:
    return TroveError(errors.NOT_LEADER, "this node follows")


async def test_a_send_and_a_receive_at_a_follower_are_the_leader_s() -> None:
    follower = Follower(leading())
    assert (await follower.send(b"hello")).status.code == v2.OK
    (_, call) = follower.leader.sent[0]
    assert (call.client.peer, dict(call.client.metadata)) == (
        RpcContext.address,
        {"x-mq-client-id": "client-1"},
    )
    replies = await follower.call("ReceiveMessage", receive_request("t", GROUP))
    assert [one.message.body for one in replies if one.WhichOneof("content") == "message"] == [b"hello"]


async def test_a_call_waits_for_a_leader() -> None:
    follower = Follower(leading(), not_leader(), not_leader(), None)
    assert (await follower.send()).status.code == v2.OK
    assert (len(follower.leader.sent), follower.calls.waiting) == (1, 0)


async def test_without_a_leader_the_call_is_refused_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_calls, "WAIT_S", 0.1)
    follower = Follower(leading(), not_leader())
    assert (await follower.send()).status.code == v2.HA_NOT_AVAILABLE
    assert follower.leader.sent == []


async def test_the_calls_that_wait_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_calls, "WAITING_MAX", 2)
    follower = Follower(leading(), not_leader())
    waiting = [asyncio.create_task(follower.send()) for _ in range(2)]
    while follower.calls.waiting < 2:
        await asyncio.sleep(0)
    assert (await follower.send()).status.code == v2.HA_NOT_AVAILABLE
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_node_that_was_to_lead_waited_for_calls_without_a_leader() -> None:
    """Its listener ended a second later, and so the next leader served."""
    follower = Follower(leading(), not_leader())
    sending = asyncio.create_task(follower.send())
    while not follower.calls.waiting:
        await asyncio.sleep(0)
    follower.stopping.set()
    async with asyncio.timeout(1):
        assert (await sending).status.code == v2.HA_NOT_AVAILABLE


async def test_a_telemetry_stream_ends_with_its_listener() -> None:
    follower = Follower(leading())
    context: Any = RpcContext(deadline_s=30.0)
    context.read = asyncio.Event().wait
    telemetry = asyncio.create_task(follower.calls.telemetry(None, context))
    await asyncio.sleep(0.01)
    follower.stopping.set()
    async with asyncio.timeout(1):
        await telemetry
    assert follower.stream.is_cancelled


async def test_a_send_whose_outcome_is_open_is_not_repeated() -> None:
    follower = Follower(leading())
    follower.leader.nodes = {}
    assert (await follower.send()).status.code == v2.PROXY_TIMEOUT
    assert len(follower.leader.sent) == 1


async def test_a_send_that_no_leader_has_looked_at_waits_for_the_next_one() -> None:
    class Dead(Follower):
        attempts = 0

        async def forward(self, broker: str, call: ForwardedCall) -> AsyncGenerator[bytes, None]:
            self.attempts += 1
            if self.attempts == 1:
                raise TroveError(errors.BROKER_UNREACHABLE, "it does not listen", **{errors.UNREAD: "true"})
            async for reply in super().forward(broker, call):
                yield reply

    follower = Dead(leading())
    assert (await follower.send()).status.code == v2.OK
    assert follower.attempts == 2


async def test_two_followers_that_take_each_other_for_the_leader_make_one_hop() -> None:
    """A node that does not lead refuses forwarded calls."""

    class Mistaken(Follower):
        hops = 0

        async def forward(self, broker: str, call: ForwardedCall) -> AsyncGenerator[bytes, None]:
            self.hops += 1
            if self.hops:
                raise not_leader()
            yield b""

    follower = Mistaken(leading())
    reply = await follower.send()
    assert reply.status.code == v2.HA_NOT_AVAILABLE
    assert follower.hops <= leader_calls.WAIT_S / leader_calls.PAUSE_S + 1


async def test_a_telemetry_stream_has_its_own_at_the_leader() -> None:
    follower, context = Follower(leading()), RpcContext()
    serving = asyncio.create_task(follower.calls.telemetry(None, context))
    command = service.TelemetryCommand(status=v2.Status(code=v2.OK, message="m"))
    context.requests.put_nowait(command)
    while not context.written:
        await asyncio.sleep(0)
    assert context.written == [command.SerializeToString()]
    follower.stream.commands.put_nowait(None)
    await serving
    assert follower.stream.is_cancelled


async def test_each_served_method_is_forwarded() -> None:
    methods = {one.name for one in MESSAGING.methods}
    assert methods - {*FORWARDED, leader_calls.TELEMETRY} == {"SyncLiteSubscription"}


@pytest.mark.parametrize("dialled", ["10.0.0.1", "10.0.0.2"])
async def test_a_route_has_the_leader_s_address_first(dialled: str) -> None:
    """Also for a client that came by another node. A name cannot stand beside an IP address."""
    nodes = [Address("10.0.0.2", 8_081), Address("third.example", 8_081)]
    leader = leading()
    made = RocketmqService(leader.parts, nodes=lambda _by_tls: nodes)
    handler = grpc_form(made.messaging_handlers()["QueryRoute"])
    came_by = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host=dialled, port=8_081)])
    request = service.QueryRouteRequest(topic=v2.Resource(name="t"), endpoints=came_by)
    data = await handler.unary_unary(request.SerializeToString(), RpcContext())
    (queue,) = service.QueryRouteResponse.FromString(handler.response_serializer(data)).message_queues
    own = leader.parts.advertised
    found = [(one.host, one.port) for one in queue.broker.endpoints.addresses]
    assert (queue.broker.id, found) == (0, [(own.host, own.port), ("10.0.0.2", 8_081)])
