"""The two v2 services on a store in memory; calls pass their handlers as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from tests.support.call_forms import grpc_form
from tests.support.engine import flush
from tests.support.memory_broker import TestBroker
from tests.support.rpc_context import RpcContext
from trovemq_broker.server.rocketmq.service import RocketmqService
from trovemq_proto.rocketmq.v2 import admin_pb2, service_pb2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

TELEMETRY = "Telemetry"


class ServiceBench:
    """Call inside of a running loop."""

    def __init__(self) -> None:
        self.parts = parts = TestBroker()
        parts.sync_by(self._durable)
        self.registry, self.commands = parts.registry, parts.commands
        self.levels: list[str] = []
        self.service = RocketmqService(parts, set_log_level=self.levels.append)
        handlers = self.service.messaging_handlers() | self.service.admin_handlers()
        self.handlers = {name: grpc_form(handler) for name, handler in handlers.items()}

    async def _durable(self, _end: int) -> None:
        """The flush task's work elsewhere."""
        flush(self.parts.store)

    async def call(self, name: str, request: Message | bytes, context: RpcContext | None = None) -> list[Any]:
        """Every reply to the call."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        handler = self.handlers[name]
        some_context: Any = context or RpcContext(deadline_s=30.0)
        if handler.unary_unary is not None:
            replies = [await handler.unary_unary(data, some_context)]
        else:
            replies = [reply async for reply in handler.unary_stream(data, some_context)]
        reply_type = reply_type_of(name)
        return [reply_type.FromString(handler.response_serializer(reply)) for reply in replies]

    async def ask(self, name: str, request: Message | bytes, context: RpcContext | None = None) -> Any:
        """The only reply."""
        (reply,) = await self.call(name, request, context)
        return reply

    @asynccontextmanager
    async def connected(self, client_id: str, settings: v2.Settings) -> AsyncIterator[RpcContext]:
        """A client that has sent its settings over its telemetry stream."""
        context: Any = RpcContext(client_id, x_mq_language="PYTHON", x_mq_client_version="5.1.2")
        handler = self.handlers[TELEMETRY]
        serving = asyncio.create_task(handler.stream_stream(None, context))
        context.requests.put_nowait(service_pb2.TelemetryCommand(settings=settings))
        async with asyncio.timeout(240):
            while not context.written:
                await asyncio.sleep(0)
        try:
            yield context
        finally:
            context.requests.put_nowait(grpc.aio.EOF)
            await serving


def consumer_settings(group: str = "workers", topic: str = "orders", expression: str = "*") -> v2.Settings:
    entry = v2.SubscriptionEntry(
        topic=v2.Resource(name=topic), expression=v2.FilterExpression(type=v2.TAG, expression=expression)
    )
    return v2.Settings(
        client_type=v2.PUSH_CONSUMER,
        subscription=v2.Subscription(group=v2.Resource(name=group), subscriptions=[entry]),
        user_agent=v2.UA(hostname="here"),
    )


def reply_type_of(name: str) -> Any:
    for module in (service_pb2, admin_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            if name in service.methods_by_name:
                return getattr(module, service.methods_by_name[name].output_type.name)
    raise KeyError(name)


def request_type_of(name: str) -> Any:
    for module in (service_pb2, admin_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            if name in service.methods_by_name:
                return getattr(module, service.methods_by_name[name].input_type.name)
    raise KeyError(name)
