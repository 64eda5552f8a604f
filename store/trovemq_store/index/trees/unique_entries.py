"""Unique ids of deduplicated topics: the tree `unique-id`, its entries from the log, and their sweep.

| tree      | key                      | value (big-endian)                                                  |
|-----------|--------------------------|---------------------------------------------------------------------|
| unique-id | topic number u32, id     | physical offset i64, queue id u32, queue offset i64, store time i64 |
| meta      | `unique-ids:` topic name | from i64, window i64 (ms)                                           |

Queue id 4294967295: the record withdraws the message (it was rolled back, given up or recalled); the id may
be stored again.

An id of more than 255 bytes is cut: its first 240 bytes and the BLAKE2b of all of it (16 bytes). The tree has
the place where a producer's message with the id was stored last; half and delayed messages are under the
topic that the producer named. Copies that the broker makes (commits, deliveries, retries, records that are
moved or appended again) are recognised by their records and left out.

A topic's row in `meta` says that every id which was stored within `window` before now, at or above `from` and
below the index's position, is in the tree. A topic without its row is read again from where its window may
begin.

Invariant: only entries older than the window in their topic's row are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_store.files.trees import TreeChange, TreeReader, Trees, key_after
from trovemq_store.index.trees.layout import META, NUMBER, UNIQUE_ID
from trovemq_store.index.trees.rows import Int64s, Matrix
from trovemq_store.index.trees.topic_numbers import TopicNumbers
from trovemq_store.index.trees.unique_columns import VALUE_FIELDS, UniqueColumns, free_again, values_of
from trovemq_store.index.trees.unique_keys import WAITING_TOPICS, WITHDRAWALS, waiting_ids, withdrawn_ids
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.time_windows import Since, SinceOf

ROW_PREFIX: Final = b"unique-ids:"
SWEEP_SHARE: Final = 8
"""After this share of the shortest window the tree is walked again."""

VALUE: Final = Struct(">qIqq")
_ROW: Final = Struct(">qq")
assert VALUE.size == VALUE_FIELDS.itemsize

_EVERYTHING: Final = Since(LOG_ORIGIN, LOG_ORIGIN, 0)
Windows = Mapping[str, int]
"""Deduplicated topics, and for how many milliseconds an id is known."""


class Row(NamedTuple):
    """A deduplicated topic's entry in the tree `meta`: from where on its ids are in the tree, and its window
    then."""

    begin: PhysicalOffset
    window_ms: int


class UniqueIdEntries:
    """Builds the changes of the tree `unique-id`. `windows` and `begin_of` (topic, window -> from
    which physical offset on records may be of that window) are called on the engine's thread, in start()."""

    def __init__(
        self,
        trees: Trees,
        windows: Callable[[], Windows],
        begin_of: Callable[[str, int], PhysicalOffset],
        since_of: Callable[[], SinceOf],
    ) -> None:
        self._trees = trees
        self._windows = windows
        self._begin_of = begin_of
        self._since_of = since_of
        self._begins: dict[tuple[str, int], PhysicalOffset] = {}
        self._highest = LOG_ORIGIN
        """The highest position of the tree's entries: a record below it that is applied again replaces
        nothing newer."""
        self._step_begin = LOG_ORIGIN
        self.step_windows: Windows = {}
        """The windows of the step that start() began."""
        self.step_since: SinceOf = since_of()
        """The records of a window when start() was called."""
        self._step_rows: dict[str, Row] = {}
        with trees.read() as reader:
            found = reader.items(META, ROW_PREFIX, key_after(ROW_PREFIX))
            rows = {key[len(ROW_PREFIX) :].decode(): Row(*_ROW.unpack(value)) for key, value in found}
        self.rows: dict[str, Row] = rows
        """The rows of topics in `meta`, as of the last commit."""

    def start(self, position: PhysicalOffset, limit: PhysicalOffset) -> PhysicalOffset:
        """Where the next step is to begin: at the position; earlier if a topic's window has not been read
        yet; at the limit if no topic is deduplicated. On the engine's thread, before a step."""
        self.step_windows = windows = self._windows()
        self.step_since = self._since_of() if windows else self.step_since
        self._highest = max(self._highest, position)
        if not windows and not self.rows:
            self._begins.clear()
            return limit
        self._step_begin = min(
            (self._needed(topic, window_ms) for topic, window_ms in self._unread(windows)), default=position
        )
        self._step_begin = min(self._step_begin, position)
        return self._step_begin

    def complete(self, position: PhysicalOffset) -> bool:
        """Whether the windows of all topics were read up to the position."""
        return all(
            self._needed(topic, window_ms) >= position for topic, window_ms in self._unread(self._windows())
        )

    def _unread(self, windows: Windows) -> list[tuple[str, int]]:
        return [
            (topic, window_ms)
            for topic, window_ms in windows.items()
            if (row := self.rows.get(topic)) is None or row.window_ms < window_ms
        ]

    def _needed(self, topic: str, window_ms: int) -> PhysicalOffset:
        """Where the topic's window begins in the log, as at the first call: later it could only be higher."""
        key = topic, window_ms
        if key not in self._begins:
            self._begins[key] = self._begin_of(topic, window_ms)
        return self._begins[key]

    def committed(self) -> None:
        """Call when the last changes() are in the trees, on the engine's thread."""
        self.rows = self._step_rows
        self._begins.clear()

    def begin(self, numbers: TopicNumbers) -> None:
        """Begins the step for which start() was called."""
        self._numbers = numbers
        self._columns = UniqueColumns()
        self._step_end = self._step_begin

    def add(self, run: DispatchBatch) -> None:
        self._step_end = run.end
        batch = run.records if run.alive is None else run.records.where(run.alive)
        if self.step_windows and len(batch):
            offsets = run.physical_offset + batch.positions
            _add(batch, offsets, self.step_windows, self._numbers, self._columns)

    @property
    def held_bytes(self) -> int:
        return self._columns.held_bytes

    def changes(self) -> list[TreeChange]:
        begin = self._step_begin
        change = self._columns.change()
        if begin < self._highest:
            change = self._newer(change)
        self._highest = max(self._highest, self._step_end)
        self.begin(self._numbers)
        return [change, self._row_changes(self.step_windows, begin)]

    def _newer(self, change: TreeChange) -> TreeChange:
        """The entries that are not older than those in the tree."""
        entries = [*change.puts, *change.entries()]
        with self._trees.read() as reader:
            known = reader.get_all(UNIQUE_ID, [key for key, _ in entries])
        puts = [(key, value) for key, value in entries if value[:8] >= known.get(key, b"")[:8]]
        return TreeChange(UNIQUE_ID, puts)

    def _row_changes(self, windows: Windows, begin: PhysicalOffset) -> TreeChange:
        rows = {}
        for topic, window_ms in windows.items():
            row = self.rows.get(topic)
            read_before = row is not None and row.window_ms >= window_ms
            rows[topic] = Row(row.begin if row is not None and read_before else begin, window_ms)
        self._step_rows = rows
        change = TreeChange(META)
        change.removals += [ROW_PREFIX + topic.encode() for topic in self.rows if topic not in rows]
        for topic in sorted(rows):
            if rows[topic] != self.rows.get(topic):
                change.puts.append((ROW_PREFIX + topic.encode(), _ROW.pack(*rows[topic])))
        return change


def _add(
    batch: RecordBatch, offsets: Int64s, windows: Windows, numbers: TopicNumbers, into: UniqueColumns
) -> None:
    values: Matrix | None = None
    for topic, records in batch.topic_groups():
        if topic not in windows and topic not in WAITING_TOPICS and topic not in WITHDRAWALS:
            continue
        if values is None:
            values = values_of(batch, offsets)
        if topic in windows:
            chosen = np.zeros(len(batch), np.bool_)
            chosen[records] = True
            into.add(numbers.number(topic), batch, chosen, values)
            continue
        of_topic = set(records.tolist())
        if topic in WAITING_TOPICS:
            _add_named(waiting_ids(batch), of_topic, windows, numbers, values, into)
        if withdrawn := withdrawn_ids(batch, topic):
            _add_named(withdrawn, of_topic, windows, numbers, free_again(values), into)


def _add_named(
    found: Mapping[str, list[tuple[int, bytes]]],
    mine: Container[int],
    windows: Windows,
    numbers: TopicNumbers,
    values: Matrix,
    into: UniqueColumns,
) -> None:
    for topic, ids in found.items():
        if topic in windows:
            chosen = [(record, text) for record, text in ids if record in mine]
            into.add_named(numbers.number(topic), chosen, values)


class UniqueIdSweeper:
    """Removes entries older than the window in their topic's row, in steps."""

    def __init__(self, trees: Trees, entries: UniqueIdEntries, numbers: TopicNumbers) -> None:
        self._trees = trees
        self._entries = entries
        self._numbers = numbers
        self._at: bytes | None = None
        self._next_ms = 0

    def step(self, since_of: SinceOf, steady_ms: int, entries_max: int) -> bool:
        """steady_ms: a time that never steps back. True: there is more to look at. StorageError."""
        if self._at is None:
            if steady_ms < self._next_ms:
                return False
            windows = [row.window_ms for row in self._entries.rows.values()]
            pause_ms = max(1_000, min(windows, default=3_600_000) // SWEEP_SHARE)
            self._at, self._next_ms = b"", steady_ms + pause_ms
        with self._trees.read() as reader:
            change = self._walk(reader, since_of, entries_max)
        if change.removals:
            self._trees.commit([change])
        return self._at is not None

    def _walk(self, reader: TreeReader, since_of: SinceOf, entries_max: int) -> TreeChange:
        rows = self._entries.rows
        since = {
            NUMBER.pack(entry.number): since_of(rows[topic].window_ms) if topic in rows else None
            for topic in self._numbers.names()
            if (entry := self._numbers.find(topic)) is not None
        }
        change = TreeChange(UNIQUE_ID)
        assert self._at is not None, "the walk has begun"
        assert entries_max > 0, "a step looks at entries"
        seen = list(islice(reader.items(UNIQUE_ID, self._at), entries_max))
        for key, value in seen:
            window, place = since.get(key[:4], _EVERYTHING), VALUE.unpack(value)
            if window is None or not window.has(place[0], place[3]):
                change.removals.append(key)
        self._at = seen[-1][0] + b"\x00" if len(seen) == entries_max else None
        return change
