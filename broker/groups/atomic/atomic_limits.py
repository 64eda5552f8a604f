"""Limits of open atomic transactions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomicLimits:
    """Of all transactions together, and how long one may be open."""

    open_max: int = 1_000
    bytes_max: int = 512 << 20
    timeout_max_ms: int = 900_000
