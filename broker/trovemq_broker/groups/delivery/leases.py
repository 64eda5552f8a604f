"""Leases: which client has a message, and until when no other client receives it.

One lease covers adjacent messages of one queue that one receive delivered. A message leaves the lease when it
is acknowledged, or when its invisible time is changed, which creates a lease for it.

Invariants
- `live` is the number of offsets that are open under the lease; a lease without any has no effect.
- A lease that is renewed by the broker ends only when it is released; any other ends at `until_ms`.
- A lease that has ended stays so: its messages are delivered again under another one.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from trovemq_proto.positions import EpochMs

_COMPACT_MIN: Final = 256
_ENTRIES_A_LIVE_LEASE: Final = 2
"""Stale entries are removed when a heap has more than _COMPACT_MIN entries, and this many per live lease."""

Owner = TypeVar("Owner")


class Lease:
    """One lease over offsets of [first, end)."""

    __slots__ = (
        "attempt",
        "attempt_id",
        "client_id",
        "end",
        "ended",
        "first",
        "granted_until_ms",
        "live",
        "number",
        "received_ms",
        "renewed",
        "returned",
        "until_ms",
    )

    def __init__(
        self,
        number: int,
        attempt: int,
        first: int,
        end: int,
        until_ms: EpochMs,
        received_ms: EpochMs,
        client_id: str,
        renewed: bool,
        attempt_id: str = "",
        *,
        returned: bool = False,
    ) -> None:
        self.number = number
        self.attempt = attempt  # deliveries so far, including this one
        self.first = first
        self.end = end
        self.until_ms = until_ms
        self.granted_until_ms = until_ms  # the end that the receipt handles name
        self.received_ms = received_ms
        self.client_id = client_id
        self.renewed = renewed
        self.attempt_id = attempt_id  # of the receive; empty when the delivery no longer counts as an attempt
        self.returned = returned  # its consumer has returned the message; not known of packed messages
        self.ended = False
        self.live = 0

    def over(self, now_ms: EpochMs) -> bool:
        """Whether its messages may be delivered again."""
        return self.ended or (not self.renewed and self.until_ms <= now_ms)


class LeaseHeap(Generic[Owner]):
    """Leases in the order in which they end, each with its owner. Leases without live messages are
    skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[EpochMs, int, Lease, Owner]] = []
        self._count = 0
        self._compact_at = _COMPACT_MIN

    def __len__(self) -> int:
        """The number of entries, including stale ones."""
        return len(self._heap)

    def push(self, lease: Lease, owner: Owner) -> None:
        """To be called again after each change of until_ms."""
        self._count += 1
        heappush(self._heap, (lease.until_ms, self._count, lease, owner))
        if len(self._heap) > self._compact_at:
            self._heap = [entry for entry in self._heap if not _stale(entry[0], entry[2])]
            heapify(self._heap)
            self._compact_at = max(_COMPACT_MIN, _ENTRIES_A_LIVE_LEASE * len(self._heap))

    def earliest_ms(self) -> EpochMs | None:
        """When the first lease ends."""
        heap = self._heap
        while heap:
            if not _stale(heap[0][0], heap[0][2]):
                return heap[0][0]
            heappop(heap)
        return None

    def pop_until(self, now_ms: EpochMs, count_max: int) -> list[tuple[Lease, Owner]]:
        """Removes and returns leases that end at or before now_ms, earliest first; at most count_max."""
        heap = self._heap
        taken: list[tuple[Lease, Owner]] = []
        while heap and heap[0][0] <= now_ms and len(taken) < count_max:
            until_ms, _, lease, owner = heappop(heap)
            if not _stale(until_ms, lease):
                taken.append((lease, owner))
        return taken


def _stale(until_ms: EpochMs, lease: Lease) -> bool:
    return lease.live == 0 or lease.ended or lease.until_ms != until_ms
