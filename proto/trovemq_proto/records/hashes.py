"""Java's String.hashCode and the index's hash, for one string and for many slices of a byte array.

hash(s) = sum of unit[i] * 31 ** (len - 1 - i), wrapped to 32 bits, over UTF-16 code units; for ASCII the
units are the bytes. 31 is odd and therefore has an inverse modulo 2 ** 32, so that with the running sum
S[k] = sum over j < k of byte[j] * 31 ** -j the hash of any slice [a, b) is (S[b] - S[a]) * 31 ** (b - 1):
one pass over the bytes gives the hashes of all slices.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

_MASK: Final = 0xFFFFFFFF
_MULTIPLIER: Final = 31

HASHED_BYTES_MAX: Final = 1 << 18
"""The longest array that slice_hashes takes; bounds the two tables to 1 MiB each."""


def _power_table(base: int, count: int) -> NDArray[np.uint32]:
    factors = np.full(count, base, np.uint32)
    factors[0] = 1
    return np.multiply.accumulate(factors, dtype=np.uint32)


POWERS: Final = _power_table(_MULTIPLIER, HASHED_BYTES_MAX + 1)
"""31 ** i modulo 2 ** 32."""
_INVERSE_POWERS: Final = _power_table(pow(_MULTIPLIER, -1, 1 << 32), HASHED_BYTES_MAX)


def java_hash(text: str) -> int:
    """String.hashCode of `text`: an i32. Lone surrogates count as themselves, as in Java."""
    value = _extended(0, text)
    return value - (1 << 32) if value >> 31 else value


def _extended(value: int, text: str) -> int:
    """The hash (as u32) of a text with hash `value`, followed by `text`."""
    units = text.encode() if text.isascii() else utf16_units(text)
    for unit in units:
        value = value * _MULTIPLIER + unit & _MASK
    return value


@lru_cache(maxsize=65_536)
def _prefix_hash(topic: str) -> int:
    return _extended(0, f"{topic}#")


def utf16_units(text: str) -> list[int]:
    """The UTF-16 code units that Java sees."""
    units: list[int] = np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2").tolist()
    return units


def java_hash_bytes(utf8: bytes) -> int:
    """java_hash of UTF-8 bytes; malformed ones become U+FFFD, as in Java."""
    return java_hash(utf8.decode("utf-8", "replace"))


def index_hash(topic: str, key: str) -> int:
    """The key index's hash of `topic#key`: 0..2**31-1 (Math.abs, whose one negative result becomes 0)."""
    value = _extended(_prefix_hash(topic), key)
    return fold_hash(value - (1 << 32) if value >> 31 else value)


def index_hashes(topics: Iterable[str], key: str) -> list[int]:
    """index_hash of the key in each of the topics: the key itself is hashed once."""
    units = len(key) if key.isascii() else len(utf16_units(key))
    power, own = pow(_MULTIPLIER, units, 1 << 32), _extended(0, key)
    values = ((_prefix_hash(topic) * power + own) & _MASK for topic in topics)
    return [fold_hash(value - (1 << 32) if value >> 31 else value) for value in values]


def fold_hash(value: int) -> int:
    return 0 if value == -(1 << 31) else abs(value)


def fold_hashes(values: NDArray[np.uint32]) -> NDArray[np.int32]:
    """fold_hash of many 32-bit patterns."""
    folded = np.abs(values.view(np.int32))
    folded[folded < 0] = 0
    return folded


def running_sums(flat: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """S of the module's docstring: uint32[m + 1] for uint8[m], m <= HASHED_BYTES_MAX."""
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


@lru_cache(maxsize=65_536)
def group_queue(message_group: str, queue_count: int) -> int:
    """The queue of a message group: the jump consistent hash (Lamping, Veach 2014) of its Java hash, so that
    few groups move when a topic gets more queues."""
    state = java_hash(message_group) & 0xFFFFFFFFFFFFFFFF
    chosen, candidate = 0, 0
    while candidate < queue_count:
        chosen = candidate
        state = (state * 2_862_933_555_777_941_757 + 1) & 0xFFFFFFFFFFFFFFFF
        candidate = int((chosen + 1) * (1 << 31) / ((state >> 33) + 1))
    return chosen
