"""The offsets of the messages of each priority in a queue: the order in which a topic with `order = priority`
is received.

Receivers use the protocol `PriorityOrder`. `PriorityQueues` implements it: below an offset `begin` with the
tree `order` (index/trees/order_tree.py), if the store has trees; from there on in memory, with eight bytes
per message, in ten ascending arrays per queue. So only messages that the tree does not have yet are in
memory, and a start reads no record that the tree has. Without trees all messages are in memory, for queues
with receivers.

New messages of a queue are read when a caller needs them (from the log's visible part, many records at once),
so that no other part has to report them. A queue that was trimmed, deleted and rebuilt, or cut by recovery is
recognised by its content.

Invariants
- A queue's arrays cover its offsets [begin, end); each offset is in one of them. Unreadable messages have
  priority 4, so that a receive finds and counts them.
- An offset below `begin` is read only if the tree has all of [that offset, begin); else the arrays are
  rebuilt from that offset on.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trovemq_broker.groups.delivery.records import RecordReader, properties_of
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.fields import ROWS_MAX
from trovemq_proto.records.priorities import PRIORITY_COUNT, PRIORITY_DEFAULT, priority_of
from trovemq_proto.records.priority_columns import priorities_of
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE, readable_units
from trovemq_store.files.files import StorageError
from trovemq_store.index.consume_queue import ConsumeQueue

CHUNK_MAX: Final = 256
"""How many offsets are read from the tree in one step."""
STEP_MAX: Final = 8_192
"""How many units are read in one step."""
_TRIM_MIN: Final = 65_536
"""Offsets are removed from memory when this many of them are trimmed, or are in the tree."""
_SPAN_MAX: Final = 4 << 20
"""The most bytes of the log that are read in one piece."""

Int64s = NDArray[np.int64]
Priorities = NDArray[np.uint8]


class PriorityOrder(Protocol):
    """Offsets of one queue by priority. catch_up() must be called first: it returns whether the answers are
    complete."""

    units_read: int
    """Units that catch_up() has read since the start."""

    def catch_up(self, topic: str, queue_id: QueueId, from_offset: int, units_max: int) -> bool:
        """Reads about units_max further units of the queue. Returns whether all visible messages from
        from_offset on are known."""
        ...

    def next_offset(self, topic: str, queue_id: QueueId, priority: int, from_offset: int) -> int | None:
        """The first queue offset >= from_offset of a visible message with that priority."""
        ...

    def count(self, topic: str, queue_id: QueueId, priority: int, begin: int, end: int) -> int:
        """The number of visible messages with that priority and begin <= offset < end."""
        ...


_Range = tuple[ConsumeQueue, tuple[PhysicalOffset, PhysicalOffset], tuple[int, int]]
"""A queue, the part of the log that the tree covers, and the queue offsets in that part."""


class _Chunk(NamedTuple):
    """The offsets of one priority in [begin, end)."""

    begin: int
    offsets: list[int]
    end: int


class _Queue:
    """The entries of one queue."""

    __slots__ = ("arrays", "begin", "chunks", "end", "queue")

    def __init__(self, queue: ConsumeQueue, begin: int) -> None:
        self.queue = queue
        self.begin = self.end = begin
        self.arrays = [array("q") for _ in range(PRIORITY_COUNT)]
        self.chunks = [_Chunk(0, [], 0) for _ in range(PRIORITY_COUNT)]
        """By priority: the offsets that were read last from the tree."""

    def trim(self, offset: int) -> None:
        """Removes offsets below `offset`, which were trimmed or are in the tree."""
        for priority, entries in enumerate(self.arrays):
            gone = bisect_left(entries, offset)
            if gone:
                self.arrays[priority] = entries[gone:]
        self.begin = offset


class PriorityQueues:
    """The order of the queues of one store, in memory."""

    def __init__(self, store: MessageStore, records: RecordReader) -> None:
        self._store = store
        self._records = records
        self._tree = store.trees.order if store.trees is not None else None
        self.units_read = 0
        self._queues: dict[tuple[str, QueueId], _Queue] = {}
        self._ranges: dict[tuple[str, QueueId], _Range] = {}

    @property
    def entry_count(self) -> int:
        """The number of messages in memory, of all queues."""
        return sum(len(entries) for queue in self._queues.values() for entries in queue.arrays)

    def catch_up(self, topic: str, queue_id: QueueId, from_offset: int, units_max: int) -> bool:
        queue = self._store.consume_queues.get(topic, queue_id)
        if queue is None:
            self._queues.pop((topic, queue_id), None)
            return True
        known = self._queues.get((topic, queue_id))
        begin = min(max(from_offset, queue.min_offset), queue.max_offset)
        if known is not None and (known.queue is not queue or queue.max_offset < known.end):
            known = None
        first, end = self._in_tree(queue)
        if known is None or (begin < known.begin and not first <= begin <= known.begin <= end):
            known = _Queue(queue, max(begin, end) if first <= begin else begin)
        elif end > known.end and first <= known.begin:
            known = _Queue(queue, end)
        elif end - known.begin >= _TRIM_MIN and first <= known.begin:
            known.trim(end)
        elif queue.min_offset - known.begin >= _TRIM_MIN:
            known.trim(min(queue.min_offset, known.end))
        self._queues[topic, queue_id] = known
        while known.end < queue.max_offset and units_max > 0:
            units_max -= self._read_more(known, min(units_max, STEP_MAX))
        return known.end >= queue.max_offset

    def next_offset(self, topic: str, queue_id: QueueId, priority: int, from_offset: int) -> int | None:
        known = self._queues.get((topic, queue_id))
        if known is None:
            return None
        from_offset = max(from_offset, known.queue.min_offset)
        while from_offset < known.begin:
            chunk = known.chunks[priority]
            if not chunk.begin <= from_offset < chunk.end:
                chunk = known.chunks[priority] = self._chunk(known, priority, from_offset)
            at = bisect_left(chunk.offsets, from_offset)
            if at < len(chunk.offsets):
                return chunk.offsets[at]
            from_offset = chunk.end
        entries = known.arrays[priority]
        at = bisect_left(entries, from_offset)
        return entries[at] if at < len(entries) else None

    def count(self, topic: str, queue_id: QueueId, priority: int, begin: int, end: int) -> int:
        known = self._queues.get((topic, queue_id))
        if known is None:
            return 0
        begin, count = max(begin, known.queue.min_offset), 0
        while begin < min(end, known.begin):
            chunk = self._chunk(known, priority, begin)
            count += bisect_left(chunk.offsets, end)
            begin = chunk.end
        entries = known.arrays[priority]
        return count + max(0, bisect_left(entries, end) - bisect_left(entries, begin))

    def _in_tree(self, queue: ConsumeQueue) -> tuple[int, int]:
        """[first, end): the offsets of the queue that the tree has, and no later ones."""
        if self._tree is None:
            return queue.max_offset + 1, 0
        begin, end = self._tree.covered(queue.topic)
        if begin >= end:
            return queue.max_offset + 1, 0
        key = (queue.topic, queue.queue_id)
        found = self._ranges.get(key)
        if found is None or found[0] is not queue or found[1] != (begin, end):
            offsets = (queue.lower_bound(begin), queue.lower_bound(end))
            found = self._ranges[key] = (queue, (begin, end), offsets)
        return found[2]

    def _chunk(self, known: _Queue, priority: int, begin: int) -> _Chunk:
        """The next offsets from the tree, from `begin` on and below known.begin."""
        assert self._tree is not None, "without a tree all is in memory"
        assert begin < known.begin, "later offsets are in memory"
        queue = known.queue
        offsets = self._tree.offsets(queue.topic, queue.queue_id, priority, begin, known.begin, CHUNK_MAX)
        return _Chunk(begin, offsets, known.begin if len(offsets) < CHUNK_MAX else offsets[-1] + 1)

    def _read_more(self, known: _Queue, count: int) -> int:
        """Reads further units into memory. Returns how many."""
        begin = max(known.end, known.queue.min_offset)
        units = readable_units(known.queue, QueueOffset(begin), count)
        sizes = units["size"]
        present = np.flatnonzero(sizes != BLANK_UNIT_SIZE)
        offsets = begin + present.astype(np.int64)
        found = self._priorities(
            units["physical_offset"][present].astype(np.int64), sizes[present].astype(np.int64)
        )
        for priority in np.unique(found).tolist():
            known.arrays[priority].frombytes(offsets[found == priority].tobytes())
        known.end = begin + len(units)
        self.units_read += len(units)
        return max(1, len(units))

    def _priorities(self, physical_offsets: Int64s, sizes: Int64s) -> Priorities:
        if not len(sizes):
            return np.empty(0, np.uint8)
        if len(sizes) > ROWS_MAX:
            together = self._read_adjacent(physical_offsets, sizes)
            if together is not None:
                return together
            half = len(sizes) // 2
            return np.concatenate(
                (
                    self._priorities(physical_offsets[:half], sizes[:half]),
                    self._priorities(physical_offsets[half:], sizes[half:]),
                )
            )
        places = zip(physical_offsets.tolist(), sizes.tolist(), strict=True)
        return np.array([self._priority(at, size) for at, size in places], np.uint8)

    def _read_adjacent(self, physical_offsets: Int64s, sizes: Int64s) -> Priorities | None:
        """The priorities of records of one segment, read as one piece; None if it is larger than _SPAN_MAX,
        or one of them cannot be read."""
        first = PhysicalOffset(int(physical_offsets[0]))
        end = int(physical_offsets[-1] + sizes[-1])
        if first < 0 or end - first > _SPAN_MAX:
            return None
        try:
            data = self._store.read(first, end - first)
            return priorities_of(RecordBatch(data, physical_offsets - first, sizes)) if data else None
        except (StorageError, TroveError):
            return None

    def _priority(self, physical_offset: PhysicalOffset, size: int) -> int:
        record = self._records.read(physical_offset, size)
        return PRIORITY_DEFAULT if record is None else priority_of(properties_of(record))
