"""The changes of users, rules and quotas, as functions from one state to the next, so that no change is
applied in part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from trovemq_broker.security.quotas import ANY, Quota
from trovemq_broker.security.rules import Rule, make_rule
from trovemq_daemon.users import SECRETS_MAX, Secret, User
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs

USERS_MAX: Final = 10_000
RULES_MAX: Final = 10_000
RULES_OF_SUBJECT_MAX: Final = 1_000
QUOTAS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class SecurityState:
    """Users by access key, rules by number, quotas by subject. `next_rule`: no number is used twice."""

    users: Mapping[str, User] = field(default_factory=dict)
    rules: Mapping[int, Rule] = field(default_factory=dict)
    next_rule: int = 1
    quotas: Mapping[str, Quota] = field(default_factory=dict)

    def require_user(self, access_key: str) -> User:
        """TroveError USER_NOT_FOUND."""
        user = self.users.get(access_key)
        if user is None:
            raise TroveError(errors.USER_NOT_FOUND, f"there is no user {access_key[:80]!a}")
        return user

    def rules_of(self, access_key: str) -> list[Rule]:
        return [rule for rule in self.rules.values() if rule.subject == access_key]


def add_user(state: SecurityState, user: User) -> SecurityState:
    """TroveError USER_EXISTS, LIMIT_EXCEEDED."""
    if user.access_key in state.users:
        raise TroveError(errors.USER_EXISTS, f"user {user.access_key} exists already")
    if len(state.users) >= USERS_MAX:
        raise TroveError(errors.LIMIT_EXCEEDED, f"this broker has {USERS_MAX} users already")
    return replace(state, users={**state.users, user.access_key: user})


def rotate_secret(state: SecurityState, access_key: str, secret: bytes, now_ms: EpochMs) -> SecurityState:
    """Adds a secret; the one before stays valid. TroveError USER_NOT_FOUND, USER_ILLEGAL."""
    user = state.require_user(access_key)
    made = Secret.make(secret, user.salt, now_ms)
    return _with_user(state, replace(user, secrets=(made, *user.secrets)[:SECRETS_MAX]))


def drop_old_secret(state: SecurityState, access_key: str) -> SecurityState:
    """Removes all secrets but the newest. TroveError USER_NOT_FOUND."""
    user = state.require_user(access_key)
    return _with_user(state, replace(user, secrets=user.secrets[:1]))


def set_enabled(state: SecurityState, access_key: str, *, enabled: bool) -> SecurityState:
    """TroveError USER_NOT_FOUND; REQUEST_ILLEGAL if no super user would be enabled any more."""
    user = state.require_user(access_key)
    if not enabled:
        _check_not_last(state, user)
    return _with_user(state, replace(user, enabled=enabled))


def delete_user(state: SecurityState, access_key: str) -> SecurityState:
    """Deletes the user with its rules and quota. TroveError USER_NOT_FOUND; REQUEST_ILLEGAL
    if no super user would be enabled any more."""
    user = state.require_user(access_key)
    _check_not_last(state, user)
    users = {name: other for name, other in state.users.items() if name != access_key}
    rules = {number: rule for number, rule in state.rules.items() if rule.subject != access_key}
    quotas = {subject: quota for subject, quota in state.quotas.items() if subject != f"User:{access_key}"}
    return replace(state, users=users, rules=rules, quotas=quotas)


def add_rule(
    state: SecurityState,
    access_key: str,
    *,
    allow: bool,
    actions: str,
    resource: str,
    sources: Iterable[str] = (),
) -> tuple[SecurityState, Rule]:
    """Adds a rule; adding the same rule again changes nothing. Raises TroveError USER_NOT_FOUND,
    RULE_ILLEGAL, LIMIT_EXCEEDED."""
    state.require_user(access_key)
    made = make_rule(
        state.next_rule, access_key, allow=allow, actions=actions, resource=resource, sources=sources
    )
    own = state.rules_of(access_key)
    for rule in own:
        if replace(rule, number=made.number) == made:
            return state, rule
    if len(own) >= RULES_OF_SUBJECT_MAX:
        raise TroveError(
            errors.LIMIT_EXCEEDED, f"user {access_key} has {RULES_OF_SUBJECT_MAX} rules already: use prefixes"
        )
    if len(state.rules) >= RULES_MAX:
        raise TroveError(errors.LIMIT_EXCEEDED, f"this broker has {RULES_MAX} rules already: use prefixes")
    rules = {**state.rules, made.number: made}
    return replace(state, rules=rules, next_rule=made.number + 1), made


def delete_rule(state: SecurityState, number: int) -> SecurityState:
    """TroveError RULE_NOT_FOUND."""
    if number not in state.rules:
        raise TroveError(errors.RULE_NOT_FOUND, f"there is no rule {number}")
    return replace(state, rules={other: rule for other, rule in state.rules.items() if other != number})


def set_quota(state: SecurityState, subject: str, quota: Quota) -> SecurityState:
    """Sets a quota; one without limits is removed. `subject`: from check_subject(). TroveError
    USER_NOT_FOUND, LIMIT_EXCEEDED; REQUEST_ILLEGAL for a limit on the calls of a super user, who might be
    locked out, and on topics or groups of an address or a client."""
    kind, _, name = subject.partition(":")
    if kind != "User" and (quota.topics_max or quota.groups_max):
        raise TroveError(errors.REQUEST_ILLEGAL, "topics and groups are counted for users: use User:NAME")
    if kind == "User" and name != ANY:
        counts_calls = quota.calls_max or quota.connections_max
        if state.require_user(name).is_super and counts_calls:
            raise TroveError(
                errors.REQUEST_ILLEGAL, f"{name} is a super user: limit requests and bytes, not calls"
            )
    if quota == Quota():
        return replace(
            state, quotas={other: held for other, held in state.quotas.items() if other != subject}
        )
    if len(state.quotas) >= QUOTAS_MAX and subject not in state.quotas:
        raise TroveError(
            errors.LIMIT_EXCEEDED,
            f"this broker has {QUOTAS_MAX} quotas already: use User:*, Address:*, Client:*",
        )
    return replace(state, quotas={**state.quotas, subject: quota})


def _with_user(state: SecurityState, user: User) -> SecurityState:
    return replace(state, users={**state.users, user.access_key: user})


def _check_not_last(state: SecurityState, user: User) -> None:
    others = (other for other in state.users.values() if other.access_key != user.access_key)
    if user.is_super and user.enabled and not any(other.is_super and other.enabled for other in others):
        raise TroveError(
            errors.REQUEST_ILLEGAL,
            f"{user.access_key} is the last super user that is enabled: make another one first",
        )
