"""Replies of streams that are open while users or rules change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from broker.security import changes
from broker.server.access.guard import AccessGuard
from tests.support.fake_loop import run
from tests.unit.server.access.access_here import AccessHere, Context, rocketmq_metadata, signed
from trovemq_daemon.grpc_transport import is_end
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import consumer_pb2

CONSUME = "/trovemq.v1.ConsumerService/Consume"
RECEIVE = "/apache.rocketmq.v2.MessagingService/ReceiveMessage"


@pytest.fixture
def here() -> AccessHere:
    made = AccessHere()
    made.user("alice")
    for resource in ("Topic:orders", "Group:billing"):
        made.rule("alice", "Sub", resource)
    return made


def disable(here: AccessHere) -> None:
    here.apply(changes.set_enabled(here.table.state, "alice", enabled=False))


def delete(here: AccessHere) -> None:
    here.apply(changes.delete_user(here.table.state, "alice"))


def drop_secret(here: AccessHere) -> None:
    here.apply(changes.rotate_secret(here.table.state, "alice", b"another-secret-1", here.now_ms))
    here.apply(changes.drop_old_secret(here.table.state, "alice"))


def deny(here: AccessHere) -> None:
    here.rule("alice", "Sub", "Topic:orders", allow=False)


class SendingContext(Context):
    """With the callbacks of our own transport."""

    can_send = True

    def set_receiver(self, _receiver: Any) -> None:
        """None is used."""


@pytest.mark.parametrize(
    ("change", "symbol"),
    [
        (disable, "AUTHENTICATION_FAILED"),
        (delete, "AUTHENTICATION_FAILED"),
        (drop_secret, "AUTHENTICATION_FAILED"),
        (deny, "ACCESS_DENIED"),
    ],
)
def test_a_group_stream_brought_messages_to_a_user_who_was_disabled(
    here: AccessHere, change: Any, symbol: str
) -> None:
    """Its client grants credit once: the broker sends as messages come."""
    key = here.log_in("alice")
    frame = consumer_pb2.ConsumeFrame(group="billing", topic="orders").SerializeToString()
    outer = SendingContext(signed(key, 0, CONSUME), [key.sign(0, 0, frame)])

    async def consume(_requests: Any, context: Any) -> None:
        assert not is_end(await context.read())
        await context.write(b"first")
        here.user("bob")
        assert not context.can_send, "it is not known yet whether alice still may"
        await context.write(b"second")
        assert context.can_send
        change(here)
        assert not context.can_send
        await context.write(b"third")

    handler = grpc.stream_stream_rpc_method_handler(
        consume, request_deserializer=consumer_pb2.ConsumeFrame.FromString
    )
    guarded = AccessGuard(here.gate).handler(CONSUME, handler)
    with pytest.raises(TroveError) as raised:
        run(guarded.stream_stream(None, outer))
    assert raised.value.symbol == symbol
    assert outer.written == [b"first", b"second"]


@pytest.mark.parametrize(("change", "code"), [(disable, v2.UNAUTHORIZED), (deny, v2.FORBIDDEN)])
def test_a_waiting_receive_brought_messages_to_a_user_who_was_disabled(
    here: AccessHere, change: Any, code: int
) -> None:
    queue = v2.MessageQueue(topic=v2.Resource(name="orders"))
    request = service_pb2.ReceiveMessageRequest(group=v2.Resource(name="billing"), message_queue=queue)

    async def receive(_request: Any, _context: Any) -> AsyncIterator[Any]:
        change(here)  # while it waits
        yield service_pb2.ReceiveMessageResponse(message=v2.Message(body=b"secret"))

    handler = grpc.unary_stream_rpc_method_handler(
        receive, request_deserializer=service_pb2.ReceiveMessageRequest.FromString
    )
    guarded = AccessGuard(here.gate).handler(RECEIVE, handler)
    context = Context(rocketmq_metadata("alice"))

    async def collect() -> list[Any]:
        return [reply async for reply in guarded.unary_stream(request.SerializeToString(), context)]

    (reply,) = run(collect())
    assert reply.status.code == code
