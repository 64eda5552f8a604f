"""The entries of the search trees: where each record lies, and each of its terms.

The terms of a record are those of the key index (unique key, keys, tag) and the properties that its topic
declares as indexed. A record of a transaction that was rolled back has none, as in the key index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.layout import SYS_FLAG_TRANSACTION_MASK, SYS_FLAG_TRANSACTION_ROLLBACK
from trovemq_store.files.trees import LONG_RUN, TreeChange
from trovemq_store.index.trees.layout import (
    KEY,
    LOCATION,
    LOCATION_ENTRY,
    LOCATION_RECORDS_MAX,
    OFFSET,
    PROPERTY,
    TAG,
    UNIQUE_KEY,
)
from trovemq_store.index.trees.rows import Int64s
from trovemq_store.index.trees.term_entries import IndexedRecords, TermEntries
from trovemq_store.index.trees.topic_numbers import TopicNumbers
from trovemq_store.log.projection import DispatchBatch

IndexedProperties = Callable[[str], tuple[str, ...]]
"""topic -> names of the properties that it declares as indexed."""

_UNIQ_KEY: Final = PROPERTY_UNIQ_KEY.encode()
_KEYS: Final = PROPERTY_KEYS.encode()
_TAGS: Final = PROPERTY_TAGS.encode()
LOCATION_HELD_BYTES: Final = LOCATION_RECORDS_MAX * LOCATION_ENTRY.itemsize + 160


class SearchEntries:
    """Builds the changes of the trees `location` and `term`."""

    def __init__(self, indexed_properties: IndexedProperties) -> None:
        self._indexed_properties = indexed_properties

    def begin(self, numbers: TopicNumbers) -> None:
        self._numbers = numbers
        self._locations: list[tuple[bytes, bytes]] = []
        self._terms = TermEntries()
        self._declared: dict[str, tuple[str, ...]] = {}  # one answer per topic for the whole step

    def add(self, run: DispatchBatch) -> None:
        batch = run.records if run.alive is None else run.records.where(run.alive)
        if not len(batch):
            return
        offsets = run.physical_offset + batch.positions
        topics = [topic for topic, _ in batch.topic_groups()]
        group_of = _group_of(batch)
        counts = np.bincount(group_of)
        byte_counts = np.bincount(group_of, batch.sizes).astype(np.int64)
        totals = zip(topics, counts.tolist(), byte_counts.tolist(), strict=True)
        numbers = np.array([self._numbers.count(*total) for total in totals])[group_of]
        self._locations += _locations(batch, offsets, numbers)
        self._declare(topics, PhysicalOffset(int(offsets[0])))
        records = IndexedRecords(numbers, offsets, counts[group_of] < LONG_RUN)
        self._add_terms(batch, topics, group_of, records)

    def _declare(self, topics: Sequence[str], begin: PhysicalOffset) -> None:
        """Asks once a step which properties of a topic are indexed, and notes it."""
        for topic in topics:
            if topic not in self._declared:
                names = self._declared[topic] = self._indexed_properties(topic)
                self._numbers.declare(topic, names, begin)

    def _add_terms(
        self, batch: RecordBatch, topics: Sequence[str], group_of: Int64s, records: IndexedRecords
    ) -> None:
        rolled_back = batch.sys_flags & SYS_FLAG_TRANSACTION_MASK == SYS_FLAG_TRANSACTION_ROLLBACK
        kept = ~rolled_back if rolled_back.any() else None
        by_name: dict[str, list[int]] = {}
        for group, topic in enumerate(topics):
            for name in self._declared[topic]:
                by_name.setdefault(name, []).append(group)
        for scan in batch.property_scans:
            found = [
                ((UNIQUE_KEY, ""), scan.find(_UNIQ_KEY)),
                ((KEY, ""), scan.words(scan.find(_KEYS))),
                ((TAG, ""), scan.find(_TAGS)),
            ]
            for name, groups in by_name.items():
                slices = scan.find(name.encode())
                declares = np.zeros(len(topics), np.bool_)
                declares[groups] = True
                found.append(((PROPERTY, name), slices.where(declares[group_of[slices.records]])))
            for kind, slices in found:
                chosen = slices if kept is None else slices.where(kept[slices.records])
                self._terms.add(kind, scan, chosen, records)

    @property
    def held_bytes(self) -> int:
        return self._terms.held_bytes + LOCATION_HELD_BYTES * len(self._locations)

    def changes(self) -> list[TreeChange]:
        found = [TreeChange(LOCATION, self._locations), *self._terms.changes()]
        self.begin(self._numbers)
        return found


def _group_of(batch: RecordBatch) -> Int64s:
    """For each record, which of batch.topic_groups() it belongs to."""
    groups = [records for _, records in batch.topic_groups()]
    found = np.empty(len(batch), np.int64)
    found[np.concatenate(groups)] = np.repeat(np.arange(len(groups)), [len(records) for records in groups])
    return found


def _locations(batch: RecordBatch, offsets: Int64s, numbers: Int64s) -> list[tuple[bytes, bytes]]:
    entries = np.empty(len(batch), LOCATION_ENTRY)
    entries["topic"] = numbers
    entries["queue_id"] = batch.queue_ids
    entries["queue_offset"] = batch.queue_offsets
    found = []
    for begin in range(0, len(batch), LOCATION_RECORDS_MAX):
        part = slice(begin, begin + LOCATION_RECORDS_MAX)
        entries["distance"][part] = offsets[part] - offsets[begin]
        found.append((OFFSET.pack(int(offsets[begin])), entries[part].tobytes()))
    return found
