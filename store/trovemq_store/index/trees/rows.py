"""Many keys or values of one size as the rows of a matrix: sorted, and given to the trees, without a Python
object for each of them until it is put.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.property_scan import PropertyScan

Int64s = NDArray[np.int64]
Matrix = NDArray[np.uint8]
"""uint8[rows, bytes of a row]"""

_AT_ONCE: Final = 1 << 14
"""How many rows are converted to bytes at a time."""
_CODE_BITS: Final = 63


class Rows:
    """A sequence of bytes: the rows of a matrix, in order; see store/trovemq_store/files/trees.py."""

    def __init__(self, matrix: Matrix) -> None:
        self._rows = np.ascontiguousarray(matrix).view(f"V{matrix.shape[1]}")[:, 0]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> bytes:
        return bytes(self._rows[index].tobytes())

    def __iter__(self) -> Iterator[bytes]:
        parts = range(0, len(self._rows), _AT_ONCE)
        return chain.from_iterable(self._rows[at : at + _AT_ONCE].tolist() for at in parts)


def rows_at(scan: PropertyScan, starts: Int64s, size: int) -> Matrix:
    """The `size` bytes that begin at each of `starts`."""
    windows = np.ndarray((len(scan.joined) - size + 1,), f"V{size}", scan.joined, strides=(1,))
    return windows[starts].view(np.uint8).reshape(len(starts), size)


def take_rows(matrix: Matrix, indexes: Int64s) -> Matrix:
    """matrix[indexes], faster."""
    size = matrix.shape[1]
    taken = np.ascontiguousarray(matrix).view(f"V{size}")[:, 0].take(indexes)
    return taken.view(np.uint8).reshape(len(indexes), size)


def order_of(matrix: Matrix) -> Int64s:
    """The indexes of the rows in ascending order; of equal rows the first comes first.

    The leading bytes of each row, as many as fit, become one number; a column takes no more space in it than
    its range of values needs. The row's index is appended to the number. Rows with equal numbers are sorted
    by their other bytes.
    """
    count = len(matrix)
    if count < 2:
        return np.arange(count)
    lows, highs = matrix.min(axis=0), matrix.max(axis=0)
    columns = np.flatnonzero(lows != highs)
    index_bits = (count - 1).bit_length()
    codes = np.zeros(count, np.int64)
    space, used = 1 << (_CODE_BITS - index_bits), 0
    for column in columns.tolist():
        low = int(lows[column])
        digits = int(highs[column]) - low + 1
        space //= digits
        if not space:
            break
        codes *= digits
        codes += matrix[:, column]
        codes -= low
        used += 1
    codes <<= index_bits
    codes |= np.arange(count)
    codes.sort()
    order = codes & ((1 << index_bits) - 1)
    if used < len(columns):
        codes >>= index_bits
        _sort_equal(matrix[:, columns[used:]], codes, order)
    return order


def _sort_equal(matrix: Matrix, codes: Int64s, order: Int64s) -> None:
    """Sorts the rows that have equal codes (ascending, as `order` has them) by the rest of their bytes."""
    same = codes[1:] == codes[:-1]
    if not same.any():
        return
    tied = np.zeros(len(codes), np.bool_)
    tied[1:] = same
    tied[:-1] |= same
    groups = np.cumsum(np.diff(codes[tied], prepend=codes[0] - 1) != 0)
    rows = order[tied]
    heads = groups.astype(">u4").view(np.uint8).reshape(len(rows), 4)
    order[tied] = rows[order_of(np.concatenate((heads, matrix[rows]), axis=1))]


def first_of_equal(matrix: Matrix) -> NDArray[np.bool_]:
    """Which of the sorted rows differ from the row before."""
    first = np.ones(len(matrix), np.bool_)
    np.any(matrix[1:] != matrix[:-1], axis=1, out=first[1:])
    return first
