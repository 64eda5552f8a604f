"""The open messages of a group in one queue, by offset: the newest ones with their Lease objects, the others
packed.

A look-up of a packed message unpacks its Lease. The caller may use and change it until the next open_under()
or settle() of the queue state, which may pack leases again.

Invariants
- An offset is in here once: either loose or packed.
- An unpacked lease that has not ended is in `heap`, if there is a heap (before that, replay.complete() puts
  all loose leases there). So is the clock of the packed ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappush, merge
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from trovemq_broker.groups.delivery.by_priority import ByPriority
from trovemq_broker.groups.delivery.leases import Lease, LeaseHeap
from trovemq_broker.groups.delivery.packed_leases import PackedLeases, UnpackedLease, can_pack
from trovemq_proto.positions import EpochMs

LOOSE_MAX: Final = 16_384
"""The most messages of one queue state that are not packed."""


class Owner(Protocol):
    """The part of the queue state that is needed here: its lists of messages whose lease has ended."""

    ready: list[int]
    order: ByPriority | None


State = TypeVar("State", bound=Owner)


class OpenMessages(Generic[State]):
    """A mapping of offsets to leases."""

    __slots__ = ("heap", "loose", "loose_max", "pack_at", "packed", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.loose: dict[int, Lease] = {}
        self.packed = PackedLeases()
        self.heap: LeaseHeap[State] | None = None
        self.loose_max = LOOSE_MAX
        self.pack_at = LOOSE_MAX
        """With more loose messages than this, pack() should be called."""

    def __len__(self) -> int:
        return len(self.loose) + self.packed.count

    def __contains__(self, offset: int) -> bool:
        return offset in self.loose or (self.packed.count > 0 and offset in self.packed)

    def __iter__(self) -> Iterator[int]:
        """All offsets, ascending; nothing may change meanwhile."""
        loose = iter(sorted(self.loose))
        return merge(loose, self.packed.offsets()) if self.packed.count else loose

    def get(self, offset: int) -> Lease | None:
        lease = self.loose.get(offset)
        if lease is not None or not self.packed.count:
            return lease
        taken = self.packed.take(offset)
        return None if taken is None else self._loosen(taken)

    def has_ended(self, offset: int) -> bool:
        """Whether the message is open and its lease has ended; a packed one stays packed."""
        lease = self.loose.get(offset)
        return lease.ended if lease is not None else self.packed.has_ended(offset)

    def pop(self, offset: int) -> Lease | None:
        """Removes the message and returns its lease; the caller must change the lease's `live`."""
        lease = self.get(offset)
        if lease is not None:
            del self.loose[offset]
        return lease

    def items(self) -> Iterable[tuple[int, Lease]]:
        """All messages with their leases; none is packed afterwards."""
        self.loosen_all()
        return self.loose.items()

    def clear(self) -> None:
        """Removes all messages, so that no lease has a live one."""
        for lease in self.loose.values():
            lease.live = 0
        self.loose.clear()
        self.packed.clear()
        self.pack_at = self.loose_max

    def lowest_packed(self, otherwise: int) -> int:
        """The lowest packed offset."""
        lowest = self.packed.lowest() if self.packed.count else None
        return otherwise if lowest is None else lowest

    def in_flight_count(self, now_ms: EpochMs) -> int:
        """How many messages may not be delivered again now."""
        leases = set(self.loose.values())
        loose = sum(lease.live for lease in leases if not lease.over(now_ms))
        return loose + self.packed.count - (self.packed.ended_count(now_ms) if self.packed.count else 0)

    # --- packing -------------------------------------------------------------------------------------
    def limit(self, loose_max: int) -> None:
        """From now on at most this many messages stay loose."""
        self.loose_max = self.pack_at = loose_max

    def pack(self, kept: Lease | None = None) -> None:
        """Packs the older half, except `kept` and leases that cannot be packed."""
        loose = self.loose
        wanted = len(loose) - self.loose_max // 2
        leases = {id(lease): lease for lease in islice(loose.values(), wanted)}
        rows: list[tuple[Lease, list[int]]] = []
        for lease in leases.values():
            if lease is kept or not can_pack(lease):
                continue
            offsets = [offset for offset in range(lease.first, lease.end) if loose.get(offset) is lease]
            for offset in offsets:
                del loose[offset]
            lease.live = 0  # makes its entries in a heap stale
            rows.append((lease, offsets))
        self.pack_at = max(self.loose_max, 2 * len(loose))
        if not rows:
            return
        self.packed.add(rows)
        if any(lease.ended for lease, _ in rows):
            self._forget_ready()
        self.push_clock()

    def _forget_ready(self) -> None:
        """Removes packed messages from `ready`: `order` or loosen_ended() finds them."""
        state = self.state
        if state.order is not None:
            state.order.ended.extend(offset for offset in state.ready if offset not in self.loose)
        state.ready = [offset for offset in state.ready if offset in self.loose]
        heapify(state.ready)

    def push_clock(self) -> None:
        """Puts the end of the first packed lease into the heap."""
        if self.heap is not None and self.packed.clock.live:
            self.heap.push(self.packed.clock, self.state)

    def loosen_all(self) -> None:
        for taken in self.packed.take_all() if self.packed.count else ():
            self._loosen(taken)

    def loosen_ended(self, count: int) -> None:
        """Makes the lowest packed messages whose leases have ended loose and ready, at most `count`."""
        for taken in self.packed.take_ended(count):
            self._loosen(taken)

    def _loosen(self, taken: UnpackedLease) -> Lease:
        lease, offsets = taken
        self.loose.update(dict.fromkeys(offsets, lease))
        if lease.ended:
            for offset in offsets if self.state.order is None else ():  # `order` has it already
                heappush(self.state.ready, offset)
        elif self.heap is not None:
            self.heap.push(lease, self.state)
        return lease
