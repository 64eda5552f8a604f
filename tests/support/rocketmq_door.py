"""ReceiveMessage and AckMessage as our own transport calls them, those of one iteration together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc

from tests.support.fake_loop import run, turns
from tests.support.memory_broker import TestBroker, message, receive_request
from tests.support.rpc_context import RpcContext
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.rocketmq.service import RocketmqService
from trovemq_daemon.calls import CallHandler, for_batches, for_coroutines
from trovemq_daemon.handler_guard import HandlerGuard
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_daemon.reply_budget import ReplyBudget
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_store.events.codec import EventKind

RECEIVE, ACKNOWLEDGE = "ReceiveMessage", "AckMessage"
MESSAGES = 12


class Call(RpcContext):
    """A call on our own transport, whose request is complete."""

    def __init__(self, request: Any, client_id: str = "client-1") -> None:
        super().__init__(client_id)
        self.request = request.SerializeToString()
        self.over = self.is_in_task = False
        self._task: asyncio.Task[None] | None = None
        self.ends: list[Callable[[Any], None]] = []

    def first_metadata(self, key: str) -> str | None:
        return self.metadata.get(key)

    def keep(self) -> bytes:
        return bytes(self.request)

    def reply(self, reply: Any) -> None:
        self.reply_all([reply])

    def reply_all(self, replies: Sequence[Any]) -> None:
        assert not self.over, "a call is answered once"
        self.over = True
        for callback in self.ends:
            asyncio.get_running_loop().call_soon(callback, self)
        self.written += [one if isinstance(one, bytes) else one.SerializeToString() for one in replies]

    async def write(self, message: Any) -> None:
        await super().write(message if isinstance(message, bytes) else message.SerializeToString())

    @property
    def task(self) -> asyncio.Task[None] | None:
        return self._task

    @task.setter
    def task(self, task: asyncio.Task[None] | None) -> None:
        self._task = task
        self.is_in_task = self.is_in_task or task is not None

    def fail(self, code: grpc.StatusCode, _details: str = "") -> None:
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
        self.reply_all([])

    def done(self) -> bool:
        return self.over

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.ends.append(callback)

    def end(self) -> None:
        """The client goes away."""
        self.over = self.is_done = True
        if self.task is not None:
            self.task.cancel()
        for callback in self.ends:
            callback(self)


class Door:
    """The handlers of one service on its parts. `turn` is the transport's: it has one iteration's calls."""

    def __init__(self, replies: ReplyBudget | None = None, **consumers: Any) -> None:
        self.parts = TestBroker(consumers=ConsumerSettings(new_group_start="begin", **consumers))
        metrics = RpcMetrics(new_registry("1.2.3"), cluster="c", node_type="t", node_id="n")
        self._guard = HandlerGuard(metrics, replies)
        self._guarded: dict[str, CallHandler] = {}
        self.metrics: Any = metrics
        self.handlers: dict[str, Any] = {}
        server: Any = self
        (made := RocketmqService(self.parts)).add_to(server)
        self.taken: Any = made.receives._taken
        self.polls: Any = made.receives._polls

    def add_registered_method_handlers(self, _service: str, handlers: dict[str, Any]) -> None:
        self.handlers |= handlers

    def guarded(self, name: str) -> CallHandler:
        if name not in self._guarded:
            self._guarded[name] = self._guard.calls(name, self.handlers[name])
        return self._guarded[name]

    def turn(self, name: str, *calls: Call) -> None:
        waiting: Any = list(calls)
        for_batches(self.guarded(name)).on_calls(waiting)

    def acknowledge(self, calls: list[Call]) -> list[v2.Code]:
        """The status of each of the calls of one iteration."""
        self.turn(ACKNOWLEDGE, *calls)
        return [service.AckMessageResponse.FromString(call.written[0]).status.code for call in calls]

    async def by_itself(self, name: str, call: Call) -> None:
        """As grpcio calls the method."""
        handler = for_coroutines(self.guarded(name))
        if name == RECEIVE:
            await handler.unary_stream(call.request, call)
            call.reply_all([])
        else:
            call.reply(await handler.unary_unary(call.request, call))

    async def send(self, count: int = MESSAGES, size: int = 5, **system: Any) -> None:
        for number in range(count):
            body = b"%04d" % number + bytes(size)
            await self.parts.send(message(body, message_id=f"M{number}", tag="ab"[number % 2], **system))
        await turns()

    def acknowledged(self) -> list[Any]:
        return [one for one in self.parts.events.view_pending() if one.kind is EventKind.ACKNOWLEDGED]


def messages(call: Call) -> list[v2.Message]:
    replies = map(service.ReceiveMessageResponse.FromString, call.written)
    return [reply.message for reply in replies if reply.HasField("message")]


def handles(calls: Sequence[Call]) -> list[str]:
    return [one.system_properties.receipt_handle for call in calls for one in messages(call)]


def receive(**fields: Any) -> Call:
    return Call(receive_request("orders", **fields))


def scene(play: Callable[[], Awaitable[None]]) -> None:
    async def played() -> None:
        await play()

    run(played())
