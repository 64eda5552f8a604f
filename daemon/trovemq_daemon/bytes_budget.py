"""A budget of bytes: how much memory may be used for peers, in total and for each of them.

Code that receives bytes, or makes a reply for a client, claims them first and releases them when they are
freed. A claim is for all announced bytes at once, so that no claim holds a part and waits for the rest. The
budget has no event loop: a waiting claim gets a callback.

Invariants
- `used` is the sum of all claims. It exceeds `total` only by forced claims, or growth by `resize`.
- Large claims together have at most three quarters of the total: the rest is for small ones.
- A peer without a claim gets one, however large, as soon as the total has space: a peer's own limit never
  prevents its only message.
- Waiting claims are served in their order, but none waits for another peer's own limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SMALL_SIZE_MAX: Final = 4 << 20
"""A reply up to this size is small: one message of the default limit."""


class Claim:
    """The claimed bytes of one message of a peer."""

    __slots__ = ("peer", "size")

    def __init__(self, peer: str, size: int) -> None:
        self.peer = peer
        self.size = size


Granted = Callable[[Claim], None]


class PendingClaim:
    """A claim for which there is no space yet."""

    __slots__ = ("granted", "peer", "size")

    def __init__(self, peer: str, size: int, granted: Granted) -> None:
        self.peer = peer
        self.size = size
        self.granted = granted


class BytesBudget:
    """The budget of a process, or of a part of it. Used by one thread."""

    def __init__(self, total: int, peer_max: int, small_size_max: int = SMALL_SIZE_MAX) -> None:
        self.total: Final = total
        self.peer_max: Final = peer_max
        self.large_max: Final = total - total // 4
        self._small_size_max = min(small_size_max, total // 4)
        self._by_peer: dict[str, int] = {}
        self._large = 0
        self._waiting: dict[PendingClaim, None] = {}
        self._is_granting = self._grants_again = False
        self.used = 0
        self.used_max = 0
        """The most bytes that were used at a time."""
        self.waits = 0
        """The number of claims that had to wait, since the start."""

    def of_peer(self, peer: str) -> int:
        return self._by_peer.get(peer, 0)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def peer_count(self) -> int:
        """The number of peers with claims."""
        return len(self._by_peer)

    def can_ever_fit(self, size: int) -> bool:
        """Whether an empty budget has space for that many bytes."""
        return size <= (self.total if self._is_small(size) else self.large_max)

    def take(self, peer: str, size: int) -> Claim | None:
        """Claims bytes; None if there is no space, or others wait for it."""
        if not self._fits(peer, size) or self._stands_behind_others(peer, size):
            return None
        return self.force(peer, size)

    def force(self, peer: str, size: int) -> Claim:
        """Claims bytes even without space, because they are in memory already."""
        claim = Claim(peer, 0)
        self._add(claim, size)
        return claim

    def wait(self, peer: str, size: int, granted: Granted) -> PendingClaim:
        """`granted` is called with the claim when there is space; `cancel` ends that."""
        assert self.can_ever_fit(size), f"{size} bytes never fit into {self.total}"
        waiting = PendingClaim(peer, size, granted)
        self._waiting[waiting] = None
        self.waits += 1
        self.grant()
        return waiting

    def cancel(self, waiting: PendingClaim) -> None:
        """Withdraws a waiting claim. Others may have waited after it."""
        if self._waiting.pop(waiting, waiting) is None:
            self.grant()

    def resize(self, claim: Claim, size: int) -> None:
        """Changes the size of the claim, even without space."""
        grows = size > claim.size
        self._add(claim, size)
        if not grows:
            self.grant()

    def release(self, claim: Claim) -> None:
        """Releases the claim. To call it twice is allowed."""
        self.resize(claim, 0)

    def vacate(self, claim: Claim) -> None:
        """Releases the claim for another one that follows at once: waiting claims get none of its space
        before `grant`."""
        self._add(claim, 0)

    def grant(self) -> None:
        """Grants the free space to waiting claims, in their order. A callback that releases space at once
        calls this again: then there is one more turn, however many such calls there are."""
        self._grants_again = True
        if self._is_granting:
            return
        self._is_granting = True
        try:
            while self._grants_again:
                self._grants_again = False
                self._grant_in_order()
        finally:
            self._is_granting = False

    def _grant_in_order(self) -> None:
        stuck: set[bool] = set()
        for one in list(self._waiting):
            small = self._is_small(one.size)
            if one not in self._waiting or small in stuck or self._is_full(one):
                continue
            if not self._fits_total(one.size):
                stuck.add(small)  # a later claim of the same kind does not overtake it
                continue
            del self._waiting[one]
            one.granted(self.force(one.peer, one.size))

    # --- helpers ------------------------------------------------------------------------------------
    def _is_small(self, size: int) -> bool:
        return size <= self._small_size_max

    def _fits(self, peer: str, size: int) -> bool:
        own = self._by_peer.get(peer, 0)
        if own and own + size > self.peer_max:
            return False
        return self._fits_total(size)

    def _fits_total(self, size: int) -> bool:
        if not self._is_small(size) and self._large + size > self.large_max:
            return False
        return self.used + size <= self.total

    def _stands_behind_others(self, peer: str, size: int) -> bool:
        """Whether a waiting earlier claim has precedence for the space."""
        small = self._is_small(size)
        return any(
            one.peer == peer or (self._is_small(one.size) == small and not self._is_full(one))
            for one in self._waiting
        )

    def _is_full(self, one: PendingClaim) -> bool:
        """Whether the claim waits because of other claims of its peer."""
        own = self._by_peer.get(one.peer, 0)
        return bool(own) and own + one.size > self.peer_max

    def _add(self, claim: Claim, size: int) -> None:
        change = size - claim.size
        self._large += (0 if self._is_small(size) else size) - (
            0 if self._is_small(claim.size) else claim.size
        )
        claim.size = size
        own = self._by_peer.get(claim.peer, 0) + change
        if own:
            self._by_peer[claim.peer] = own
        else:
            self._by_peer.pop(claim.peer, None)
        self.used += change
        self.used_max = max(self.used_max, self.used)
