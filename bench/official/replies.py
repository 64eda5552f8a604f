"""The stub's replies: those that our broker gave to the same calls, but with the stub's own address."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final, Protocol

import trovemq_rpc as rpc
from bench.rocketmq_raw import BATCH, METADATA, SERVICE, message, receive_request
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

GROUP_PREFIX: Final = "group-"
"""A consumer's settings have it, a producer's do not: the stub looks for it."""

Rule = dict[str, Any]
"""The stub's rule for a reply, by field name."""


class Request(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802  protobuf's name


async def recorded(address: str, topic: str, port: int) -> list[Rule]:
    """Of the broker at `address`, in whose topic there are messages. port: the stub's."""
    group = f"{GROUP_PREFIX}of-the-stub"
    async with rpc.insecure_channel(address) as channel:
        consumer = await _settings(channel, v2.SIMPLE_CONSUMER, subscription=_subscription(group, topic))
        producer = await _settings(channel, v2.PRODUCER, publishing=_publishing(topic))
        route = await _answer(channel, "QueryRoute", service.QueryRouteRequest(topic=v2.Resource(name=topic)))
        received = await _received(channel, receive_request(group, topic, poll_s=5))
        messages = _messages(received)
        assert len(messages) == BATCH, f"{len(messages)} messages, {BATCH} wanted"
        send = service.SendMessageRequest(messages=[message(topic, 0)])
        beat = service.HeartbeatRequest(group=v2.Resource(name=group), client_type=v2.SIMPLE_CONSUMER)
        return [
            _rule("Telemetry", [consumer], GROUP_PREFIX),
            _rule("Telemetry", [producer]),
            _rule("QueryRoute", [_moved(route, port)]),
            _rule("SendMessage", [await _answer(channel, "SendMessage", send)]),
            _rule("ReceiveMessage", received),
            _rule(
                "AckMessage", [await _answer(channel, "AckMessage", _acknowledged(group, topic, messages[0]))]
            ),
            _rule("Heartbeat", [await _answer(channel, "Heartbeat", beat)]),
        ]


def _rule(method: str, replies: Sequence[bytes], contains: str = "") -> Rule:
    texts = [base64.b64encode(reply).decode() for reply in replies]
    return {"Method": SERVICE + method, "Contains": contains, "Replies": texts}


async def _answer(channel: Any, method: str, request: Request) -> bytes:
    return bytes(await channel.unary_unary(SERVICE + method)(request.SerializeToString(), metadata=METADATA))


async def _received(channel: Any, request: bytes) -> list[bytes]:
    receive = channel.unary_stream(SERVICE + "ReceiveMessage")
    return [bytes(reply) async for reply in receive(request, metadata=METADATA)]


def _messages(received: Sequence[bytes]) -> list[v2.Message]:
    answers = map(service.ReceiveMessageResponse.FromString, received)
    return [answer.message for answer in answers if answer.HasField("message")]


async def _settings(channel: Any, kind: v2.ClientType, **pub_sub: Any) -> bytes:
    """The answer to a client's settings."""
    settings = v2.Settings(client_type=kind, user_agent=v2.UA(language=v2.PYTHON, version="5.1.2"), **pub_sub)
    call = channel.stream_stream(SERVICE + "Telemetry")(metadata=METADATA)
    await call.write(service.TelemetryCommand(settings=settings).SerializeToString())
    answer = bytes(await call.read())
    assert service.TelemetryCommand.FromString(answer).HasField("settings")
    await call.done_writing()
    return answer


def _publishing(topic: str) -> v2.Publishing:
    return v2.Publishing(topics=[v2.Resource(name=topic)])


def _subscription(group: str, topic: str) -> v2.Subscription:
    every = v2.FilterExpression(type=v2.TAG, expression="*")
    entry = v2.SubscriptionEntry(topic=v2.Resource(name=topic), expression=every)
    return v2.Subscription(group=v2.Resource(name=group), subscriptions=[entry])


def _moved(route: bytes, port: int) -> bytes:
    """The route with the stub's port in each queue's address."""
    answer = service.QueryRouteResponse.FromString(route)
    assert answer.message_queues, answer.status
    for queue in answer.message_queues:
        for address in queue.broker.endpoints.addresses:
            address.port = port
    return answer.SerializeToString()


def _acknowledged(group: str, topic: str, received: v2.Message) -> service.AckMessageRequest:
    system = received.system_properties
    request = service.AckMessageRequest(group=v2.Resource(name=group), topic=v2.Resource(name=topic))
    request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
    return request
