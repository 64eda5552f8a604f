"""The RocketMQ v2 protocol by raw calls, as a test needs them: nothing is retried, nothing is hidden."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import grpc

from tests.support.stubs import ADMIN, GROUPS, stub_of
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_proto.v1 import admin_pb2, group_pb2

SERVICE = "/apache.rocketmq.v2.MessagingService/"
CALL_S_MAX = 240
_numbers = itertools.count()


class RawClient:
    """One client id on one connection. Every method returns the server's reply as it is."""

    def __init__(self, address: str, client_id: str | None = None) -> None:
        self.client_id = client_id if client_id is not None else f"raw-{next(_numbers)}"
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.max_receive_message_length", 64 << 20)]
        )
        self._metadata = (("x-mq-client-id", self.client_id), ("x-mq-language", "PYTHON"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, name: str, request: Any, reply: Any, *, seconds: float = CALL_S_MAX) -> Any:
        """A unary call of any method; `reply` is the class of the reply."""
        method = self._channel.unary_unary(
            SERVICE + name, request_serializer=_serialise, response_deserializer=reply.FromString
        )
        return method(request, timeout=seconds, metadata=self._metadata)

    def stream(self, name: str, request: Any, reply: Any, *, seconds: float = CALL_S_MAX) -> list[Any]:
        """A call with a stream of replies: all of them."""
        method = self._channel.unary_stream(
            SERVICE + name, request_serializer=_serialise, response_deserializer=reply.FromString
        )
        return list(method(request, timeout=seconds, metadata=self._metadata))

    def telemetry(self, commands: Iterator[v2.Settings | Any]) -> Any:
        """The open stream: iterate over it for the server's commands, `cancel()` ends it."""
        method = self._channel.stream_stream(
            SERVICE + "Telemetry",
            request_serializer=_serialise,
            response_deserializer=service.TelemetryCommand.FromString,
        )
        return method(commands, metadata=self._metadata)

    # --- common calls -------------------------------------------------------------------------------
    def send(self, topic: str, *bodies: bytes, tag: str = "", **properties: Any) -> Any:
        """SendMessage; `properties` are those of SystemProperties (message_group, message_type, …)."""
        messages = [message(topic, body, tag, **properties) for body in bodies]
        return self.call(
            "SendMessage", service.SendMessageRequest(messages=messages), service.SendMessageResponse
        )

    def receive(
        self,
        group: str,
        topic: str,
        *,
        count: int = 32,
        invisible_s: float = 30,
        poll_s: float = 5,
        expression: str = "*",
    ) -> list[Any]:
        """The messages of one ReceiveMessage; [] where the server says that there are none.

        Raises AssertionError where it says anything else.
        """
        request = receive_request(
            group, topic, count=count, invisible_s=invisible_s, poll_s=poll_s, expression=expression
        )
        replies = self.stream("ReceiveMessage", request, service.ReceiveMessageResponse, seconds=poll_s + 25)
        assert replies[0].WhichOneof("content") == "status", replies
        code = replies[0].status.code
        assert code in (v2.OK, v2.MESSAGE_NOT_FOUND), replies[0].status
        return [reply.message for reply in replies if reply.WhichOneof("content") == "message"]

    def receive_until(
        self, group: str, topic: str, count: int, *, at_once: int = 32, within_s: float = 45, **how: Any
    ) -> list[Any]:
        """Receives until there are `count` messages; those that came when the time is over."""
        taken: list[Any] = []
        end = time.monotonic() + within_s
        while len(taken) < count and time.monotonic() < end:
            taken += self.receive(group, topic, count=at_once, **how)
        return taken

    def acknowledge(self, group: str, messages: Sequence[Any]) -> Any:
        """AckMessage of messages of one topic."""
        entries = [
            service.AckMessageEntry(
                message_id=one.system_properties.message_id,
                receipt_handle=one.system_properties.receipt_handle,
            )
            for one in messages
        ]
        request = service.AckMessageRequest(
            group=v2.Resource(name=group), topic=messages[0].topic, entries=entries
        )
        return self.call("AckMessage", request, service.AckMessageResponse)

    def change_invisible(self, group: str, one: Any, seconds: float) -> Any:
        request = service.ChangeInvisibleDurationRequest(
            group=v2.Resource(name=group),
            topic=one.topic,
            receipt_handle=one.system_properties.receipt_handle,
            message_id=one.system_properties.message_id,
        )
        request.invisible_duration.FromMilliseconds(int(seconds * 1000))
        return self.call("ChangeInvisibleDuration", request, service.ChangeInvisibleDurationResponse)

    def end_transaction(self, topic: str, entry: Any, resolution: Any) -> Any:
        request = service.EndTransactionRequest(
            topic=v2.Resource(name=topic),
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=resolution,
            source=v2.SOURCE_CLIENT,
        )
        return self.call("EndTransaction", request, service.EndTransactionResponse)


def create_topics(address: str, topics: Mapping[str, str], *, queue_count: int = 2) -> None:
    """Topics by name, with their message types."""
    with grpc.insecure_channel(address) as channel:
        admin = stub_of(ADMIN, channel)
        for name, message_type in topics.items():
            request = admin_pb2.CreateTopicRequest(
                topic=name, queue_count=queue_count, message_type=message_type
            )
            admin.CreateTopic(request, timeout=CALL_S_MAX)


def create_orderly_group(address: str, name: str) -> None:
    with grpc.insecure_channel(address) as channel:
        settings = group_pb2.GroupSettings(orderly=True, retry_max=-1)
        stub_of(GROUPS, channel).CreateGroup(
            group_pb2.CreateGroupRequest(group=name, settings=settings), timeout=CALL_S_MAX
        )


def message(topic: str, body: bytes, tag: str = "", **properties: Any) -> v2.Message:
    """A message as a client sends it; its id is made here unless given."""
    deliver_at_ms = properties.pop("deliver_at_ms", 0)
    user_properties = properties.pop("user_properties", {})
    system = v2.SystemProperties(body_encoding=v2.IDENTITY, born_host="raw-test")
    system.message_id = properties.pop("message_id", f"01{next(_numbers):032X}")
    system.born_timestamp.GetCurrentTime()
    if tag:
        system.tag = tag
    if deliver_at_ms:
        system.delivery_timestamp.FromMilliseconds(deliver_at_ms)
    for name, value in properties.items():
        if isinstance(value, list):
            getattr(system, name).extend(value)
        else:
            setattr(system, name, value)
    return v2.Message(
        topic=v2.Resource(name=topic), body=body, system_properties=system, user_properties=user_properties
    )


def receive_request(
    group: str,
    topic: str,
    *,
    count: int = 32,
    invisible_s: float = 30,
    poll_s: float = 5,
    expression: str = "*",
) -> service.ReceiveMessageRequest:
    request = service.ReceiveMessageRequest(
        group=v2.Resource(name=group),
        message_queue=v2.MessageQueue(topic=v2.Resource(name=topic), id=-1),
        filter_expression=v2.FilterExpression(type=v2.TAG, expression=expression),
        batch_size=count,
    )
    request.invisible_duration.FromMilliseconds(int(invisible_s * 1000))
    request.long_polling_timeout.FromMilliseconds(int(poll_s * 1000))
    return request


def _serialise(request: Any) -> bytes:
    """Raw bytes go out as they are: hostile ones, perhaps."""
    return request if isinstance(request, bytes) else request.SerializeToString()
