"""Rows of the protocol's table of statuses that no other test has: each by a raw call."""

from __future__ import annotations

from typing import Any

from tests.support.engine import NOW_MS
from tests.support.fake_loop import fake_time
from tests.support.memory_broker import message
from tests.support.rocketmq_service import ServiceBench
from trovemq_broker.server.core.clients import ClientDescription
from trovemq_broker.server.wire.client_commands import ClientCommand
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_proto.rocketmq.v2 import admin_pb2, service_pb2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

pytestmark = fake_time


GROUP = v2.Resource(name="workers")
TOPIC = v2.Resource(name="orders")


class Silent:
    """A telemetry stream whose client answers nothing."""

    def __init__(self) -> None:
        self.sent: list[ClientCommand] = []

    def send(self, command: ClientCommand) -> None:
        self.sent.append(command)

    def may_be_asked(self, topic: str) -> bool:
        return True

    def close(self) -> None:
        pass


async def test_request_timeout_where_a_client_does_not_answer_a_command() -> None:
    bench, stream = ServiceBench(), Silent()
    description = ClientDescription(client_type=ClientType.PUSH_CONSUMER, group=GROUP.name)
    bench.registry.settle("c", description, NOW_MS)
    bench.registry.attach("c", stream)
    request = admin_pb2.PrintThreadStackTraceRequest(client_id="c", group=GROUP)
    reply: Any = await bench.ask("PrintThreadStackTrace", request)
    assert reply.status.code == v2.REQUEST_TIMEOUT
    assert len(stream.sent) == 1
    assert bench.commands.pending_count == 0


async def test_precondition_failed_where_keys_are_asked_for_without_an_index() -> None:
    bench = ServiceBench()
    bench.parts.store.key_index = None
    request = admin_pb2.ListMessageRequest(topic=TOPIC, message_key="k")
    reply: Any = await bench.ask("QueryMessage", request)
    assert reply.status.code == v2.PRECONDITION_FAILED


async def test_payload_too_large_where_the_messages_of_one_send_are_no_batch() -> None:
    bench = ServiceBench()
    settings = bench.parts.store.settings
    body = b"x" * settings.body_size_max
    count = settings.batch_size_max // len(body) + 1
    messages = [message(body, message_id=f"M{number}") for number in range(count)]
    reply: Any = await bench.ask("SendMessage", service_pb2.SendMessageRequest(messages=messages))
    assert reply.status.code == v2.PAYLOAD_TOO_LARGE
    assert bench.parts.store.end_offset == 0, "nothing was stored"
