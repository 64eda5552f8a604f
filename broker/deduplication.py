"""Idempotent produce: a message whose unique id its topic stored within the window is not stored again.

What is judged is a producer's own send, by the topic that the producer named (topic option `deduplicate`).
The duplicate is answered with the place of the original; it uses up no queue offset. Messages that wait
elsewhere (half and delayed ones) are judged by once().

Invariants
- An id is looked up, stored and remembered in one step that nothing can interrupt: of two sends of one id,
  whatever their connections, one is stored.
- Of a batch that is refused nothing is remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from broker.append_result import AppendResult, only_duplicates
from broker.message_store import MessageStore
from broker.storage.files import StorageError
from broker.trees.unique_ids import Known, Place, UniqueIds
from broker.trees.unique_keys import ids_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.hosts import pack_host

OnDuplicate = Callable[[str, bytes], None]
"""Told of each duplicate: the topic and the id."""


class Deduplication:
    """One a store; used from the engine's thread."""

    def __init__(self, store: MessageStore, on_duplicate: OnDuplicate = lambda _topic, _id: None) -> None:
        self._store: Final = store
        self._on_duplicate = on_duplicate
        self._store_host: Final = pack_host(store.settings.store_host)
        self._current_from = store.recovery.end
        self.duplicates: Counter[str] = Counter()
        """Messages that were not stored again, by topic."""

    def append(
        self,
        data: bytearray,
        batch: RecordBatch,
        *,
        topic: str,
        queue_id: int,
        now_ms: int,
        born_host: bytes | None,
    ) -> AppendResult:
        """MessageStore.append() for a producer's own send.

        TroveError as there, and INDEX_DISABLED, OS_PAGE_CACHE_BUSY; then nothing was stored.
        """
        window_ms = self._store.topics.options(topic).deduplicate_ms
        if not window_ms:
            return self._store.append(
                data, batch, topic=topic, queue_id=queue_id, now_ms=now_ms, born_host=born_host
            )
        judge = self._judge(topic, len(batch))
        ids = ids_of(batch)
        known, repeats = self._known(judge, topic, window_ms, ids, now_ms), _repeats(ids)
        if known or repeats:
            left_out = {index for index, unique_id in enumerate(ids) if unique_id in known} | repeats.keys()
            kept = [index for index in range(len(ids)) if index not in left_out]
            if not kept:
                return self._answered(topic, ids, known, repeats, None, kept)
            data = bytearray(b"".join(batch.select(kept)))
            batch = RecordBatch.split(data, topic=topic)
        else:
            kept = []
        result = self._store.append(
            data, batch, topic=topic, queue_id=queue_id, now_ms=now_ms, born_host=born_host
        )
        stored = [ids[index] for index in kept] if kept else ids
        judge.remember(topic, stored, (result.physical_offset + result.positions).tolist(), result.end)
        if not kept:
            return result
        places = _places(result, queue_id, kept)
        return self._answered(topic, ids, known, repeats, (result, places), kept)

    def once(
        self, topic: str, unique_id: bytes, now_ms: int, write: Callable[[], AppendResult]
    ) -> AppendResult:
        """write() stores one message of that topic and id somewhere; it is not called for a duplicate."""
        window_ms = self._store.topics.options(topic).deduplicate_ms
        if not window_ms or not unique_id:
            return write()
        judge = self._judge(topic, 1)
        known = self._known(judge, topic, window_ms, [unique_id], now_ms)
        if known:
            return self._answered(topic, [unique_id], known, {}, None, [])
        result = write()
        judge.remember(topic, [unique_id], [result.physical_offset], result.end)
        return result

    def known(self, topic: str, ids: list[bytes], now_ms: int) -> Mapping[bytes, Known]:
        """Those ids of the topic that may not be stored again now. Raises as append()."""
        window_ms = self._store.topics.options(topic).deduplicate_ms
        return self._known(self._judge(topic, len(ids)), topic, window_ms, ids, now_ms) if window_ms else {}

    def remember(self, topic: str, ids: list[bytes], physical_offsets: list[int], end: int) -> None:
        """These were appended by somebody who had asked known(), in the same step."""
        if self._store.trees is not None and self._store.topics.options(topic).deduplicate_ms:
            self._store.trees.unique_ids.remember(topic, ids, physical_offsets, end)

    def refused(self, topic: str, unique_id: bytes) -> None:
        """Counts and tells of a duplicate."""
        self.duplicates[topic] += 1
        self._on_duplicate(topic, unique_id)

    def _judge(self, topic: str, count: int) -> UniqueIds:
        trees = self._store.trees
        if trees is None:
            raise disabled(topic)
        if trees.current.position < self._current_from:
            raise TroveError(
                errors.OS_PAGE_CACHE_BUSY,
                f"the ids of topic {topic} are being read from the log",
                topic=topic,
            )
        self._current_from = 0  # since the opening; what came later is remembered
        trees.unique_ids.check_room(count)
        return trees.unique_ids

    def _known(
        self, judge: UniqueIds, topic: str, window_ms: int, ids: list[bytes], now_ms: int
    ) -> dict[bytes, Known]:
        try:
            return judge.find(topic, window_ms, ids, max(now_ms, self._store.last_store_timestamp))
        except StorageError as error:
            raise TroveError(errors.UNKNOWN_ERROR, f"the ids cannot be looked up: {error}") from error

    def _answered(
        self,
        topic: str,
        ids: list[bytes],
        known: Mapping[bytes, Known],
        repeats: Mapping[int, int],
        stored: tuple[AppendResult, Mapping[int, Place]] | None,
        kept: list[int],
    ) -> AppendResult:
        """What the sender is told; `repeats`: index of a message -> that of the first one with its id."""
        duplicates: dict[int, Place] = {}
        for index, unique_id in enumerate(ids):
            if unique_id in known:
                duplicates[index] = known[unique_id].place
            elif index in repeats:
                assert stored is not None, "the first one of its id was stored"
                duplicates[index] = stored[1][repeats[index]]
            else:
                continue
            self.refused(topic, unique_id)
        synced_at = max((found.end for found in known.values()), default=0)
        if stored is None:
            return only_duplicates(duplicates, synced_at, self._store_host)
        result = stored[0]
        return replace(result, duplicates=duplicates, synced_at=max(synced_at, result.end))


def disabled(topic: str) -> TroveError:
    return TroveError(
        errors.INDEX_DISABLED,
        f"topic {topic} is deduplicated, which needs the B+trees: set tree_index_enable, or the topic's "
        "option deduplicate to off",
        topic=topic,
    )


def _repeats(ids: list[bytes]) -> dict[int, int]:
    """Messages whose id stands further in front in the batch too: index -> index of the first one."""
    if len(set(ids)) == len(ids):
        return {}
    firsts: dict[bytes, int] = {}
    found = {}
    for index, unique_id in enumerate(ids):
        first = firsts.setdefault(unique_id, index)
        if unique_id and first != index:
            found[index] = first
    return found


def _places(result: AppendResult, queue_id: int, kept: list[int]) -> dict[int, Place]:
    offsets = result.physical_offset + result.positions.astype(np.int64)
    return {
        index: Place(offset, queue_id, result.first_queue_offset + number, result.store_timestamp)
        for number, (index, offset) in enumerate(zip(kept, offsets.tolist(), strict=True))
    }
