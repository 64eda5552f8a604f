"""Calls of the SecurityService that the requests of RocketMQ's tools stand for, as tool_calls.py has those of
topics and groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from trovemq_broker.server.wire.native_calls import Reply
from trovemq_broker.server.wire.security_messages import SERVICE
from trovemq_broker.server.wire.tool_calls import NativeCall
from trovemq_proto.v1 import security_pb2

_PATH: Final = f"/{SERVICE.full_name}/"


class ShownUser(NamedTuple):
    """`kind`: Super or Normal."""

    name: str
    kind: str
    enabled: bool


class ShownRule(NamedTuple):
    """`actions`: names, separated by commas."""

    number: int
    user: str
    allow: bool
    actions: str
    resource: str
    sources: Sequence[str]


# --- users ----------------------------------------------------------------------------------------------
def create_user(name: str, kind: str, secret: str) -> NativeCall:
    request = security_pb2.CreateUserRequest(access_key=name, kind=kind, secret=secret)
    return NativeCall(f"{_PATH}CreateUser", request)


def alter_user(name: str, *, enabled: bool) -> NativeCall:
    return NativeCall(f"{_PATH}AlterUser", security_pb2.AlterUserRequest(access_key=name, enabled=enabled))


def rotate_secret(name: str, secret: str) -> NativeCall:
    request = security_pb2.RotateSecretRequest(access_key=name, secret=secret)
    return NativeCall(f"{_PATH}RotateSecret", request)


def drop_old_secret(name: str) -> NativeCall:
    request = security_pb2.RotateSecretRequest(access_key=name, drop_old=True)
    return NativeCall(f"{_PATH}RotateSecret", request)


def delete_user(name: str) -> NativeCall:
    return NativeCall(f"{_PATH}DeleteUser", security_pb2.DeleteUserRequest(access_key=name))


def list_users() -> NativeCall:
    return NativeCall(f"{_PATH}ListUsers", security_pb2.ListUsersRequest())


def users_of(reply: Reply) -> list[ShownUser]:
    return [ShownUser(one.access_key, one.kind, one.enabled) for one in reply.users]


# --- rules ----------------------------------------------------------------------------------------------
def create_rule(rule: ShownRule) -> NativeCall:
    """Without its number."""
    request = security_pb2.CreateRuleRequest(
        access_key=rule.user,
        allow=rule.allow,
        actions=rule.actions,
        resource=rule.resource,
        sources=rule.sources,
    )
    return NativeCall(f"{_PATH}CreateRule", request)


def delete_rule(number: int) -> NativeCall:
    return NativeCall(f"{_PATH}DeleteRule", security_pb2.DeleteRuleRequest(number=number))


def list_rules(user: str = "") -> NativeCall:
    """Of every user, unless one is given."""
    return NativeCall(f"{_PATH}ListRules", security_pb2.ListRulesRequest(access_key=user))


def rules_of(reply: Reply) -> list[ShownRule]:
    return [
        ShownRule(one.number, one.access_key, one.allow, one.actions, one.resource, list(one.sources))
        for one in reply.rules
    ]
