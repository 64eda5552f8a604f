"""The rows of packed leases, and leaves of rows.

A row has the messages of one lease within one block of 32 adjacent offsets. Rows are sorted by block, in
leaves:

| column   | type | content                                                  |
|----------|------|----------------------------------------------------------|
| block    | i64  | offset >> 5                                              |
| mask     | u32  | bit n: the message at block * 32 + n; 0: the row is void |
| until    | i64  | epoch ms at which the lease ends                         |
| received | i64  | epoch ms of the delivery                                 |
| number   | u32  | of the lease                                             |
| attempt  | u32  | deliveries so far; the highest bit: the lease has ended  |
| client   | u32  | number of a client id                                    |

In a snapshot a leaf is its columns one after the other, little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import EpochMs

BLOCK_BITS: Final = 5
BLOCK_SIZE: Final = 1 << BLOCK_BITS
NEVER: Final = EpochMs((1 << 63) - 1)
ENDED: Final = 1 << 31
ATTEMPT_MAX: Final = ENDED - 1
NUMBER_MAX: Final = 0xFFFF_FFFF

ROW_DTYPE: Final = np.dtype(
    [
        ("block", "<i8"),
        ("mask", "<u4"),
        ("until", "<i8"),
        ("received", "<i8"),
        ("number", "<u4"),
        ("attempt", "<u4"),
        ("client", "<u4"),
    ]
)
assert ROW_DTYPE.itemsize == 40

_FACT_NAMES: Final = ("until", "received", "number", "attempt", "client")
_FACTS: Final = np.dtype([(name, ROW_DTYPE[name]) for name in _FACT_NAMES])


class Leaf:
    """Rows in the order of their blocks. Blocks and masks are separate arrays, so that they can be
    searched."""

    __slots__ = ("blocks", "ended", "facts", "masks", "until_ms", "void")

    def __init__(self, rows: NDArray[np.void]) -> None:
        self.blocks = np.ascontiguousarray(rows["block"])
        self.masks = np.ascontiguousarray(rows["mask"])
        self.facts = np.empty(len(rows), _FACTS)
        for name in _FACT_NAMES:
            self.facts[name] = rows[name]
        self.void = 0
        self.until_ms = NEVER
        self.ended = 0
        self.update_ends()

    def rows(self) -> NDArray[np.void]:
        """The rows that are not void."""
        kept = self.masks != 0
        rows = np.empty(int(kept.sum()), ROW_DTYPE)
        rows["block"], rows["mask"] = self.blocks[kept], self.masks[kept]
        for name in _FACT_NAMES:
            rows[name] = self.facts[name][kept]
        return rows

    def update_ends(self) -> None:
        """Computes again when the first of its leases ends, and how many rows have ended."""
        there = self.masks != 0
        ended = (self.facts["attempt"] & ENDED != 0) & there
        self.ended = int(ended.sum())
        self.until_ms = EpochMs(int(self.facts["until"][there & ~ended].min(initial=NEVER)))


def masks_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """(block, mask) of ascending offsets."""
    found: list[tuple[int, int]] = []
    block, mask = offsets[0] >> BLOCK_BITS, 0
    for offset in offsets:
        if offset >> BLOCK_BITS != block:
            found.append((block, mask))
            block, mask = offset >> BLOCK_BITS, 0
        mask |= 1 << (offset & BLOCK_SIZE - 1)
    found.append((block, mask))
    return found


def offsets_of_rows(blocks: NDArray[np.int64], masks: NDArray[np.uint32]) -> NDArray[np.int64]:
    """All offsets of these rows."""
    bits = np.unpackbits(masks.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    rows, offsets = np.nonzero(bits)
    return (blocks[rows] << BLOCK_BITS) + offsets


def offsets_of(block: int, mask: int) -> list[int]:
    first = block << BLOCK_BITS
    if not mask & mask - 1:
        return [first + mask.bit_length() - 1]
    return [first + bit for bit in range(BLOCK_SIZE) if mask >> bit & 1]
