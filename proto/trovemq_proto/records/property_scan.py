"""The properties of many records found at once: the vectorised form of properties.parse_properties.

The property blocks of a run of records are joined into one array, each followed by 0x02, so that no piece
spans two records; one search for 0x01 and 0x02 then finds all pieces. Runs are cut so that the joined bytes
stay below hash_columns.HASHED_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.cached import cached_property
from trovemq_proto.records.geometry import Geometry, strided_rows
from trovemq_proto.records.hash_columns import HASHED_BYTES_MAX, running_sums, slice_hashes
from trovemq_proto.records.layout import NAME_END, VALUE_END

Int64s = NDArray[np.int64]
_SPACE: Final = 0x20
_END: Final = bytes([VALUE_END])
_NAME_END: Final = bytes([NAME_END])
_COPIED_SHARE: Final = 16
"""Records of at most this many times their properties' bytes are copied as a whole. No benchmark has a case
for it."""


class Slices(NamedTuple):
    """Parts of the joined property bytes. records: index in the batch, ascending; starts, ends: int64[k]."""

    records: Int64s
    starts: Int64s
    ends: Int64s

    def where(self, chosen: NDArray[np.bool_] | Int64s) -> Slices:
        return Slices(self.records[chosen], self.starts[chosen], self.ends[chosen])


_NONE: Final = np.zeros(0, np.int64)
_NOTHING: Final = Slices(_NONE, _NONE, _NONE)


class PropertyScan:
    """The properties of records first..last-1 of a batch."""

    def __init__(self, joined: bytes, block_starts: Int64s, first: int) -> None:
        self.joined: Final = joined
        self.flat: Final = np.frombuffer(joined, np.uint8)
        self.first: Final = first
        self.count: Final = len(block_starts)
        self._block_starts: Final = block_starts
        self._name_starts, self._name_ends, self._values_end = _pieces(self.flat)

    @cached_property
    def high_bytes(self) -> Int64s | None:
        """Where the bytes of non-ASCII characters lie; None when there are none."""
        return None if self.joined.isascii() else np.flatnonzero(self.flat >= 0x80)

    @cached_property
    def _sums(self) -> NDArray[np.uint32]:
        return running_sums(self.flat)

    def hashes(self, slices: Slices) -> NDArray[np.uint32]:
        """Java hashes (modulo 2 ** 32) of the slices, right for those that are ASCII."""
        return slice_hashes(self._sums, slices.starts, slices.ends)

    def names_and_values(self) -> tuple[Slices, Slices]:
        """The names of all properties, and in the same order their values. A name that a record has twice
        occurs twice; the later one counts."""
        begins = np.searchsorted(self._name_starts, self._block_starts)
        counts = np.diff(begins, append=len(self._name_starts))
        records = np.repeat(np.arange(self.first, self.first + self.count), counts)
        names = Slices(records, self._name_starts, self._name_ends)
        return names, Slices(records, self._name_ends + 1, self._values_end)

    def find(self, name: bytes) -> Slices:
        """The values of this property, at most one per record (the last with its name)."""
        if name + _NAME_END not in self.joined:
            return _NOTHING
        chosen = np.flatnonzero(self._name_ends - self._name_starts == len(name))
        names = self._windows(len(name))[self._name_starts[chosen]]
        chosen = chosen[(names == np.frombuffer(name, np.uint8)).all(axis=1)]
        ends = self._name_ends[chosen]
        records = np.searchsorted(self._block_starts, ends, "right") - 1
        if len(records) > 1:
            is_last = np.append(records[1:] != records[:-1], True)
            if not is_last.all():
                chosen, records, ends = chosen[is_last], records[is_last], ends[is_last]
        return Slices(self.first + records, ends + 1, self._values_end[chosen])

    def _windows(self, width: int) -> NDArray[np.uint8]:
        """The bytes from each position on, uint8[…, width]; a view."""
        return np.ndarray((len(self.joined) - width + 1, width), np.uint8, self.joined, 0, (1, 1))

    def words(self, values: Slices) -> Slices:
        """The non-empty pieces of these values (in ascending order), cut at single spaces."""
        if not len(values.starts):
            return values
        spaces = np.flatnonzero(self.flat == _SPACE)
        owners = np.searchsorted(values.starts, spaces, "right") - 1
        spaces = spaces[(owners >= 0) & (spaces < values.ends[owners])]
        if not len(spaces):
            return values
        starts = np.sort(np.concatenate((values.starts, spaces + 1)))
        ends = np.sort(np.concatenate((values.ends, spaces)))
        records = values.records[np.searchsorted(values.starts, starts, "right") - 1]
        return Slices(records, starts, ends).where(ends > starts)


def _pieces(flat: NDArray[np.uint8]) -> tuple[Int64s, Int64s, Int64s]:
    """(name starts, name ends, value ends) of the pieces that have both a name and a value.

    A name ends at the first 0x01 after a 0x02; its value begins after it and ends at the next 0x02.
    flat: ends with 0x02.
    """
    marks = np.flatnonzero(flat - np.uint8(NAME_END) < 2)
    is_name_end = flat[marks] == NAME_END
    after_value = np.empty(len(marks), np.bool_)
    after_value[0] = True
    np.logical_not(is_name_end[:-1], out=after_value[1:])
    chosen = np.flatnonzero(is_name_end & after_value)
    name_starts = marks[chosen - 1] + 1
    if len(chosen) and chosen[0] == 0:
        name_starts[0] = 0
    following = chosen + 1
    if is_name_end[following].any():
        value_marks = np.flatnonzero(~is_name_end)
        following = value_marks[np.searchsorted(value_marks, chosen)]
    name_ends, value_ends = marks[chosen], marks[following]
    complete = (name_ends > name_starts) & (value_ends > name_ends + 1)
    if complete.all():
        return name_starts, name_ends, value_ends
    return name_starts[complete], name_ends[complete], value_ends[complete]


def scan_properties(data: memoryview, geometry: Geometry) -> Iterator[PropertyScan]:
    """Scans that cover the records of a geometry in order."""
    sizes = geometry.property_sizes
    ends = np.cumsum(sizes + 1)
    first = 0
    while first < len(sizes):
        taken = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, taken + HASHED_BYTES_MAX, "right"))
        assert last > first, "a property block is shorter than HASHED_BYTES_MAX"
        assert last <= geometry.well_formed, "other records have no properties"
        starts = ends[first:last] - taken - sizes[first:last] - 1
        yield PropertyScan(_join(data, geometry, first, last), starts, first)
        first = last


def _join(data: bytes | memoryview, geometry: Geometry, first: int, last: int) -> bytes:
    positions, sizes = geometry.property_positions[first:last], geometry.property_sizes[first:last]
    if geometry.stride:
        start, size = int(positions[0]), int(sizes[0])
        joined = np.empty((last - first, size + 1), np.uint8)
        joined[:, :size] = strided_rows(memoryview(data), start, last - first, size, geometry.stride)
        joined[:, size] = VALUE_END
        return joined.tobytes()
    ends = positions + sizes
    begin, end = int(positions.min()), int(ends.max())
    if end - begin <= _COPIED_SHARE * int(sizes.sum()):  # slices of bytes are cheaper
        data, positions, ends = bytes(data[begin:end]), positions - begin, ends - begin
    spans = zip(positions.tolist(), ends.tolist(), strict=True)
    return _END.join([data[start:end] for start, end in spans]) + _END
