"""Java's String.hashCode and the index's hash, of one string; hash_columns.py computes them for many.

hash(s) = sum of unit[i] * 31 ** (len - 1 - i), wrapped to 32 bits, over UTF-16 code units; for ASCII the
units are the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import unpack
from typing import Final

_MASK: Final = 0xFFFFFFFF
MULTIPLIER: Final = 31


def java_hash(text: str) -> int:
    """String.hashCode of `text`: an i32. Lone surrogates count as themselves, as in Java."""
    value = _extended(0, text)
    return value - (1 << 32) if value >> 31 else value


def _extended(value: int, text: str) -> int:
    """The hash (as u32) of a text with hash `value`, followed by `text`."""
    units = text.encode() if text.isascii() else utf16_units(text)
    for unit in units:
        value = value * MULTIPLIER + unit & _MASK
    return value


@lru_cache(maxsize=65_536)
def prefix_hash(topic: str) -> int:
    """The hash (as u32) of `topic#`."""
    return _extended(0, f"{topic}#")


def utf16_units(text: str) -> list[int]:
    """The UTF-16 code units that Java sees."""
    raw = text.encode("utf-16-be", "surrogatepass")
    return list(unpack(f">{len(raw) // 2}H", raw))


def java_hash_bytes(utf8: bytes) -> int:
    """java_hash of UTF-8 bytes; malformed ones become U+FFFD, as in Java."""
    return java_hash(utf8.decode("utf-8", "replace"))


def index_hash(topic: str, key: str) -> int:
    """The key index's hash of `topic#key`: 0..2**31-1 (Math.abs, whose one negative result becomes 0)."""
    value = _extended(prefix_hash(topic), key)
    return fold_hash(value - (1 << 32) if value >> 31 else value)


def index_hashes(topics: Iterable[str], key: str) -> list[int]:
    """index_hash of the key in each of the topics: the key itself is hashed once."""
    units = len(key) if key.isascii() else len(utf16_units(key))
    power, own = pow(MULTIPLIER, units, 1 << 32), _extended(0, key)
    values = ((prefix_hash(topic) * power + own) & _MASK for topic in topics)
    return [fold_hash(value - (1 << 32) if value >> 31 else value) for value in values]


def fold_hash(value: int) -> int:
    return 0 if value == -(1 << 31) else abs(value)


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
