"""Windows of the producers that number their messages: the trees `producer` and `producer-sequence`.

| tree              | key                                       | value (big-endian)                         |
|-------------------|-------------------------------------------|--------------------------------------------|
| producer          | topic number u32, producer id             | physical offset i64, store time i64 of the |
|                   |                                           | last numbered message of it in the tree    |
| producer-sequence | topic number, producer id, 0, sequence u64| physical offset i64, queue id u32, queue   |
|                   |                                           | offset i64, store time i64                 |

They are kept for deduplicated topics, filled in the same steps as the tree `unique-id` (unique_entries.py)
and for the same time. They have the highest sequence of a producer, and the sequences within DEPTH below
that. If there are more than producers_max producers, those with the oldest last message are forgotten, each
as a whole.

Invariants
- A producer that is in one of the trees is in both.
- All sequences of a producer are there that were stored within the topic's window and within DEPTH of the
  highest such sequence, if since then fewer than producers_max others stored between two messages of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from operator import itemgetter
from struct import Struct
from typing import Final

from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.trees import TreeChange, TreeReader, Trees
from trovemq_store.index.trees.layout import NUMBER, OFFSET, PRODUCER, SEQUENCE
from trovemq_store.index.trees.producer_sequences import DEPTH, has_numbers, stored_numbers
from trovemq_store.index.trees.topic_numbers import TopicNumbers
from trovemq_store.index.trees.unique_entries import SWEEP_SHARE, VALUE, UniqueIdEntries
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.time_windows import Since, SinceOf

LAST: Final = Struct(">qq")
Places = dict[int, tuple[int, int, int, int]]
"""Sequence -> physical offset, queue id, queue offset, store time."""

_ID_END: Final = b"\x00"
PLACE_HELD_BYTES: Final = 512
"""Memory of a sequence as Python objects: its place, then its key and value."""
_STORE_MS: Final = 3


def producer_key(topic_number: int, producer: bytes) -> bytes:
    return NUMBER.pack(topic_number) + producer


def sequence_key(producer: bytes, sequence: int) -> bytes:
    """`producer`: its producer_key()."""
    return producer + _ID_END + OFFSET.pack(sequence)


def end_key(producer: bytes) -> bytes:
    """Greater than every sequence_key() of the producer."""
    return producer + b"\x01"


def top(
    reader: TreeReader, producer: bytes, since: Since, expired: list[bytes] | None = None
) -> tuple[int, int]:
    """The highest sequence in the tree that was stored within the window, and the physical offset of its
    message; -1 if there is none. The keys of higher ones, which have expired, are added to `expired`."""
    begin, end = sequence_key(producer, 0), end_key(producer)
    for key, value in reader.items(SEQUENCE, begin, end, reverse=True):
        place = VALUE.unpack(value)
        if since.has(place[0], place[_STORE_MS]):
            return OFFSET.unpack_from(key, len(key) - OFFSET.size)[0], place[0]
        if expired is not None:
            expired.append(key)
    return -1, -1


class ProducerEntries:
    """Builds the changes of both trees. `ids` says which topics are deduplicated."""

    def __init__(self, trees: Trees, ids: UniqueIdEntries, producers_max: int) -> None:
        self._trees = trees
        self._ids = ids
        self._producers_max = producers_max
        with trees.read() as reader:
            found = {key: LAST.unpack(value) for key, value in reader.items(PRODUCER, b"")}
        self.last: dict[bytes, tuple[int, int]] = found
        """The tree `producer` as the last commit has it."""
        self._step: tuple[dict[bytes, tuple[int, int]], list[bytes]] = ({}, [])

    def committed(self) -> None:
        """Call when the last changes() are in the trees."""
        used, forgotten = self._step
        self._step = ({}, [])
        self.last.update(used)
        for producer in forgotten:
            self.last.pop(producer, None)

    def begin(self, numbers: TopicNumbers) -> None:
        self._numbers = numbers
        self._found: dict[bytes, tuple[int, Places]] = {}
        self.held_bytes = 0

    def add(self, run: DispatchBatch) -> None:
        windows = self._ids.step_windows
        if windows and has_numbers(run.records):
            self._add(run, windows, self._numbers, self._found)
            self.held_bytes += PLACE_HELD_BYTES * len(run.records)

    def changes(self) -> list[TreeChange]:
        found = self._found
        self.begin(self._numbers)
        used = {}
        for producer, (_, places) in found.items():
            last = max(places.values())
            used[producer] = max(self.last.get(producer, (-1, -1)), (last[0], last[_STORE_MS]))
        forgotten = self._forgotten(used)
        self._step = used, forgotten
        kept = {producer: last for producer, last in used.items() if producer not in forgotten}
        changes = [
            TreeChange(PRODUCER, [(key, LAST.pack(*kept[key])) for key in sorted(kept)], forgotten),
            TreeChange(SEQUENCE),
        ]
        with self._trees.read() as reader:
            for producer in forgotten:
                changes[1].removals += _all_of(reader, producer)
            for producer in sorted(kept):
                window_ms, places = found[producer]
                _change_window(reader, producer, places, self._ids.step_since(window_ms), changes[1])
        changes[1].puts.sort(key=itemgetter(0))
        if found:
            fault_point("trees.before_window")
        return changes

    @staticmethod
    def _add(
        run: DispatchBatch,
        windows: Mapping[str, int],
        numbers: TopicNumbers,
        into: dict[bytes, tuple[int, Places]],
    ) -> None:
        batch = run.records if run.alive is None else run.records.where(run.alive)
        if not len(batch):
            return
        numbered = stored_numbers(batch)
        rows = list(
            zip(
                (run.physical_offset + batch.positions).tolist(),
                batch.queue_ids.tolist(),
                batch.queue_offsets.tolist(),
                batch.store_timestamps.tolist(),
                strict=True,
            )
        )
        for topic, records in batch.topic_groups():
            if topic not in windows:
                continue
            number = numbers.number(topic)
            own = numbered
            if len(records) < len(batch):
                chosen = set(records.tolist())
                own = [each for each in numbered if each.record in chosen]
            places: dict[bytes, Places] = {}
            for record, producer, sequence in own:
                if producer not in places:
                    key = producer_key(number, producer)
                    places[producer] = into.setdefault(key, (windows[topic], {}))[1]
                places[producer][sequence] = rows[record]

    def _forgotten(self, used: Mapping[bytes, tuple[int, int]]) -> list[bytes]:
        """The producers beyond producers_max, sorted by key."""
        excess = len(self.last.keys() | used.keys()) - self._producers_max
        if excess <= 0:
            return []
        after = {**self.last, **used}
        return sorted(nsmallest(excess, after, key=after.__getitem__))


def _all_of(reader: TreeReader, producer: bytes) -> list[bytes]:
    return [key for key, _ in reader.items(SEQUENCE, sequence_key(producer, 0), end_key(producer))]


def _change_window(
    reader: TreeReader, producer: bytes, places: Places, since: Since, change: TreeChange
) -> None:
    """Adds the changes of the producer's entries: an entry is left out or removed only when it certainly
    never counts again."""
    expired: list[bytes] = []
    in_tree, _ = top(reader, producer, since, expired)
    latest = max(places, key=places.__getitem__)
    alive = {
        one: place for one, place in places.items() if one == latest or since.has(place[0], place[_STORE_MS])
    }
    highest = max(in_tree, *alive)
    lowest = max(0, highest - DEPTH + 1)
    below = reader.items(SEQUENCE, sequence_key(producer, 0), sequence_key(producer, lowest))
    change.removals += sorted({*expired, *(key for key, _ in below)})
    puts = {
        sequence_key(producer, sequence): place for sequence, place in alive.items() if sequence >= lowest
    }
    known = reader.get_all(SEQUENCE, sorted(puts)) if min(alive) <= in_tree else {}
    for key, place in puts.items():
        if key not in known or VALUE.unpack(known[key])[0] <= place[0]:
            change.puts.append((key, VALUE.pack(*place)))


class ProducerSweeper:
    """Forgets producers that have stored nothing within their topic's window, in steps."""

    def __init__(
        self, trees: Trees, entries: ProducerEntries, ids: UniqueIdEntries, numbers: TopicNumbers
    ) -> None:
        self._trees = trees
        self._entries = entries
        self._ids = ids
        self._numbers = numbers
        self._next_ms = 0

    def step(self, since_of: SinceOf, steady_ms: int, entries_max: int) -> bool:
        """steady_ms: a time that never steps back. True: there is more to look at. StorageError."""
        if steady_ms < self._next_ms or not self._entries.last:
            return False
        windows = {topic: row.window_ms for topic, row in self._ids.rows.items()}
        since = {
            NUMBER.pack(entry.number): since_of(windows[topic])
            for topic in self._numbers.names()
            if topic in windows and (entry := self._numbers.find(topic)) is not None
        }
        gone = (key for key, last in self._entries.last.items() if not _counts(since.get(key[:4]), last))
        heads, sequences = TreeChange(PRODUCER), TreeChange(SEQUENCE)
        with self._trees.read() as reader:
            for producer in gone:
                heads.removals.append(producer)
                sequences.removals += _all_of(reader, producer)
                if len(heads.removals) + len(sequences.removals) >= entries_max:
                    break
        if not heads.removals:
            self._next_ms = steady_ms + max(1_000, min(windows.values(), default=3_600_000) // SWEEP_SHARE)
            return False
        self._trees.commit([heads, sequences])
        for producer in heads.removals:
            del self._entries.last[producer]
        return True


def _counts(since: Since | None, last: tuple[int, int]) -> bool:
    """Whether the producer's last message is within the window; None: its topic has none."""
    return since is not None and since.has(*last)
