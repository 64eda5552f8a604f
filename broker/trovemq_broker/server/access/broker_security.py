"""Users, rules and sessions of a broker that authenticates callers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trovemq_broker.admin.security_changes import SecurityChanges
from trovemq_broker.security.quotas import Quotas
from trovemq_broker.security.table import SecurityTable
from trovemq_broker.server.access.audit import AuditLog
from trovemq_daemon.sessions import Sessions


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """For use on the event loop only."""

    changes: SecurityChanges
    sessions: Sessions
    audit: AuditLog
    quotas: Callable[[], Quotas] = Quotas
    """Returns the accounts of the quotas, which the gate has."""
    flush_logs: Callable[[], None] = lambda: None
    """Is called about every minute."""

    @property
    def table(self) -> SecurityTable:
        """The present users and rules."""
        return self.changes.table
