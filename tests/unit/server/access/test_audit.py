"""Audit events: which RPCs have them, and that they say who did what, and nothing else."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import grpc
import pytest

from broker.security.actions import Action
from broker.server.access.needs import ROWS, Audit, Level
from tests.support.fake_loop import run
from tests.support.logs import logged
from tests.unit.server.access.access_here import rocketmq_metadata
from tests.unit.server.access.test_guard import Context
from tests.unit.server.access.test_matrix import requests_of
from tests.unit.server.access.test_quotas_at_the_door import Door
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import admin_pb2 as v2_admin_pb2
from trovemq_proto.v1 import admin_pb2, query_pb2, security_pb2

ADMINISTRATIVE = Action.CREATE | Action.UPDATE | Action.DELETE | Action.COMMAND | Action.BACKUP
BY_NAME = {"/apache.rocketmq.v2.Admin/AdminSendMessage": Audit.ACT}
READ_ONLY = re.compile(r".*/(List|Test|Get)\w+|.*/Register")
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
