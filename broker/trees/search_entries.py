"""What the search trees take of records: where each lies, and each of its terms.

The terms of a record are those of the key index (unique key, keys, tag) and the properties that its topic
declares as indexed. A record of a transaction that was rolled back has none, as in the key index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.projection import DispatchBatch
from broker.storage.trees import TreeChange
from broker.trees.layout import (
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
    TERM_SIZE_MAX,
    UNIQUE_KEY,
    term_of,
    term_prefix,
)
from broker.trees.topic_numbers import TopicNumbers
from trovemq_proto.records import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.layout import SYS_FLAG_TRANSACTION_MASK, SYS_FLAG_TRANSACTION_ROLLBACK
from trovemq_proto.records.property_scan import PropertyScan, Slices

IndexedProperties = Callable[[str], tuple[str, ...]]
"""topic -> names of the properties that it declares as indexed."""
Int64s = NDArray[np.int64]

_UNIQ_KEY: Final = PROPERTY_UNIQ_KEY.encode()
_KEYS: Final = PROPERTY_KEYS.encode()
_TAGS: Final = PROPERTY_TAGS.encode()


class SearchEntries:
    """Builds the changes of `location` and `term`; see TreeBuilder."""

    def __init__(self, indexed_properties: IndexedProperties) -> None:
        self._indexed_properties = indexed_properties

    def changes(self, runs: Iterable[DispatchBatch], numbers: TopicNumbers) -> list[TreeChange]:
        """Of runs in log order."""
        locations: list[tuple[bytes, bytes]] = []
        terms = _Terms()
        declared: dict[str, tuple[str, ...]] = {}  # one answer a topic for all of these runs
        for run in runs:
            batch = run.records if run.alive is None else run.records.where(run.alive)
            if len(batch):
                offsets = run.physical_offset + batch.positions
                locations += _locations(batch, offsets, numbers)
                for topic, _ in batch.topic_groups():
                    if topic not in declared:
                        declared[topic] = self._indexed_properties(topic)
                        numbers.declare(topic, declared[topic], int(offsets[0]))
                _add_terms(batch, offsets, numbers, declared, terms)
        return [TreeChange(LOCATION, locations), *terms.changes()]


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
                    prefix = term_prefix(number, kind, name)
                    terms.add(prefix, scan, chosen, offsets, shared=kind in (TAG, PROPERTY))


class _Terms:
    """Entries of `term` on their way, by the prefix of their keys: no prefix begins another one, so each lot
    is sorted by itself. `single` are whole keys, rows of matrices by their size, and those of terms that were
    cut; `shared` are the physical offsets of terms that many records have."""

    def __init__(self) -> None:
        self._single: dict[bytes, dict[int, list[NDArray[np.uint8]]]] = {}
        self._cut: dict[bytes, list[bytes]] = {}
        self._shared: dict[bytes, dict[bytes, list[Int64s]]] = {}

    def add(
        self, prefix: bytes, scan: PropertyScan, slices: Slices, offsets: Int64s, *, shared: bool
    ) -> None:
        """offsets: of all records of the batch that the scan belongs to."""
        sizes = slices.ends - slices.starts
        for size in np.unique(sizes).tolist():
            chosen = sizes == size
            values = _values(scan, slices.starts[chosen], size)
            places = offsets[slices.records[chosen]]
            if shared:
                self._add_shared(self._shared.setdefault(prefix, {}), values, places)
            elif size > TERM_SIZE_MAX or (values == TERM_END[0]).any():
                self._cut.setdefault(prefix, []).extend(_cut_keys(prefix, values, places))
            else:
                keys = _keys(prefix, values, places)
                self._single.setdefault(prefix, {}).setdefault(keys.shape[1], []).append(keys)

    def _add_shared(self, into: dict[bytes, list[Int64s]], values: NDArray[np.uint8], places: Int64s) -> None:
        distinct, which = np.unique(_as_strings(values), return_inverse=True)
        order = np.argsort(which, kind="stable")
        begins = np.searchsorted(which[order], np.arange(len(distinct) + 1)).tolist()
        for begin, end in pairwise(begins):
            value = values[order[begin]].tobytes()
            into.setdefault(term_of(value), []).append(places[order[begin:end]])

    def changes(self) -> list[TreeChange]:
        """One a prefix, in their order: in a tree that is empty each goes behind the one before."""
        prefixes = sorted({*self._single, *self._cut, *self._shared})
        return [TreeChange(TERM, self._blocks(prefix), keys=self._keys(prefix)) for prefix in prefixes]

    def _keys(self, prefix: bytes) -> list[bytes]:
        """Of `single`, sorted; their values are empty."""
        by_size = self._single.get(prefix, {}).values()
        keys = [key for matrices in by_size for key in _sorted_rows(matrices)]
        keys += self._cut.get(prefix, [])
        if len(by_size) != 1 or prefix in self._cut:
            keys.sort()  # quick: a few runs that are sorted
        return keys

    def _blocks(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Of `shared`, sorted by key."""
        terms = sorted(self._shared.get(prefix, {}).items(), key=_term_order)
        return [
            entry
            for term, places in terms
            for entry in _blocks(prefix + term + TERM_END, np.sort(np.concatenate(places)))
        ]


def _term_order(item: tuple[bytes, list[Int64s]]) -> bytes:
    return item[0] + TERM_END


def _values(scan: PropertyScan, starts: Int64s, size: int) -> NDArray[np.uint8]:
    """uint8[n, size]: the slices of that size."""
    windows = np.ndarray((len(scan.joined) - size + 1,), f"V{size}", scan.joined, strides=(1,))
    return windows[starts].view(np.uint8).reshape(len(starts), size)


def _as_strings(values: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """bytes[n]; of one size, so that zeros at an end make no two equal that are not."""
    return np.ascontiguousarray(values).view(f"S{values.shape[1]}")[:, 0]


def _sorted_rows(matrices: list[NDArray[np.uint8]]) -> list[bytes]:
    """The rows of matrices of one width."""
    rows = _as_strings(np.concatenate(matrices))
    rows.sort(kind="stable")  # without the interpreter's lock; quick where they come in runs that are sorted
    found: list[bytes] = rows.view(f"V{rows.itemsize}").tolist()
    return found


def _keys(prefix: bytes, values: NDArray[np.uint8], places: Int64s) -> NDArray[np.uint8]:
    """uint8[n, k]: prefix, term, 0x01, physical offset."""
    count, size = values.shape
    keys = np.empty((count, len(prefix) + size + 9), np.uint8)
    keys[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    keys[:, len(prefix) : -9] = values
    keys[:, -9] = TERM_END[0]
    keys[:, -8:] = places.astype(">u8").view(np.uint8).reshape(count, 8)
    return keys


def _cut_keys(prefix: bytes, values: NDArray[np.uint8], places: Int64s) -> list[bytes]:
    """The same of values of which some or all are cut."""
    ends = places.astype(">u8").tobytes()
    return [
        prefix + term_of(row.tobytes()) + TERM_END + ends[8 * i : 8 * i + 8] for i, row in enumerate(values)
    ]


def _blocks(prefix: bytes, places: Int64s) -> list[tuple[bytes, bytes]]:
    """Entries of one term, of at most POSTINGS_MAX physical offsets each; places are ascending."""
    packed = places.astype(">u8").tobytes()
    step = 8 * POSTINGS_MAX
    return [
        (prefix + packed[begin : begin + 8], packed[begin + 8 : begin + step])
        for begin in range(0, len(packed), step)
    ]


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
