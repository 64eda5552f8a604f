"""Checks the numbers of producers: first by the messages in memory, then by the trees (producer_entries.py).

| the number is                                          | the message is                               |
|--------------------------------------------------------|----------------------------------------------|
| of a producer that is not known                        | stored                                       |
| the next one                                           | stored                                       |
| higher than that                                       | stored; those between are missing: a gap     |
| lower, within DEPTH, not stored                        | stored: it fills a gap                       |
| stored before, the unique key the same or one has none | a duplicate: the reply names the original    |
| stored before, with another unique key                 | refused: two producers use one id            |
| lower still                                            | refused: it is unknown whether it was stored |

Invariant: sequences that were stored and are not in the trees yet are in memory, so the check misses nothing
that is in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.files.trees import Trees
from trovemq_store.index.trees.layout import SEQUENCE
from trovemq_store.index.trees.producer_entries import producer_key, sequence_key, top
from trovemq_store.index.trees.producer_sequences import DEPTH, SequencedRecord
from trovemq_store.index.trees.topic_numbers import TopicNumbers
from trovemq_store.index.trees.unique_entries import VALUE
from trovemq_store.index.trees.unique_ids import Known, MessagePosition
from trovemq_store.log.time_windows import Since
from trovemq_store.topics.deletions import TopicDeletions

_Owner = tuple[str, bytes]
"""Topic and producer."""


class Gap(NamedTuple):
    """The sequences from first to last, which were missing when a higher one came."""

    producer: bytes
    first: int
    last: int


@dataclass(slots=True)
class DedupResult:
    """The result of a batch: which records are not stored, by their index, and the gaps before records."""

    known: dict[int, Known] = field(default_factory=dict)
    repeats: dict[int, int] = field(default_factory=dict)
    """Index -> index of the first record in the batch that has the same id or number."""
    gaps: dict[int, Gap] = field(default_factory=dict)
    """Index of the record that came after a gap -> the gap."""
    filled: int = 0
    """How many records came after a higher number."""


class _Recent:
    """The sequences in memory of one producer: sequence -> physical offset, store time."""

    __slots__ = ("_highest", "places")

    def __init__(self) -> None:
        self.places: dict[int, tuple[PhysicalOffset, int]] = {}
        self._highest = -1

    def add(self, places: Mapping[int, tuple[PhysicalOffset, int]]) -> None:
        self.places.update(places)
        self._highest = max(self._highest, *places)

    def highest(self, alive_from: PhysicalOffset, since: Since) -> int:
        """The highest sequence that counts; -1 if none does."""
        place = self.places.get(self._highest)
        if place is None or place[0] < alive_from or not since.has(*place):
            alive = (key for key, (at, ms) in self.places.items() if at >= alive_from and since.has(at, ms))
            self._highest = max(alive, default=-1)
        return self._highest


class Producers:
    """Used on the engine's thread. `known_at`: the place and end of the record at a physical offset, synced
    or not; `id_at`: its unique key; None if it cannot be read."""

    def __init__(
        self,
        trees: Trees,
        numbers: TopicNumbers,
        deletions: TopicDeletions,
        known_at: Callable[[PhysicalOffset], Known | None],
        id_at: Callable[[PhysicalOffset], bytes | None],
    ) -> None:
        self._trees: Final = trees
        self._numbers: Final = numbers
        self._deletions: Final = deletions
        self._known_at = known_at
        self._id_at = id_at
        self._recent: dict[_Owner, _Recent] = {}
        self._lots: deque[tuple[PhysicalOffset, _Owner, list[int]]] = deque()

    def highest(self, topic: str, producer: bytes, since: Since) -> int:
        """The highest sequence that was stored within the window; -1 if none was. StorageError."""
        alive_from = self._deletions.deleted_below(topic)
        recent = self._recent.get((topic, producer))
        found = recent.highest(alive_from, since) if recent is not None else -1
        entry = self._numbers.find(topic)
        if entry is not None:
            with self._trees.read() as reader:
                found = max(found, top(reader, producer_key(entry.number, producer), since)[0])
        return found

    def check(
        self,
        topic: str,
        since: Since,
        numbered: Sequence[SequencedRecord],
        ids: Sequence[bytes],
    ) -> DedupResult:
        """Records in the order of their batch; `ids`: the unique key of each record of the batch.

        TroveError PRODUCER_SEQUENCE_TOO_OLD, PRODUCER_SEQUENCE_CONFLICT; StorageError.
        """
        result = DedupResult()
        by_producer: dict[bytes, list[SequencedRecord]] = {}
        for each in numbered:
            by_producer.setdefault(each.producer, []).append(each)
        for producer, own in by_producer.items():
            self._check_producer(topic, producer, since, own, ids, result)
        return result

    def _check_producer(
        self,
        topic: str,
        producer: bytes,
        since: Since,
        own: Sequence[SequencedRecord],
        ids: Sequence[bytes],
        result: DedupResult,
    ) -> None:
        highest = self.highest(topic, producer, since)
        stored: dict[int, Known] = {}
        if min(each.sequence for each in own) <= highest:
            stored = self._find(topic, producer, since, {each.sequence for each in own})
        firsts: dict[int, int] = {}
        for index, _, sequence in own:
            if sequence <= highest - DEPTH:
                raise TroveError(
                    errors.PRODUCER_SEQUENCE_TOO_OLD,
                    f"sequence {sequence} of producer {producer.decode()} in topic {topic} is not within "
                    f"{DEPTH} of its highest, {highest}",
                    topic=topic,
                    highest=highest,
                )
            original = stored.get(sequence)
            if original is not None:
                self._check_same(topic, own[0], sequence, ids[index], self._id_at(original.place[0]))
                result.known[index] = original
            elif sequence in firsts:
                self._check_same(topic, own[0], sequence, ids[index], ids[firsts[sequence]])
                result.repeats[index] = firsts[sequence]
            else:
                firsts[sequence] = index
                if 0 <= highest < sequence - 1:
                    result.gaps[index] = Gap(producer, highest + 1, sequence - 1)
                result.filled += sequence < highest
                highest = max(highest, sequence)

    @staticmethod
    def _check_same(
        topic: str, numbered: SequencedRecord, sequence: int, unique_id: bytes, original_id: bytes | None
    ) -> None:
        if unique_id and original_id and unique_id != original_id:
            raise TroveError(
                errors.PRODUCER_SEQUENCE_CONFLICT,
                f"sequence {sequence} of producer {numbered.producer.decode()} in topic {topic} is another "
                f"message: {original_id[:255].decode('utf-8', 'replace')}",
                topic=topic,
            )

    def _find(self, topic: str, producer: bytes, since: Since, sequences: set[int]) -> dict[int, Known]:
        """The sequences that were stored within the window, and their messages."""
        found: dict[int, Known] = {}
        alive_from = self._deletions.deleted_below(topic)
        entry = self._numbers.find(topic)
        if entry is not None:
            own = producer_key(entry.number, producer)
            keys = {sequence_key(own, sequence): sequence for sequence in sequences}
            with self._trees.read() as reader:
                in_tree = reader.get_all(SEQUENCE, sorted(keys))
            for key, value in in_tree.items():
                place = MessagePosition(*VALUE.unpack(value))
                if since.has(place.physical_offset, place.store_timestamp):
                    found[keys[key]] = Known(place, LOG_ORIGIN)
        recent = self._recent.get((topic, producer))
        if recent is None:
            return found
        for sequence in sequences & recent.places.keys():
            offset, store_ms = recent.places[sequence]
            counts = offset >= alive_from and since.has(offset, store_ms)
            known = self._known_at(offset) if counts else None
            if known is not None:
                found[sequence] = known
        return found

    def remember(
        self,
        topic: str,
        stored: Iterable[tuple[SequencedRecord, PhysicalOffset]],
        store_ms: int,
        end: PhysicalOffset,
    ) -> None:
        """Remembers records that were just appended, with their physical offsets; the last one ends at
        `end`."""
        added: dict[bytes, dict[int, tuple[PhysicalOffset, int]]] = {}
        for (_, producer, sequence), physical_offset in stored:
            added.setdefault(producer, {})[sequence] = physical_offset, store_ms
        for producer, places in added.items():
            owner = topic, producer
            recent = self._recent.get(owner)
            if recent is None:
                recent = self._recent[owner] = _Recent()
            recent.add(places)
            self._lots.append((end, owner, list(places)))

    def committed(self, position: PhysicalOffset) -> None:
        """Forgets the sequences of records below the position: the trees have them."""
        while self._lots and self._lots[0][0] <= position:
            _, owner, sequences = self._lots.popleft()
            recent = self._recent.get(owner)
            if recent is None:
                continue
            for sequence in sequences:
                if recent.places.get(sequence, (position, 0))[0] < position:
                    del recent.places[sequence]
            if not recent.places:
                del self._recent[owner]
