"""The entries of the search trees: where each record lies, and each of its terms.

The terms of a record are those of the key index (unique key, keys, tag) and the properties that its topic
declares as indexed. A record of a transaction that was rolled back has none, as in the key index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.layout import SYS_FLAG_TRANSACTION_MASK, SYS_FLAG_TRANSACTION_ROLLBACK
from trovemq_proto.records.property_scan import PropertyScan, Slices
from trovemq_store.files.trees import ByteRows, TreeChange
from trovemq_store.index.trees.layout import (
    KEY,
    LOCATION,
    LOCATION_ENTRY,
    LOCATION_RECORDS_MAX,
    OFFSET,
    POSTINGS_MAX,
    PROPERTY,
    TAG,
    TERM,
    TERM_END,
    TERM_HEAD,
    TERM_SIZE_MAX,
    UNIQUE_KEY,
    term_of,
    term_prefix,
)
from trovemq_store.index.trees.rows import Int64s, Matrix, Rows, first_of_equal, order_of, rows_at, take_rows
from trovemq_store.index.trees.topic_numbers import TopicNumbers
from trovemq_store.log.projection import DispatchBatch

IndexedProperties = Callable[[str], tuple[str, ...]]
"""topic -> names of the properties that it declares as indexed."""

_UNIQ_KEY: Final = PROPERTY_UNIQ_KEY.encode()
_KEYS: Final = PROPERTY_KEYS.encode()
_TAGS: Final = PROPERTY_TAGS.encode()
LOCATION_HELD_BYTES: Final = LOCATION_RECORDS_MAX * LOCATION_ENTRY.itemsize + 160


class SearchEntries:
    """Builds the changes of `location` and `term`; see TreeBuilder."""

    def __init__(self, indexed_properties: IndexedProperties) -> None:
        self._indexed_properties = indexed_properties

    def begin(self, numbers: TopicNumbers) -> None:
        self._numbers = numbers
        self._locations: list[tuple[bytes, bytes]] = []
        self._terms = _Terms()
        self._declared: dict[str, tuple[str, ...]] = {}  # one answer per topic for the whole step

    def add(self, run: DispatchBatch) -> None:
        numbers, declared = self._numbers, self._declared
        batch = run.records if run.alive is None else run.records.where(run.alive)
        if not len(batch):
            return
        offsets = run.physical_offset + batch.positions
        self._locations += _locations(batch, offsets, numbers)
        for topic, _ in batch.topic_groups():
            if topic not in declared:
                declared[topic] = self._indexed_properties(topic)
                numbers.declare(topic, declared[topic], PhysicalOffset(int(offsets[0])))
        _add_terms(batch, offsets, numbers, declared, self._terms)

    @property
    def held_bytes(self) -> int:
        return self._terms.held_bytes + LOCATION_HELD_BYTES * len(self._locations)

    def changes(self) -> list[TreeChange]:
        found = [TreeChange(LOCATION, self._locations), *self._terms.changes()]
        self.begin(self._numbers)
        return found


def _add_terms(
    batch: RecordBatch,
    offsets: Int64s,
    numbers: TopicNumbers,
    declared: Mapping[str, Sequence[str]],
    terms: _Terms,
) -> None:
    rolled_back = batch.sys_flags & SYS_FLAG_TRANSACTION_MASK == SYS_FLAG_TRANSACTION_ROLLBACK
    left_out = rolled_back if rolled_back.any() else None
    groups = batch.topic_groups()
    group_of = np.zeros(len(batch), np.intp)
    for group, (_, records) in enumerate(groups):
        group_of[records] = group
    for scan in batch.property_scans:
        found = {
            (UNIQUE_KEY, ""): scan.find(_UNIQ_KEY),
            (KEY, ""): scan.words(scan.find(_KEYS)),
            (TAG, ""): scan.find(_TAGS),
        }
        for group, (topic, _) in enumerate(groups):
            number = numbers.number(topic)
            own = {(PROPERTY, name): scan.find(name.encode()) for name in declared[topic]}
            for (kind, name), slices in {**found, **own}.items():
                chosen = slices if len(groups) == 1 else slices.where(group_of[slices.records] == group)
                if left_out is not None:
                    chosen = chosen.where(~left_out[chosen.records])
                if len(chosen.records):
                    terms.add(term_prefix(number, kind, name), scan, chosen, offsets)


class _Terms:
    """The terms of a step by the prefix of their keys, and by their size. No prefix is the beginning of
    another one, so that the terms of each prefix are sorted by themselves. Places are ascending."""

    def __init__(self) -> None:
        self._found: dict[bytes, dict[int, list[tuple[Matrix, Int64s]]]] = {}
        self.held_bytes = 0
        """Memory: each term twice, with its prefix, its place and its index in the sorted order."""

    def add(self, prefix: bytes, scan: PropertyScan, slices: Slices, offsets: Int64s) -> None:
        """offsets: of all records of the batch that the scan belongs to."""
        sizes = slices.ends - slices.starts
        self.held_bytes += 2 * int(sizes.sum()) + (len(prefix) + 40) * len(sizes)
        by_size = self._found.setdefault(prefix, {})
        first = int(sizes[0])
        if (sizes == first).all():
            found = rows_at(scan, slices.starts, first), offsets[slices.records]
            by_size.setdefault(first, []).append(found)
            return
        for size in np.unique(sizes).tolist():
            chosen = sizes == size
            found = rows_at(scan, slices.starts[chosen], size), offsets[slices.records[chosen]]
            by_size.setdefault(size, []).append(found)

    def changes(self) -> list[TreeChange]:
        """One change per prefix, in key order: in an empty tree each is appended to the one before."""
        return [_change(prefix, self._found.pop(prefix)) for prefix in sorted(self._found)]


def _change(prefix: bytes, by_size: dict[int, list[tuple[Matrix, Int64s]]]) -> TreeChange:
    """The entries of one prefix."""
    one_a_place = TERM_HEAD.unpack_from(prefix)[1] == UNIQUE_KEY
    lots: list[tuple[ByteRows, ByteRows]] = []
    cut: dict[bytes, list[int]] = {}
    while by_size:
        _, found = by_size.popitem()
        values = np.concatenate([rows for rows, _ in found])
        places = np.concatenate([part for _, part in found])
        found.clear()
        whole = _take_cut(values, places, cut)
        if whole is not None:
            values, places = values[whole], places[whole]
        if len(places):
            lots.append(_entries(prefix, values, places, one_a_place=one_a_place))
    for term, offsets in cut.items():
        row = np.frombuffer(term, np.uint8)
        rows = np.broadcast_to(row, (len(offsets), len(row)))
        lots.append(_entries(prefix, rows, np.array(offsets), one_a_place=one_a_place))
    if len(lots) == 1:
        return TreeChange(TERM, keys=lots[0][0], values=lots[0][1])
    entries = chain.from_iterable(zip(keys, values or repeat(b""), strict=False) for keys, values in lots)
    return TreeChange(TERM, sorted(entries, key=itemgetter(0)))


def _take_cut(values: Matrix, places: Int64s, into: dict[bytes, list[int]]) -> NDArray[np.bool_] | None:
    """Adds the values that are cut to their terms to `into`; returns which ones are not cut (None: all)."""
    if values.shape[1] > TERM_SIZE_MAX:
        is_cut = np.ones(len(values), np.bool_)
    else:
        ends = values == TERM_END[0]
        if not ends.any():
            return None
        is_cut = ends.any(axis=1)
    for row, place in zip(values[is_cut], places[is_cut].tolist(), strict=True):
        into.setdefault(term_of(row.tobytes()), []).append(place)
    return ~is_cut


def _entries(
    prefix: bytes, values: Matrix, places: Int64s, *, one_a_place: bool
) -> tuple[ByteRows, ByteRows]:
    """Sorted keys, and their values (none: all are empty). Each place has an entry, or each term has entries
    of up to POSTINGS_MAX places."""
    order = order_of(values)
    values, places = take_rows(values, order), places[order]
    if one_a_place:
        return Rows(_keys(prefix, values, places)), ()
    is_first = first_of_equal(values)
    is_new = is_first | (np.diff(places, prepend=-1) != 0)
    if not is_new.all():  # a record has a key twice
        values, places, is_first = values[is_new], places[is_new], is_first[is_new]
    at = np.arange(len(places))
    since_first = at - np.maximum.accumulate(np.where(is_first, at, 0))
    begins = np.flatnonzero(since_first % POSTINGS_MAX == 0)
    keys = Rows(_keys(prefix, values[begins], places[begins]))
    if len(begins) == len(places):
        return keys, ()
    packed = places.astype(">u8").tobytes()
    ends = np.append(begins[1:], len(places))
    spans = zip((8 * begins + 8).tolist(), (8 * ends).tolist(), strict=True)
    return keys, [packed[begin:end] for begin, end in spans]


def _keys(prefix: bytes, values: Matrix, places: Int64s) -> Matrix:
    """prefix, term, 0x01, physical offset."""
    count, size = values.shape
    keys = np.empty((count, len(prefix) + size + 9), np.uint8)
    keys[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    keys[:, len(prefix) : -9] = values
    keys[:, -9] = TERM_END[0]
    keys[:, -8:] = places.astype(">u8").view(np.uint8).reshape(count, 8)
    return keys


def _locations(batch: RecordBatch, offsets: Int64s, numbers: TopicNumbers) -> list[tuple[bytes, bytes]]:
    entries = np.empty(len(batch), LOCATION_ENTRY)
    entries["queue_id"] = batch.queue_ids
    entries["queue_offset"] = batch.queue_offsets
    for topic, records in batch.topic_groups():
        entries["topic"][records] = numbers.number(topic)
        numbers.count(topic, len(records), int(batch.sizes[records].sum()))
    found = []
    for begin in range(0, len(batch), LOCATION_RECORDS_MAX):
        part = slice(begin, begin + LOCATION_RECORDS_MAX)
        entries["distance"][part] = offsets[part] - offsets[begin]
        found.append((OFFSET.pack(int(offsets[begin])), entries[part].tobytes()))
    return found
