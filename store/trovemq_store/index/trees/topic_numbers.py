"""The numbers of topics in the trees, and how many messages and bytes of each are indexed.

Invariants
- A number belongs to one topic from its creation to its deletion, and is never assigned again.
- changes() returns the changes, which are part of the commit that uses them.
"""

from __future__ import annotations

from collections.abc import Sequence

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.trees import TreeChange, TreeReader, key_after
from trovemq_store.index.trees.layout import (
    META,
    NEXT_TOPIC_KEY,
    NUMBER,
    OFFSET,
    PROPERTY_FROM,
    RETIRED,
    TOPIC_VALUE,
    TOPICS,
    TopicEntry,
    property_key,
)
from trovemq_store.topics.deletions import TopicDeletions


class TopicNumbers:
    """The numbers as of the last commit. Used by one thread at a time; call forget() after a failed
    commit."""

    def __init__(self, reader: TreeReader, deletions: TopicDeletions) -> None:
        self._deletions = self._of_step = deletions
        self._next = 1
        self._entries: dict[str, TopicEntry] = {}
        self._changed: set[str] = set()
        self._retired: list[int] = []
        self._declared: dict[int, set[bytes]] = {}  # by number: the keys of `meta`
        self._declarations = TreeChange(META)
        self._looked_at = -1  # the version of the deletions
        self.forget(reader)

    def forget(self, reader: TreeReader) -> None:
        """Returns to the state in the trees."""
        value = reader.get(META, NEXT_TOPIC_KEY)
        self._next = NUMBER.unpack(value)[0] if value else 1
        self._entries = {
            key.decode(): TopicEntry(*TOPIC_VALUE.unpack(found)) for key, found in reader.items(TOPICS, b"")
        }
        self._declared = {}
        for key, _ in reader.items(META, PROPERTY_FROM, key_after(PROPERTY_FROM)):
            (number,) = NUMBER.unpack_from(key, len(PROPERTY_FROM))
            self._declared.setdefault(number, set()).add(key)
        self._declarations = TreeChange(META)
        self._looked_at = -1
        self._changed.clear()
        self._retired.clear()

    def find(self, topic: str) -> TopicEntry | None:
        """The topic's entry, unless it was deleted since."""
        entry = self._entries.get(topic)
        return None if entry is None or entry.since < self._deletions.deleted_below(topic) else entry

    def names(self) -> list[str]:
        """Topics that have a number."""
        return sorted(topic for topic in self._entries if self.find(topic) is not None)

    def begin_step(self, deletions: TopicDeletions) -> None:
        """From now on numbers are assigned as of these deletions: those by which the step's records are
        alive. A topic that is deleted while the step runs keeps its old number for them."""
        self._of_step = deletions

    def number(self, topic: str) -> int:
        """The topic's number, a new one if it has none."""
        entry = self._entries.get(topic)
        if entry is None or entry.since < self._of_step.deleted_below(topic):
            entry = self._make(topic)
        return entry.number

    def _make(self, topic: str) -> TopicEntry:
        old = self._entries.get(topic)
        if old is not None:
            self._retired.append(old.number)
            self._declarations.removals += self._take_declared(old.number)
        entry = self._entries[topic] = TopicEntry(self._next, self._of_step.deleted_below(topic), 0, 0)
        self._next += 1
        self._changed.add(topic)
        return entry

    def _take_declared(self, number: int) -> list[bytes]:
        return sorted(self._declared.pop(number, ()))

    def retire_deleted(self) -> list[TreeChange]:
        """The changes for a commit that retires the numbers of deleted topics: their entries are removed
        later. Call between steps."""
        version = self._deletions.version
        if version == self._looked_at:
            return []
        topics = [topic for topic in self._entries if self.find(topic) is None]
        self._looked_at = version
        if not topics:
            return []
        numbers = sorted(self._entries.pop(topic).number for topic in topics)
        return [
            TreeChange(TOPICS, removals=[topic.encode() for topic in topics]),
            TreeChange(RETIRED, [(NUMBER.pack(number), b"") for number in numbers]),
            TreeChange(META, removals=[key for number in numbers for key in self._take_declared(number)]),
        ]

    def declare(self, topic: str, names: Sequence[str], physical_offset: PhysicalOffset) -> None:
        """The topic's records from here on have terms of these properties, and of no other ones."""
        if not names and not self._declared:
            return  # of no topic
        number = self.number(topic)
        before, now = self._declared.get(number, set()), {property_key(number, name) for name in names}
        if now == before:
            return
        self._declarations.removals += sorted(before - now)
        self._declarations.puts += [(key, OFFSET.pack(physical_offset)) for key in sorted(now - before)]
        self._declared[number] = now

    def count(self, topic: str, messages: int, byte_count: int) -> int:
        """Counts messages and bytes that are indexed. Returns number()."""
        number = self.number(topic)
        _, since, message_count, bytes_before = self._entries[topic]
        self._entries[topic] = TopicEntry(number, since, message_count + messages, bytes_before + byte_count)
        self._changed.add(topic)
        return number

    def changes(self) -> list[TreeChange]:
        """The changes for a commit; from now on they count as committed."""
        if not self._changed:
            return []
        puts = [(topic.encode(), TOPIC_VALUE.pack(*self._entries[topic])) for topic in sorted(self._changed)]
        self._declarations.puts.sort()  # topics are declared in the order of their records
        found = [
            TreeChange(TOPICS, puts),
            TreeChange(META, [(NEXT_TOPIC_KEY, NUMBER.pack(self._next))]),
            TreeChange(RETIRED, [(NUMBER.pack(number), b"") for number in sorted(self._retired)]),
            self._declarations,
        ]
        self._declarations = TreeChange(META)
        self._changed.clear()
        self._retired.clear()
        return found
