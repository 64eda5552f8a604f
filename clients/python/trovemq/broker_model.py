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
