"""Calls of SendMessage, as the transport hands them over."""

from __future__ import annotations

from typing import Any

from tests.support.memory_broker import TestBroker
from tests.support.rpc_context import RpcContext
from trovemq_broker.server.rocketmq.service import RocketmqService
from trovemq_broker.server.wire.statuses import reader
from trovemq_daemon.calls import AwaitedCall
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service


def send_call(*sent: v2.Message, client_id: str = "client-1") -> AwaitedCall:
    data = service.SendMessageRequest(messages=sent).SerializeToString()
    return AwaitedCall(RpcContext(client_id), reader(service.SendMessageRequest), data)


def outcomes(*calls: AwaitedCall) -> list[Any]:
    """The replies, or errors, of the calls that are answered; a reply is serialised."""
    found: list[Any] = []
    for call in calls:
        if call.ending.done():
            error = call.ending.exception()
            reply = error or call.ending.result()
            found.append(
                reply.SerializeToString() if isinstance(reply, service.SendMessageResponse) else reply
            )
    return found


def begin(parts: TestBroker, *sent: v2.Message) -> list[Any]:
    """A send's answers so far."""
    call = send_call(*sent)
    parts.sender.on_calls([call])
    return outcomes(call)


def answer(parts: TestBroker, *calls: AwaitedCall) -> list[service.SendMessageResponse]:
    """The replies to the calls of an iteration, each of which must be answered in it; errors are statuses."""
    made = RocketmqService(parts)
    made.sender = parts.sender
    made.messaging_handlers()["SendMessage"].on_calls(calls)
    replies = outcomes(*calls)
    assert len(replies) == len(calls)
    return [service.SendMessageResponse.FromString(reply) for reply in replies]
