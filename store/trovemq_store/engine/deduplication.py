"""Idempotent produce: a message is not stored again if its topic has stored its unique id within the window.

Only messages that producers send are checked, by the topic that the producer named (topic option
`deduplicate`). The reply to a duplicate has the place of the original; a duplicate uses up no queue offset.
Messages that wait in another topic (half and delayed ones) are checked by append_if_absent(). If such a
message is withdrawn (rolled back, given up, recalled), its id may be stored again. If a producer numbers its
messages, a number that it has sent within the window is a duplicate, too, and missing numbers are counted
(trees/producers.py).

Invariants
- An id is looked up, stored and remembered in one step that nothing interrupts: of two sends with the same
  id, on whatever connections, one is stored.
- Nothing of a refused batch is remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.hosts import pack_host
from trovemq_store.engine.append_result import AppendResult, only_duplicates
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.failures import storage_errors
from trovemq_store.files.fault_points import fault_point
from trovemq_store.index.trees.producer_sequences import (
    SEQUENCE_MAX,
    SequencedRecord,
    check_producer_id,
    numbers_of,
)
from trovemq_store.index.trees.producers import DedupResult, Gap
from trovemq_store.index.trees.store_trees import StoreTrees
from trovemq_store.index.trees.unique_ids import Known, MessagePosition
from trovemq_store.index.trees.unique_keys import ids_of

OnDuplicate = Callable[[str, bytes], None]
"""Called for each duplicate, with its topic and id."""
OnGap = Callable[[str, Gap], None]
"""Called with the numbers that a producer has left out, by topic."""

_UNREAD: Final = "the ids cannot be looked up"


class Deduplication:
    """One per store; used on the engine's thread."""

    def __init__(
        self,
        store: MessageStore,
        on_duplicate: OnDuplicate = lambda _topic, _id: None,
        on_gap: OnGap = lambda _topic, _gap: None,
    ) -> None:
        self._store: Final = store
        self._on_duplicate = on_duplicate
        self._on_gap = on_gap
        self._store_host: Final = pack_host(store.settings.store_host)
        self._current_from = store.recovery.end
        self.duplicates: Counter[str] = Counter()
        """Messages that were not stored again, by topic."""
        self.missing: Counter[str] = Counter()
        """Numbers that producers had left out when a higher one came, by topic."""
        self.filled: Counter[str] = Counter()
        """Messages that came after a higher number of their producer, by topic."""

    def append(
        self,
        batch: RecordBatch,
        parts: Sequence[tuple[str, int, int]],
        now_ms: EpochMs,
        *,
        born_host: bytes | None = None,
    ) -> list[AppendResult]:
        """Appends the messages of a producer, without those that are stored already. They have one part if
        their topic is deduplicated.

        Raises the errors of MessageStore.append, and TroveError INDEX_DISABLED, OS_PAGE_CACHE_BUSY,
        PRODUCER_SEQUENCE_ILLEGAL; then nothing was stored.
        """
        topic, queue_id, _ = parts[0]
        window_ms = self._store.topics.options(topic).deduplicate_ms
        if not window_ms:
            return self._store.append(batch, parts, now_ms, born_host=born_host)
        assert len(parts) == 1, "records of other queues are appended separately"
        trees = self._ready_trees(topic, len(batch))
        ids, numbered = ids_of(batch), numbers_of(batch)
        dedup = self._deduplicate(trees, topic, window_ms, ids, numbered, now_ms)
        kept = list(range(len(ids)))
        if dedup.known or dedup.repeats:
            kept = [index for index in kept if index not in dedup.known and index not in dedup.repeats]
            assert len(kept) + len(dedup.known) + len(dedup.repeats) == len(ids), (
                "a message is stored, or has one original"
            )
            if not kept:
                return [self._answered(topic, ids, dedup, None)]
            batch = RecordBatch.split(bytearray(b"".join(batch.select(kept))), topic=topic)
        stored_part = topic, queue_id, len(kept)
        (result,) = self._store.append(batch, (stored_part,), now_ms, born_host=born_host)
        assert result.record_count == len(kept), "each message that is not a duplicate is stored"
        fault_point("deduplication.after_append")
        stored = [ids[index] for index in kept] if len(kept) < len(ids) else ids
        offsets = (result.physical_offset + result.positions).tolist()
        trees.unique_ids.remember(topic, stored, offsets, result.end)
        if numbered:
            self._remember_numbers(trees, topic, numbered, dict(zip(kept, offsets, strict=True)), result)
            self._log_gaps(topic, dedup)
            result = result._replace(gaps=dict(sorted(dedup.gaps.items())))
        if len(kept) == len(ids):
            return [result]
        places = _places(result, QueueId(queue_id), kept)
        return [self._answered(topic, ids, dedup, (result, places))]

    def append_if_absent(
        self, topic: str, unique_id: bytes, now_ms: EpochMs, write: Callable[[], AppendResult]
    ) -> AppendResult:
        """Calls write(), which stores one message with that topic and id, unless the message is a
        duplicate."""
        window_ms = self._store.topics.options(topic).deduplicate_ms
        if not window_ms or not unique_id:
            return write()
        trees = self._ready_trees(topic, 1)
        known = self._known(trees, topic, window_ms, [unique_id], now_ms)
        if known:
            return self._answered(topic, [unique_id], DedupResult({0: known[unique_id]}), None)
        result = write()
        trees.unique_ids.remember(topic, [unique_id], [result.physical_offset], result.end)
        return result

    def known(self, topic: str, ids: list[bytes], now_ms: EpochMs) -> Mapping[bytes, Known]:
        """The ids that may not be stored again in the topic now. TroveError INDEX_DISABLED,
        OS_PAGE_CACHE_BUSY, UNKNOWN_ERROR, RESOURCES_SCARCE."""
        window_ms = self._store.topics.options(topic).deduplicate_ms
        return (
            self._known(self._ready_trees(topic, len(ids)), topic, window_ms, ids, now_ms)
            if window_ms
            else {}
        )

    def remember(
        self, topic: str, ids: list[bytes], physical_offsets: list[PhysicalOffset], end: PhysicalOffset
    ) -> None:
        """Remembers messages that were appended after known(), in the same step."""
        if self._store.trees is not None and self._store.topics.options(topic).deduplicate_ms:
            self._store.trees.unique_ids.remember(topic, ids, physical_offsets, end)

    def refused(self, topic: str, unique_id: bytes) -> None:
        """Counts and reports a duplicate."""
        self.duplicates[topic] += 1
        self._on_duplicate(topic, unique_id)

    def forget_topic(self, topic: str) -> None:
        """Forgets the counts of a deleted topic."""
        for counts in (self.duplicates, self.missing, self.filled):
            counts.pop(topic, None)

    def next_sequence(self, topic: str, producer: bytes, now_ms: EpochMs) -> int:
        """The sequence number of the next message of that producer id. TroveError TOPIC_NOT_FOUND,
        REQUEST_ILLEGAL, PRODUCER_SEQUENCE_ILLEGAL, INDEX_DISABLED, OS_PAGE_CACHE_BUSY, UNKNOWN_ERROR,
        RESOURCES_SCARCE."""
        check_producer_id(producer)
        self._store.topics.require(topic)
        window_ms = self._store.topics.options(topic).deduplicate_ms
        if not window_ms:
            text = f"topic {topic} is not deduplicated: give it the option deduplicate, or do not number"
            raise TroveError(errors.REQUEST_ILLEGAL, text, topic=topic)
        trees = self._ready_trees(topic, 0)
        with storage_errors(_UNREAD, errors.UNKNOWN_ERROR):
            found = trees.producers.highest(topic, producer, self._store.time.since(window_ms, now_ms)) + 1
        if found > SEQUENCE_MAX:
            text = f"producer {producer.decode()} has used its last sequence: take another id"
            raise TroveError(errors.PRODUCER_SEQUENCE_ILLEGAL, text)
        return found

    def _ready_trees(self, topic: str, count: int) -> StoreTrees:
        trees = self._store.trees
        if trees is None:
            raise disabled(topic)
        if trees.current.position < self._current_from:
            raise TroveError(
                errors.OS_PAGE_CACHE_BUSY,
                f"the ids of topic {topic} are being read from the log",
                topic=topic,
            )
        self._current_from = LOG_ORIGIN  # caught up since the opening; ids of later messages are remembered
        trees.unique_ids.check_space(count)
        return trees

    def _known(
        self, trees: StoreTrees, topic: str, window_ms: int, ids: list[bytes], now_ms: EpochMs
    ) -> dict[bytes, Known]:
        with storage_errors(_UNREAD, errors.UNKNOWN_ERROR):
            return trees.unique_ids.find(topic, self._store.time.since(window_ms, now_ms), ids)

    def _deduplicate(
        self,
        trees: StoreTrees,
        topic: str,
        window_ms: int,
        ids: list[bytes],
        numbered: list[SequencedRecord],
        now_ms: EpochMs,
    ) -> DedupResult:
        """Finds duplicates by id first, then among the remaining messages by number."""
        assert len(numbered) <= len(ids), "a message has at most one number"
        by_id = self._known(trees, topic, window_ms, ids, now_ms)
        known = {index: by_id[each] for index, each in enumerate(ids) if each in by_id} if by_id else {}
        repeats = {index: first for index, first in _repeats(ids).items() if index not in known}
        rest = [each for each in numbered if each.record not in known and each.record not in repeats]
        if not rest:
            return DedupResult(known, repeats)
        with storage_errors(_UNREAD, errors.UNKNOWN_ERROR):
            dedup = trees.producers.check(topic, self._store.time.since(window_ms, now_ms), rest, ids)
        dedup.known |= known
        for index, first in repeats.items():  # the first one may be a duplicate by its number
            if first in dedup.known:
                dedup.known[index] = dedup.known[first]
            else:
                dedup.repeats[index] = dedup.repeats.get(first, first)
        assert not dedup.known.keys() & dedup.repeats.keys(), "a duplicate has one original"
        return dedup

    @staticmethod
    def _remember_numbers(
        trees: StoreTrees,
        topic: str,
        numbered: list[SequencedRecord],
        offsets: Mapping[int, PhysicalOffset],
        result: AppendResult,
    ) -> None:
        stored = [(each, offsets[each.record]) for each in numbered if each.record in offsets]
        trees.producers.remember(topic, stored, result.store_timestamp, result.end)

    def _log_gaps(self, topic: str, dedup: DedupResult) -> None:
        if dedup.filled:
            self.filled[topic] += dedup.filled
        for gap in dedup.gaps.values():
            self.missing[topic] += gap.last - gap.first + 1
            self._on_gap(topic, gap)

    def _answered(
        self,
        topic: str,
        ids: list[bytes],
        dedup: DedupResult,
        stored: tuple[AppendResult, Mapping[int, MessagePosition]] | None,
    ) -> AppendResult:
        """The result of a batch with duplicates. stored: the result of the other messages, and their places
        by index; None if there are none."""
        duplicates: dict[int, MessagePosition] = {}
        for index, unique_id in enumerate(ids):
            if index in dedup.known:
                duplicates[index] = dedup.known[index].place
            elif index in dedup.repeats:
                assert stored is not None, "the first one was stored"
                duplicates[index] = stored[1][dedup.repeats[index]]
            else:
                continue
            self.refused(topic, unique_id)
        synced_at = max((found.end for found in dedup.known.values()), default=LOG_ORIGIN)
        if stored is None:
            assert len(duplicates) == len(ids), "nothing was stored: each message is a duplicate"
            return only_duplicates(duplicates, synced_at, self._store_host)
        result = stored[0]
        return result._replace(duplicates=duplicates, synced_at=max(synced_at, result.end))


def withdraw(store: MessageStore, topic: str, unique_id: str, result: AppendResult) -> None:
    """Allows the id again: its message will never be delivered, as the record says that was just appended
    (`result`)."""
    if store.trees is not None and store.topics.options(topic).deduplicate_ms:
        offset = result.physical_offset
        store.trees.unique_ids.remember(topic, [unique_id.encode()], [offset], result.end)


def disabled(topic: str) -> TroveError:
    return TroveError(
        errors.INDEX_DISABLED,
        f"topic {topic} is deduplicated, which needs the B+trees: set tree_index_enable, or the topic's "
        "option deduplicate to off",
        topic=topic,
    )


def _repeats(ids: list[bytes]) -> dict[int, int]:
    """Messages whose id occurs earlier in the batch too: index -> index of the first one."""
    if len(set(ids)) == len(ids):
        return {}
    firsts: dict[bytes, int] = {}
    found = {}
    for index, unique_id in enumerate(ids):
        first = firsts.setdefault(unique_id, index)
        if unique_id and first != index:
            found[index] = first
    return found


def _places(result: AppendResult, queue_id: QueueId, kept: list[int]) -> dict[int, MessagePosition]:
    offsets = result.physical_offset + result.positions.astype(np.int64)
    return {
        index: MessagePosition(
            offset, queue_id, QueueOffset(result.first_queue_offset + number), result.store_timestamp
        )
        for number, (index, offset) in enumerate(zip(kept, offsets.tolist(), strict=True))
    }
