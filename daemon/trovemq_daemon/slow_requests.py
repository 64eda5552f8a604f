"""Requests that took longer than a limit: a log event for each, and a counter by method.

| field of `request.slow` | meaning |
| --- | --- |
| `method`, `response` | as in `rocketmq_rpc_latency` |
| `peer` | the client's address and port |
| `elapsed_ms` | from the whole request to the reply |
| `waited_ms` | the measured waits of the request: `quota`, `reply_space`, `refusal` |
| `waits_for` | the event that the method waits for before it replies, if there is one: `sync` |

The event has no bodies, keys or names. The log limits its rate as that of any event; `suppressed` is the
number of omitted events. A request that waits for messages by design is not slow, nor is one for the time by
which its refusal was delayed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final
from urllib.parse import unquote

from trovemq_daemon.logging import get_logger

REFUSAL: Final = "refusal"
_waits: ContextVar[dict[str, float] | None] = ContextVar("waits", default=None)


def measure_waits(waits: dict[str, float]) -> None:
    """Adds the measured waits of the present task's request to `waits`, in milliseconds."""
    _waits.set(waits)


def add_wait(name: str, elapsed_ms: float) -> None:
    """Adds a wait of the present task's request."""
    waits = _waits.get()
    if waits is not None:
        waits[name] = waits.get(name, 0.0) + elapsed_ms


class SlowRequests:
    """Logs and counts slow requests. `limit_ms`: math.inf for no limit. `waits_for`: by method."""

    def __init__(self) -> None:
        self.limit_ms = math.inf
        self.waits_for: Mapping[str, str] = {}
        self.counts: Counter[str] = Counter()

    def set_limit(self, limit_ms: int, waits_for: Mapping[str, str] | None = None) -> None:
        """Sets the limit; 0 for none."""
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
        """`peer`: in gRPC's form (`ipv4:127.0.0.1:5000`)."""
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
