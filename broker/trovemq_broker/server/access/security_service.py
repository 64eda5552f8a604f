"""SecurityService: handshakes of the SDK, and the administration of users and rules.

Secrets are sent and received only over TLS or on loopback. No log and no error has one; a secret that is
generated here is returned once, in the reply.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

import grpc

from trovemq_broker.admin.shared_security import SharedSecurity
from trovemq_broker.security import changes
from trovemq_broker.security.actions import Kind, Resource, parse_actions
from trovemq_broker.security.changes import SecurityState
from trovemq_broker.security.quotas import Quota, check_subject
from trovemq_broker.security.rules import Rule, decide
from trovemq_broker.server.access.audit import OK
from trovemq_broker.server.access.broker_security import BrokerSecurity
from trovemq_broker.server.native.shared_changes import SharedChanges, shared_change
from trovemq_broker.server.wire import security_messages as messages
from trovemq_broker.server.wire.conversion import converted, nothing
from trovemq_broker.server.wire.native_calls import Request
from trovemq_broker.server.wire.security_messages import (
    SERVICE,
    AccessTest,
    AccessTested,
    Handshake,
    NewQuota,
    NewRule,
    NewUser,
    QuotaUse,
    Rules,
    SecretChange,
    Users,
    UserSecret,
    UserState,
    access_test,
    delete_rule_reply,
    delete_user_reply,
    handshake_message,
    handshake_reply,
    has_secret,
    new_quota,
    new_rule,
    quota_reply,
    quotas_reply,
    rule_number,
    rule_reply,
    rules_reply,
    secret_change,
    secret_reply,
    tested_reply,
    user_name,
    user_reply,
    user_state,
    users_reply,
)
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.logging import get_logger
from trovemq_daemon.peers import parse_source, peer_of_call
from trovemq_daemon.sessions import SESSION_TIME_MAX_MS
from trovemq_daemon.users import check_access_key, check_secret, new_user, parse_kind
from trovemq_proto import errors
from trovemq_proto.authentication.scram import SALT_SIZE
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs

SECRET_BYTES = 32


class SecurityService:
    """The methods are those of security.proto; every refusal is a TroveError."""

    def __init__(
        self,
        broker: str,
        clock_ms: Callable[[], EpochMs],
        security: BrokerSecurity | None,
        shared: SharedChanges | None = None,
    ) -> None:
        """`security` None: the broker has no authentication, and every call is answered with
        AUTHENTICATION_DISABLED."""
        self._broker = broker
        self._clock_ms = clock_ms
        self._known = security
        self.shared = shared or SharedChanges()
        self._cluster = SharedSecurity(self.shared.config, lambda: self._state.next_rule)
        self.shared.add(SERVICE, self)

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
    @converted(handshake_message, handshake_reply)
    async def authenticate(self, message: str, context: Context) -> Handshake:
        """One step of a handshake."""
        security = self._security
        security.table.check_users()
        source = peer_of_call(context).source
        if message.startswith("n,,"):
            return Handshake(security.sessions.begin(message, self._clock_ms(), source))
        try:
            answer, session = security.sessions.finish(message, self._clock_ms())
        except TroveError as error:
            security.audit.login("", source, error.symbol)
            raise
        security.audit.login(session.access_key, source, OK)
        return Handshake(answer, session.key.session_id, SESSION_TIME_MAX_MS)

    # --- users ----------------------------------------------------------------------------------------
    @shared_change
    @converted(messages.new_user, secret_reply)
    async def create_user(self, asked: NewUser, context: Context) -> UserSecret:
        """Raises USER_ILLEGAL, USER_EXISTS, REQUEST_ILLEGAL."""
        _check_private(context)
        name, kind = check_access_key(asked.access_key), parse_kind(asked.kind)
        secret, salt = _secret_of(asked.secret), secrets.token_bytes(SALT_SIZE)
        now_ms = self._clock_ms()
        made = partial(new_user, name, kind, secret, salt=salt, now_ms=now_ms)
        after = await self._change(lambda state: changes.add_user(state, made()))
        self._log("access.user_created", name)
        return self._secret(after, name, "" if asked.secret else secret.decode())

    @shared_change
    @converted(user_state, user_reply)
    async def alter_user(self, user: UserState, _context: Context) -> Users:
        """Enables or disables a user."""
        name, enabled = user
        after = await self._change(lambda state: changes.set_enabled(state, name, enabled=enabled))
        self._log("access.user_enabled" if enabled else "access.user_disabled", name)
        return Users([after.require_user(name)], self._broker)

    @shared_change
    @converted(secret_change, secret_reply)
    async def rotate_secret(self, change: SecretChange, context: Context) -> UserSecret:
        """Adds a secret, or drops the old one."""
        name = change.access_key
        if change.drop_old:
            after = await self._change(lambda state: changes.drop_old_secret(state, name))
            self._log("access.old_secret_dropped", name)
            return self._secret(after, name, "")
        _check_private(context)
        secret, now_ms = _secret_of(change.secret), self._clock_ms()
        after = await self._change(lambda state: changes.rotate_secret(state, name, secret, now_ms))
        self._log("access.secret_rotated", name)
        return self._secret(after, name, "" if change.secret else secret.decode())

    @shared_change
    @converted(user_name, delete_user_reply)
    async def delete_user(self, name: str, _context: Context) -> None:
        """With its rules."""
        await self._change(lambda state: changes.delete_user(state, name))
        self._log("access.user_deleted", name)

    @converted(nothing, users_reply)
    async def list_users(self, _command: None, _context: Context) -> Users:
        """By name."""
        users = self._state.users
        return Users([users[name] for name in sorted(users)], self._broker)

    # --- rules ----------------------------------------------------------------------------------------
    @shared_change
    @converted(new_rule, rule_reply)
    async def create_rule(self, asked: NewRule, _context: Context) -> Rules:
        """Raises RULE_ILLEGAL, USER_NOT_FOUND."""
        made: list[Rule] = []

        def add(state: SecurityState) -> SecurityState:
            after, rule = changes.add_rule(
                state,
                asked.access_key,
                allow=asked.allow,
                actions=asked.actions,
                resource=asked.resource,
                sources=asked.sources,
            )
            made.append(rule)
            return after

        await self._change(add)
        rule = made[-1]
        self._log("access.rule_created", rule.subject, rule=str(rule))
        return Rules([rule], self._broker)

    @shared_change
    @converted(rule_number, delete_rule_reply)
    async def delete_rule(self, number: int, _context: Context) -> None:
        """Raises RULE_NOT_FOUND."""
        await self._change(lambda state: changes.delete_rule(state, number))
        self._log("access.rule_deleted", "", number=number)

    @converted(user_name, rules_reply)
    async def list_rules(self, name: str, _context: Context) -> Rules:
        """The rules of the user, or all, by number."""
        state = self._state
        if name:
            state.require_user(name)
        rules = [rule for _, rule in sorted(state.rules.items()) if not name or rule.subject == name]
        return Rules(rules, self._broker)

    @converted(access_test, tested_reply)
    async def test_access(self, asked: AccessTest, context: Context) -> AccessTested:
        """Whether the user may do it, and why."""
        user = self._state.require_user(asked.access_key)
        actions, resource = parse_actions(asked.action), _resource(asked.resource)
        source = asked.source or peer_of_call(context).source
        if asked.source and parse_source(source) is None:
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
        return AccessTested(allowed, reason, rule, self._broker)

    # --- quotas ---------------------------------------------------------------------------------------
    @shared_change
    @converted(new_quota, quota_reply)
    async def set_quota(self, asked: NewQuota, _context: Context) -> QuotaUse:
        """From now on."""
        subject, quota = check_subject(asked.subject), asked.quota
        await self._change(lambda state: changes.set_quota(state, subject, quota))
        self._log("access.quota_set", "", subject=subject, quota=str(quota))
        return self._quota(subject, quota)

    @converted(nothing, quotas_reply)
    async def list_quotas(self, _command: None, _context: Context) -> list[QuotaUse]:
        """By subject."""
        return [self._quota(*each) for each in sorted(self._state.quotas.items())]

    def _quota(self, subject: str, quota: Quota) -> QuotaUse:
        taken = self._security.quotas()
        return QuotaUse(
            subject,
            quota,
            taken.open_calls()[subject],
            taken.slowed[subject],
            taken.refused[subject],
            self._broker,
        )

    # --- helpers --------------------------------------------------------------------------------------
    async def _change(self, make: Callable[[SecurityState], SecurityState]) -> SecurityState:
        """Returns the state after the change."""
        security = self._security
        if self.shared.config.is_shared:
            return await self._cluster.apply(make)
        await security.changes.apply(make)
        return self._state

    def forwarded_as(self, name: str, request: Request, context: Context) -> str:
        """All calls, if this broker authenticates callers, and secrets only as it would take them itself."""
        if self._known is None:
            raise TroveError(errors.AUTHENTICATION_DISABLED)
        if has_secret(request):
            _check_private(context)
        return name

    def _log(self, event: str, user: str, **fields: object) -> None:
        get_logger().info(event, user=user, **fields)

    def _secret(self, state: SecurityState, name: str, secret: str) -> UserSecret:
        return UserSecret(state.require_user(name), secret, self._broker)


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


def _check_private(context: Context | None) -> None:
    """Raises TroveError REQUEST_ILLEGAL if others could read the secret on the network. None: another broker
    has checked that, and has forwarded the call."""
    if context is not None and not peer_of_call(context).is_private:
        raise TroveError(errors.REQUEST_ILLEGAL, "secrets are sent over TLS only, or on loopback")
