"""The node's lease at the coordinator, by its own clock.

    granted(), kept() -> until_ms moves; the time counts from when the call was sent
    next(now)         -> Grant or KeepAlive, when one is due

Invariants
- `until_ms` is before the coordinator can have ended the lease, whenever the answer came: the coordinator
  counts from when it got the call, which is after it was sent. MARGIN_MS is for clocks of different speeds.
- One call is under way at a time.
"""

from __future__ import annotations

from typing import Final

from trovemq_broker.coordination.coordinator import Lease, LeaseId
from trovemq_broker.replication.election_actions import Grant, KeepAlive
from trovemq_broker.replication.frames import NowMs

MARGIN_MS: Final = 500
RENEW_MS: Final = 1_000
RETRY_MS: Final = 500


class OwnLease:
    """`ttl_s`: that is asked for."""

    def __init__(self, ttl_s: int, now_ms: NowMs) -> None:
        self._ttl_s: Final = ttl_s
        self.id: LeaseId = 0
        """0: none is known to be there."""
        self.until_ms: NowMs = now_ms
        self.due_ms: NowMs = now_ms
        self._under_way = False
        self._ended = False

    def holds(self, now_ms: NowMs) -> bool:
        """Whether the lease is there for certain, unless the coordinator broke its word."""
        return self.id != 0 and now_ms < self.until_ms

    def next(self, now_ms: NowMs) -> list[Grant | KeepAlive]:
        """The call that is due."""
        if self._under_way or self._ended or now_ms < self.due_ms:
            return []
        self._under_way, self.due_ms = True, now_ms + RENEW_MS
        return [KeepAlive(self.id) if self.id else Grant(self._ttl_s)]

    def ask(self, now_ms: NowMs) -> None:
        """The lease may be gone: the next call is due."""
        self.due_ms = min(self.due_ms, now_ms)

    def granted(self, lease: Lease, sent_ms: NowMs) -> None:
        self._under_way, self.id = False, lease.id
        self.until_ms = self.right_until(sent_ms, lease.ttl_s)

    def kept(self, sent_ms: NowMs, ttl_s: int, now_ms: NowMs) -> None:
        """`ttl_s`: 0: the lease is gone, and its keys are."""
        self._under_way = False
        if ttl_s <= 0:
            self.id, self.until_ms, self.due_ms = 0, min(self.until_ms, now_ms), now_ms
        else:
            self.until_ms = max(self.until_ms, self.right_until(sent_ms, ttl_s))

    def failed(self, now_ms: NowMs) -> None:
        """No answer. A grant may have been made: it ends alone."""
        self._under_way, self.due_ms = False, now_ms + RETRY_MS

    def end(self) -> None:
        """It is renewed no more."""
        self._ended = True

    def right_until(self, sent_ms: NowMs, ttl_s: int | None = None) -> NowMs:
        """Until then a right counts whose proof was asked for at `sent_ms`."""
        ttl_s = self._ttl_s if ttl_s is None else min(ttl_s, self._ttl_s)
        return sent_ms + ttl_s * 1_000 - MARGIN_MS
