"""Packed leases: messages that have been in flight for long take 40 bytes per lease, and no Python object:
rows in leaves, sorted by the blocks of their offsets (lease_rows.py).

Invariants
- Masks of the rows of one block have no bit in common.
- Rows of one block lie in one leaf; a leaf has at least one row that is not void.
- `clock.until_ms` is not above the end of any lease that has not ended; `clock.live` is 0 if all have.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trovemq_broker.groups.delivery.lease_rows import (
    ATTEMPT_MAX,
    BLOCK_BITS,
    BLOCK_SIZE,
    ENDED,
    NEVER,
    NUMBER_MAX,
    ROW_DTYPE,
    Leaf,
    masks_of,
    offsets_of,
    offsets_of_rows,
)
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_proto.positions import EpochMs

LEAF_ROWS_MAX: Final = 2_048
_CLIENTS_MIN: Final = 1_024
"""Names of clients without leases are removed when there are more than this many names, and twice as many as
rows."""

Row = tuple[int, int, int, int, int, int, int]


class UnpackedLease(NamedTuple):
    """An unpacked lease, and its open offsets."""

    lease: Lease
    offsets: list[int]


class PackedLeases:
    """The packed leases of one queue state."""

    __slots__ = ("_clients", "_firsts", "_leaves", "_names", "clock", "count")

    def __init__(self) -> None:
        self._leaves: list[Leaf] = []
        self._firsts: list[int] = []
        self._names: list[str] = []
        self._clients: dict[str, int] = {}
        self.count = 0
        """The number of messages."""
        self.clock = Lease(0, 0, 0, 0, NEVER, EpochMs(0), "", renewed=False)
        """The entry in a LeaseHeap that represents all leases here that have not ended."""

    # --- adding --------------------------------------------------------------------------------------
    def add(self, leases: Sequence[tuple[Lease, Sequence[int]]]) -> None:
        """Adds leases that can_pack() accepts, each with its open offsets, ascending."""
        rows: list[Row] = []
        for lease, offsets in leases:
            client = self._clients.setdefault(lease.client_id, len(self._names))
            if client == len(self._names):
                self._names.append(lease.client_id)
            attempt = lease.attempt | (ENDED if lease.ended else 0)
            facts = (lease.until_ms, lease.received_ms, lease.number, attempt, client)
            rows += [(block, mask, *facts) for block, mask in masks_of(offsets)]
            self.count += len(offsets)
        if rows:
            self._merge(np.array(rows, ROW_DTYPE))
            self._forget_clients()
            self._set_clock()

    def _merge(self, rows: NDArray[np.void]) -> None:
        rows = rows[np.argsort(rows["block"], kind="stable")]
        if not self._leaves:
            self._put(0, 0, rows)
            return
        blocks, at = rows["block"], 0
        while at < len(rows):
            index = max(0, bisect_right(self._firsts, int(blocks[at])) - 1)
            end = len(rows)
            if index + 1 < len(self._firsts):
                end = int(blocks.searchsorted(self._firsts[index + 1]))
            leaf = self._leaves[index]
            if leaf.blocks[-1] < blocks[at] and len(leaf.blocks) >= LEAF_ROWS_MAX:
                # after a full leaf: a queue is read in order
                self._put(index + 1, index + 1, rows[at:end])
            else:
                joined = np.concatenate([leaf.rows(), rows[at:end]])
                self._put(index, index + 1, joined[np.argsort(joined["block"], kind="stable")])
            at = end

    def _put(self, low: int, high: int, rows: NDArray[np.void]) -> None:
        """Replaces leaves low .. high - 1 by leaves of these rows."""
        blocks = rows["block"]
        leaves, at = [], 0
        while at < len(rows):
            end = at + LEAF_ROWS_MAX
            if end < len(rows):
                end = int(blocks.searchsorted(blocks[end - 1], "right"))
            leaves.append(Leaf(rows[at:end]))
            at = end
        self._leaves[low:high] = leaves
        self._firsts[low:high] = [int(leaf.blocks[0]) for leaf in leaves]

    def _forget_clients(self) -> None:
        """Removes the names of clients without leases, when they are many."""
        if len(self._names) <= max(_CLIENTS_MIN, 2 * sum(len(leaf.blocks) for leaf in self._leaves)):
            return
        used = np.unique(np.concatenate([leaf.facts["client"] for leaf in self._leaves]))
        for leaf in self._leaves:
            leaf.facts["client"] = used.searchsorted(leaf.facts["client"])
        self._names = [self._names[number] for number in used.tolist()]
        self._clients = {name: number for number, name in enumerate(self._names)}

    # --- removing ------------------------------------------------------------------------------------
    def __contains__(self, offset: int) -> bool:
        return self._find(offset) is not None

    def take(self, offset: int) -> UnpackedLease | None:
        """Removes the message's row; returns its lease with all messages of the row."""
        found = self._find(offset)
        return None if found is None else self._take_row(*found)

    def take_ended(self, count: int) -> list[UnpackedLease]:
        """Removes and returns the lowest messages whose leases have ended: at least `count`, if there are as
        many."""
        taken: list[UnpackedLease] = []
        if not any(leaf.ended for leaf in self._leaves):
            return taken
        index = 0
        while count > 0 and index < len(self._leaves):
            leaf = self._leaves[index]
            if leaf.ended:
                rows = np.flatnonzero((leaf.facts["attempt"] & ENDED != 0) & (leaf.masks != 0))
                block = -1
                for row in rows.tolist():
                    if count <= 0 and leaf.blocks.item(row) != block:  # the rows of one block have no order
                        break
                    block = leaf.blocks.item(row)
                    taken.append(self._unpack(leaf, row))
                    count -= len(taken[-1].offsets)
                if self._tidy(index):
                    continue
            index += 1
        return taken

    def take_all(self) -> list[UnpackedLease]:
        """Removes and returns everything, in order."""
        taken = [
            self._unpack(leaf, row) for leaf in self._leaves for row in np.flatnonzero(leaf.masks).tolist()
        ]
        self.clear()
        return taken

    def clear(self) -> None:
        self._leaves.clear()
        self._firsts.clear()
        self._names.clear()
        self._clients.clear()
        self.count = 0
        self._set_clock()

    def _find(self, offset: int) -> tuple[int, int] | None:
        """(index of the leaf, row)."""
        block = offset >> BLOCK_BITS
        index = bisect_right(self._firsts, block) - 1
        if index < 0:
            return None
        leaf = self._leaves[index]
        bit = 1 << (offset & BLOCK_SIZE - 1)
        blocks, masks = leaf.blocks, leaf.masks
        row, end = int(blocks.searchsorted(block)), len(blocks)
        while row < end and blocks.item(row) == block:
            if masks.item(row) & bit:
                return index, row
            row += 1
        return None

    def _take_row(self, index: int, row: int) -> UnpackedLease:
        taken = self._unpack(self._leaves[index], row)
        self._tidy(index)
        return taken

    def _unpack(self, leaf: Leaf, row: int) -> UnpackedLease:
        until_ms, received_ms, number, attempt, client = leaf.facts[row].item()
        offsets = offsets_of(leaf.blocks.item(row), leaf.masks.item(row))
        lease = Lease(
            number,
            attempt & ATTEMPT_MAX,
            offsets[0],
            offsets[-1] + 1,
            until_ms,
            received_ms,
            self._names[client],
            renewed=False,
        )
        lease.ended = bool(attempt & ENDED)
        lease.live = len(offsets)
        leaf.masks[row] = 0
        leaf.void += 1
        leaf.ended -= lease.ended
        self.count -= len(offsets)
        if not self.count:
            self._set_clock()
        return UnpackedLease(lease, offsets)

    def _tidy(self, index: int) -> bool:
        """Removes void rows, if they are many. True if the leaf was removed."""
        leaf = self._leaves[index]
        if 2 * leaf.void <= len(leaf.blocks):
            return False
        rows = leaf.rows()
        self._put(index, index + 1, rows)
        if not self._leaves:
            self.clear()
        return not len(rows)

    # --- ended leases --------------------------------------------------------------------------------
    def end_until(self, now_ms: EpochMs, ended: array[int] | None = None) -> bool:
        """Marks the leases that end at or before now_ms as ended; adds their offsets to `ended`. True if
        there are any."""
        some = False
        for leaf in self._leaves:
            if leaf.until_ms <= now_ms:
                due = (leaf.facts["until"] <= now_ms) & (leaf.masks != 0)
                due &= leaf.facts["attempt"] & ENDED == 0
                leaf.facts["attempt"][due] |= ENDED
                if ended is not None:
                    ended.frombytes(offsets_of_rows(leaf.blocks[due], leaf.masks[due]).tobytes())
                some = some or bool(due.any())
                leaf.update_ends()
        self._set_clock()
        return some

    def _set_clock(self) -> None:
        until_ms = min((leaf.until_ms for leaf in self._leaves), default=NEVER)
        self.clock.until_ms = until_ms
        self.clock.live = int(until_ms != NEVER)

    # --- reading -------------------------------------------------------------------------------------
    def lowest(self) -> int | None:
        """The lowest offset."""
        for leaf in self._leaves:
            blocks, masks, end = leaf.blocks, leaf.masks, len(leaf.blocks)
            row = int((masks != 0).argmax())
            block, mask = blocks.item(row), 0
            while row < end and blocks.item(row) == block:
                mask |= masks.item(row)
                row += 1
            if mask:
                return int(block << BLOCK_BITS) + (mask & -mask).bit_length() - 1
        return None

    def offsets(self) -> Iterator[int]:
        """All offsets, ascending; nothing may change meanwhile."""
        for block, mask in self.blocks():
            yield from offsets_of(block, mask)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """(block, mask of the open messages), ascending."""
        for leaf in self._leaves:
            if leaf.void == len(leaf.blocks):
                continue
            rows = leaf.rows()
            starts = np.flatnonzero(np.diff(rows["block"], prepend=-1))
            masks = np.bitwise_or.reduceat(rows["mask"], starts)
            yield from zip(rows["block"][starts].tolist(), masks.tolist(), strict=True)

    def ended_offsets(self) -> array[int]:
        """The offsets whose leases end_until() has marked as ended."""
        found = array("q")
        for leaf in self._leaves:
            if leaf.ended:
                rows = leaf.facts["attempt"] & ENDED != 0
                found.frombytes(offsets_of_rows(leaf.blocks[rows], leaf.masks[rows]).tobytes())
        return found

    def has_ended(self, offset: int) -> bool:
        """Whether the message is packed here and its lease has ended."""
        found = self._find(offset)
        return found is not None and bool(self._leaves[found[0]].facts["attempt"].item(found[1]) & ENDED)

    def ended_count(self, now_ms: EpochMs) -> int:
        """How many messages may be delivered again."""
        count = 0
        for leaf in self._leaves:
            over = (leaf.facts["attempt"] & ENDED != 0) | (leaf.facts["until"] <= now_ms)
            count += int(np.unpackbits(leaf.masks[over].view(np.uint8)).sum())
        return count

    @property
    def byte_count(self) -> int:
        """Bytes of the rows, void ones included."""
        return sum(len(leaf.blocks) * ROW_DTYPE.itemsize for leaf in self._leaves)

    # --- the snapshot --------------------------------------------------------------------------------
    def save(self) -> tuple[list[str], list[bytes]]:
        """The client ids, and the rows of each leaf, serialised by ROW_DTYPE; restore() reads both."""
        return list(self._names), [leaf.rows().tobytes() for leaf in self._leaves if len(leaf.rows())]

    def restore(self, names: list[str], leaves: list[bytes]) -> None:
        """Restores the result of save() into an empty object. Raises ValueError for other data."""
        rows = np.frombuffer(b"".join(leaves), ROW_DTYPE)
        if not len(rows):
            return
        if int(rows["client"].max()) >= len(names) or not rows["mask"].all():
            raise ValueError("a row names a client that is not there, or no message")
        self._names, self._clients = list(names), {name: number for number, name in enumerate(names)}
        self.count = int(np.unpackbits(rows["mask"].copy().view(np.uint8)).sum())
        self._merge(rows)
        self._set_clock()


def can_pack(lease: Lease) -> bool:
    """Whether rows can represent the lease."""
    return (
        not lease.renewed
        and lease.granted_until_ms == lease.until_ms
        and 0 <= lease.attempt <= ATTEMPT_MAX
        and 0 <= lease.number <= NUMBER_MAX
    )
