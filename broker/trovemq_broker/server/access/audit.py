"""Audit of administrative acts, look-ups of messages, log-ins and denials. It has no bodies and no secrets,
and of a request only the names of the resources.

Each is logged as an event and, with `audit_topic_enable`, also stored as a record of a topic
(`trovemq_broker.security.audit_trail`). An act then begins only when its first record is on disk, and is
refused if that fails.

| event         | logged                                                                              |
|---------------|-------------------------------------------------------------------------------------|
| `audit.act`   | each act that was done or failed; the first refused one of a user in a minute       |
| `audit.read`  | the first look-up of a user at a resource in a minute                               |
| `audit.login` | the first log-in, or failed one, of a user from an address in a minute              |

At the end of the minute the number of the others of that kind is logged (`again`). `outcome` is OK or the
error's name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from trovemq_broker.security.actions import Resource
from trovemq_broker.security.audit_trail import AuditTrail
from trovemq_broker.server.access.needs import Audit, Row
from trovemq_broker.server.wire.audit_fields import failed_status, shown_fields
from trovemq_daemon.logging import get_logger
from trovemq_daemon.minute_log import Level, MinuteLog
from trovemq_proto import audit, errors
from trovemq_proto.audit import AUDIT_TOPIC, AuditRecord
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset

OK: Final = "OK"
CANCELLED: Final = "CANCELLED"
TARGETS_MAX: Final = 8
TARGET_LENGTH_MAX: Final = 160

_REFUSALS: Final = {
    errors.ACCESS_DENIED.symbol,
    errors.AUTHENTICATION_FAILED.symbol,
    errors.LIMIT_EXCEEDED.symbol,
}
_DENIALS: Final = (errors.ACCESS_DENIED, errors.AUTHENTICATION_FAILED)
_AUTHENTICATE: Final = "/trovemq.v1.SecurityService/Authenticate"


class AuditLog:
    """The audit of one broker."""

    def __init__(self, clock_ms: Callable[[], EpochMs]) -> None:
        self._clock_ms = clock_ms
        self._log: Final = MinuteLog()
        self._durable: Callable[[PhysicalOffset], Awaitable[None]] | None = None
        self.trail: AuditTrail | None = None
        """Writes the records; None: only events are logged."""

    def open(self, trail: AuditTrail, durable: Callable[[PhysicalOffset], Awaitable[None]]) -> None:
        """Writes records, too, from now on. durable(end) returns when the log is on disk up to `end`."""
        self.trail, self._durable = trail, durable

    async def begin(self, row: Row, path: str, user: str, source: str, request: Any) -> AuditRecord | None:
        """Writes the act's first record to disk; None if no records are written. After a TroveError the
        act must not be done."""
        trail, durable = self.trail, self._durable
        if trail is None or durable is None or row.audit is not Audit.ACT:
            return None
        try:
            begun, end = trail.begin_act(user, source, path, targets_of(row, request), self._clock_ms())
            await durable(end)
        except TroveError as error:
            raise TroveError(
                error.spec, f"it cannot be audited, so it is not done: {error.message}"
            ) from error
        return begun

    def called(
        self,
        row: Row,
        path: str,
        user: str,
        source: str,
        request: Any,
        outcome: str,
        begun: AuditRecord | None = None,
    ) -> None:
        """Notes the end of a call. `request`: None if it was not read. `begun`: the first record of an
        act."""
        assert row.audit is not None, "others are not audited"
        resources = targets_of(row, request)
        if begun is not None and self.trail is not None:
            self.trail.end_act(begun, outcome, self._clock_ms())
        elif row.audit is Audit.READ and outcome not in _REFUSALS:
            self._note(audit.READ, user, source, path, resources, outcome)
        fields: dict[str, Any] = {"user": user, "source": source, "method": path, "outcome": outcome}
        if row.audit is Audit.READ:
            self._log.note("info", "audit.read", self._clock_ms(), **fields, resources=resources)
        elif outcome in _REFUSALS:  # by subject: who is refused again and again names other resources
            self._log.note("info", "audit.act", self._clock_ms(), **fields, of_first={"resources": resources})
        else:
            get_logger().info("audit.act", **fields, resources=resources)

    def login(self, user: str, source: str, outcome: str) -> None:
        """Notes a log-in. `user`: "" if it is not verified."""
        level: Level = "info" if outcome == OK else "warning"
        now_ms = self._clock_ms()
        self._log.note(level, "audit.login", now_ms, user=user, source=source, outcome=outcome)
        if outcome == OK:
            self._note(audit.LOGIN, user, source, _AUTHENTICATE, "", outcome)
        elif self.trail is not None:
            self.trail.denied(user, source, _AUTHENTICATE, "", outcome, now_ms)

    def denied(self, path: str, error: TroveError, source: str, user: str) -> None:
        """Notes a call that was refused because of its caller; other errors are not noted."""
        if self.trail is not None and error.spec in _DENIALS:
            # The text of a denied access is our own: it names the action and the resource.
            reason = error.message[:TARGET_LENGTH_MAX] if error.spec is errors.ACCESS_DENIED else ""
            self.trail.denied(user, source, path, reason, error.symbol, self._clock_ms())

    def audit_read(self, path: str, user: str, source: str) -> None:
        """Notes that the audit records themselves are read."""
        self._note(audit.READ, user, source, path, f"Topic:{AUDIT_TOPIC}", OK)

    def _note(self, kind: str, user: str, source: str, path: str, resources: str, outcome: str) -> None:
        if self.trail is not None:
            self.trail.note(kind, user, source, path, resources, outcome, self._clock_ms())

    def flush(self) -> None:
        """Logs the counts of minutes that have ended."""
        now_ms = self._clock_ms()
        self._log.flush(now_ms)
        if self.trail is not None:
            self.trail.flush(now_ms)

    def close(self) -> None:
        """Writes the counts so far, before the broker stops."""
        if self.trail is not None:
            self.trail.write_counts(self._clock_ms())


def targets_of(row: Row, request: Any) -> str:
    """The names of the resources that a request is about, and its changes of users, rules and quotas."""
    if request is None:
        return ""
    if not callable(row.needs):
        fields = shown_fields(request)
        return " ".join(f"{name}={value[:TARGET_LENGTH_MAX]!a}" for name, value in fields.items())
    try:
        needs = list(row.needs(request))
    except TroveError:
        return ""  # an illegal name
    names = dict.fromkeys(str(Resource(need.kind, need.name[:TARGET_LENGTH_MAX])) for need in needs)
    return " ".join(list(names)[:TARGETS_MAX]).encode("unicode_escape").decode()


def outcome_of(reply: Any) -> str:
    """The outcome of a call: the status in one of RocketMQ's replies, or OK."""
    return failed_status(reply) or OK


def outcome_of_error(error: BaseException) -> str:
    if isinstance(error, TroveError):
        return error.symbol
    return errors.UNKNOWN_ERROR.symbol if isinstance(error, Exception) else CANCELLED
