"""Limits of open atomic transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from trovemq_daemon.settings import DAY_MS, GIB, setting


@dataclass(frozen=True, kw_only=True)
class AtomicLimits:
    """The limits of all open transactions together, and of the time that one may be open."""

    atomic_open_max: Annotated[int, setting("transactions", 1, 100_000, restart=False)] = 1_000
    """Atomic transactions (of several messages, stored together) that may be open."""
    atomic_bytes_max: Annotated[int, setting("bytes", 4_096, 64 * GIB, restart=False)] = 512 << 20
    """Memory that all open atomic transactions may take together."""
    atomic_timeout_max_ms: Annotated[int, setting("ms", 1, DAY_MS, restart=False)] = 900_000
    """Longest time that an atomic transaction may be open; a client's default is 60 s."""
