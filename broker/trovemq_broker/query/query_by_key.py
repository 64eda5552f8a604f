"""The exact query by key, unique key or tag: newest first, each record once; an incomplete answer is marked.

RocketMQ answers from the hashes alone and counts before it checks, so its answers have foreign records and
lack true ones. Here every candidate is read from the log before it counts. An answer consists of pages of
bounded work: each continues below the physical offset where the one before stopped.

The log below the page's start is covered in three parts, from the newest:
  [index position, start)     not indexed yet: scanned from the log
  [tags_from, index position) the chains of the key index (from 0 for keys, which every index has)
  [lowest, tags_from)         an index of another broker may lack tags there: scanned, for tag queries only

No record below `lowest` can be as late as the query's earliest time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_broker.query.candidates import ResultPage
from trovemq_broker.query.cursor import Cursor
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.log_windows import matches, windows
from trovemq_broker.query.pages import REQUEST_WORK_MAX, AnswerPage, answer_pages, page_size
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_proto.records import RecordBatch
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids
from trovemq_store.files.files import UnreadableError
from trovemq_store.index.key_index import KeyIndex

_WORK_OF_CHAIN: Final = 3
_CHAIN_STEPS: Final = 256
_CHAIN_STEPS_MIN: Final = 16
"""The most and the fewest items of a chain that are read at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPage(AnswerPage):
    """A page, newest first. index_last_update_*: the last record in the key index."""

    index_last_update_timestamp: int
    index_last_update_physical_offset: PhysicalOffset


def query_page(store: MessageStore, query: KeyQuery, *, messages_max: int = 0, cursor: str = "") -> QueryPage:
    """The next page of at most messages_max messages (0: maxMsgsNumBatch, which is also the most a page has).

    Raises TroveError REQUEST_ILLEGAL, CURSOR_ILLEGAL, TOPIC_NOT_FOUND, INDEX_DISABLED.
    """
    query.check()
    messages_max = page_size(store, messages_max)
    start = Cursor.decode(cursor, query) if cursor else Cursor(store.visible_offset)
    if query.topic:
        queue_ids(store, query.topic)  # an unknown topic is an error, never an empty answer
    if store.key_index is None:
        raise TroveError(errors.INDEX_DISABLED)
    found = ResultPage(store, query, query.accepts, messages_max)
    return _PageSearch(store, store.key_index, query, found, start).run()


def query_pages(
    store: MessageStore,
    query: KeyQuery,
    *,
    messages_max: int = 0,
    cursor: str = "",
    work_max: int = REQUEST_WORK_MAX,
) -> Iterator[QueryPage]:
    """Pages until the answer is complete, has messages_max messages (0: maxMsgsNumBatch), or used work_max.

    The caller may do other work between two pages. Raises TroveError REQUEST_ILLEGAL, CURSOR_ILLEGAL,
    TOPIC_NOT_FOUND, INDEX_DISABLED.
    """

    def page_at(remaining: int, cursor: str) -> QueryPage:
        return query_page(store, query, messages_max=remaining, cursor=cursor)

    return answer_pages(page_at, messages_max or store.settings.query_messages_max, cursor, work_max)


@dataclass(slots=True)
class _PageSearch:
    store: MessageStore
    index: KeyIndex
    query: KeyQuery
    found: ResultPage
    start: Cursor
    before: PhysicalOffset = LOG_ORIGIN
    place: tuple[str, int] | None = None
    stopped: bool = False

    def run(self) -> QueryPage:
        self.before = min(self.start.physical_offset, self.store.visible_offset)
        lowest = self.store.min_offset
        if self.query.begin > 0:
            lowest = max(lowest, self.store.lowest_offset_at(self.query.begin))
        indexed_from = self.index.tags_from if self.query.type is KeyType.TAG else LOG_ORIGIN
        self._scan(max(lowest, self.index.position))
        self._walk(max(lowest, indexed_from))
        self._scan(lowest)
        timestamp, physical_offset = self.index.last_update()
        return QueryPage(
            records=self.found.records,
            queue_offsets=self.found.queue_offsets,
            physical_offsets=self.found.physical_offsets,
            complete=not self.stopped,
            cursor=Cursor(self.before, self.place).encode(self.query) if self.stopped else "",
            index_last_update_timestamp=timestamp,
            index_last_update_physical_offset=physical_offset,
            notes=tuple(self.found.notes),
            work=self.found.work.done,
        )

    def _hashes(self) -> list[int]:
        if self.query.topic:
            return sorted(self.query.hashes_in(self.query.topic))
        topics = {*self.store.consume_queues.topics(), *self.store.topics.names(include_system=True)}
        return sorted(set(self.query.hashes_in_all(topics)))

    # --- the parts of the log: each is read backwards from `before` to `begin` -------------------------
    def _scan(self, begin: PhysicalOffset) -> None:
        if self._is_stopped() or begin >= self.before:
            return
        hashes = np.array(self._hashes(), np.int32)

        def having_key(records: RecordBatch) -> NDArray[np.bool_]:
            entries, chosen = records.index_entries(), np.zeros(len(records), np.bool_)
            chosen[entries.record_index[np.isin(entries.hashes, hashes)]] = True
            return chosen

        for window_begin, window_end in windows(self.store.consume_queues, begin, self.before):
            if not self._has_work():
                return
            found, record_count = matches(self.store, window_begin, window_end, having_key)
            self._examine_all(found)
            if self._is_stopped():
                return
            self.found.work.charge_scan(record_count, window_end - window_begin)
            self.before = window_begin

    def _walk(self, begin: PhysicalOffset) -> None:
        if self._is_stopped() or begin >= self.before:
            return
        hashes = self._hashes()
        try:
            if len(hashes) == 1:
                self._walk_chain(hashes[0], begin)
            else:
                self._walk_chains(hashes, begin)
        except UnreadableError as error:  # a part of the index cannot be read: the log has all records
            self.found.notes.append(f"the log was searched: {error}")
            self.place = None
            self._scan(begin)
        if not self._is_stopped():
            self.before, self.place = begin, None

    def _walk_chain(self, key_hash: int, begin: PhysicalOffset) -> None:
        walk = self.index.walk(key_hash, begin, self.before, self.start.place)
        while not walk.done and not self.stopped:
            self.place = walk.place
            if not self._has_work():
                return
            steps = self._chain_steps()
            self._examine_all(walk.take(steps))
            self.found.work.charge(steps)

    def _chain_steps(self) -> int:
        """The most steps along chains: as many as fill the page, so that the next page need not repeat
        them."""
        missing = self.found.messages_max - len(self.found.records)
        return min(_CHAIN_STEPS, max(missing, _CHAIN_STEPS_MIN))

    def _walk_chains(self, hashes: list[int], begin: PhysicalOffset) -> None:
        """Walks the chains of one index file: with many topics, beginning the chains is most of the work."""
        reached = self.index.newest_file_begin(begin, self.before)
        self._merge_chains(hashes, reached)
        self.found.work.charge(_WORK_OF_CHAIN * len(hashes))
        if not self._is_stopped() and reached > begin:
            self.before, self.stopped = reached, True

    def _merge_chains(self, hashes: list[int], begin: PhysicalOffset) -> None:
        chains = [self.index.candidates(key_hash, begin, self.before) for key_hash in hashes]
        for physical_offset in heapq.merge(*chains, reverse=True):
            if not self._has_work():
                return
            self._examine(physical_offset)
            if self.stopped:
                return

    def _has_work(self) -> bool:
        """Whether the page may continue."""
        if self.found.work.remaining <= 0:
            self.stopped = True
        return not self.stopped

    def _is_stopped(self) -> bool:
        return self.stopped

    # --- candidates ---------------------------------------------------------------------------------
    def _examine_all(self, physical_offsets: list[PhysicalOffset]) -> None:
        for physical_offset in physical_offsets:
            if not self._has_work():
                return
            self._examine(physical_offset)
            if self.stopped:
                return

    def _examine(self, physical_offset: PhysicalOffset) -> None:
        """Takes the record if it answers the query and the page has space; else skips it or stops."""
        if physical_offset >= self.before:
            return  # the same record again: two of its keys have this hash, or it was indexed twice
        if self.found.examine(physical_offset):
            self.before = physical_offset
        else:
            self.stopped = True
