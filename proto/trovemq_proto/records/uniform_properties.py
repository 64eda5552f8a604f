"""The properties of a uniform batch whose blocks have the same names and value sizes: one layout for all.

Invariant: in every row the bytes 0x01 and 0x02 are in the same columns and the names are the first row's;
therefore the fields that parse_properties finds in the first row lie in the same columns of every other row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.geometry import Geometry, strided_rows
from trovemq_proto.records.layout import NAME_END, VALUE_END


class Span(NamedTuple):
    """Columns start..end-1 of the property blocks."""

    start: int
    end: int


class UniformProperties(NamedTuple):
    """rows: uint8[n, size], the property blocks; values: the columns of each property's value."""

    rows: NDArray[np.uint8]
    values: dict[bytes, Span]

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
    """None when the batch, or the layout of its properties, is not uniform."""
    if not geometry.stride:
        return None
    at, size = int(geometry.property_positions[0]), int(geometry.property_sizes[0])
    rows = np.ascontiguousarray(strided_rows(data, at, len(geometry.property_sizes), size, geometry.stride))
    values, names = _layout(rows[0].tobytes())
    marked = (rows - np.uint8(NAME_END) < 2).any(axis=0)
    varies = (rows != rows[0]).any(axis=0)
    if varies[marked].any() or any(varies[span.start : span.end].any() for span in names):
        return None
    return UniformProperties(rows, values)


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
