"""The tree `order`: where the messages of each priority lie, for topics that are received by priority.

| key                                                             | value (big-endian)                       |
|-----------------------------------------------------------------|------------------------------------------|
| topic number u32                                                | physical offset u64 from which on the    |
|                                                                 | topic's records are in the tree          |
| topic number, queue id u32, 9 - priority u8, queue offset u64   | physical offset u64, then the unique key |

So the entries of a queue are in the order in which it is received. The tree has a topic's messages that lie
in the log from its first row on, up to the index's position; a topic that was not received by priority for
a while has no such row, or a later one.

Invariants
- A message is in the tree only if the consume queue has it.
- Entries below the position never change, except that entries of removed records are removed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from struct import Struct
from typing import Final

import numpy as np

from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records import PROPERTY_UNIQ_KEY
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.layout import SYS_FLAG_TRANSACTION_COMMIT, SYS_FLAG_TRANSACTION_MASK
from trovemq_proto.records.priorities import PRIORITY_MAX
from trovemq_proto.records.priority_columns import priorities_of
from trovemq_store.files.trees import TreeChange, TreeReader, Trees
from trovemq_store.index.trees.layout import NUMBER, OFFSET, ORDER, TOPIC_VALUE, TOPICS, TopicEntry
from trovemq_store.index.trees.topic_numbers import TopicNumbers
from trovemq_store.index.trees.tree_index import TreeIndex
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.topics.deletions import TopicDeletions

KEY: Final = Struct(">IIBQ")
_KEYS: Final = np.dtype([("topic", ">u4"), ("queue_id", ">u4"), ("rank", "u1"), ("queue_offset", ">u8")])
assert _KEYS.itemsize == KEY.size
_UNIQ_KEY: Final = PROPERTY_UNIQ_KEY.encode()
ENTRY_HELD_BYTES: Final = 256
"""Bytes of memory of an entry as Python objects, with its unique id."""

PriorityTopics = Callable[[], frozenset[str]]
"""The topics that are received by priority now."""


class OrderEntries:
    """Builds the changes of the tree `order`."""

    def __init__(self, trees: Trees, topics: PriorityTopics) -> None:
        self._trees = trees
        self._topics = topics

    def start(self, position: PhysicalOffset, limit: PhysicalOffset) -> PhysicalOffset:
        """TreeIndex's `start`: the log is not read while there is nothing to index."""
        if self._topics():
            return position
        with self._trees.read() as reader:
            empty = not reader.count(ORDER)
        return max(position, limit) if empty else position

    def begin(self, numbers: TopicNumbers) -> None:
        self._numbers = numbers
        self._step_topics = self._topics()
        self._change = TreeChange(ORDER)
        with self._trees.read() as reader:
            entries = [entry for topic in self._step_topics if (entry := numbers.find(topic)) is not None]
            self._from_rows = {
                entry.number for entry in entries if reader.get(ORDER, NUMBER.pack(entry.number))
            }

    def add(self, run: DispatchBatch) -> None:
        change, topics = self._change, self._step_topics
        with self._trees.read() as reader:
            _forget_others(reader, run, topics, self._numbers, change)
        batch = _delivered(run)
        for topic, records in batch.topic_groups() if len(batch) else ():
            if topic not in topics:
                continue
            number = self._numbers.number(topic)
            if number not in self._from_rows:
                self._from_rows.add(number)
                first = run.physical_offset + int(batch.positions[records[0]])
                change.puts.append((NUMBER.pack(number), OFFSET.pack(first)))
            own = np.zeros(len(batch), np.bool_)
            own[records] = True
            change.puts += _entries(batch.where(own), run.physical_offset, number)

    @property
    def held_bytes(self) -> int:
        return ENTRY_HELD_BYTES * len(self._change.puts)

    def changes(self) -> list[TreeChange]:
        change, self._change = self._change, TreeChange(ORDER)
        change.puts.sort()
        return [change]


def _forget_others(
    reader: TreeReader,
    run: DispatchBatch,
    topics: frozenset[str],
    numbers: TopicNumbers,
    change: TreeChange,
) -> None:
    """Removes the first row of each topic in the run that is not received by priority now: the tree does not
    get these records."""
    for topic, _ in run.records.topic_groups() if len(run.records) else ():
        entry = None if topic in topics else numbers.find(topic)
        if entry is not None and reader.get(ORDER, key := NUMBER.pack(entry.number)) is not None:
            change.removals.append(key)


def _delivered(run: DispatchBatch) -> RecordBatch:
    """The records that consume queues have."""
    records = run.records
    if not len(records):
        return records
    transaction = records.sys_flags & SYS_FLAG_TRANSACTION_MASK
    chosen = (transaction == 0) | (transaction == SYS_FLAG_TRANSACTION_COMMIT)
    if run.alive is not None:
        chosen &= run.alive
    return records if chosen.all() else records.where(chosen)


def _entries(batch: RecordBatch, physical_offset: PhysicalOffset, number: int) -> list[tuple[bytes, bytes]]:
    keys = np.empty(len(batch), _KEYS)
    keys["topic"] = number
    keys["queue_id"] = batch.queue_ids
    keys["rank"] = PRIORITY_MAX - priorities_of(batch)
    keys["queue_offset"] = batch.queue_offsets
    joined, size = keys.tobytes(), _KEYS.itemsize
    ids = [b""] * len(batch)
    for scan in batch.property_scans:
        found = scan.find(_UNIQ_KEY)
        rows = zip(found.records.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
        for record, start, end in rows:
            ids[record] = scan.joined[start:end]
    places = (physical_offset + batch.positions).tolist()
    return [
        (joined[size * index : size * (index + 1)], OFFSET.pack(place) + unique_key)
        for index, (place, unique_key) in enumerate(zip(places, ids, strict=True))
    ]


class OrderTree:
    """Reads the tree as the last commit has it."""

    def __init__(self, trees: Trees, index: TreeIndex, deletions: TopicDeletions) -> None:
        self._trees = trees
        self._index = index
        self._deletions = deletions

    def covered(self, topic: str) -> tuple[PhysicalOffset, PhysicalOffset]:
        """[begin, end) of the log: the topic's messages there are in the tree."""
        with self._trees.read() as reader:
            number = self._number(reader, topic)
            begin = None if number is None else reader.get(ORDER, NUMBER.pack(number))
        end = self._index.position
        return (end, end) if begin is None else (min(OFFSET.unpack(begin)[0], end), end)

    def offsets(
        self, topic: str, queue_id: QueueId, priority: int, begin: int, end: int, count_max: int
    ) -> list[int]:
        """The first count_max queue offsets, ascending, of messages of that priority with begin <= offset <
        end."""
        with self._trees.read() as reader:
            number = self._number(reader, topic)
            if number is None:
                return []
            rank = PRIORITY_MAX - priority
            first, last = KEY.pack(number, queue_id, rank, begin), KEY.pack(number, queue_id, rank, end)
            entries = islice(reader.items(ORDER, first, last), count_max)
            return [int.from_bytes(key[-8:]) for key, _ in entries]

    def _number(self, reader: TreeReader, topic: str) -> int | None:
        value = reader.get(TOPICS, topic.encode())
        if value is None:
            return None
        entry = TopicEntry(*TOPIC_VALUE.unpack(value))
        return entry.number if entry.since >= self._deletions.deleted_below(topic) else None


def sweep_order(
    reader: TreeReader, begin: bytes, below: int, entries_max: int
) -> tuple[list[bytes], bytes | None]:
    """The keys, from `begin` on, of entries whose record lies below; and where to continue (None: at the
    end)."""
    removals: list[bytes] = []
    for seen, (key, value) in enumerate(reader.items(ORDER, begin)):
        if seen >= entries_max:
            return removals, key
        if len(key) == KEY.size and OFFSET.unpack_from(value)[0] < below:
            removals.append(key)
    return removals, None
