"""Removing entries of removed records: below the log's beginning, or of topics that were deleted.

The entries of a removed record cannot be found from the record, so the trees are walked from the lowest key
to the highest, in steps, each time that the log's beginning has moved. The place of the walk is not stored:
after a restart it begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.trees import TreeChange, TreeReader, Trees, key_after
from trovemq_store.index.trees.layout import (
    LOCATION,
    OFFSET,
    ORDER,
    PRODUCER,
    RETIRED,
    SEQUENCE,
    TERM,
    UNIQUE_ID,
    postings,
)
from trovemq_store.index.trees.order_tree import sweep_order
from trovemq_store.index.trees.topic_numbers import TopicNumbers

_BY_TOPIC = (TERM, UNIQUE_ID, PRODUCER, SEQUENCE, ORDER)
"""Trees whose keys begin with a topic's number."""


class Sweeper:
    def __init__(self, trees: Trees, numbers: TopicNumbers, min_offset: Callable[[], PhysicalOffset]) -> None:
        self._trees = trees
        self._numbers = numbers
        self._min_offset = min_offset
        self._swept = 0
        self._walking_to = 0
        self._at = b""
        self._order_at: bytes | None = None

    def step(self, entries_max: int) -> bool:
        """Removes entries of removed records and topics, about `entries_max`, more than 1. True: there may be
        more to remove. StorageError."""
        assert entries_max > 1, "of two blocks of locations one may be removed"
        if gone := self._numbers.retire_deleted():
            self._commit(gone)
            return True
        with self._trees.read() as reader:
            changes = self._retired(reader, entries_max)
            more = bool(changes)
            if not changes:
                changes, more = self._walk(reader, entries_max)
        if changes:
            self._trees.commit(changes)
        assert self._swept <= self._min_offset(), "only records below the log's beginning are removed"
        return more

    def _commit(self, changes: list[TreeChange]) -> None:
        try:
            self._trees.commit(changes)
        except BaseException:
            with self._trees.read() as reader:
                self._numbers.forget(reader)
            raise

    def _retired(self, reader: TreeReader, entries_max: int) -> list[TreeChange]:
        for number, _ in reader.items(RETIRED, b""):
            for tree in _BY_TOPIC:
                removals = []
                for key, _ in reader.items(tree, number, key_after(number)):
                    removals.append(key)
                    if len(removals) >= entries_max:
                        break
                if removals:
                    return [TreeChange(tree, removals=removals)]
            return [TreeChange(RETIRED, removals=[number])]
        return []

    def _walk(self, reader: TreeReader, entries_max: int) -> tuple[list[TreeChange], bool]:
        if not self._walking_to:
            if self._min_offset() <= self._swept:
                return [], False
            self._walking_to, self._at, self._order_at = self._min_offset(), b"", b""
        below = self._walking_to
        locations = [key for key, _ in islice(reader.items(LOCATION, b"", OFFSET.pack(below)), entries_max)]
        if len(locations) > 1:  # the last block may reach above
            return [TreeChange(LOCATION, removals=locations[:-1])], True
        if self._order_at is not None:
            removals, self._order_at = sweep_order(reader, self._order_at, below, entries_max)
            return [TreeChange(ORDER, removals=removals)], True
        change = TreeChange(TERM)
        for seen, (key, value) in enumerate(reader.items(TERM, self._at)):
            if seen >= entries_max:
                self._at = key
                return [change], True
            _sweep_term(key, value, PhysicalOffset(below), change)
        self._swept, self._walking_to = below, 0
        return [change], self._min_offset() > self._swept


def _sweep_term(key: bytes, value: bytes, below: PhysicalOffset, change: TreeChange) -> None:
    """Adds to `change` the removals of an entry of `term`."""
    if OFFSET.unpack_from(key, len(key) - 8)[0] >= below:
        return
    change.removals.append(key)
    kept = [offset for offset in postings(key, value) if offset >= below] if value else []
    if kept:
        change.puts.append((key[:-8] + OFFSET.pack(kept[0]), np.array(kept[1:], ">u8").tobytes()))
