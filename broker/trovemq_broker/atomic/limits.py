"""Limits of open atomic transactions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomicLimits:
    """The limits of all open transactions together, and of the time that one may be open."""

    open_max: int = 1_000
    bytes_max: int = 512 << 20
    timeout_max_ms: int = 900_000
