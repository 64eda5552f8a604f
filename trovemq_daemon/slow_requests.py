"""Requests that took longer than a limit: one event of the log each, and a count by method.

| field of `request.slow` | meaning |
| --- | --- |
| `method`, `response` | as in `rocketmq_rpc_latency` |
| `peer` | the client's address and port |
| `elapsed_ms` | from the whole request to the reply |
| `waited_ms` | how long it waited for what, where that was measured: `quota`, `reply_space` |
| `waits_for` | what the method waits for at its end, where it has such an end: `sync` |

No bodies, keys or names of messages. The log writes no more of them than of any event (`suppressed` says how
many it left out). A request that waits for messages by design is none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from urllib.parse import unquote

from trovemq_daemon.logging import get_logger

_waits: ContextVar[dict[str, float] | None] = ContextVar("waits", default=None)


def begin_waits() -> dict[str, float]:
    """Of the present task's request."""
    waits: dict[str, float] = {}
    _waits.set(waits)
    return waits


def add_wait(name: str, elapsed_ms: float) -> None:
    """The present task's request waited that long."""
    waits = _waits.get()
    if waits is not None:
        waits[name] = waits.get(name, 0.0) + elapsed_ms


class SlowRequests:
    """`limit_ms`: math.inf for none. `waits_for`: by method."""

    def __init__(self) -> None:
        self.limit_ms = math.inf
        self.waits_for: Mapping[str, str] = {}
        self.counts: Counter[str] = Counter()

    def set_limit(self, limit_ms: int, waits_for: Mapping[str, str] | None = None) -> None:
        """0 for none."""
        self.limit_ms = limit_ms or math.inf
        self.waits_for = waits_for or {}

    def note(
        self,
        method: str,
        response: str,
        elapsed_ms: float,
        peer: str,
        waited_ms: Mapping[str, float] | None = None,
    ) -> None:
        """`peer`: by gRPC's name (`ipv4:127.0.0.1:5000`)."""
        self.counts[method] += 1
        fields: dict[str, object] = {}
        waited = {name: round(ms, 1) for name, ms in (waited_ms or {}).items() if ms >= 0.05}
        if waited:
            fields["waited_ms"] = waited
        if method in self.waits_for:
            fields["waits_for"] = self.waits_for[method]
        get_logger().warning(
            "request.slow",
            method=method,
            response=response,
            peer=unquote(peer.partition(":")[2]),
            elapsed_ms=round(elapsed_ms, 1),
            **fields,
        )
