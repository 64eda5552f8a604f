"""The callers of calls that another broker has forwarded."""

from __future__ import annotations

from functools import partial

from trovemq_broker.server.access.broker_security import BrokerSecurity
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.topics.creators import Creator


def forwarded_creator(security: BrokerSecurity | None, caller: str) -> Creator:
    """The caller, as the access guard would name it. TroveError ACCESS_DENIED: with AUTHENTICATION_FAILED the
    broker that forwards would log in again."""
    if security is None:
        return Creator(caller)
    user = security.table.user(caller)
    if user is None or not user.enabled:
        what = f"user {caller[:80]!a} is not known here, or disabled"
        if not caller:
            what = "the broker that forwards it does not authenticate its callers, and this one does"
        raise TroveError(errors.ACCESS_DENIED, f"the call is refused: {what}")
    return Creator(caller, partial(_check_entries, security, caller, user.is_super))


def _check_entries(security: BrokerSecurity, caller: str, is_super: bool, noun: str, count: int) -> None:
    """TroveError LIMIT_EXCEEDED."""
    security.quotas().check_entries(caller, noun, count, is_super=is_super)
