"""The property blocks of a batch that have the same names and value sizes: one layout for nearly all records.

Invariant: in every row the bytes 0x01 and 0x02 are in the same columns and the names are the first row's;
therefore the fields that parse_properties finds in the first row lie in the same columns of every other row.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.fields import RecordFields
from trovemq_proto.records.geometry import Geometry, sliding_rows, strided_rows
from trovemq_proto.records.layout import NAME_END, VALUE_END

ODD_SHARE: Final = 16
"""If more than one record in 16 has another layout, the properties of all are scanned: bench/second_paths.py,
"odd"."""


class Span(NamedTuple):
    """Columns start..end-1 of the property blocks."""

    start: int
    end: int


class UniformProperties(NamedTuple):
    """rows: uint8[m, size], the property blocks; values: the columns of each property's value; records:
    int64[m], the records of these rows, ascending; odd: the records with another layout, ascending."""

    rows: NDArray[np.uint8]
    values: dict[bytes, Span]
    records: NDArray[np.int64]
    odd: list[int]

    def is_ascii(self, span: Span) -> bool:
        return not len(self.rows) or int(self.rows[:, span.start : span.end].max()) < 0x80

    def words(self, span: Span) -> list[Span] | None:
        """The non-empty pieces of a value cut at single spaces; None when the rows have them elsewhere."""
        spaces = self.rows[:, span.start : span.end] == ord(" ")
        if (spaces != spaces[0]).any():
            return None
        cuts = [span.start - 1, *(np.flatnonzero(spaces[0]) + span.start).tolist(), span.end]
        pieces = (Span(cuts[i] + 1, cuts[i + 1]) for i in range(len(cuts) - 1))
        return [piece for piece in pieces if piece.start < piece.end]


def uniform_properties(data: memoryview, geometry: Geometry) -> UniformProperties | None:
    """The layout that nearly all records have; None if there is none, or if their sys flags differ."""
    sizes = geometry.property_sizes
    if geometry.stride:
        size = int(sizes[0])
        records = np.arange(len(sizes))
        at = int(geometry.property_positions[0])
        rows = np.ascontiguousarray(strided_rows(data, at, len(sizes), size, geometry.stride))
    else:
        if not len(sizes) or (geometry.sys_flags != geometry.sys_flags[0]).any():
            return None
        size = int(np.bincount(sizes).argmax())
        records = np.flatnonzero(sizes == size)
        if _too_few(len(records), len(sizes)):
            return None
        rows = sliding_rows(data, geometry.property_positions[records], size)
    return _of_rows(rows, records, len(sizes))


def properties_alike(data: memoryview, first: RecordFields, count: int) -> UniformProperties:
    """The properties of `count` records that follow one another and have the layout of the first."""
    at, size = first.property_position, first.property_size
    values, _ = _layout(bytes(data[at : at + size]))
    rows = strided_rows(data, at, count, size, first.size)
    return UniformProperties(rows, values, np.arange(count), [])


def _of_rows(rows: NDArray[np.uint8], records: NDArray[np.int64], count: int) -> UniformProperties | None:
    """rows: the blocks of these records of `count`. The first row's layout is that of the others, or of
    none."""
    values, names = _layout(rows[0].tobytes())
    marks = rows - np.uint8(NAME_END) < 2
    fixed = marks[0].copy()
    for span in names:
        fixed[span.start : span.end] = True
    differ = (rows != rows[0]) & fixed | marks & ~fixed
    if differ.any():
        fit = ~differ.any(axis=1)
        rows, records = rows[fit], records[fit]
        if _too_few(len(records), count):
            return None
    if len(records) == count:
        return UniformProperties(rows, values, records, [])
    is_odd = np.ones(count, np.bool_)
    is_odd[records] = False
    return UniformProperties(rows, values, records, np.flatnonzero(is_odd).tolist())


def _too_few(alike: int, count: int) -> bool:
    return (count - alike) * ODD_SHARE > count


def _layout(block: bytes) -> tuple[dict[bytes, Span], list[Span]]:
    """(columns of the values by name, columns of the names), by the rules of parse_properties."""
    values, names = {}, []
    start = 0
    for piece in block.split(bytes([VALUE_END])):
        name, separator, value = piece.partition(bytes([NAME_END]))
        value_start = start + len(name) + len(separator)
        names.append(Span(start, start + len(name)))
        if name and value:
            values[name] = Span(value_start, start + len(piece))
        start += len(piece) + 1
    return values, names
