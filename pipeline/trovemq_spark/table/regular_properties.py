"""The properties of many records that have the same names in the same order, as those of one producer do.

Then the positions of the marks 0x01 and 0x02 are a matrix with a row per record: its columns say where values
start and end. Names are only compared with those of the first record. The values' sizes may differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trovemq_proto.records.geometry import sliding
from trovemq_proto.records.layout import NAME_END, PROPERTY_CRC, VALUE_END
from trovemq_spark.table.parts import texts
from trovemq_spark.table.schema import PROPERTIES_TYPE

Int64s = NDArray[np.int64]
_PAIR: Final = np.array([NAME_END, VALUE_END], np.uint8).view(np.uint16)[0]
_BEHIND_NAME: Final = 3
"""The least bytes of a property after its name: 0x01, one byte of the value, 0x02."""


class RegularProperties:
    """The columns of all records of a batch: the same as PropertyColumns gives."""

    def __init__(self, joined: memoryview, names: list[str], marks: Int64s) -> None:
        """joined: the property blocks one after another; marks: int64[records, 2 * names]."""
        self._joined: Final = joined
        self._ascii: Final = not bool((np.frombuffer(joined, np.uint8) & 0x80).any())
        self._names: Final = names
        self._value_starts: Final = marks[:, 0::2] + 1
        self._value_ends: Final = marks[:, 1::2]

    def values(self, name: str) -> pa.Array:
        """The value of this property in each record; null if it has none."""
        count = len(self._value_ends)
        if name not in self._names:
            return pa.nulls(count, pa.string())
        return self._texts([self._names.index(name)])

    def maps(self) -> pa.Array:
        """All properties of each record except the CRC of the record."""
        count = len(self._value_ends)
        kept = [number for number, name in enumerate(self._names) if name != PROPERTY_CRC]
        names = [self._names[number].encode() for number in kept]
        sizes = np.array([len(name) for name in names], np.int32)
        cuts = np.zeros(count * len(kept) + 1, np.int32)
        np.cumsum(np.tile(sizes, count), out=cuts[1:])
        all_names = pa.py_buffer(b"".join(names) * count)
        keys = pa.Array.from_buffers(pa.string(), len(cuts) - 1, [None, pa.py_buffer(cuts), all_names])
        rows = pa.array(np.arange(count + 1, dtype=np.int32) * np.int32(len(kept)))
        return pa.MapArray.from_arrays(rows, keys, self._texts(kept)).cast(PROPERTIES_TYPE)

    def _texts(self, columns: list[int]) -> pa.Array:
        starts, ends = self._value_starts[:, columns].ravel(), self._value_ends[:, columns].ravel()
        return texts(self._joined, starts, ends, ascii_only=self._ascii)


def regular_properties(joined: memoryview, block_ends: Int64s) -> RegularProperties | None:
    """joined: property blocks that each end with 0x02, block i at joined[block_ends[i - 1]:block_ends[i]].
    None if they are not regular: different names, a name twice, or bytes that are not a property."""
    count = len(block_ends)
    flat = np.frombuffer(joined, np.uint8)
    found = np.flatnonzero(flat - np.uint8(NAME_END) < 2)
    if len(found) % (2 * count) or (flat[found].view(np.uint16) != _PAIR).any():
        return None
    marks: Int64s = found.reshape(count, -1)
    if (marks[:, -1] + 1 != block_ends).any():
        return None
    starts = np.empty((count, marks.shape[1] // 2), np.int64)
    starts[0, 0] = 0
    starts[1:, 0] = block_ends[:-1]
    starts[:, 1:] = marks[:, 1:-1:2] + 1
    sizes = marks[:, 0::2] - starts
    if (sizes != sizes[0]).any() or not sizes[0].all() or (marks[:, 1::2] - marks[:, 0::2] < 2).any():
        return None
    names = _names(joined, starts, sizes[0].tolist())
    return None if names is None else RegularProperties(joined, names, marks)


def _names(joined: memoryview, starts: Int64s, sizes: list[int]) -> list[str] | None:
    """The names, if all records have those of the first one: ASCII, and none twice."""
    first = [
        bytes(joined[start : start + size]) for start, size in zip(starts[0].tolist(), sizes, strict=True)
    ]
    if len(set(first)) < len(first) or not all(name.isascii() for name in first):
        return None
    for column, name in enumerate(first):
        for at, dtype, mask in _words(len(name)):
            words = sliding(joined, dtype)[starts[:, column] + at]
            if ((words ^ words[0]) & mask).any():
                return None
    return [name.decode() for name in first]


def _words(size: int) -> Iterator[tuple[int, str, np.unsignedinteger]]:
    """(offset, type, mask) of the words that cover a name; none ends more than _BEHIND_NAME after it."""
    at = 0
    while (rest := size - at) > 0:
        width = 8 if rest + _BEHIND_NAME >= 8 else 4
        kind = np.uint64 if width == 8 else np.uint32
        yield at, f"<u{width}", kind((1 << 8 * min(rest, width)) - 1)
        at += width
