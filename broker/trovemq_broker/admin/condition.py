"""The condition of a broker, for an operator who looks for a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trovemq_proto.positions import EpochMs


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The fields are those of BrokerCondition in broker.proto."""

    version: str
    now_ms: EpochMs
    reasons: Sequence[str]
    warnings: Sequence[str]
    disk_used_percent: float
    disk_full: bool
    open_files: int
    open_files_max: int
    store_mode: int
    authentication: bool
    plain_exposed: str
    http_exposed: str
    interpreter: str
