"""ServingGate: messages are refused while a broker has no configuration, in each protocol's form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tests.support.call_forms import grpc_form
from tests.support.rpc_context import RpcContext
from trovemq_broker.server.access.serving_gate import ServingGate
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import admin_pb2, message_pb2

pytestmark = pytest.mark.asyncio

SEND = "/trovemq.v1.MessageService/Send"
APPEND = "/trovemq.v1.MessageService/Append"
V2_SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
V2_RECEIVE = "/apache.rocketmq.v2.MessagingService/ReceiveMessage"
TELEMETRY = "/apache.rocketmq.v2.MessagingService/Telemetry"
LIST = "/trovemq.v1.AdminService/ListTopics"


def joining() -> TroveError:
    return TroveError(errors.SERVICE_NOT_AVAILABLE, "it joins")


async def answer(_request: Any, _context: Any) -> str:
    return "answered"


async def answers(_request: Any, _context: Any) -> AsyncIterator[str]:
    yield "answered"


def unary(request_type: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(answer, request_deserializer=request_type.FromString)


async def test_a_native_call_is_refused_until_messages_are_served() -> None:
    gate = ServingGate()
    handler = grpc_form(gate.handler(SEND, unary(message_pb2.SendRequest)))
    assert await handler.unary_unary(b"", RpcContext()) == "answered"
    gate.refusal = joining
    with pytest.raises(TroveError, match="it joins"):
        await handler.unary_unary(b"", RpcContext())
    gate.refusal = lambda: None
    assert await handler.unary_unary(b"", RpcContext()) == "answered"


async def test_rocketmqs_calls_are_refused_by_the_status_of_their_reply() -> None:
    gate = ServingGate()
    gate.refusal = joining
    send = grpc_form(gate.handler(V2_SEND, unary(service_pb2.SendMessageRequest)))
    reply = await send.unary_unary(b"", RpcContext())
    assert (reply.status.code, reply.status.message) == (v2.INTERNAL_SERVER_ERROR, "it joins")
    stream = grpc.unary_stream_rpc_method_handler(
        answers, request_deserializer=service_pb2.ReceiveMessageRequest.FromString
    )
    receive = grpc_form(gate.handler(V2_RECEIVE, stream))
    (first,) = [reply async for reply in receive.unary_stream(b"", RpcContext())]
    assert first.status.message == "it joins"


async def test_a_stream_is_refused_before_its_handler_begins() -> None:
    gate = ServingGate()
    gate.refusal = joining
    written = gate.handler(APPEND, grpc.stream_stream_rpc_method_handler(answer))
    generated = gate.handler(APPEND, grpc.stream_stream_rpc_method_handler(answers))
    with pytest.raises(TroveError, match="it joins"):
        await written.stream_stream(None, RpcContext())
    with pytest.raises(TroveError, match="it joins"):
        await generated.stream_stream(None, RpcContext()).__anext__()
    gate.refusal = None
    assert await written.stream_stream(None, RpcContext()) == "answered"
    assert [reply async for reply in generated.stream_stream(None, RpcContext())] == ["answered"]


async def test_operators_and_the_heartbeats_of_clients_are_served() -> None:
    gate = ServingGate()
    gate.refusal = joining
    handlers = [unary(admin_pb2.ListTopicsRequest), grpc.stream_stream_rpc_method_handler(answer)]
    for path, handler in zip((LIST, TELEMETRY), handlers, strict=True):
        assert gate.handler(path, handler) is handler
