"""SecurityService: handshakes of our own clients, and the administration of users and rules.

Secrets are sent and received only over TLS or on loopback. No log and no error has one; a secret that is
generated here is returned once, in the reply.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import grpc

from trovemq_broker.security import changes
from trovemq_broker.security.actions import Kind, Resource, action_text, parse_actions
from trovemq_broker.security.changes import SecurityState
from trovemq_broker.security.quotas import LIMITS, Quota, check_subject
from trovemq_broker.security.rules import Rule, decide
from trovemq_broker.server.access.audit import OK
from trovemq_broker.server.access.broker_security import BrokerSecurity
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.logging import get_logger
from trovemq_daemon.peers import parse_source, peer_of_call
from trovemq_daemon.sessions import SESSION_TIME_MAX_MS
from trovemq_daemon.users import User, check_access_key, check_secret, new_user, parse_kind
from trovemq_proto import errors
from trovemq_proto.authentication.scram import SALT_SIZE
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.v1 import security_pb2

SERVICE: Final = security_pb2.DESCRIPTOR.services_by_name["SecurityService"]

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
SECRET_BYTES = 32


class SecurityService:
    """The methods are those of security.proto; every refusal is a TroveError."""

    def __init__(self, broker: str, clock_ms: Callable[[], EpochMs], security: BrokerSecurity | None) -> None:
        """`security` None: the broker has no authentication, and every call is answered with
        AUTHENTICATION_DISABLED."""
        self._broker = broker
        self._clock_ms = clock_ms
        self._known = security

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, SERVICE, self)

    @property
    def _security(self) -> BrokerSecurity:
        if self._known is None:
            raise TroveError(errors.AUTHENTICATION_DISABLED)
        return self._known

    @property
    def _state(self) -> SecurityState:
        return self._security.changes.table.state

    # --- handshakes -----------------------------------------------------------------------------------
    async def authenticate(
        self, request: security_pb2.AuthenticateRequest, context: Context
    ) -> security_pb2.AuthenticateReply:
        security = self._security
        source = peer_of_call(context).source
        if request.message.startswith("n,,"):
            return security_pb2.AuthenticateReply(
                message=security.sessions.begin(request.message, self._clock_ms(), source)
            )
        try:
            answer, session = security.sessions.finish(request.message, self._clock_ms())
        except TroveError as error:
            security.audit.login("", source, error.symbol)
            raise
        security.audit.login(session.access_key, source, OK)
        return security_pb2.AuthenticateReply(
            message=answer, session_id=session.key.session_id, session_time_ms=SESSION_TIME_MAX_MS
        )

    # --- users ----------------------------------------------------------------------------------------
    async def create_user(
        self, request: security_pb2.CreateUserRequest, context: Context
    ) -> security_pb2.UserSecret:
        _check_private(context)
        name, kind = check_access_key(request.access_key), parse_kind(request.kind)
        secret, salt = _secret_of(request.secret), secrets.token_bytes(SALT_SIZE)
        now_ms = self._clock_ms()
        await self._change(
            lambda state: changes.add_user(state, new_user(name, kind, secret, salt=salt, now_ms=now_ms))
        )
        self._log("access.user_created", name)
        return self._secret(name, "" if request.secret else secret.decode())

    async def alter_user(
        self, request: security_pb2.AlterUserRequest, _context: Context
    ) -> security_pb2.UserDescription:
        name, enabled = request.access_key, request.enabled
        await self._change(lambda state: changes.set_enabled(state, name, enabled=enabled))
        self._log("access.user_enabled" if enabled else "access.user_disabled", name)
        return self._user(self._state.require_user(name))

    async def rotate_secret(
        self, request: security_pb2.RotateSecretRequest, context: Context
    ) -> security_pb2.UserSecret:
        name = request.access_key
        if request.drop_old:
            await self._change(lambda state: changes.drop_old_secret(state, name))
            self._log("access.old_secret_dropped", name)
            return self._secret(name, "")
        _check_private(context)
        secret, now_ms = _secret_of(request.secret), self._clock_ms()
        await self._change(lambda state: changes.rotate_secret(state, name, secret, now_ms))
        self._log("access.secret_rotated", name)
        return self._secret(name, "" if request.secret else secret.decode())

    async def delete_user(
        self, request: security_pb2.DeleteUserRequest, _context: Context
    ) -> security_pb2.DeleteUserReply:
        name = request.access_key
        await self._change(lambda state: changes.delete_user(state, name))
        self._log("access.user_deleted", name)
        return security_pb2.DeleteUserReply()

    async def list_users(
        self, _request: security_pb2.ListUsersRequest, _context: Context
    ) -> security_pb2.ListUsersReply:
        users = self._state.users
        return security_pb2.ListUsersReply(users=[self._user(users[name]) for name in sorted(users)])

    # --- rules ----------------------------------------------------------------------------------------
    async def create_rule(
        self, request: security_pb2.CreateRuleRequest, _context: Context
    ) -> security_pb2.AccessRule:
        made: list[Rule] = []

        def add(state: SecurityState) -> SecurityState:
            after, rule = changes.add_rule(
                state,
                request.access_key,
                allow=request.allow,
                actions=request.actions,
                resource=request.resource,
                sources=request.sources,
            )
            made.append(rule)
            return after

        await self._change(add)
        (rule,) = made
        self._log("access.rule_created", rule.subject, rule=str(rule))
        return self._rule(rule)

    async def delete_rule(
        self, request: security_pb2.DeleteRuleRequest, _context: Context
    ) -> security_pb2.DeleteRuleReply:
        number = request.number
        await self._change(lambda state: changes.delete_rule(state, number))
        self._log("access.rule_deleted", "", number=number)
        return security_pb2.DeleteRuleReply()

    async def list_rules(
        self, request: security_pb2.ListRulesRequest, _context: Context
    ) -> security_pb2.ListRulesReply:
        state, name = self._state, request.access_key
        if name:
            state.require_user(name)
        rules = [rule for _, rule in sorted(state.rules.items()) if not name or rule.subject == name]
        return security_pb2.ListRulesReply(rules=[self._rule(rule) for rule in rules])

    async def test_access(
        self, request: security_pb2.TestAccessRequest, context: Context
    ) -> security_pb2.TestAccessReply:
        user = self._state.require_user(request.access_key)
        actions, resource = parse_actions(request.action), _resource(request.resource)
        source = request.source or peer_of_call(context).source
        if request.source and parse_source(source) is None:
            raise TroveError(errors.REQUEST_ILLEGAL, f"source {source[:80]!a} is not an IP address")
        decision = decide(self._state.rules_of(user.access_key), resource, actions, source)
        allowed, rule = decision.allowed, decision.rule
        if not user.enabled:
            allowed, rule, reason = False, None, "the user is disabled"
        elif user.is_super:
            allowed, rule, reason = True, None, "a super user may do everything"
        elif rule is None:
            reason = "no rule matches: access is denied without a rule"
        else:
            reason = str(rule)
        reply = security_pb2.TestAccessReply(allowed=allowed, reason=reason, broker=self._broker)
        if rule is not None:
            reply.rule.CopyFrom(self._rule(rule))
        return reply

    # --- quotas ---------------------------------------------------------------------------------------
    async def set_quota(
        self, request: security_pb2.SetQuotaRequest, _context: Context
    ) -> security_pb2.QuotaDescription:
        subject, given = check_subject(request.subject), request.quota
        quota = Quota(**{name: getattr(given, name) for name in LIMITS})
        await self._change(lambda state: changes.set_quota(state, subject, quota))
        self._log("access.quota_set", "", subject=subject, quota=str(quota))
        return self._quota(subject, quota)

    async def list_quotas(
        self, _request: security_pb2.ListQuotasRequest, _context: Context
    ) -> security_pb2.ListQuotasReply:
        quotas = sorted(self._state.quotas.items())
        return security_pb2.ListQuotasReply(quotas=[self._quota(*each) for each in quotas])

    def _quota(self, subject: str, quota: Quota) -> security_pb2.QuotaDescription:
        taken = self._security.quotas()
        return security_pb2.QuotaDescription(
            subject=subject,
            quota=security_pb2.Quota(**{name: getattr(quota, name) for name in LIMITS}),
            open_calls=taken.open_calls()[subject],
            slowed=taken.slowed[subject],
            refused=taken.refused[subject],
            broker=self._broker,
        )

    # --- helpers --------------------------------------------------------------------------------------
    async def _change(self, make: Callable[[SecurityState], SecurityState]) -> None:
        await self._security.changes.apply(make)

    def _log(self, event: str, user: str, **fields: object) -> None:
        get_logger().info(event, user=user, **fields)

    def _secret(self, name: str, secret: str) -> security_pb2.UserSecret:
        return security_pb2.UserSecret(user=self._user(self._state.require_user(name)), secret=secret)

    def _user(self, user: User) -> security_pb2.UserDescription:
        return security_pb2.UserDescription(
            access_key=user.access_key,
            kind=str(user.kind),
            enabled=user.enabled,
            created=user.created_ms,
            secrets_created=[secret.created_ms for secret in user.secrets],
            broker=self._broker,
        )

    def _rule(self, rule: Rule) -> security_pb2.AccessRule:
        return security_pb2.AccessRule(
            number=rule.number,
            access_key=rule.subject,
            allow=rule.allow,
            actions=action_text(rule.actions),
            resource=str(rule.pattern),
            sources=[str(network) for network in rule.sources],
            broker=self._broker,
        )


def _secret_of(given: str) -> bytes:
    """The secret of the request, or a new one. TroveError USER_ILLEGAL."""
    return check_secret(given.encode()) if given else secrets.token_urlsafe(SECRET_BYTES).encode()


def _resource(text: str) -> Resource:
    """TroveError REQUEST_ILLEGAL."""
    kind, separator, name = text.partition(":")
    known = {one.lower(): one for one in Kind}
    if not separator or not name or kind.lower() not in known:
        raise TroveError(
            errors.REQUEST_ILLEGAL, f"{text[:80]!a} is not Topic:, Group:, Namespace: or Cluster: and a name"
        )
    return Resource(known[kind.lower()], name)


def _check_private(context: Context) -> None:
    """Raises TroveError REQUEST_ILLEGAL if others could read the secret on the network."""
    if not peer_of_call(context).is_private:
        raise TroveError(errors.REQUEST_ILLEGAL, "secrets are sent over TLS only, or on loopback")
