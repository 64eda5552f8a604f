"""Audit events of the log: administrative acts, look-ups of messages, log-ins; allowed or not. No bodies and
no secrets: of a request the names of its resources alone.

| event         | logged                                                                              |
|---------------|-------------------------------------------------------------------------------------|
| `audit.act`   | each act that was done or failed; of refused ones, the first of a kind in a minute  |
| `audit.read`  | the first look-up of a user at a resource in a minute                               |
| `audit.login` | the first log-in, or failed one, of a user from an address in a minute              |

The number of those that were alike in the minute follows at its end (`again`). `outcome` is OK or the error's
name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.security.actions import Resource
from broker.server.access.needs import Audit, Row
from trovemq_daemon.logging import get_logger
from trovemq_daemon.minute_log import Level, MinuteLog
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2.definition_pb2 import Code

OK: Final = "OK"
CANCELLED: Final = "CANCELLED"
TARGETS_MAX: Final = 8
TARGET_LENGTH_MAX: Final = 160

_REFUSALS: Final = {
    errors.ACCESS_DENIED.symbol,
    errors.AUTHENTICATION_FAILED.symbol,
    errors.LIMIT_EXCEEDED.symbol,
}
_NAMES: Final = ("access_key", "subject", "number", "actions", "resource")
"""Fields of requests that only super users make, as far as they are shown."""


class AuditLog:
    """Of one broker."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._log: Final = MinuteLog()

    def called(self, row: Row, path: str, user: str, source: str, request: Any, outcome: str) -> None:
        """`request`: None where it was not read."""
        assert row.audit is not None, "others are not audited"
        fields = {
            "user": user,
            "source": source,
            "method": path,
            "resources": targets_of(row, request),
            "outcome": outcome,
        }
        if row.audit is Audit.ACT and outcome not in _REFUSALS:
            get_logger().info("audit.act", **fields)
        else:
            self._log.note("info", f"audit.{row.audit.value}", self._clock_ms(), **fields)

    def login(self, user: str, source: str, outcome: str) -> None:
        """`user`: "" where it is not proved."""
        level: Level = "info" if outcome == OK else "warning"
        now_ms = self._clock_ms()
        self._log.note(level, "audit.login", now_ms, user=user, source=source, outcome=outcome)

    def flush(self) -> None:
        """Logs counts of minutes that are over."""
        self._log.flush(self._clock_ms())


def targets_of(row: Row, request: Any) -> str:
    """The names of the resources that a request is about."""
    if request is None:
        return ""
    if not callable(row.needs):
        values = ((name, getattr(request, name, None)) for name in _NAMES)
        return " ".join(f"{name}={str(value)[:TARGET_LENGTH_MAX]!a}" for name, value in values if value)
    try:
        needs = list(row.needs(request))
    except TroveError:
        return ""  # a name that is none
    names = dict.fromkeys(str(Resource(need.kind, need.name[:TARGET_LENGTH_MAX])) for need in needs)
    return " ".join(list(names)[:TARGETS_MAX]).encode("unicode_escape").decode()


def outcome_of(reply: Any) -> str:
    """Of RocketMQ's replies, which have a status of their own, or OK."""
    code = getattr(getattr(reply, "status", None), "code", None)
    return OK if not code or code == Code.OK else Code.Name(code)


def outcome_of_error(error: BaseException) -> str:
    if isinstance(error, TroveError):
        return error.symbol
    return errors.UNKNOWN_ERROR.symbol if isinstance(error, Exception) else CANCELLED
