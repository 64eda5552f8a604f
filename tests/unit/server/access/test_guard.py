"""The gate before a handler: what reaches it, and what the caller hears instead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import grpc
import pytest

from tests.support.call_forms import grpc_form
from tests.support.fake_loop import fake_time, run, turns
from tests.unit.server.access.access_here import AccessHere, Context, rocketmq_metadata, signed
from trovemq_broker.security import changes
from trovemq_broker.security.quotas import Quota
from trovemq_broker.server.access.checked_context import CheckedContext, checked_context
from trovemq_broker.server.access.guard import AccessGuard
from trovemq_broker.server.core.refused_message import RefusedMessage
from trovemq_broker.server.native.reply_stream import CallbackContext
from trovemq_broker.server.wire.frames import read_append_frame
from trovemq_broker.server.wire.statuses import reader
from trovemq_daemon.grpc_transport import is_end
from trovemq_proto.audit import AUDIT_TOPIC
from trovemq_proto.authentication.calls import SigningKey, message_signer
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import admin_pb2, message_pb2, route_pb2, transaction_pb2

SEND = "/trovemq.v1.MessageService/Send"
FETCH = "/trovemq.v1.MessageService/Fetch"
TRANSACT = "/trovemq.v1.TransactionService/Transact"
LIST = "/trovemq.v1.AdminService/ListTopics"
WATCH = "/trovemq.v1.RouteService/WatchRoutes"
RECEIVE = "/apache.rocketmq.v2.MessagingService/ReceiveMessage"
TELEMETRY = "/apache.rocketmq.v2.MessagingService/Telemetry"


@pytest.fixture
def here() -> AccessHere:
    made = AccessHere()
    made.user("alice")
    return made


def guarded(here: AccessHere, path: str, handler: Any) -> Any:
    return grpc_form(AccessGuard(here.gate).handler(path, handler))


def send_handler(seen: list[Any]) -> Any:
    async def send(request: Any, _context: Any) -> Any:
        seen.append(request)
        return message_pb2.AppendReply()

    return grpc.unary_unary_rpc_method_handler(
        send, request_deserializer=message_pb2.SendRequest.FromString, response_serializer=None
    )


def stream_handler(seen: list[Any], request_type: Any, *, unary_reply: bool = False) -> Any:
    async def serve(_requests: Any, context: Any) -> None:
        while not is_end(message := await context.read()):
            seen.append(message)

    make = grpc.stream_unary_rpc_method_handler if unary_reply else grpc.stream_stream_rpc_method_handler
    return make(serve, request_deserializer=request_type.FromString)


def call(handler: Any, context: Context, request: bytes = b"") -> Any:
    kind = next(
        one for one in ("unary_unary", "stream_unary", "stream_stream") if getattr(handler, one) is not None
    )
    return asyncio.run(getattr(handler, kind)(request, context))


def replies(handler: Any, context: Context, request: bytes) -> list[Any]:
    async def collect() -> list[Any]:
        return [reply async for reply in handler.unary_stream(request, context)]

    return asyncio.run(collect())


def refusal(attempt: Callable[[], Any]) -> str:
    with pytest.raises(TroveError) as raised:
        attempt()
    return raised.value.symbol


REQUEST = message_pb2.SendRequest(topic="orders").SerializeToString()


def test_a_signed_request_reaches_its_handler(here: AccessHere) -> None:
    here.rule("alice", "Pub", "Topic:orders")
    seen: list[Any] = []
    handler, key = guarded(here, SEND, send_handler(seen)), here.log_in("alice")
    call(handler, Context(signed(key, 0, SEND)), key.sign(0, 0, REQUEST))
    assert [request.topic for request in seen] == ["orders"]


def test_nothing_else_reaches_it(here: AccessHere) -> None:
    here.rule("alice", "Pub", "Topic:orders")
    seen: list[Any] = []
    handler, key = guarded(here, SEND, send_handler(seen)), here.log_in("alice")
    other = message_pb2.SendRequest(topic="secret").SerializeToString()
    first = Context(signed(key, 0, SEND))
    call(handler, first, key.sign(0, 0, REQUEST))
    for number, (context, request) in enumerate(
        (
            (first, key.sign(0, 0, REQUEST)),  # again
            (Context(signed(key, 1, SEND)), REQUEST),  # unsigned
            (Context(signed(key, 2, SEND)), key.sign(1, 0, REQUEST)),  # of another call
            (Context(signed(key, 3, SEND)), key.sign(3, 1, REQUEST)),  # another number
            (Context(signed(key, 4, SEND)), key.sign(4, 0, REQUEST)[:-1] + b"\0"),
            (Context(signed(key, 5, FETCH)), key.sign(5, 0, REQUEST)),  # of another method
            (Context(rocketmq_metadata("alice")), REQUEST),
            (Context(), REQUEST),
        )
    ):
        assert refusal(lambda: call(handler, context, request)) == "AUTHENTICATION_FAILED", number  # noqa: B023
    denied = Context(signed(key, 6, SEND))
    assert refusal(lambda: call(handler, denied, key.sign(6, 0, other))) == "ACCESS_DENIED"
    assert len(seen) == 1


def test_bytes_that_are_no_request_are_refused_as_such(here: AccessHere) -> None:
    handler, key = guarded(here, SEND, send_handler([])), here.log_in("alice")
    context = Context(signed(key, 0, SEND))
    assert refusal(lambda: call(handler, context, key.sign(0, 0, b"\xff\xff"))) == "REQUEST_ILLEGAL"


def fetch(key: SigningKey, *topics: str) -> list[bytes]:
    sign = message_signer(key, 0)
    return [sign(message_pb2.FetchRequest(topic=topic).SerializeToString()) for topic in topics]


def test_a_refused_message_of_a_fetch_stream_is_its_services_to_answer(here: AccessHere) -> None:
    here.rule("alice", "Sub", "Topic:a")
    seen: list[Any] = []
    handler, key = guarded(here, FETCH, stream_handler(seen, message_pb2.FetchRequest)), here.log_in("alice")
    call(handler, Context(signed(key, 0, FETCH), fetch(key, "a", "b", "a")))
    assert [isinstance(message, RefusedMessage) for message in seen] == [False, True, False]
    assert seen[1].error.symbol == "ACCESS_DENIED"
    assert seen[1].message.topic == "b"


@pytest.mark.parametrize("order", [(1,), (0, 0), (0, 2), (1, 0)])
def test_messages_of_a_stream_come_in_their_order_or_not_at_all(
    here: AccessHere, order: tuple[int, ...]
) -> None:
    here.rule("alice", "Sub", "Topic:a")
    seen: list[Any] = []
    handler, key = guarded(here, FETCH, stream_handler(seen, message_pb2.FetchRequest)), here.log_in("alice")
    messages = fetch(key, "a", "a", "a")
    context = Context(signed(key, 0, FETCH), [messages[number] for number in order])
    assert refusal(lambda: call(handler, context)) == "AUTHENTICATION_FAILED"
    assert len(seen) == (order[0] == 0)


def test_a_right_that_is_taken_away_ends_with_the_next_message(here: AccessHere) -> None:
    number = here.rule("alice", "Pub", "Topic:a")
    seen: list[Any] = []

    async def serve(_requests: Any, context: Any) -> Any:
        seen.append(await context.read())
        here.apply(changes.delete_rule(here.table.state, number))
        seen.append(await context.read())

    handler = grpc.stream_unary_rpc_method_handler(
        serve, request_deserializer=transaction_pb2.TransactionFrame.FromString
    )
    key = here.log_in("alice")
    sign = message_signer(key, 0)
    frame = transaction_pb2.TransactionFrame(messages={"topic": "a"}).SerializeToString()
    context = Context(signed(key, 0, TRANSACT), [sign(frame), sign(frame)])
    assert refusal(lambda: call(guarded(here, TRANSACT, handler), context)) == "ACCESS_DENIED"
    assert len(seen) == 1


def test_listings_and_routes_hold_what_the_caller_may_know(here: AccessHere) -> None:
    here.rule("alice", "Pub", "Topic:a*")
    names = ("a", "ab", "b")

    async def list_topics(_request: Any, _context: Any) -> Any:
        return admin_pb2.ListTopicsReply(topics=[{"topic": name} for name in names])

    async def watch(request: Any, _context: Any) -> AsyncIterator[Any]:
        assert not request.changes, "a rule changes what is seen, without a change of a topic"
        yield route_pb2.ClusterReply(brokers=[{"topics": [{"topic": name} for name in names]}], version=7)

    key = here.log_in("alice")
    listing = grpc.unary_unary_rpc_method_handler(
        list_topics, request_deserializer=admin_pb2.ListTopicsRequest.FromString
    )
    reply = call(guarded(here, LIST, listing), Context(signed(key, 0, LIST)), key.sign(0, 0, b""))
    assert [topic.topic for topic in reply.topics] == ["a", "ab"]
    watching = grpc.unary_stream_rpc_method_handler(
        watch, request_deserializer=route_pb2.WatchRoutesRequest.FromString
    )
    context = Context(signed(key, 1, WATCH))
    request = route_pb2.WatchRoutesRequest(changes=True).SerializeToString()
    (seen,) = replies(guarded(here, WATCH, watching), context, key.sign(1, 0, request))
    assert [topic.topic for topic in seen.brokers[0].topics] == ["a", "ab"]
    assert seen.version == 7


def test_rocketmqs_stream_of_replies_begins_with_the_refusal(here: AccessHere) -> None:
    async def receive(_request: Any, _context: Any) -> AsyncIterator[Any]:
        yield service_pb2.ReceiveMessageResponse(status=v2.Status(code=v2.OK))

    handler = grpc.unary_stream_rpc_method_handler(
        receive, request_deserializer=reader(service_pb2.ReceiveMessageRequest)
    )
    queue = v2.MessageQueue(topic=v2.Resource(name="orders"))
    request = service_pb2.ReceiveMessageRequest(
        group=v2.Resource(name="billing"), message_queue=queue
    ).SerializeToString()

    def codes(metadata: Sequence[tuple[str, Any]]) -> list[int]:
        found = replies(guarded(here, RECEIVE, handler), Context(metadata), request)
        return [reply.status.code for reply in found]

    assert codes(()) == [v2.UNAUTHORIZED]
    assert codes(rocketmq_metadata("alice", "wrong-secret")) == [v2.UNAUTHORIZED]
    assert codes(rocketmq_metadata("alice")) == [v2.FORBIDDEN]
    (denied,) = replies(guarded(here, RECEIVE, handler), Context(rocketmq_metadata("alice")), request)
    assert denied.status.message == "ACCESS_DENIED: alice may not Sub on 'Group:billing'"
    here.rule("alice", "Sub", "Topic:orders")
    assert codes(rocketmq_metadata("alice")) == [v2.FORBIDDEN]
    here.rule("alice", "Sub", "Group:billing")
    assert codes(rocketmq_metadata("alice")) == [v2.OK]


def test_a_telemetry_stream_hears_the_refusal_and_ends(here: AccessHere) -> None:
    seen: list[Any] = []
    handler = guarded(here, TELEMETRY, stream_handler(seen, service_pb2.TelemetryCommand))
    settings = v2.Settings(publishing=v2.Publishing(topics=[v2.Resource(name="orders")]))
    command = service_pb2.TelemetryCommand(settings=settings).SerializeToString()
    for metadata, code in (((), v2.UNAUTHORIZED), (rocketmq_metadata("alice"), v2.FORBIDDEN)):
        context = Context(metadata, [command, command])
        call(handler, context)
        assert [one.status.code for one in context.written] == [code]
        assert context.messages == [command], "the first request was read before"
    assert seen == []


class OwnContext(Context):
    """Of our own transport: a message that comes while the stream waits for one goes to its receiver."""

    def __init__(self, metadata: Sequence[tuple[str, Any]] = ()) -> None:
        super().__init__(metadata)
        self.receiver: Any = None
        self.coming: asyncio.Queue[Any] = asyncio.Queue()
        self.can_send = True
        self.secret = "by this name messages could come and go unchecked"

    def set_receiver(self, receiver: Any) -> None:
        self.receiver = receiver

    def try_send(self, message: bytes) -> bool:
        self.written.append(message)
        return True

    try_send_now = try_send

    async def read(self) -> Any:
        found = await self.coming.get()
        if isinstance(found, Exception):
            raise found
        return found

    def receive(self, data: bytes) -> None:
        try:
            if self.receiver is None or not self.receiver(data):
                self.coming.put_nowait(data)
        except TroveError as error:
            self.coming.put_nowait(error)


class Stream:
    """An open Fetch stream of alice. `taken` by its receiver, while `takes`; `read` by its coroutine."""

    def __init__(self, here: AccessHere, *topics: str) -> None:
        self.key = here.log_in("alice")
        self.context = OwnContext(signed(self.key, 0, FETCH))
        self.messages = fetch(self.key, *topics)
        self.taken: list[Any] = []
        self.read: list[Any] = []
        self.takes = True
        self.seen: Any = None

        async def serve(_requests: Any, context: Any) -> None:
            self.seen = context
            callbacks = CallbackContext.of(context)
            assert callbacks is not None
            callbacks.set_receiver(self._receive)
            while not is_end(message := await context.read()):
                self.read.append(message)

        handler = grpc.stream_stream_rpc_method_handler(
            serve, request_deserializer=message_pb2.FetchRequest.FromString
        )
        self.handler = guarded(here, FETCH, handler)

    def _receive(self, message: Any) -> bool:
        if self.takes:
            self.taken.append(message)
        return self.takes

    def run(self, program: Callable[[], Any]) -> None:
        async def both() -> None:
            served = asyncio.ensure_future(self.handler.stream_stream(None, self.context))
            await turns()
            await program()
            self.context.coming.put_nowait(grpc.aio.EOF)
            await served

        run(both())


def names(messages: list[Any]) -> list[str]:
    return [message.topic if not isinstance(message, RefusedMessage) else "refused" for message in messages]


def test_a_receiver_gets_admitted_messages_alone(here: AccessHere) -> None:
    here.rule("alice", "Sub", "Topic:a")
    stream = Stream(here, "a", "b", "a", "a")

    async def program() -> None:
        for message in stream.messages[:3]:
            stream.context.receive(message)
        assert names(stream.taken) == ["a", "refused", "a"]
        assert stream.taken[1].error.symbol == "ACCESS_DENIED"
        here.without_rules("alice")
        stream.context.receive(stream.messages[3])
        assert names(stream.taken[3:]) == ["refused"], "the rules are those of now"

    stream.run(program)
    assert stream.read == []


def test_what_was_admitted_once_is_asked_again_after_a_change(
    here: AccessHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for another topic, and for the audit records each time."""
    here.rule("alice", "Sub", "Topic:a")
    here.rule("alice", "Audit", f"Topic:{AUDIT_TOPIC}")
    asked: list[str] = []
    admit, read = here.gate.admit, here.gate.audit.audit_read

    def admitted(caller: Any, row: Any, request: Any, path: str = "") -> None:
        asked.append(request.topic)
        admit(caller, row, request, path)

    def was_read(path: str, user: str, source: str) -> None:
        asked.append("read")
        read(path, user, source)

    monkeypatch.setattr(here.gate, "admit", admitted)
    monkeypatch.setattr(here.gate.audit, "audit_read", was_read)
    stream = Stream(here, "a", "a", "b", "b", "a", AUDIT_TOPIC, AUDIT_TOPIC, "a", "a")

    async def program() -> None:
        for message in stream.messages[:5]:
            stream.context.receive(message)
        assert asked == ["a", "b", "b"], "a refusal is not remembered, and replaces nothing"
        for message in stream.messages[5:7]:
            stream.context.receive(message)
        assert asked[3:] == [AUDIT_TOPIC, "read"] * 2
        here.apply(changes.rotate_secret(here.table.state, "alice", b"another-secret-1", EpochMs(0)))
        stream.context.receive(stream.messages[7])
        here.apply(changes.drop_old_secret(here.table.state, "alice"))
        stream.context.receive(stream.messages[8])
        assert asked[7:] == ["a", "a"]
        await turns()

    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        stream.run(program)
    assert names(stream.taken) == ["a", "a", "refused", "refused", "a", AUDIT_TOPIC, AUDIT_TOPIC, "a"]


def test_a_receiver_never_sees_a_message_that_is_not_signed(here: AccessHere) -> None:
    here.rule("alice", "Sub", "Topic:a")
    stream = Stream(here, "a", "a", "a")

    async def program() -> None:
        stream.context.receive(stream.messages[0])
        stream.context.receive(stream.messages[2])  # one is left out
        await turns()

    with pytest.raises(TroveError) as raised:
        stream.run(program)
    assert raised.value.symbol == "AUTHENTICATION_FAILED"
    assert names(stream.taken) == ["a"]
    assert stream.read == []


def test_a_message_that_the_receiver_leaves_is_read_and_checked_once(here: AccessHere) -> None:
    here.rule("alice", "Sub", "Topic:*")
    stream = Stream(here, *"abcd")

    async def program() -> None:
        stream.context.receive(stream.messages[0])
        stream.takes = False
        stream.context.receive(stream.messages[1])
        stream.context.receiver, left = None, stream.context.receiver  # the transport queues what follows
        stream.context.receive(stream.messages[2])
        await turns()
        stream.takes, stream.context.receiver = True, left
        stream.context.receive(stream.messages[3])

    stream.run(program)
    assert names(stream.taken) == ["a", "d"]
    assert names(stream.read) == ["b", "c"]


@fake_time
@pytest.mark.parametrize("own", [False, True], ids=["view", "bytearray"])
async def test_a_frame_that_is_left_to_the_reader_is_not_what_came_after_it(
    here: AccessHere, own: bool
) -> None:
    """Our own transport shows a message in its receive buffer, which it fills again after the callback."""
    here.rule("alice", "Pub", "Topic:a")
    key, path, frames = here.log_in("alice"), "/trovemq.v1.MessageService/Append", list[Any]()
    sign = message_signer(key, 0)
    signed_frame = sign(message_pb2.AppendFrame(topic="a", records=b"these records").SerializeToString())
    context = OwnContext(signed(key, 0, path))

    async def append(_requests: Any, checked: Any) -> None:
        checked.set_receiver(lambda _frame: False)
        while not is_end(frame := await checked.read()):
            frames.append(bytes(frame.records))

    handler = guarded(
        here, path, grpc.stream_stream_rpc_method_handler(append, request_deserializer=read_append_frame)
    )
    served = asyncio.ensure_future(handler.stream_stream(None, context))
    await turns()
    buffer = bytearray(signed_frame)
    assert handler.request_deserializer.takes_view
    assert not context.receiver(handler.request_deserializer(buffer if own else memoryview(buffer)))
    context.coming.put_nowait(bytes(buffer))
    if not own:
        buffer[:] = bytes(len(buffer))
    context.coming.put_nowait(grpc.aio.EOF)
    await served

    assert frames == [b"these records"]


def test_with_a_quota_the_coroutine_reads_so_that_it_can_wait(here: AccessHere) -> None:
    here.rule("alice", "Sub", "Topic:*")
    stream = Stream(here, *"abc")

    async def program() -> None:
        stream.context.receive(stream.messages[0])
        assert stream.seen.can_send
        assert stream.seen.try_send(b"reply")
        here.apply(changes.set_quota(here.table.state, "User:alice", Quota(requests_per_s=1)))
        for message in stream.messages[1:]:
            stream.context.receive(message)
        await turns()
        assert not stream.seen.can_send

    stream.run(program)
    assert names(stream.taken) == ["a"]
    assert names(stream.read) == ["b", "c"]
    assert stream.context.written == [b"reply"]


def test_with_users_a_stream_got_its_messages_past_the_check() -> None:
    """Our own transport's context can call a receiver at once: with bytes that were not admitted."""
    plain = OwnContext()
    for checked in (CheckedContext(plain, cast("Any", None)), checked_context(plain, cast("Any", None))):
        assert not hasattr(checked, "secret")
        assert checked.peer() == "ipv4:127.0.0.1:5000"
    assert CallbackContext.of(CheckedContext(plain, cast("Any", None))) is None
    assert CallbackContext.of(checked_context(Context(), cast("Any", None))) is None
