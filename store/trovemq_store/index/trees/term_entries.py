"""The entries of the tree `term` that one step adds, of all topics together.

A row is a term with its prefix (layout.py), so that rows sort as their keys do. Rows of one kind, property
name and size are a matrix, whatever their topics: a step costs the same for records of one topic and of
10,000.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.property_scan import PropertyScan, Slices
from trovemq_store.files.trees import LONG_RUN, ByteRows, TreeChange, key_after
from trovemq_store.index.trees.layout import (
    NUMBER,
    POSTINGS_MAX,
    TERM,
    TERM_END,
    TERM_SIZE_MAX,
    UNIQUE_KEY,
    term_of,
    term_prefix,
)
from trovemq_store.index.trees.rows import Int64s, Matrix, Rows, first_of_equal, order_of, rows_at, take_rows

ENTRY_HELD_BYTES: Final = 130
"""Memory of an entry as Python's objects, beside its key."""
_Entry = tuple[bytes, bytes]
_Kind = tuple[int, str]
"""A kind of terms, and the name of a property."""
_Values = Sequence[bytes]
"""As many as there are keys, or none if all are empty."""


class IndexedRecords(NamedTuple):
    """Each record of a batch: the number of its topic, its physical offset, and whether the batch has less
    than a long run of its topic."""

    numbers: Int64s
    offsets: Int64s
    few: NDArray[np.bool_]


class TermEntries:
    """The terms of a step. Places (physical offsets) are added in ascending order."""

    def __init__(self) -> None:
        self._found: dict[_Kind, dict[int, list[tuple[Matrix, Int64s]]]] = {}
        self.held_bytes = 0
        """Memory: each row twice, its place, and its index in the sorted order, and the entries that have
        to be merged."""

    def add(self, kind: _Kind, scan: PropertyScan, slices: Slices, records: IndexedRecords) -> None:
        """The terms of some records. `records`: all of the batch that the scan belongs to."""
        if not len(slices.records):
            return
        sizes = slices.ends - slices.starts
        by_size = self._found.setdefault(kind, {})
        first = int(sizes[0])
        if (sizes == first).all():
            self._add(by_size, kind, first, scan, slices, records)
            return
        for size in np.unique(sizes).tolist():
            self._add(by_size, kind, size, scan, slices.where(sizes == size), records)

    def _add(
        self,
        by_size: dict[int, list[tuple[Matrix, Int64s]]],
        kind: _Kind,
        size: int,
        scan: PropertyScan,
        slices: Slices,
        records: IndexedRecords,
    ) -> None:
        prefix = np.frombuffer(term_prefix(0, *kind), np.uint8)
        count, head, width = len(slices.records), NUMBER.size, len(prefix) + size
        rows = np.empty((count, width), np.uint8)
        rows[:, :head] = records.numbers[slices.records].astype(">u4").view(np.uint8).reshape(count, head)
        rows[:, head : len(prefix)] = prefix[head:]
        rows[:, len(prefix) :] = rows_at(scan, slices.starts, size)
        by_size.setdefault(size, []).append((rows, records.offsets[slices.records]))
        few = int(np.count_nonzero(records.few[slices.records]))
        self.held_bytes += (2 * width + 40) * count + (ENTRY_HELD_BYTES + width) * few

    def changes(self) -> list[TreeChange]:
        """The changes, sorted by key: in an empty tree each is appended to the one before. A prefix of which
        a matrix has a long run gets a separate change, so that the run fills its pages."""
        runs: dict[bytes, list[tuple[ByteRows, _Values]]] = {}
        others: list[Iterable[_Entry]] = []
        while self._found:
            kind, by_size = self._found.popitem()
            prefix_size = len(term_prefix(0, *kind))
            for keys, values in _entries_of(by_size, prefix_size, one_a_place=kind[0] == UNIQUE_KEY):
                others.append(_take_runs(keys, values, prefix_size, runs))
        found: list[TreeChange] = []
        rest, begin = _sorted(others), 0
        for prefix in sorted(runs):
            end = bisect_left(rest, prefix, begin, key=itemgetter(0))
            found += [TreeChange(TERM, rest[begin:end])] if begin < end else []
            begin = bisect_left(rest, key_after(prefix) or prefix, end, key=itemgetter(0))
            found.append(_change(runs.pop(prefix), rest[end:begin]))
        return [*found, TreeChange(TERM, rest[begin:])] if begin < len(rest) else found


def _change(runs: Sequence[tuple[ByteRows, _Values]], others: list[_Entry]) -> TreeChange:
    """The entries of one prefix: its runs, each of one size, and its others."""
    if len(runs) == 1 and not others:
        return TreeChange(TERM, keys=runs[0][0], values=runs[0][1])
    return TreeChange(TERM, _sorted([others, *(_pairs(*run) for run in runs)]))


def _pairs(keys: ByteRows, values: _Values) -> Iterator[_Entry]:
    return zip(keys, values or repeat(b""), strict=False)


def _sorted(lots: Iterable[Iterable[_Entry]]) -> list[_Entry]:
    return sorted(chain.from_iterable(lots), key=itemgetter(0))


def _entries_of(
    by_size: dict[int, list[tuple[Matrix, Int64s]]], prefix_size: int, *, one_a_place: bool
) -> Iterator[tuple[Matrix, _Values]]:
    """The entries of one kind of terms: for each size, and for each term that is cut."""
    cut: dict[bytes, list[int]] = {}
    while by_size:
        _, found = by_size.popitem()
        rows = np.concatenate([part for part, _ in found])
        places = np.concatenate([part for _, part in found])
        found.clear()
        whole = _take_cut(rows, prefix_size, places, cut)
        if whole is not None:
            rows, places = rows[whole], places[whole]
        if len(places):
            yield _entries(rows, places, one_a_place=one_a_place)
    for row, offsets in cut.items():
        same = np.broadcast_to(np.frombuffer(row, np.uint8), (len(offsets), len(row)))
        yield _entries(same, np.array(offsets), one_a_place=one_a_place)


def _take_cut(
    rows: Matrix, prefix_size: int, places: Int64s, into: dict[bytes, list[int]]
) -> NDArray[np.bool_] | None:
    """Adds the rows whose values are cut to their terms to `into`; returns which ones are not cut (None:
    all)."""
    values = rows[:, prefix_size:]
    if values.shape[1] > TERM_SIZE_MAX:
        is_cut = np.ones(len(values), np.bool_)
    else:
        ends = values == TERM_END[0]
        if not ends.any():
            return None
        is_cut = ends.any(axis=1)
    for row, place in zip(rows[is_cut], places[is_cut].tolist(), strict=True):
        term = row[:prefix_size].tobytes() + term_of(row[prefix_size:].tobytes())
        into.setdefault(term, []).append(place)
    return ~is_cut


def _entries(rows: Matrix, places: Int64s, *, one_a_place: bool) -> tuple[Matrix, _Values]:
    """Sorted keys, and their values (none: all are empty). Each place has an entry, or each row has entries
    of up to POSTINGS_MAX places."""
    order = order_of(rows)
    rows, places = take_rows(rows, order), places[order]
    if one_a_place:
        return _keys(rows, places), ()
    is_first = first_of_equal(rows)
    is_new = is_first | (np.diff(places, prepend=-1) != 0)
    if not is_new.all():  # a record has a key twice
        rows, places, is_first = rows[is_new], places[is_new], is_first[is_new]
    at = np.arange(len(places))
    since_first = at - np.maximum.accumulate(np.where(is_first, at, 0))
    begins = np.flatnonzero(since_first % POSTINGS_MAX == 0)
    keys = _keys(rows[begins], places[begins])
    if len(begins) == len(places):
        return keys, ()
    packed = places.astype(">u8").tobytes()
    ends = np.append(begins[1:], len(places))
    spans = zip((8 * begins + 8).tolist(), (8 * ends).tolist(), strict=True)
    return keys, [packed[begin:end] for begin, end in spans]


def _keys(rows: Matrix, places: Int64s) -> Matrix:
    """row, 0x01, physical offset."""
    count, size = rows.shape
    keys = np.empty((count, size + 9), np.uint8)
    keys[:, :size] = rows
    keys[:, size] = TERM_END[0]
    keys[:, -8:] = places.astype(">u8").view(np.uint8).reshape(count, 8)
    return keys


def _take_runs(
    keys: Matrix, values: _Values, prefix_size: int, into: dict[bytes, list[tuple[ByteRows, _Values]]]
) -> Iterable[_Entry]:
    """Adds the long runs of keys of one prefix to `into`, and returns the other entries. The prefixes differ
    in the topic's number only."""
    numbers = np.ascontiguousarray(keys[:, : NUMBER.size]).view(">u4")[:, 0]
    begins = np.flatnonzero(np.diff(numbers.astype(np.int64), prepend=-1))
    ends = np.append(begins[1:], len(keys))
    is_other = np.ones(len(keys), np.bool_)
    for run in np.flatnonzero(ends - begins >= LONG_RUN).tolist():
        begin, end = int(begins[run]), int(ends[run])
        is_other[begin:end] = False
        own = values[begin:end] if len(values) else ()
        into.setdefault(keys[begin, :prefix_size].tobytes(), []).append((Rows(keys[begin:end]), own))
    if not is_other.any():
        return ()
    rest = [values[index] for index in np.flatnonzero(is_other).tolist()] if len(values) else ()
    return _pairs(Rows(keys[is_other]), rest)
