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


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCondition:
    """The condition of a broker as a process.

    Attributes:
        broker: The broker.
        version: Its version.
        now: Its clock, epoch ms.
        drain: As `DrainStatus.state`.
        reasons: Why it is not ready, as in /readyz.
        warnings: Conditions that deserve attention and hinder no request.
        disk_used_percent: Of the disk of its store.
        disk_full: New messages are refused.
        open_files: Files and connections that it has open; 0 where its machine does not say.
        open_files_max: Their limit.
        store_mode: Permission bits of the store's directory; 0 where they are not known.
        authentication: Callers are asked who they are.
        plain_exposed: The address without TLS, where it is open to other machines.
        http_exposed: The operations HTTP without TLS, likewise.
    """

    broker: str
    version: str
    now: int
    drain: str
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    disk_used_percent: float
    disk_full: bool
    open_files: int
    open_files_max: int
    store_mode: int
    authentication: bool
    plain_exposed: str
    http_exposed: str


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """A setting of a broker, as it is now.

    Attributes:
        name: Its name.
        value: As TOML: `"sync"`, `5000`, `true`; empty for a secret one that is set.
        source: Where the value came from.
        needs_restart: A change needs a restart.
        started_with: The value to which a restart returns, as TOML.
        form: Its possible values.
        what: Its effect.
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
