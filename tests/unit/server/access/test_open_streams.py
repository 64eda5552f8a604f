"""Replies of streams that are open while users or rules change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from tests.support.call_forms import grpc_form
from tests.support.engine import SMALL, send
from tests.support.fake_loop import fake_time, run, turns
from tests.support.memory_broker import TestBroker
from tests.unit.server.access.access_here import AccessHere, Context, rocketmq_metadata, signed
from trovemq_broker.security import changes
from trovemq_broker.server.access.guard import AccessGuard
from trovemq_broker.server.native.fetch_stream import FetchStream
from trovemq_broker.server.rocketmq.telemetry import Telemetry
from trovemq_broker.server.wire.client_commands import StoredMessage
from trovemq_broker.server.wire.statuses import reader
from trovemq_daemon.grpc_transport import is_end
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records.encode import encode_record
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import consumer_pb2, message_pb2

PULL = "/trovemq.v1.MessageService/Pull"
FETCH = "/trovemq.v1.MessageService/Fetch"
TELEMETRY = "/apache.rocketmq.v2.MessagingService/Telemetry"
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
    """With the callbacks of our transport."""

    can_send = True

    def try_send(self, _reply: Any) -> bool:
        raise AssertionError("replies are written")

    def try_send_now(self, reply: Any) -> bool:
        return self.try_send(reply)

    def set_receiver(self, _receiver: Any) -> None:
        """None is used."""


@fake_time
@pytest.mark.parametrize(
    ("change", "symbol"),
    [
        (disable, "AUTHENTICATION_FAILED"),
        (delete, "AUTHENTICATION_FAILED"),
        (drop_secret, "AUTHENTICATION_FAILED"),
        (deny, "ACCESS_DENIED"),
    ],
)
async def test_a_group_stream_brought_messages_to_a_user_who_was_disabled(
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
        await guarded.stream_stream(None, outer)
    assert raised.value.symbol == symbol
    assert outer.written == [b"first", b"second"]


@fake_time
@pytest.mark.parametrize(
    ("change", "code"),
    [(disable, v2.UNAUTHORIZED), (drop_secret, v2.UNAUTHORIZED), (deny, v2.FORBIDDEN)],
)
async def test_a_waiting_receive_brought_messages_to_a_user_who_was_disabled(
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
    guarded = grpc_form(AccessGuard(here.gate).handler(RECEIVE, handler))
    context = Context(rocketmq_metadata("alice"))

    (reply,) = [reply async for reply in guarded.unary_stream(request.SerializeToString(), context)]
    assert reply.status.code == code


@fake_time
@pytest.mark.parametrize(("change", "symbol"), [(disable, "AUTHENTICATION_FAILED"), (deny, "ACCESS_DENIED")])
async def test_a_waiting_pull_brought_messages_to_a_user_who_was_disabled(
    here: AccessHere, change: Any, symbol: str
) -> None:
    key = here.log_in("alice")
    request = message_pb2.FetchRequest(topic="orders", wait_ms=30_000).SerializeToString()

    async def pull(_request: Any, _context: Any) -> bytes:
        change(here)  # while it waits
        return b"secret"

    handler = grpc.unary_unary_rpc_method_handler(
        pull, request_deserializer=message_pb2.FetchRequest.FromString
    )
    guarded = grpc_form(AccessGuard(here.gate).handler(PULL, handler))
    context = Context(signed(key, 0, PULL))
    with pytest.raises(TroveError) as raised:
        await guarded.unary_unary(key.sign(0, 0, request), context)
    assert raised.value.symbol == symbol


class WaitingContext(SendingContext):
    """Its client sends no more requests, and keeps the stream open."""

    async def read(self) -> Any:
        return await super().read() if self.messages else await asyncio.Event().wait()

    def try_send(self, message: Any) -> bool:
        self.written.append(message)
        return True


def answer_of_waiting_fetch(here: AccessHere, change: Any, *, stands: bool = False) -> message_pb2.FetchReply:
    """The reply to a fetch that waits during the change, and gets a message then. `stands`: it had another
    reply before. Raises the stream's error."""
    key = here.log_in("alice")
    request = message_pb2.FetchRequest(topic="orders", wait_ms=30_000, replies_max=9 if stands else 0)
    frame = request.SerializeToString()
    context = WaitingContext(signed(key, 0, FETCH), [key.sign(0, 0, frame)])

    async def scene() -> None:
        core = TestBroker(SMALL)
        store, polls = core.store, core.long_polls

        async def fetch(_requests: Any, checked: Any) -> None:
            await FetchStream(core, checked).serve()

        handler = grpc.stream_stream_rpc_method_handler(
            fetch, request_deserializer=message_pb2.FetchRequest.FromString
        )
        guarded = AccessGuard(here.gate).handler(FETCH, handler)
        serving = asyncio.create_task(guarded.stream_stream(None, context))
        await turns()
        assert len(polls) == 1, "it waits"
        if stands:
            send(store, b"allowed")
            polls.wake([("orders", QueueId(0))])
            assert b"allowed" in context.written.pop()
        change(here)
        send(store, b"secret")
        polls.wake([("orders", QueueId(0))])
        await turns(10)
        if not serving.done():
            serving.cancel()
        await asyncio.wait({serving})
        if not serving.cancelled():
            await serving

    run(scene())
    (reply,) = context.written
    return message_pb2.FetchReply.FromString(reply)


@pytest.mark.parametrize("stands", [False, True])
def test_a_waiting_fetch_brought_messages_to_a_user_without_the_right(
    here: AccessHere, *, stands: bool
) -> None:
    reply = answer_of_waiting_fetch(here, deny, stands=stands)
    assert (reply.error.symbol, reply.records, reply.replies_left) == ("ACCESS_DENIED", b"", 0)
    here.without_rules("alice")
    here.rule("alice", "Sub", "Topic:orders")
    other = answer_of_waiting_fetch(here, lambda here: here.user("bob"), stands=stands)
    assert (other.error.symbol, b"secret" in other.records) == ("", True)


@pytest.mark.parametrize("stands", [False, True])
def test_the_stream_of_a_user_who_was_disabled_ended_without_the_reason(
    here: AccessHere, *, stands: bool
) -> None:
    with pytest.raises(TroveError) as raised:
        answer_of_waiting_fetch(here, disable, stands=stands)
    assert raised.value.symbol == "AUTHENTICATION_FAILED"


@fake_time
@pytest.mark.parametrize("change", [disable, drop_secret, deny])
async def test_the_broker_asked_a_user_who_was_disabled_about_a_half_message(
    here: AccessHere, change: Any
) -> None:
    """The question has the whole message."""
    settings = v2.Settings(subscription=v2.Subscription(group=v2.Resource(name="billing")))
    settings.subscription.subscriptions.add(topic=v2.Resource(name="orders"))
    opening = service_pb2.TelemetryCommand(settings=settings).SerializeToString()
    answer = service_pb2.TelemetryCommand(thread_stack_trace=service_pb2.ThreadStackTrace(nonce="1"))
    context = SendingContext(rocketmq_metadata("alice"), [opening, answer.SerializeToString()])

    async def telemetry(_requests: Any, checked: Any) -> None:
        for _ in range(2):
            assert not is_end(await checked.read())
        await checked.write(b"first")
        change(here)
        await checked.write(b"secret")

    handler = grpc.stream_stream_rpc_method_handler(
        telemetry, request_deserializer=service_pb2.TelemetryCommand.FromString
    )
    guarded = AccessGuard(here.gate).handler(TELEMETRY, handler)
    with pytest.raises(TroveError):
        await guarded.stream_stream(None, context)
    assert context.written == [b"first"]


@fake_time
async def test_a_client_that_gave_up_a_topic_keeps_its_telemetry_stream(here: AccessHere) -> None:
    commands = []
    for topic in ("orders", "stock"):
        here.rule("alice", "Pub", f"Topic:{topic}")
        settings = v2.Settings(publishing=v2.Publishing(topics=[v2.Resource(name=topic)]))
        commands.append(service_pb2.TelemetryCommand(settings=settings).SerializeToString())
    context = SendingContext(rocketmq_metadata("alice"), commands)

    async def telemetry(_requests: Any, checked: Any) -> None:
        for _ in range(2):
            assert not is_end(await checked.read())
        here.rule("alice", "Pub", "Topic:orders", allow=False)
        await checked.write(b"first")

    handler = grpc.stream_stream_rpc_method_handler(
        telemetry, request_deserializer=service_pb2.TelemetryCommand.FromString
    )
    await AccessGuard(here.gate).handler(TELEMETRY, handler).stream_stream(None, context)
    assert context.written == [b"first"]


class ReadingContext(Context):
    """Its client has sent its settings, and reads when `reads` is set."""

    def __init__(self, metadata: Any, settings: v2.Settings) -> None:
        super().__init__(metadata, [service_pb2.TelemetryCommand(settings=settings).SerializeToString()])
        self.reads = asyncio.Event()
        self.reads.set()

    async def read(self) -> Any:
        if self.messages:
            return self.messages.pop(0)
        return await asyncio.Event().wait()

    async def write(self, message: Any) -> None:
        await self.reads.wait()
        await super().write(message)


class HalfMessages:
    """A half message of the topic `deals`, of the client whose id all clients of Context have; and a producer
    to the topic `later`."""

    def __init__(self, here: AccessHere, user: str, core: TestBroker | None = None) -> None:
        self.core = core or TestBroker()
        handler = grpc.stream_stream_rpc_method_handler(
            Telemetry(self.core).telemetry, request_deserializer=reader(service_pb2.TelemetryCommand)
        )
        publishing = v2.Publishing(topics=[v2.Resource(name="later")])
        self.context = ReadingContext(rocketmq_metadata(user), v2.Settings(publishing=publishing))
        self._serve = AccessGuard(here.gate).handler(TELEMETRY, handler).stream_stream

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        self.core.registry.sent_half("c", "deals")
        stream = asyncio.create_task(self._serve(None, self.context))
        await turns(20)
        assert len(self.context.written) == 1, "the settings are answered"
        yield
        stream.cancel()
        await asyncio.wait([stream])

    def ask(self) -> str | None:
        record = encode_record("deals", b"half", append_property_crc=True)
        half = StoredMessage(record, "deals", QueueId(0), QueueOffset(0))
        return self.core.commands.recover_orphaned_transaction("c", "deals", half, "T1")

    @property
    def shown(self) -> list[str]:
        return [one.recover_orphaned_transaction_command.transaction_id for one in self.context.written[1:]]


@fake_time
async def test_a_stream_that_is_refused_counted_as_a_producer_to_ask(here: AccessHere) -> None:
    """A transaction was given up after checks that no client had seen."""
    here.user("bob")
    here.rule("bob", "Pub", "Topic:later")
    halves = HalfMessages(here, "bob")
    async with halves.connected():
        commands = halves.core.commands
        assert not commands.has_producer("c", "deals")
        here.rule("bob", "Pub", "Topic:deals")
        assert commands.has_producer("c", "deals")


@fake_time
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_stream_of_another_user_hid_the_producer(here: AccessHere, is_first: bool) -> None:
    here.rule("alice", "Pub", "*")
    here.user("bob")
    here.rule("bob", "Pub", "Topic:later")
    core = TestBroker()
    first, second = ("alice", "bob") if is_first else ("bob", "alice")
    one, other = HalfMessages(here, first, core), HalfMessages(here, second, core)
    async with one.connected(), other.connected():
        assert one.ask() == "c"
        await turns(20)
    shown = {first: one.shown, second: other.shown}
    assert shown == {"alice": ["T1"], "bob": []}


@fake_time
@pytest.mark.parametrize(("topics", "shown"), [(["later"], []), (["later", "deals"], ["T1"])])
async def test_a_half_message_was_shown_to_any_user_with_its_senders_client_id(
    here: AccessHere, topics: list[str], shown: list[str]
) -> None:
    """Official clients need not name a topic before they send to it."""
    here.user("bob")
    for topic in topics:
        here.rule("bob", "Pub", f"Topic:{topic}")
    halves = HalfMessages(here, "bob")
    async with halves.connected():
        assert halves.ask() == ("c" if shown else None)
        await turns(20)
    assert halves.shown == shown


@fake_time
async def test_a_half_message_that_waited_was_shown_to_a_user_who_lost_its_topic(here: AccessHere) -> None:
    here.user("bob")
    here.rule("bob", "Pub", "Topic:later")
    here.rule("bob", "Pub", "Topic:deals")
    halves = HalfMessages(here, "bob")
    async with halves.connected():
        halves.context.reads.clear()
        assert [halves.ask(), halves.ask()] == ["c", "c"]
        await turns(20)
        here.rule("bob", "Pub", "Topic:deals", allow=False)
        halves.context.reads.set()
        await turns(20)
    assert halves.shown == ["T1"], "it was being written"


class Consumers:
    """Telemetry streams of consumers with one client id, which are members of the group `workers`."""

    def __init__(self, here: AccessHere) -> None:
        self._here = here
        self.core = TestBroker()
        self._handler = grpc.stream_stream_rpc_method_handler(
            Telemetry(self.core).telemetry, request_deserializer=reader(service_pb2.TelemetryCommand)
        )

    @asynccontextmanager
    async def connected(self, user: str) -> AsyncIterator[ReadingContext]:
        subscription = v2.Subscription(group=v2.Resource(name="workers"))
        settings = v2.Settings(client_type=v2.PUSH_CONSUMER, subscription=subscription)
        context = ReadingContext(rocketmq_metadata(user), settings)
        serve = AccessGuard(self._here.gate).handler(TELEMETRY, self._handler).stream_stream
        stream = asyncio.create_task(serve(None, context))
        await turns(20)
        assert len(context.written) == 1, "the settings are answered"
        yield context
        stream.cancel()
        await asyncio.wait([stream])

    async def ask(self, topic: str = "orders", origin: str = "") -> str:
        """The symbol with which the command failed: CONSUME_MSG_TIMEOUT if it was sent."""
        record = encode_record(topic, b"secret", append_property_crc=True)
        stored = StoredMessage(record, topic, QueueId(0), QueueOffset(0))
        with pytest.raises(TroveError) as caught:
            await self.core.commands.verify_message("c", "workers", stored, 1, topic=origin)
        return caught.value.symbol


@pytest.fixture
def workers(here: AccessHere) -> AccessHere:
    """alice may receive from `orders` as a member of `workers`; bob is a member, too."""
    here.user("bob")
    for user in ("alice", "bob"):
        here.rule(user, "Sub", "Group:workers")
    here.rule("alice", "Sub", "Topic:orders")
    return here


@fake_time
@pytest.mark.parametrize("users", [("alice", "bob"), ("bob", "alice")])
async def test_a_message_to_consume_was_shown_to_any_user_with_its_client_id(
    workers: AccessHere, users: tuple[str, str]
) -> None:
    consumers = Consumers(workers)
    async with consumers.connected(users[0]) as first, consumers.connected(users[1]) as second:
        assert await consumers.ask() == "CONSUME_MSG_TIMEOUT"
        shown = dict(zip(users, (first.written[1:], second.written[1:]), strict=True))
    assert len(shown["alice"]) == 1
    assert not shown["bob"]
    async with consumers.connected("bob") as context:
        assert await consumers.ask() == "CONSUMER_NOT_ONLINE"
        assert len(context.written) == 1


@fake_time
@pytest.mark.parametrize(
    ("topic", "origin", "users"),
    [
        ("%RETRY%workers", "", "alice bob"),  # its origin is unknown: members of the group may get it
        ("%DLQ%workers", "", "alice bob"),
        ("%RETRY%workers", "orders", "alice"),
        ("%RETRY%workers_orders", "", "alice"),
        ("%RETRY%workers+orders", "", "alice"),
        ("%RETRY%others", "", ""),
        ("%RETRY%others_orders", "", ""),
        ("deals", "", ""),
    ],
)
async def test_messages_of_retry_topics_are_for_members_of_the_group(
    workers: AccessHere, topic: str, origin: str, users: str
) -> None:
    consumers = Consumers(workers)
    for user in ("alice", "bob"):
        async with consumers.connected(user) as context:
            may = user in users.split()
            assert await consumers.ask(topic, origin) == (
                "CONSUME_MSG_TIMEOUT" if may else "CONSUMER_NOT_ONLINE"
            )
            assert len(context.written) == 1 + may


@fake_time
async def test_a_message_to_consume_that_waited_was_shown_after_the_right_ended(workers: AccessHere) -> None:
    consumers = Consumers(workers)
    async with consumers.connected("alice") as context:
        context.reads.clear()
        assert [await consumers.ask(), await consumers.ask()] == ["CONSUME_MSG_TIMEOUT"] * 2
        workers.rule("alice", "Sub", "Topic:orders", allow=False)
        context.reads.set()
        await turns(20)
        assert len(context.written) == 2, "it was being written"
