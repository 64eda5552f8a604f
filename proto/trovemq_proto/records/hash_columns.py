"""The hashes of hashes.py for many slices of a byte array.

31 is odd and therefore has an inverse modulo 2 ** 32, so that with the running sum
S[k] = sum over j < k of byte[j] * 31 ** -j the hash of any slice [a, b) is (S[b] - S[a]) * 31 ** (b - 1):
one pass over the bytes gives the hashes of all slices.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.hashes import MULTIPLIER

HASHED_BYTES_MAX: Final = 1 << 18
"""The longest array that slice_hashes takes; bounds the two tables to 1 MiB each."""


def _power_table(base: int, count: int) -> NDArray[np.uint32]:
    factors = np.full(count, base, np.uint32)
    factors[0] = 1
    return np.multiply.accumulate(factors, dtype=np.uint32)


POWERS: Final = _power_table(MULTIPLIER, HASHED_BYTES_MAX + 1)
"""31 ** i modulo 2 ** 32."""
_INVERSE_POWERS: Final = _power_table(pow(MULTIPLIER, -1, 1 << 32), HASHED_BYTES_MAX)


def fold_hashes(values: NDArray[np.uint32]) -> NDArray[np.int32]:
    """fold_hash of many 32-bit patterns."""
    folded = np.abs(values.view(np.int32))
    folded[folded < 0] = 0
    return folded


def running_sums(flat: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """S of the module's docstring: uint32[m + 1] for uint8[m], m <= HASHED_BYTES_MAX."""
    assert flat.dtype == np.uint8, "the sums are those of bytes"
    assert len(flat) <= HASHED_BYTES_MAX, f"{len(flat)} bytes"
    sums = np.empty(len(flat) + 1, np.uint32)
    sums[0] = 0
    np.cumsum(flat * _INVERSE_POWERS[: len(flat)], dtype=np.uint32, out=sums[1:])
    return sums


def slice_hashes(
    sums: NDArray[np.uint32], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """The hash (modulo 2 ** 32) of each slice start:end of the ASCII bytes that `sums` came from.

    starts, ends: int64[k], start < end.
    """
    return (sums[ends] - sums[starts]) * POWERS[ends - 1]


def row_hashes(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The hash (modulo 2 ** 32) of each row of ASCII bytes. rows: uint8[n, k], k < HASHED_BYTES_MAX."""
    hashes: NDArray[np.uint32] = rows.astype(np.uint32) @ POWERS[: rows.shape[1]][::-1]
    return hashes
