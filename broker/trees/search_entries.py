"""What the search trees take of records: where each lies, and each of its terms.

The terms of a record are those of the key index (unique key, keys, tag) and the properties that its topic
declares as indexed. A record of a transaction that was rolled back has none, as in the key index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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

    trees: Final = (LOCATION, TERM)

    def __init__(self, indexed_properties: IndexedProperties) -> None:
        self._indexed_properties = indexed_properties

    def changes(self, runs: Iterable[DispatchBatch], numbers: TopicNumbers) -> list[TreeChange]:
        """Of runs in log order."""
        locations: list[tuple[bytes, bytes]] = []
        terms = _Terms()
        for run in runs:
            batch = run.records if run.alive is None else run.records.where(run.alive)
            if len(batch):
                offsets = run.physical_offset + batch.positions
                locations += _locations(batch, offsets, numbers)
                self._add_terms(batch, offsets, numbers, terms)
        return [TreeChange(LOCATION, locations), TreeChange(TERM, terms.entries())]

    def _add_terms(self, batch: RecordBatch, offsets: Int64s, numbers: TopicNumbers, terms: _Terms) -> None:
        rolled_back = batch.sys_flags & SYS_FLAG_TRANSACTION_MASK == SYS_FLAG_TRANSACTION_ROLLBACK
        left_out = rolled_back if rolled_back.any() else None
        groups = batch.topic_groups()
        for scan in batch.property_scans:
            found = {
                (UNIQUE_KEY, ""): scan.find(_UNIQ_KEY),
                (KEY, ""): scan.words(scan.find(_KEYS)),
                (TAG, ""): scan.find(_TAGS),
            }
            for topic, records in groups:
                number = numbers.number(topic)
                names = self._indexed_properties(topic)
                mine = {**found, **{(PROPERTY, name): scan.find(name.encode()) for name in names}}
                for (kind, name), slices in mine.items():
                    chosen = slices if len(groups) == 1 else slices.where(np.isin(slices.records, records))
                    if left_out is not None:
                        chosen = chosen.where(~left_out[chosen.records])
                    if len(chosen.records):
                        prefix = term_prefix(number, kind, name)
                        terms.add(prefix, scan, chosen, offsets, shared=kind in (TAG, PROPERTY))


class _Terms:
    """Entries of `term` on their way, by the prefix of their keys: no prefix begins another one, so each lot
    is sorted by itself. `single` holds whole keys; `shared` the physical offsets of terms that many records
    have."""

    def __init__(self) -> None:
        self._single: dict[bytes, list[bytes]] = {}
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
            else:
                self._single.setdefault(prefix, []).extend(_keys(prefix, values, places))

    def _add_shared(self, into: dict[bytes, list[Int64s]], values: NDArray[np.uint8], places: Int64s) -> None:
        distinct, which = np.unique(_as_strings(values), return_inverse=True)
        order = np.argsort(which, kind="stable")
        begins = np.searchsorted(which[order], np.arange(len(distinct) + 1)).tolist()
        for begin, end in pairwise(begins):
            value = values[order[begin]].tobytes()
            into.setdefault(term_of(value), []).append(places[order[begin:end]])

    def entries(self) -> list[tuple[bytes, bytes]]:
        """Sorted by key."""
        found: list[tuple[bytes, bytes]] = []
        for prefix in sorted({*self._single, *self._shared}):
            keys = self._single.get(prefix)
            if keys is not None:
                keys.sort()
                found += [(key, b"") for key in keys]
            for term, places in sorted(self._shared.get(prefix, {}).items(), key=_term_order):
                found += _blocks(prefix + term + TERM_END, np.sort(np.concatenate(places)))
        return found


def _term_order(item: tuple[bytes, list[Int64s]]) -> bytes:
    return item[0] + TERM_END


def _values(scan: PropertyScan, starts: Int64s, size: int) -> NDArray[np.uint8]:
    """uint8[n, size]: the slices of that size."""
    rows: NDArray[np.uint8] = scan.flat[starts[:, None] + np.arange(size)]
    return rows


def _as_strings(values: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """bytes[n]; of one size, so that zeros at an end make no two equal that are not."""
    return np.ascontiguousarray(values).view(f"S{values.shape[1]}")[:, 0]


def _keys(prefix: bytes, values: NDArray[np.uint8], places: Int64s) -> list[bytes]:
    """prefix, term, 0x01, physical offset: for each."""
    count, size = values.shape
    if size > TERM_SIZE_MAX:
        ends = places.astype(">u8").tobytes()
        return [
            prefix + term_of(values[i].tobytes()) + TERM_END + ends[8 * i : 8 * i + 8] for i in range(count)
        ]
    width = len(prefix) + size + 9
    keys = np.empty((count, width), np.uint8)
    keys[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    keys[:, len(prefix) : -9] = values
    keys[:, -9] = TERM_END[0]
    keys[:, -8:] = places.astype(">u8").view(np.uint8).reshape(count, 8)
    joined = keys.tobytes()
    return [joined[begin : begin + width] for begin in range(0, len(joined), width)]


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
