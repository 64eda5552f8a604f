"""Results of the calls about brokers as processes. All are frozen values; none holds a connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """How far a broker is taken out of service.

    Attributes:
        broker: The broker.
        state: `serving`; `draining`: out of the routes for writing, new messages are still stored; `drained`:
            they are refused; `stopping`.
        stops: It stops when it is drained.
        open_transactions: Atomic transactions that are open there.
    """

    broker: str
    state: str
    stops: bool
    open_transactions: int


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """A setting of a broker, as it is now.

    Attributes:
        name: Its name.
        value: As TOML: `"sync"`, `5000`, `true`; empty for a secret one that is set.
        source: Where the value came from.
        needs_restart: A change needs a restart.
        started_with: The value to which a restart returns, as TOML.
        form: What it may be.
        what: What it is.
        broker: The broker.
    """

    name: str
    value: str
    source: str
    needs_restart: bool
    started_with: str
    form: str
    what: str
    broker: str
