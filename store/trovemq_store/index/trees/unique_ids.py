"""Checks unique ids: first by those in memory, then by the tree `unique-id` (unique_entries.py).

Invariant: an id that was stored and is not in the tree yet is in memory, so the check misses nothing that is
in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.files.trees import Trees
from trovemq_store.index.trees.layout import NUMBER, UNIQUE_ID
from trovemq_store.index.trees.topic_numbers import TopicNumbers
from trovemq_store.index.trees.unique_entries import VALUE
from trovemq_store.index.trees.unique_keys import WITHDRAWN, id_keys
from trovemq_store.log.time_windows import Since
from trovemq_store.topics.deletions import TopicDeletions

RECENT_MAX: Final = 524_288
"""The most ids in memory that the tree does not have yet."""


class MessagePosition(NamedTuple):
    """The position of a stored message in the log and in its queue."""

    physical_offset: PhysicalOffset
    queue_id: QueueId
    queue_offset: QueueOffset
    store_timestamp: EpochMs


class Known(NamedTuple):
    """An id that was stored before: the position of its message, and the end up to which the log must be
    synced for the message to be on disk."""

    place: MessagePosition
    end: PhysicalOffset


class UniqueIds:
    """Checks ids. Used on the engine's thread. `known_at`: the place and end of the record at a physical
    offset, synced or not; None if it cannot be read."""

    def __init__(
        self,
        trees: Trees,
        numbers: TopicNumbers,
        deletions: TopicDeletions,
        known_at: Callable[[PhysicalOffset], Known | None],
    ) -> None:
        self._trees = trees
        self._numbers = numbers
        self._deletions = deletions
        self._known_at = known_at
        self._recent: dict[str, dict[bytes, PhysicalOffset]] = {}
        self._lots: deque[tuple[PhysicalOffset, str, list[bytes]]] = deque()
        self.recent_count = 0
        """Ids in memory; one that was stored twice counts twice."""

    def check_space(self, count: int) -> None:
        """TroveError OS_PAGE_CACHE_BUSY if `count` more ids may not be remembered now."""
        if self.recent_count + count > RECENT_MAX:
            raise TroveError(
                errors.OS_PAGE_CACHE_BUSY,
                f"{self.recent_count} ids wait for the index of unique ids, the limit is {RECENT_MAX}",
            )

    @property
    def crowded(self) -> bool:
        """Whether the tree should be brought up to date before more is sent."""
        return self.recent_count > RECENT_MAX // 4

    def find(self, topic: str, since: Since, ids: Sequence[bytes]) -> dict[bytes, Known]:
        """The ids that were stored in the topic within the window. StorageError."""
        found: dict[bytes, Known] = {}
        alive_from = self._deletions.deleted_below(topic)
        recent = self._recent.get(topic)
        if recent and not recent.keys().isdisjoint(ids):
            for unique_id in ids:
                offset = recent.get(unique_id)
                if offset is not None and offset >= alive_from and unique_id:
                    known = self._known_at(offset)
                    if known is not None and since.has(offset, known.place.store_timestamp):
                        found[unique_id] = known
        entry = self._numbers.find(topic)
        if entry is not None:
            self._find_in_tree(NUMBER.pack(entry.number), ids, alive_from, since, found)
        for unique_id in [each for each, known in found.items() if known.place.queue_id == WITHDRAWN]:
            del found[unique_id]
        return found

    def _find_in_tree(
        self, prefix: bytes, ids: Sequence[bytes], alive_from: int, since: Since, found: dict[bytes, Known]
    ) -> None:
        keys = id_keys(prefix, ids)
        with self._trees.read() as reader:
            known = reader.get_all(UNIQUE_ID, sorted(keys))
        if not known:
            return
        id_of = dict(zip(keys, ids, strict=True))
        for key, value in known.items():
            place, unique_id = MessagePosition(*VALUE.unpack(value)), id_of[key]
            if (
                place.physical_offset >= alive_from
                and since.has(place.physical_offset, place.store_timestamp)
                and unique_id not in found
            ):
                found[unique_id] = Known(place, LOG_ORIGIN)

    def remember(
        self, topic: str, ids: list[bytes], physical_offsets: Iterable[PhysicalOffset], end: PhysicalOffset
    ) -> None:
        """Remembers ids that were just appended to the topic; the last of the records ends at `end`."""
        self._recent.setdefault(topic, {}).update(zip(ids, physical_offsets, strict=True))
        self._lots.append((end, topic, ids))
        self.recent_count += len(ids)

    def committed(self, position: PhysicalOffset) -> None:
        """Forgets the ids of records below the position: the tree has them."""
        while self._lots and self._lots[0][0] <= position:
            _, topic, ids = self._lots.popleft()
            self.recent_count -= len(ids)
            recent = self._recent.get(topic)
            if recent is None:
                continue
            for unique_id in ids:
                if recent.get(unique_id, position) < position:
                    del recent[unique_id]
            if not recent:
                del self._recent[topic]
