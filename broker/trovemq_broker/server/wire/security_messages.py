"""SecurityService: requests to commands, results to replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from google.protobuf.descriptor import ServiceDescriptor

from trovemq_broker.security.actions import action_text
from trovemq_broker.security.quotas import LIMITS, Quota
from trovemq_broker.security.rules import Rule
from trovemq_daemon.users import User
from trovemq_proto.v1 import security_pb2

SERVICE: Final[ServiceDescriptor] = security_pb2.DESCRIPTOR.services_by_name["SecurityService"]


# --- handshakes -----------------------------------------------------------------------------------------
class Handshake(NamedTuple):
    """The broker's message, and after the last step the session and its time in ms."""

    message: str
    session_id: bytes = b""
    session_time_ms: int = 0


def handshake_message(request: security_pb2.AuthenticateRequest) -> str:
    """The client's message."""
    return request.message


def handshake_reply(_request: object, step: Handshake) -> security_pb2.AuthenticateReply:
    """One step."""
    return security_pb2.AuthenticateReply(
        message=step.message, session_id=step.session_id, session_time_ms=step.session_time_ms
    )


# --- users ----------------------------------------------------------------------------------------------
class NewUser(NamedTuple):
    """secret: "" if the broker is to make one."""

    access_key: str
    kind: str
    secret: str


class UserState(NamedTuple):
    """A user is to be enabled, or disabled."""

    access_key: str
    enabled: bool


class SecretChange(NamedTuple):
    """A new secret beside the one before; drop_old: none, and the one before is no longer valid. secret: ""
    if the broker is to make one."""

    access_key: str
    secret: str
    drop_old: bool


class UserSecret(NamedTuple):
    """secret: the one that the broker has made, or ""."""

    user: User
    secret: str
    broker: str


class Users(NamedTuple):
    """Users as this broker knows them."""

    users: Sequence[User]
    broker: str


def new_user(request: security_pb2.CreateUserRequest) -> NewUser:
    """As the caller states it."""
    return NewUser(request.access_key, request.kind, request.secret)


def user_state(request: security_pb2.AlterUserRequest) -> UserState:
    """As the caller states it."""
    return UserState(request.access_key, request.enabled)


def secret_change(request: security_pb2.RotateSecretRequest) -> SecretChange:
    """As the caller states it."""
    return SecretChange(request.access_key, request.secret, request.drop_old)


def user_name(request: security_pb2.DeleteUserRequest | security_pb2.ListRulesRequest) -> str:
    """Of a user; "" for all, where the request may omit it."""
    return request.access_key


def has_secret(request: object) -> bool:
    """Whether the request or its reply has a secret."""
    rotates = isinstance(request, security_pb2.RotateSecretRequest) and not request.drop_old
    return rotates or isinstance(request, security_pb2.CreateUserRequest)


def secret_reply(_request: object, made: UserSecret) -> security_pb2.UserSecret:
    """The user, and the secret."""
    return security_pb2.UserSecret(user=_user(made.user, made.broker), secret=made.secret)


def user_reply(_request: object, found: Users) -> security_pb2.UserDescription:
    """The only user."""
    (user,) = found.users
    return _user(user, found.broker)


def delete_user_reply(_request: object, _result: None) -> security_pb2.DeleteUserReply:
    """It has no fields."""
    return security_pb2.DeleteUserReply()


def users_reply(_request: object, found: Users) -> security_pb2.ListUsersReply:
    """The users."""
    return security_pb2.ListUsersReply(users=[_user(user, found.broker) for user in found.users])


def _user(user: User, broker: str) -> security_pb2.UserDescription:
    return security_pb2.UserDescription(
        access_key=user.access_key,
        kind=str(user.kind),
        enabled=user.enabled,
        created=user.created_ms,
        secrets_created=[secret.created_ms for secret in user.secrets],
        broker=broker,
    )


# --- rules ----------------------------------------------------------------------------------------------
class NewRule(NamedTuple):
    """As the caller states it."""

    access_key: str
    allow: bool
    actions: str
    resource: str
    sources: Sequence[str]


class Rules(NamedTuple):
    """Rules as this broker knows them."""

    rules: Sequence[Rule]
    broker: str


class AccessTest(NamedTuple):
    """source: "" for the caller's address."""

    access_key: str
    action: str
    resource: str
    source: str


class AccessTested(NamedTuple):
    """rule: the one that decided, if one did."""

    allowed: bool
    reason: str
    rule: Rule | None
    broker: str


def new_rule(request: security_pb2.CreateRuleRequest) -> NewRule:
    """As the caller states it."""
    return NewRule(request.access_key, request.allow, request.actions, request.resource, request.sources)


def rule_number(request: security_pb2.DeleteRuleRequest) -> int:
    """Of the rule to delete."""
    return request.number


def rule_reply(_request: object, found: Rules) -> security_pb2.AccessRule:
    """The only rule."""
    (rule,) = found.rules
    return _rule(rule, found.broker)


def delete_rule_reply(_request: object, _result: None) -> security_pb2.DeleteRuleReply:
    """It has no fields."""
    return security_pb2.DeleteRuleReply()


def rules_reply(_request: object, found: Rules) -> security_pb2.ListRulesReply:
    """The rules."""
    return security_pb2.ListRulesReply(rules=[_rule(rule, found.broker) for rule in found.rules])


def access_test(request: security_pb2.TestAccessRequest) -> AccessTest:
    """As the caller states it."""
    return AccessTest(request.access_key, request.action, request.resource, request.source)


def tested_reply(_request: object, tested: AccessTested) -> security_pb2.TestAccessReply:
    """The decision, and its reason."""
    reply = security_pb2.TestAccessReply(allowed=tested.allowed, reason=tested.reason, broker=tested.broker)
    if tested.rule is not None:
        reply.rule.CopyFrom(_rule(tested.rule, tested.broker))
    return reply


def _rule(rule: Rule, broker: str) -> security_pb2.AccessRule:
    return security_pb2.AccessRule(
        number=rule.number,
        access_key=rule.subject,
        allow=rule.allow,
        actions=action_text(rule.actions),
        resource=str(rule.pattern),
        sources=[str(network) for network in rule.sources],
        broker=broker,
    )


# --- quotas ---------------------------------------------------------------------------------------------
class NewQuota(NamedTuple):
    """subject: as the caller states it."""

    subject: str
    quota: Quota


class QuotaUse(NamedTuple):
    """A quota, and its use since the start of the broker."""

    subject: str
    quota: Quota
    open_calls: int
    slowed: int
    refused: int
    broker: str


def new_quota(request: security_pb2.SetQuotaRequest) -> NewQuota:
    """As the caller states it."""
    return NewQuota(request.subject, Quota(**{name: getattr(request.quota, name) for name in LIMITS}))


def quota_reply(_request: object, use: QuotaUse) -> security_pb2.QuotaDescription:
    """The quota, and its use."""
    return security_pb2.QuotaDescription(
        subject=use.subject,
        quota=security_pb2.Quota(**{name: getattr(use.quota, name) for name in LIMITS}),
        open_calls=use.open_calls,
        slowed=use.slowed,
        refused=use.refused,
        broker=use.broker,
    )


def quotas_reply(request: object, uses: Iterable[QuotaUse]) -> security_pb2.ListQuotasReply:
    """The quotas, and their use."""
    return security_pb2.ListQuotasReply(quotas=[quota_reply(request, use) for use in uses])
