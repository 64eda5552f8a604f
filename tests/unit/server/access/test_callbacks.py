"""Calls of RocketMQ's clients that are answered by callbacks: they are admitted as the others are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

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
from trovemq_daemon.calls import AwaitedCall, Call, CallHandler
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


class Callers:
    """One method with the check of access. `begun`: the calls that its handler got, with the creators of the
    topics that they would make."""

    def __init__(self, here: AccessHere, path: str, request_type: Any, *, streams: bool = False) -> None:
        self.begun: list[tuple[Call, str]] = []
        handler = CallHandler(on_calls=self.on_calls, read=reader(request_type), streams=streams)
        self.on_access = AccessGuard(here.gate).handler(path, handler).on_calls

    def on_calls(self, calls: Sequence[Call]) -> None:
        self.begun += [(call, present_creator().name) for call in calls]

    def begins(self, request: bytes, *contexts: Context) -> list[bool]:
        """Whether each call of one iteration came to the handler; the others were refused."""
        return asyncio.run(self._begins(request, contexts))

    async def _begins(self, request: bytes, contexts: Sequence[Context]) -> list[bool]:
        calls = [AwaitedCall(context, None, request) for context in contexts]
        self.begun.clear()
        self.on_access(calls)
        begun = [one for one, _ in self.begun]
        assert all(call in begun or call.ending.done() for call in calls), "it is refused at once"
        return [call in begun for call in calls]


def queue_request(topic: str) -> bytes:
    queue = v2.MessageQueue(topic=v2.Resource(name=topic))
    request = service_pb2.ReceiveMessageRequest(group=v2.Resource(name="g"), message_queue=queue)
    return bytes(request.SerializeToString())


def test_a_receive_is_admitted_before_it_takes_messages(here: AccessHere) -> None:
    here.rule("alice", "Sub", "Topic:orders")
    here.rule("alice", "Sub", "Group:g")
    receives = Callers(here, RECEIVE, service_pb2.ReceiveMessageRequest, streams=True)
    context = Context(rocketmq_metadata("alice"))
    assert receives.begins(queue_request("orders"), context) == [True]
    assert receives.begins(queue_request("others"), context) == [False]


def test_a_receive_that_waited_is_checked_again_before_its_answer(here: AccessHere) -> None:
    for resource in ("Topic:orders", "Group:g"):
        here.rule("alice", "Sub", resource)
    receives = Callers(here, RECEIVE, service_pb2.ReceiveMessageRequest, streams=True)

    async def scene() -> None:
        calls = [
            AwaitedCall(Context(rocketmq_metadata("alice")), None, queue_request("orders")) for _ in range(2)
        ]
        receives.on_access(calls)
        first, second = calls
        assert first.may_answer()
        here.user("bob")
        here.apply(changes.set_quota(here.table.state, "User:alice", Quota(requests_per_s=1)))
        assert first.may_answer(), "another user's change, and a quota, refuse no answer"
        first.answer([b"nothing"])
        assert first.ending.result() == [b"nothing"]
        here.apply(changes.set_enabled(here.table.state, "alice", enabled=False))
        assert not second.may_answer()
        (reply,) = second.ending.result()
        assert reply.status.code == v2.UNAUTHORIZED

    asyncio.run(scene())


def test_a_checked_context_is_its_call_as_a_key(here: AccessHere) -> None:
    context: Any = Context(rocketmq_metadata("alice"))
    checks: Any = None
    checked = CheckedContext(context, checks)
    assert {context: "noted"}[checked] == {checked: "noted"}[checked] == "noted"
    assert Context(rocketmq_metadata("alice")) not in {checked: "noted"}


def acknowledgement(group: str = "g", topic: str = "orders") -> bytes:
    request = service_pb2.AckMessageRequest(group=v2.Resource(name=group), topic=v2.Resource(name=topic))
    return bytes(request.SerializeToString())


def test_a_fault_in_the_check_of_one_call_failed_all_of_the_turn(
    here: AccessHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.rule("alice", "Sub", "*")
    key = here.log_in("alice")
    credentials = here.gate.credentials

    def fail(path: str, metadata: Any) -> Any:
        if metadata is broken.invocation_metadata():
            raise MemoryError
        return credentials(path, metadata)

    monkeypatch.setattr(here.gate, "credentials", fail)
    acknowledges = Callers(here, ACKNOWLEDGE, service_pb2.AckMessageRequest)
    alice, broken = Context(rocketmq_metadata("alice")), Context(signed(key, 0, ACKNOWLEDGE))

    async def scene() -> None:
        calls = [AwaitedCall(context, None, acknowledgement()) for context in (alice, broken, alice)]
        acknowledges.on_access(calls)
        assert [call for call, _ in acknowledges.begun] == [calls[0], calls[2]]
        assert isinstance(calls[1].ending.exception(), MemoryError)

    asyncio.run(scene())


def test_calls_of_one_turn_are_passed_on_together_as_those_of_their_users(here: AccessHere) -> None:
    here.user("bob")
    for user in ("alice", "bob"):
        here.rule(user, "Sub", "*")
    key = here.log_in("alice")
    turns: list[tuple[str, int]] = []

    def on_calls(calls: Sequence[Call]) -> None:
        turns.append((present_creator().name, len(calls)))

    handler = CallHandler(on_calls=on_calls, read=reader(service_pb2.AckMessageRequest))
    on_access = AccessGuard(here.gate).handler(ACKNOWLEDGE, handler).on_calls
    alice, bob = Context(rocketmq_metadata("alice")), Context(rocketmq_metadata("bob"))
    by_session = Context(signed(key, 0, ACKNOWLEDGE))
    wrong = Context(rocketmq_metadata("alice", "canary-secret-4"))

    async def scene() -> None:
        data = acknowledgement()
        contexts = (alice, alice, wrong, alice, bob, bob, by_session, alice)
        signs = {by_session: key.sign(0, 0, data)}
        on_access([AwaitedCall(context, None, signs.get(context, data)) for context in contexts])

    asyncio.run(scene())
    assert turns == [("alice", 3), ("bob", 2), ("alice", 2)]
    assert present_creator().name == "", "the next callback is another caller's"


def test_a_call_under_a_quota_waits_and_takes_the_same_way(here: AccessHere) -> None:
    here.rule("alice", "Sub", "*")
    here.apply(changes.set_quota(here.table.state, "User:alice", Quota(requests_per_s=1_000)))
    acknowledgements = Callers(here, ACKNOWLEDGE, service_pb2.AckMessageRequest)

    async def scene() -> None:
        call = AwaitedCall(Context(rocketmq_metadata("alice")), None, acknowledgement())
        acknowledgements.on_access([call])
        assert not acknowledgements.begun
        await asyncio.sleep(0)
        assert acknowledgements.begun == [(call, "alice")]
        call.answer(b"reply")
        assert call.ending.result() == b"reply"

    asyncio.run(scene())


def test_names_that_were_admitted_are_not_others(here: AccessHere) -> None:
    here.rule("alice", "Sub", "Group:g")
    here.rule("alice", "Sub", "Topic:orders")
    callers = Callers(here, ACKNOWLEDGE, service_pb2.AckMessageRequest)
    context = Context(rocketmq_metadata("alice"))

    def begins(group: str, topic: str) -> bool:
        return callers.begins(acknowledgement(group, topic), context) == [True]

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
    callers = Callers(here, ACKNOWLEDGE, service_pb2.AckMessageRequest)
    contexts = [Context(rocketmq_metadata("alice")) for _ in range(2)]
    assert callers.begins(acknowledgement(), *contexts, *contexts) == [True] * 4
    change(here)
    contexts.append(Context(rocketmq_metadata("alice")))
    assert callers.begins(acknowledgement(), *contexts) == [False] * 3


def test_a_batch_for_two_topics_is_no_topic_in_a_namespace(here: AccessHere) -> None:
    """Both name two texts; the second is admitted, which must not admit the first."""
    here.rule("alice", "Pub", "Topic:a%b")
    callers = Callers(here, SEND, service_pb2.SendMessageRequest)
    context = Context(rocketmq_metadata("alice"))

    def begins(*topics: v2.Resource) -> bool:
        request = service_pb2.SendMessageRequest(messages=[v2.Message(topic=topic) for topic in topics])
        return callers.begins(request.SerializeToString(), context) == [True]

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
    known = KnownCallers(here.gate)
    for spelling in range(4):
        header = [
            (name, value.replace("Credential=alice", f"Credential=alice/{spelling}"))
            for name, value in rocketmq_metadata("alice")
        ]
        for number in range(6):
            topic = v2.Resource(name=f"t{spelling}{number}")
            request = service_pb2.SendMessageRequest(messages=[v2.Message(topic=topic)])
            who = known.caller(SEND, Context(header))
            assert who is not None
            known.admit(who, SEND, ROWS[SEND], request)
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
