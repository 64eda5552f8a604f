"""Audit events: which RPCs have them, and that they say who did what, and nothing else."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import grpc
import pytest

from tests.support.fake_loop import fake_time, run
from tests.support.logs import logged
from tests.unit.server.access.access_here import AccessHere, Context, rocketmq_metadata
from tests.unit.server.access.test_matrix import METHODS, requests_of
from tests.unit.server.access.test_quotas_at_the_door import Door
from trovemq_broker.security.actions import Action
from trovemq_broker.server.access.audit import targets_of
from trovemq_broker.server.access.gate import Caller
from trovemq_broker.server.access.needs import ROWS, Audit, Level
from trovemq_proto import errors
from trovemq_proto.audit import AUDIT_TOPIC, AuditRecord
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import admin_pb2 as v2_admin_pb2
from trovemq_proto.v1 import admin_pb2, message_pb2, query_pb2, security_pb2

ADMINISTRATIVE = Action.CREATE | Action.UPDATE | Action.DELETE | Action.COMMAND | Action.BACKUP
BY_NAME = {"/apache.rocketmq.v2.Admin/AdminSendMessage": Audit.ACT}
READ_ONLY = re.compile(
    r".*/(List|Test|Get)\w+|.*/(Register|Forget|WatchConfig|Forward|ForwardTelemetry|Follow|ReadLog|ReadConsumers)"
)
"""Forwarded calls are calls with messages, which are not audited where clients make them, either."""
CANARY = "canary-body-6"


@pytest.mark.parametrize("path", ROWS)
def test_every_act_and_every_look_up_is_audited_and_nothing_else(path: str) -> None:
    row = ROWS[path]
    expected = BY_NAME.get(path)
    if row.needs is Level.SUPER and not READ_ONLY.fullmatch(path):
        expected = Audit.ACT
    if callable(row.needs):
        needs = [need.actions for request in requests_of(path) for need in row.needs(request)]
        if any(not actions & ~ADMINISTRATIVE for actions in needs):
            expected = Audit.ACT
        elif any(Action.READ in actions for actions in needs):
            expected = Audit.READ
    assert row.audit is expected


def unary(reply: Any, request_type: Any) -> Any:
    async def answer(_request: Any, _context: Any) -> Any:
        if isinstance(reply, BaseException):
            raise reply
        return reply

    return grpc.unary_unary_rpc_method_handler(answer, request_deserializer=request_type.FromString)


async def call(door: Door, path: str, reply: Any, request: Any) -> None:
    number, context = door.calls, door.context(path)
    handler = door.guarded(path, unary(reply, type(request)))
    try:
        await handler.unary_unary(door.key.sign(number, 0, request.SerializeToString()), context)
    except (TroveError, ValueError):
        pass


def audited(text: str) -> list[dict[str, str]]:
    """Each audit event's fields."""
    return [
        {"event": found[1], **dict(re.findall(r"(\w+)=('[^']*'|\"[^\"]*\"|\S+)", line))}
        for line in text.splitlines()
        if (found := re.search(r"(audit\.\w+)", line))
    ]


CREATE = "/trovemq.v1.AdminService/CreateTopic"


def test_each_act_is_logged_with_who_where_and_how_it_ended() -> None:
    async def program() -> None:
        door, request = Door(), admin_pb2.CreateTopicRequest(topic="orders")
        for reply in (
            admin_pb2.TopicDescription(),
            admin_pb2.TopicDescription(),
            TroveError(errors.TOPIC_EXISTS),
            ValueError("a fault"),
        ):
            await call(door, CREATE, reply, request)

    with logged() as log:
        run(program())
    found = audited(log.getvalue())
    assert [one["outcome"] for one in found] == ["OK", "OK", "TOPIC_EXISTS", "UNKNOWN_ERROR"]
    assert {one["event"] for one in found} == {"audit.act"}
    assert {(one["user"], one["source"], one["method"]) for one in found} == {("alice", "127.0.0.1", CREATE)}
    assert {one["resources"] for one in found} == {"Topic:orders"}


@pytest.mark.parametrize(
    ("method", "request_", "shown"),
    [
        (
            "CreateRule",
            security_pb2.CreateRuleRequest(
                access_key="bob", actions="Pub", resource="Topic:a*", sources=["10.0.0.0/8", "::1"]
            ),
            "access_key='bob' allow='no' actions='Pub' resource='Topic:a*' sources='10.0.0.0/8,::1'",
        ),
        (
            "CreateRule",
            security_pb2.CreateRuleRequest(access_key="bob", allow=True, actions="Pub", resource="*"),
            "access_key='bob' allow='yes' actions='Pub' resource='*'",
        ),
        ("DeleteRule", security_pb2.DeleteRuleRequest(number=7), "number='7'"),
        (
            "CreateUser",
            security_pb2.CreateUserRequest(access_key="bob", kind="Super", secret=CANARY),
            "access_key='bob' kind='Super'",
        ),
        (
            "AlterUser",
            security_pb2.AlterUserRequest(access_key="bob"),
            "access_key='bob' enabled='no'",
        ),
        (
            "RotateSecret",
            security_pb2.RotateSecretRequest(access_key="bob", secret=CANARY),
            "access_key='bob' drop_old='no'",
        ),
        (
            "SetQuota",
            security_pb2.SetQuotaRequest(
                subject="User:bob", quota=security_pb2.Quota(requests_per_s=5, topics_max=2)
            ),
            "subject='User:bob' quota='requests_per_s=5,topics_max=2'",
        ),
        (
            "SetQuota",
            security_pb2.SetQuotaRequest(subject="User:bob"),
            "subject='User:bob' quota='none'",
        ),
    ],
)
def test_the_records_of_an_allow_and_of_a_deny_were_the_same(method: str, request_: Any, shown: str) -> None:
    assert targets_of(ROWS[f"/trovemq.v1.SecurityService/{method}"], request_) == shown


def test_denials_and_look_ups_are_counted_by_minute() -> None:
    async def program() -> None:
        door = Door()
        door.here.rule("alice", "Create", "Topic:*", allow=False)
        await asyncio.sleep(60)
        for _ in range(5):
            await call(door, CREATE, None, admin_pb2.CreateTopicRequest(topic="orders"))
            request = query_pb2.QueryByKeyRequest(topic="orders", key=CANARY)
            await call(door, "/trovemq.v1.QueryService/QueryByKey", query_pb2.QueryPage(), request)
        await asyncio.sleep(60)
        door.gate.flush_logs()

    with logged() as log:
        run(program())
    found = audited(log.getvalue())
    assert [(one["event"], one["outcome"], one.get("again")) for one in found] == [
        ("audit.act", "ACCESS_DENIED", None),
        ("audit.read", "OK", None),
        ("audit.act", "ACCESS_DENIED", "4"),
        ("audit.read", "OK", "4"),
    ]
    assert "canary" not in log.getvalue()
    assert re.search(r"access\.refused.*again=4", log.getvalue())


def test_each_refused_act_of_a_storm_was_logged_by_its_resource() -> None:
    async def program() -> None:
        door = Door()
        door.here.rule("alice", "Create", "Topic:*", allow=False)
        await asyncio.sleep(60)
        for number in range(5):
            await call(door, CREATE, None, admin_pb2.CreateTopicRequest(topic=f"orders-{number}"))
        await asyncio.sleep(60)
        door.gate.flush_logs()

    with logged() as log:
        run(program())
    found = audited(log.getvalue())
    assert [(one.get("resources"), one.get("again")) for one in found] == [
        ("Topic:orders-0", None),
        (None, "4"),
    ]


def test_secrets_of_requests_are_not_in_it() -> None:
    async def program() -> None:
        door = Door()
        path = "/trovemq.v1.SecurityService/CreateUser"
        request = security_pb2.CreateUserRequest(access_key="bob", secret=CANARY, kind="Super")
        await call(door, path, None, request)

    with logged() as log:
        run(program())
    (found,) = audited(log.getvalue())
    assert (found["user"], found["outcome"]) == ("alice", "ACCESS_DENIED")
    assert "bob" in log.getvalue()
    assert "canary" not in log.getvalue()


def test_rocketmqs_status_is_the_outcome() -> None:
    async def program() -> None:
        door, path = Door(), "/apache.rocketmq.v2.Admin/DeleteSubscription"
        reply = v2_admin_pb2.DeleteSubscriptionResponse(status={"code": 40402})
        handler = door.guarded(path, unary(reply, v2_admin_pb2.DeleteSubscriptionRequest))
        request = v2_admin_pb2.DeleteSubscriptionRequest(group={"name": "a\x1b[2Jb"})
        for metadata in (rocketmq_metadata("alice"), ()):
            await handler.unary_unary(request.SerializeToString(), Context(metadata))

    with logged() as log:
        run(program())
    first, second = audited(log.getvalue())
    assert (first["user"], first["outcome"]) != (second["user"], second["outcome"])
    assert second["outcome"] == "AUTHENTICATION_FAILED"
    assert "\x1b" not in log.getvalue()


@pytest.mark.parametrize(("code", "outcome"), [(40402, "TOPIC_NOT_FOUND"), (12345, "12345"), (-5, "-5")])
def test_a_clients_unknown_status_failed_the_admins_call(code: int, outcome: str) -> None:
    """VerifyMessage has the status of a client, which may be newer than the broker."""

    async def program() -> None:
        door, path = Door(), "/apache.rocketmq.v2.Admin/VerifyMessage"
        reply = v2_admin_pb2.VerifyMessageResponse(status={"code": code})
        handler = door.guarded(path, unary(reply, v2_admin_pb2.VerifyMessageRequest))
        request = v2_admin_pb2.VerifyMessageRequest(group={"name": "workers"}, topic={"name": "orders"})
        answer = await handler.unary_unary(request.SerializeToString(), Context(rocketmq_metadata("alice")))
        assert answer == reply

    with logged() as log:
        run(program())
    (found,) = audited(log.getvalue())
    assert found["outcome"] == outcome


def test_log_ins_are_logged_and_failed_ones_are_warnings() -> None:
    async def program() -> None:
        audit = Door().gate.audit
        await asyncio.sleep(60)
        for outcome in ("OK", "OK", "AUTHENTICATION_FAILED"):
            audit.login("alice" if outcome == "OK" else "", "10.0.0.1", outcome)

    with logged() as log:
        run(program())
    good, bad = log.getvalue().splitlines()
    assert "info" in good
    assert "user=alice" in good
    assert "warning" in bad
    assert "10.0.0.1" in bad


class Trail:
    """The records of acts, in memory. `failure`: what writing one raises."""

    def __init__(self) -> None:
        self.records: list[tuple[str, ...]] = []
        self.failure: TroveError | None = None

    def begin_act(self, user: str, source: str, method: str, resources: str, now_ms: EpochMs) -> Any:
        if self.failure is not None:
            raise self.failure
        self.records.append(("begun", user, resources))
        return AuditRecord("1", now_ms, "act", user, source, method, resources, act="1"), 7

    def end_act(self, begun: AuditRecord, outcome: str, _now_ms: EpochMs) -> None:
        self.records.append(("ended", begun.user, outcome))

    def note(self, kind: str, user: str, _source: str, _path: str, *about: Any) -> None:
        self.records.append((kind, user, about[0]))

    def denied(self, user: str, source: str, _path: str, about: str, outcome: str, _now_ms: EpochMs) -> None:
        self.records.append(("denied", user or source, about, outcome))

    def flush(self, now_ms: EpochMs) -> None: ...


def open_door(durable: Any = None) -> tuple[Door, Any]:
    async def at_once(_end: int) -> None:
        return

    door, trail = Door(), Trail()
    door.gate.audit.open(trail, durable or at_once)  # type: ignore[arg-type]
    return door, trail


@fake_time
async def test_an_act_begins_when_its_record_is_on_disk() -> None:
    steps: list[str] = []

    async def durable(end: int) -> None:
        assert end == 7
        await asyncio.sleep(1)
        steps.append("durable")

    async def answer(_request: Any, _context: Any) -> Any:
        steps.append("done")
        return admin_pb2.TopicDescription()

    door, trail = open_door(durable)
    handler = grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=admin_pb2.CreateTopicRequest.FromString
    )
    request = admin_pb2.CreateTopicRequest(topic="orders").SerializeToString()
    guarded = door.guarded(CREATE, handler)
    await guarded.unary_unary(door.key.sign(door.calls, 0, request), door.context(CREATE))
    assert trail.records == [("begun", "alice", "Topic:orders"), ("ended", "alice", "OK")]

    assert steps == ["durable", "done"]


@fake_time
@pytest.mark.parametrize("where", ["append", "sync"])
async def test_an_act_that_cannot_be_audited_is_refused_and_data_is_not(where: str) -> None:
    failure = TroveError(errors.DISK_FULL, "no space")
    done: list[Any] = []

    async def failing(_end: int) -> None:
        raise failure

    async def answer(request: Any, _context: Any) -> Any:
        done.append(request)
        return admin_pb2.TopicDescription()

    async def call_of(door: Door, path: str, request: Any) -> None:
        handler = grpc.unary_unary_rpc_method_handler(answer, request_deserializer=type(request).FromString)
        signed = door.key.sign(door.calls, 0, request.SerializeToString())
        await door.guarded(path, handler).unary_unary(signed, door.context(path))

    door, trail = open_door(failing if where == "sync" else None)
    trail.failure = failure if where == "append" else None
    with pytest.raises(TroveError, match="cannot be audited, so it is not done: no space") as refused:
        await call_of(door, CREATE, admin_pb2.CreateTopicRequest(topic="orders"))
    assert refused.value.spec is errors.DISK_FULL
    assert done == []
    await call_of(door, "/trovemq.v1.MessageService/Send", message_pb2.SendRequest(topic="orders"))
    assert len(done) == 1


@fake_time
async def test_denials_of_every_call_have_records_and_quotas_have_none() -> None:
    door, trail = open_door()
    door.here.rule("alice", "Create", "Topic:*", allow=False)
    await call(door, CREATE, None, admin_pb2.CreateTopicRequest(topic="orders"))
    door.gate.refused("/x/Y", TroveError(errors.AUTHENTICATION_FAILED, CANARY), "10.0.0.1")
    door.gate.refused("/x/Y", TroveError(errors.LIMIT_EXCEEDED), "10.0.0.1", "alice")
    door.gate.audit.login("", "10.0.0.2", "AUTHENTICATION_FAILED")
    door.gate.audit.login("alice", "10.0.0.2", "OK")
    assert trail.records == [
        ("denied", "alice", "alice may not Create on 'Topic:orders'", "ACCESS_DENIED"),
        ("denied", "10.0.0.1", "", "AUTHENTICATION_FAILED"),
        ("denied", "10.0.0.2", "", "AUTHENTICATION_FAILED"),
        ("login", "alice", ""),
    ]


NAMING_IT = {
    "/trovemq.v1.MessageService/Fetch": message_pb2.FetchRequest(topic=AUDIT_TOPIC),
    "/trovemq.v1.MessageService/Pull": message_pb2.FetchRequest(topic=AUDIT_TOPIC),
    "/trovemq.v1.QueryService/QueryByKey": query_pb2.QueryByKeyRequest(topic=AUDIT_TOPIC, key="k"),
    "/trovemq.v1.AdminService/CommitOffset": admin_pb2.CommitOffsetRequest(group="g", topic=AUDIT_TOPIC),
}
"""By RocketMQ's protocol no client can name one of the broker's own topics."""


@pytest.mark.parametrize("path", NAMING_IT)
@pytest.mark.parametrize("authorization", [True, False])
def test_no_other_right_reads_the_audit_records(path: str, authorization: bool) -> None:
    here = AccessHere(authorization=authorization)
    for name in ("operator", "auditor"):
        here.user(name)
    here.user("root", is_super=True)
    here.rule("operator", "Pub,Sub,Create,Update,Delete,Get,List,Read,Command,Backup", "*")
    here.rule("auditor", "Audit", f"Topic:{AUDIT_TOPIC}")
    here.rule("auditor", "Sub", "Group:*")
    allowed = {}
    for name in ("operator", "auditor", "root"):
        try:
            here.gate.admit(Caller(name, "127.0.0.1", None), ROWS[path], NAMING_IT[path], path)
            allowed[name] = "yes"
        except TroveError as error:
            allowed[name] = error.symbol
    assert allowed == {"operator": "ACCESS_DENIED", "auditor": "yes", "root": "yes"}


@pytest.mark.parametrize("path", [path for path, row in ROWS.items() if row.audit is Audit.ACT])
def test_every_act_is_one_request(path: str) -> None:
    """Its record is written when the request is there."""
    assert not METHODS[path].client_streaming
