"""The calls of SecurityService on one connection: the SDK's own values in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from trovemq.models.security import AccessDecision, AccessRule, Quota, QuotaDescription, UserDescription
from trovemq_proto.v1 import security_pb2

from .connection import Connection

_SERVICE = "SecurityService/"
_LIMITS = tuple(field.name for field in fields(Quota))


class SecurityCalls:
    """SecurityService of the broker called `broker`; every failure is a TroveError."""

    def __init__(self, connection: Connection, broker: str) -> None:
        self._ask = connection.ask
        self._broker = broker

    async def create_user(self, access_key: str, secret_key: str, kind: str) -> UserDescription:
        request = security_pb2.CreateUserRequest(access_key=access_key, secret=secret_key, kind=kind)
        decode = security_pb2.UserSecret.FromString
        return _user((await self._ask(_SERVICE + "CreateUser", request, decode)).user)

    async def rotate(self, access_key: str, secret_key: str) -> UserDescription:
        request = security_pb2.RotateSecretRequest(access_key=access_key, secret=secret_key)
        decode = security_pb2.UserSecret.FromString
        return _user((await self._ask(_SERVICE + "RotateSecret", request, decode)).user)

    async def drop_old_secret(self, access_key: str) -> UserDescription:
        request = security_pb2.RotateSecretRequest(access_key=access_key, drop_old=True)
        decode = security_pb2.UserSecret.FromString
        return _user((await self._ask(_SERVICE + "RotateSecret", request, decode)).user)

    async def enable(self, access_key: str, *, enabled: bool) -> UserDescription:
        request = security_pb2.AlterUserRequest(access_key=access_key, enabled=enabled)
        return _user(
            await self._ask(_SERVICE + "AlterUser", request, security_pb2.UserDescription.FromString)
        )

    async def delete_user(self, access_key: str) -> str:
        """Returns the broker's name, because several brokers are called."""
        request = security_pb2.DeleteUserRequest(access_key=access_key)
        await self._ask(_SERVICE + "DeleteUser", request, security_pb2.DeleteUserReply.FromString)
        return self._broker

    async def users(self) -> list[UserDescription]:
        request = security_pb2.ListUsersRequest()
        reply = await self._ask(_SERVICE + "ListUsers", request, security_pb2.ListUsersReply.FromString)
        return [_user(user) for user in reply.users]

    async def create_rule(
        self, access_key: str, actions: str, resource: str, *, allow: bool, sources: Sequence[str]
    ) -> AccessRule:
        request = security_pb2.CreateRuleRequest(
            access_key=access_key, actions=actions, resource=resource, allow=allow, sources=sources
        )
        return _rule(await self._ask(_SERVICE + "CreateRule", request, security_pb2.AccessRule.FromString))

    async def delete_rule(self, number: int) -> None:
        request = security_pb2.DeleteRuleRequest(number=number)
        await self._ask(_SERVICE + "DeleteRule", request, security_pb2.DeleteRuleReply.FromString)

    async def rules(self, access_key: str) -> list[AccessRule]:
        request = security_pb2.ListRulesRequest(access_key=access_key)
        reply = await self._ask(_SERVICE + "ListRules", request, security_pb2.ListRulesReply.FromString)
        return [_rule(rule) for rule in reply.rules]

    async def test(self, access_key: str, action: str, resource: str, source: str) -> AccessDecision:
        request = security_pb2.TestAccessRequest(
            access_key=access_key, action=action, resource=resource, source=source
        )
        reply = await self._ask(_SERVICE + "TestAccess", request, security_pb2.TestAccessReply.FromString)
        rule = _rule(reply.rule) if reply.HasField("rule") else None
        return AccessDecision(reply.allowed, reply.reason, rule, reply.broker)

    async def set_quota(self, subject: str, quota: Quota) -> QuotaDescription:
        wire = security_pb2.Quota(**{name: getattr(quota, name) for name in _LIMITS})
        request = security_pb2.SetQuotaRequest(subject=subject, quota=wire)
        decode = security_pb2.QuotaDescription.FromString
        return _quota(await self._ask(_SERVICE + "SetQuota", request, decode))

    async def quotas(self) -> list[QuotaDescription]:
        request = security_pb2.ListQuotasRequest()
        reply = await self._ask(_SERVICE + "ListQuotas", request, security_pb2.ListQuotasReply.FromString)
        return [_quota(quota) for quota in reply.quotas]


def _quota(found: security_pb2.QuotaDescription) -> QuotaDescription:
    limits = Quota(**{name: getattr(found.quota, name) for name in _LIMITS})
    return QuotaDescription(
        found.subject, limits, found.open_calls, found.slowed, found.refused, found.broker
    )


def _user(user: security_pb2.UserDescription) -> UserDescription:
    return UserDescription(
        user.access_key, user.kind, user.enabled, user.created, tuple(user.secrets_created), user.broker
    )


def _rule(rule: security_pb2.AccessRule) -> AccessRule:
    return AccessRule(
        rule.number,
        rule.access_key,
        rule.allow,
        rule.actions,
        rule.resource,
        tuple(rule.sources),
        rule.broker,
    )
