"""Users, rules and sessions of a broker that authenticates callers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from trovemq_broker.admin.security_changes import SecurityChanges
from trovemq_broker.security.quotas import Quotas
from trovemq_broker.security.table import SecurityTable
from trovemq_broker.server.access.audit import AuditLog
from trovemq_broker.server.access.needs import Row
from trovemq_daemon.sessions import Sessions

Admit: TypeAlias = Callable[[str, str, Row, Any, str], None]


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """For use on the event loop only."""

    changes: SecurityChanges
    sessions: Sessions
    audit: AuditLog
    admit: Admit
    """Checks the rights of a call that another broker has forwarded: user, address, row of the method,
    request and path. TroveError ACCESS_DENIED, AUTHENTICATION_FAILED, LIMIT_EXCEEDED."""
    quotas: Callable[[], Quotas] = Quotas
    """Returns the accounts of the quotas, which the gate has."""
    flush_logs: Callable[[], None] = lambda: None
    """Is called about every minute."""

    @property
    def table(self) -> SecurityTable:
        """The present users and rules."""
        return self.changes.table
