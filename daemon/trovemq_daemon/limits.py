"""The operating system's limits of a process, and the limit of connections that follows from them."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Final

from trovemq_daemon.logging import get_logger
from trovemq_rpc.options import ConnectionCount

RESERVED_DESCRIPTORS: Final = 64
"""For files that are opened for a moment, the operations port, and channels to other daemons."""
CONNECTIONS_MIN: Final = 16
"""Served however few descriptors there are; a store then closes files that it keeps open for later."""
LOG_INTERVAL_S: Final = 10.0


def raise_descriptor_limit() -> int:
    """Raises the limit of open files to the most that the machine allows. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # not allowed here: the present limit stays
    return hard


class ConnectionLimit:
    """Counts the connections of a gRPC server, before any credentials: it accepts as many as leave the
    descriptors that its store needs, and RESERVED_DESCRIPTORS. There is no limit for each address: many
    clients of a NAT share one. `inner` may refuse others (quotas)."""

    def __init__(self, inner: ConnectionCount | None = None) -> None:
        self._inner = inner
        self.needed: Callable[[], int] = lambda: 0
        """The descriptors that the store needs now."""
        self.count = 0
        self.refused = 0
        """Connections above the limit."""
        self._logged_s = float("-inf")

    @property
    def limit(self) -> int:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            soft = 1 << 20
        return max(CONNECTIONS_MIN, soft - self.needed() - RESERVED_DESCRIPTORS)

    def opened(self, peer: str) -> bool:
        """Counts a connection of `peer`. False: the process has too few descriptors for it, or another limit
        refuses it; then it is closed, and was not counted."""
        if self.count >= (limit := self.limit):
            self.refused += 1
            self._log(limit)
            return False
        if self._inner is not None and not self._inner.opened(peer):
            return False
        self.count += 1
        return True

    def closed(self, peer: str) -> None:
        self.count -= 1
        if self._inner is not None:
            self._inner.closed(peer)

    def _log(self, limit: int) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            get_logger().warning(
                "connections.refused",
                reason=f"{limit} connections are open, the most that the limit of open files allows",
                refused=self.refused,
                what_to_do="close idle ones, or raise the limit of open files (LimitNOFILE, ulimit -n)",
            )
