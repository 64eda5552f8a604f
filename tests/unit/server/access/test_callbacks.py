"""Calls of RocketMQ's clients that are answered by callbacks: they are admitted as the others are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tests.unit.server.access.access_here import CLUSTER, AccessHere, Context, rocketmq_metadata, signed
from trovemq_broker.security import changes
from trovemq_broker.security.creators import present_creator
from trovemq_broker.security.quotas import Quota
from trovemq_broker.server.access import callbacks
from trovemq_broker.server.access.callbacks import KnownCallers
from trovemq_broker.server.access.checked_context import CheckedContext
from trovemq_broker.server.access.gate import Gate
from trovemq_broker.server.access.guard import AccessGuard
from trovemq_broker.server.access.needs import ROWS
from trovemq_broker.server.wire.statuses import reader
from trovemq_daemon.callback_handlers import AGAIN, CallbackHandler
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto.audit import AUDIT_TOPIC
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

ACKNOWLEDGE = "/apache.rocketmq.v2.MessagingService/AckMessage"
RECEIVE = "/apache.rocketmq.v2.MessagingService/ReceiveMessage"
SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"


@pytest.fixture
def here() -> AccessHere:
    made = AccessHere()
    made.user("alice")
    return made


async def not_called(_request: Any, _context: Any) -> Any:
    raise AssertionError("not called here")


def unary(request_type: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(not_called, request_deserializer=reader(request_type))


def acknowledged(here: AccessHere, context: Context, request: bytes) -> tuple[bool, list[str]]:
    """Whether AckMessage began by a callback, and whose topic it would make."""
    creators: list[str] = []

    def begin(_request: Any, _context: Any, _answer: Any) -> bool:
        creators.append(present_creator().name)
        return True

    plain = unary(service_pb2.AckMessageRequest)
    made = AccessGuard(here.gate).handler(ACKNOWLEDGE, CallbackHandler(begin, plain))
    return made.begin(request, context, lambda _outcome: None), creators


def test_a_receive_is_admitted_before_it_takes_messages_without_a_task(here: AccessHere) -> None:
    here.rule("alice", "Sub", "Topic:orders")
    here.rule("alice", "Sub", "Group:g")
    received: list[str] = []

    def begin(request: Any, _context: Any, answer: Any) -> bool:
        received.append(request.message_queue.topic.name)
        answer([b"a message"])
        return True

    async def coroutine(_request: Any, _context: Any) -> AsyncIterator[bytes]:
        yield b"not called here"

    plain = grpc.unary_stream_rpc_method_handler(
        coroutine, request_deserializer=reader(service_pb2.ReceiveMessageRequest)
    )
    made = AccessGuard(here.gate).handler(RECEIVE, CallbackHandler(begin, plain))
    context, answers = Context(rocketmq_metadata("alice")), []
    for topic in ("orders", "others"):
        queue = v2.MessageQueue(topic=v2.Resource(name=topic))
        request = service_pb2.ReceiveMessageRequest(group=v2.Resource(name="g"), message_queue=queue)
        answers.append(made.begin(request.SerializeToString(), context, lambda _outcome: None))
    assert answers == [True, False]
    assert received == ["orders"]
    assert made.coroutine.unary_stream is not None


def test_a_receive_that_waited_is_checked_again_before_its_answer(here: AccessHere) -> None:
    for resource in ("Topic:orders", "Group:g"):
        here.rule("alice", "Sub", resource)
    begun: list[Any] = []

    def begin(_request: Any, _context: Any, answer: Any) -> bool:
        begun.append(answer)
        return True

    async def coroutine(_request: Any, _context: Any) -> AsyncIterator[bytes]:
        yield b"not called here"

    plain = grpc.unary_stream_rpc_method_handler(
        coroutine, request_deserializer=reader(service_pb2.ReceiveMessageRequest)
    )
    made = AccessGuard(here.gate).handler(RECEIVE, CallbackHandler(begin, plain))
    queue = v2.MessageQueue(topic=v2.Resource(name="orders"))
    request = service_pb2.ReceiveMessageRequest(group=v2.Resource(name="g"), message_queue=queue)
    answers: list[Any] = []
    data, context = request.SerializeToString(), Context(rocketmq_metadata("alice"))
    assert made.begin(data, context, answers.append)
    begun[0]([b"nothing"])
    here.user("bob")
    begun[0]([b"nothing"])
    here.apply(changes.set_quota(here.table.state, "User:alice", Quota(requests_per_s=1)))
    begun[0]([b"nothing"])
    assert answers == [[b"nothing"]] * 3, "another user's change, and a quota, refuse no answer"
    here.apply(changes.set_enabled(here.table.state, "alice", enabled=False))
    begun[0]([b"nothing"])
    assert answers[3] is AGAIN
    assert not made.begin(data, context, answers.append), "the coroutine refuses it"


def test_a_checked_context_is_its_call_as_a_key(here: AccessHere) -> None:
    context: Any = Context(rocketmq_metadata("alice"))
    checks: Any = None
    checked = CheckedContext(context, checks)
    assert {context: "noted"}[checked] == {checked: "noted"}[checked] == "noted"
    assert Context(rocketmq_metadata("alice")) not in {checked: "noted"}


def test_a_call_of_rocketmqs_clients_needs_no_task_with_users(here: AccessHere) -> None:
    here.rule("alice", "Sub", "*")
    request = service_pb2.AckMessageRequest(
        group=v2.Resource(name="g"), topic=v2.Resource(name="orders")
    ).SerializeToString()
    right = Context(rocketmq_metadata("alice"))
    assert acknowledged(here, right, request) == (True, ["alice"])
    assert present_creator().name == "", "the next callback is somebody else's"
    key = here.log_in("alice")
    wrong = Context(rocketmq_metadata("alice", "canary-secret-4"))
    for context, bytes_ in (
        (wrong, request),
        (Context(), request),
        (Context(signed(key, 0, ACKNOWLEDGE)), request),
        (right, b"\xff\xff"),
        (right, service_pb2.AckMessageRequest().SerializeToString()),
    ):
        assert acknowledged(here, context, bytes_) == (False, []), "the coroutine says what is wrong"
    here.apply(changes.set_quota(here.table.state, "User:alice", Quota(requests_per_s=1)))
    assert acknowledged(here, right, request) == (False, []), "it may have to wait"
    here.apply(changes.set_quota(here.table.state, "User:alice", Quota()))
    assert acknowledged(here, right, request) == (True, ["alice"])
    here.without_rules("alice")
    assert acknowledged(here, right, request) == (False, [])


def test_names_that_were_admitted_are_not_others(here: AccessHere) -> None:
    here.rule("alice", "Sub", "Group:g")
    here.rule("alice", "Sub", "Topic:orders")
    plain = unary(service_pb2.AckMessageRequest)
    begin = AccessGuard(here.gate).handler(ACKNOWLEDGE, CallbackHandler(lambda *_: True, plain)).begin
    context = Context(rocketmq_metadata("alice"))

    def begins(group: str, topic: str) -> bool:
        request = service_pb2.AckMessageRequest(group=v2.Resource(name=group), topic=v2.Resource(name=topic))
        return bool(begin(request.SerializeToString(), context, lambda _outcome: None))

    for _ in range(2):
        assert begins("g", "orders")
        for others in (("g", "secret"), ("h", "orders"), ("orders", "g"), ("g", AUDIT_TOPIC)):
            assert not begins(*others), others
    here.rule("alice", "Sub", "Topic:orders", allow=False)
    assert not begins("g", "orders")


def disabled(here: AccessHere) -> None:
    here.apply(changes.set_enabled(here.table.state, "alice", enabled=False))


def deleted(here: AccessHere) -> None:
    here.apply(changes.delete_user(here.table.state, "alice"))


def made_again_with_another_secret(here: AccessHere) -> None:
    deleted(here)
    other = new_user("alice", UserKind.NORMAL, b"another-secret-1", salt=bytes(16), now_ms=0)
    here.apply(changes.add_user(here.table.state, other))
    here.rule("alice", "Sub", "*")


def without_its_secret(here: AccessHere) -> None:
    here.apply(changes.rotate_secret(here.table.state, "alice", b"another-secret-1", EpochMs(0)))
    here.apply(changes.drop_old_secret(here.table.state, "alice"))


def denied(here: AccessHere) -> None:
    here.rule("alice", "Sub", "Topic:orders", allow=False)


def without_rules(here: AccessHere) -> None:
    here.without_rules("alice")


@pytest.mark.parametrize(
    "change",
    [disabled, deleted, made_again_with_another_secret, without_its_secret, denied, without_rules],
)
def test_nothing_that_was_remembered_outlives_a_change(here: AccessHere, change: Any) -> None:
    """Neither on the headers of an open connection nor for another connection's equal headers."""
    here.rule("alice", "Sub", "*")
    plain = unary(service_pb2.AckMessageRequest)
    begin = AccessGuard(here.gate).handler(ACKNOWLEDGE, CallbackHandler(lambda *_: True, plain)).begin
    request = service_pb2.AckMessageRequest(group=v2.Resource(name="g"), topic=v2.Resource(name="orders"))
    data = request.SerializeToString()
    contexts = [Context(rocketmq_metadata("alice")) for _ in range(2)]
    for context in (*contexts, *contexts):
        assert begin(data, context, lambda _outcome: None)
    change(here)
    for context in (*contexts, Context(rocketmq_metadata("alice"))):
        assert not begin(data, context, lambda _outcome: None)


def test_a_batch_for_two_topics_is_no_topic_in_a_namespace(here: AccessHere) -> None:
    """Both name two texts; the second is admitted, which must not admit the first."""
    here.rule("alice", "Pub", "Topic:a%b")
    plain = unary(service_pb2.SendMessageRequest)
    begin = AccessGuard(here.gate).handler(SEND, CallbackHandler(lambda *_: True, plain)).begin
    context = Context(rocketmq_metadata("alice"))

    def begins(*topics: v2.Resource) -> bool:
        request = service_pb2.SendMessageRequest(messages=[v2.Message(topic=topic) for topic in topics])
        return bool(begin(request.SerializeToString(), context, lambda _outcome: None))

    for _ in range(2):
        assert begins(v2.Resource(resource_namespace="a", name="b"))
        assert begins(v2.Resource(name="a%b"))
        assert not begins(v2.Resource(name="a"), v2.Resource(name="b"))
        assert not begins(v2.Resource(name="b"))
        assert not begins(v2.Resource(resource_namespace="b", name="a"))


def test_one_user_made_the_broker_remember_a_million_names(
    here: AccessHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's header has as many spellings as it likes, and each had its own names."""
    monkeypatch.setattr(callbacks, "NAMES_MAX", 8)
    here.rule("alice", "Pub", "*")
    gate, known = here.gate, KnownCallers(here.gate)
    begin = callbacks.guarded_begin(
        gate, known, SEND, ROWS[SEND], lambda *_: True, reader(service_pb2.SendMessageRequest)
    )
    for spelling in range(4):
        header = [
            (name, value.replace("Credential=alice", f"Credential=alice/{spelling}"))
            for name, value in rocketmq_metadata("alice")
        ]
        for number in range(6):
            topic = v2.Resource(name=f"t{spelling}{number}")
            request = service_pb2.SendMessageRequest(messages=[v2.Message(topic=topic)])
            assert begin(request.SerializeToString(), Context(header), lambda _outcome: None)
    assert known.remembered <= 4 + 8


def test_who_was_noted_on_headers_is_asked_again_after_a_change(here: AccessHere) -> None:
    known, context = KnownCallers(here.gate), Context(rocketmq_metadata("alice"))
    first = known.caller(ACKNOWLEDGE, context)
    assert first is not None
    assert known.caller(ACKNOWLEDGE, context) is first
    here.user("bob")
    second = known.caller(ACKNOWLEDGE, context)
    assert second is not None
    assert second is not first
    assert context.head.note is second, "the past is not kept in memory"
    here.apply(changes.set_enabled(here.table.state, "alice", enabled=False))
    for _ in range(2):
        with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
            known.caller(ACKNOWLEDGE, context)
    here.apply(changes.delete_user(here.table.state, "alice"))
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        known.caller(ACKNOWLEDGE, context)


def test_a_callers_certificate_is_not_taken_for_the_next_ones(here: AccessHere) -> None:
    gate = Gate(authorization=True, cluster=CLUSTER, clock_ms=lambda: EpochMs(0), certificates=True)
    gate.open(here.table, here.sessions)
    here.user("bob")
    known, callers = KnownCallers(gate), []
    for name in (b"alice", b"bob"):
        context = Context((("authorization", ""),))
        shown = {"transport_security_type": [b"ssl"], "x509_common_name": [name]}
        context.auth_context = lambda shown=shown: shown  # type: ignore[method-assign,misc]
        found = known.caller(ACKNOWLEDGE, context)
        callers.append(found.caller.access_key if found is not None else "")
    assert callers == ["alice", "bob"]
    by_signature = Context(rocketmq_metadata("bob"))
    assert known.caller(ACKNOWLEDGE, by_signature) is known.caller(ACKNOWLEDGE, by_signature)
