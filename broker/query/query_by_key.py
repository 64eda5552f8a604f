"""The exact query by key, unique key or tag: newest first, each record once, never cut in silence.

RocketMQ answers from the hashes alone and counts before it checks; so foreign records show up and true ones
are crowded out. Here every candidate is looked at in the log before it counts. An answer is made in
pages of bounded work: each goes on below the physical offset where the one before stopped. Work is counted
by candidates and by the bytes of them that are read, so that messages with many properties or large bodies
make smaller pages, not longer ones.

The log below the page's start is covered in three parts, from the newest:
  [index position, start)     not indexed yet: scanned from the log
  [tags_from, index position) the chains of the key index (from 0 for keys, which every index has)
  [lowest, tags_from)         an index of another broker may lack tags there: scanned, for tag queries only
where no record below `lowest` can be as late as the query's begin.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from broker.query.cursor import Cursor
from broker.query.key_query import KeyQuery, KeyType
from broker.query.located import queue_offset_of
from broker.query.log_windows import matches, windows
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.check import RecordState, crc_matches
from trovemq_proto.records.fields import RecordFields, read_fields
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids
from trovemq_store.files.files import StorageError
from trovemq_store.index.key_index import KeyIndex

# Work is counted in steps along a chain, about a microsecond each; a page stops when it has done its share.
WORK_MAX: Final = 5_000
REQUEST_WORK_MAX: Final = 400 * WORK_MAX
"""Of all pages of one answer: then it is incomplete, and its cursor goes on."""
_WORK_OF_CANDIDATE: Final = 30
_WORK_OF_SCANNED_RECORD: Final = 2
_WORK_OF_CHAIN: Final = 3
_PROPERTY_BYTES_OF_WORK: Final = 12
_BODY_BYTES_OF_WORK: Final = 2_048
_SCANNED_BYTES_OF_WORK: Final = 64
_CHAIN_STEPS: Final = 256
_CHAIN_STEPS_MIN: Final = 16
_NOTES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class QueryPage:
    """One page. Record i has queue_offsets[i] and physical_offsets[i]; records are views of the log.

    complete: nothing older matches; otherwise `cursor` goes on, also from a page that is empty because its
    share of work was done. index_last_update_*: the record that the key index has last.
    """

    records: list[memoryview]
    queue_offsets: list[int]
    physical_offsets: list[int]
    complete: bool
    cursor: str
    index_last_update_timestamp: int
    index_last_update_physical_offset: int
    notes: tuple[str, ...] = ()
    work: int = 0
    """What it took, in units of about a microsecond."""
    last: bool = False
    """The answer ends with this page, complete or not."""


def query_page(store: MessageStore, query: KeyQuery, *, messages_max: int = 0, cursor: str = "") -> QueryPage:
    """The next page of at most messages_max messages (0: maxMsgsNumBatch, which is also the most a page has).

    Raises TroveError REQUEST_ILLEGAL, CURSOR_ILLEGAL, TOPIC_NOT_FOUND, INDEX_DISABLED.
    """
    query.check()
    if messages_max < 0:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{messages_max} messages", field="messages_max")
    start = Cursor.decode(cursor, query) if cursor else Cursor(store.visible_offset)
    if query.topic:
        queue_ids(store, query.topic)  # a topic that is not here is an error, never an empty answer
    if store.key_index is None:
        raise TroveError(errors.INDEX_DISABLED)
    limit = store.settings.query_messages_max
    return _PageSearch(store, store.key_index, query, min(messages_max or limit, limit), start).run()


def query_pages(
    store: MessageStore,
    query: KeyQuery,
    *,
    messages_max: int = 0,
    cursor: str = "",
    work_max: int = REQUEST_WORK_MAX,
) -> Iterator[QueryPage]:
    """Pages until the answer is complete, has messages_max messages (0: maxMsgsNumBatch), or took work_max.

    The caller may do other things between two pages. Raises as query_page does.
    """
    left = messages_max or store.settings.query_messages_max
    while True:
        page = query_page(store, query, messages_max=left, cursor=cursor)
        left -= len(page.records)
        work_max -= page.work
        if page.complete or left <= 0 or work_max <= 0:
            yield replace(page, last=True)
            return
        yield page
        cursor = page.cursor


@dataclass(slots=True)
class _PageSearch:
    store: MessageStore
    index: KeyIndex
    query: KeyQuery
    messages_max: int
    start: Cursor
    before: int = 0
    place: tuple[str, int] | None = None
    work_left: int = WORK_MAX
    work: int = 0
    byte_count: int = 0
    stopped: bool = False
    records: list[memoryview] = field(default_factory=list)
    queue_offsets: list[int] = field(default_factory=list)
    physical_offsets: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self) -> QueryPage:
        self.before = min(self.start.before, self.store.visible_offset)
        lowest = self.store.min_offset
        if self.query.begin > 0:
            lowest = max(lowest, self.store.lowest_offset_at(self.query.begin))
        indexed_from = self.index.tags_from if self.query.type is KeyType.TAG else 0
        self._scan(max(lowest, self.index.position))
        self._walk(max(lowest, indexed_from))
        self._scan(lowest)
        timestamp, physical_offset = self.index.last_update()
        return QueryPage(
            self.records,
            self.queue_offsets,
            self.physical_offsets,
            complete=not self.stopped,
            cursor=Cursor(self.before, self.place).encode(self.query) if self.stopped else "",
            index_last_update_timestamp=timestamp,
            index_last_update_physical_offset=physical_offset,
            notes=tuple(self.notes),
            work=self.work,
        )

    def _hashes(self) -> list[int]:
        if self.query.topic:
            return sorted(self.query.hashes_in(self.query.topic))
        topics = {*self.store.consume_queues.topics(), *self.store.topics.names(include_system=True)}
        return sorted(set(self.query.hashes_in_all(topics)))

    # --- the parts of the log: each works down from `before` to `begin` --------------------------------
    def _scan(self, begin: int) -> None:
        if self._is_stopped() or begin >= self.before:
            return
        hashes = np.array(self._hashes(), np.int32)
        for window_begin, window_end in windows(self.store.consume_queues, begin, self.before):
            if not self._has_work():
                return
            found, record_count = matches(self.store, window_begin, window_end, hashes)
            self._examine_all(found)
            if self._is_stopped():
                return
            self._charge(_WORK_OF_SCANNED_RECORD * record_count)
            self._charge((window_end - window_begin) // _SCANNED_BYTES_OF_WORK)
            self.before = window_begin

    def _walk(self, begin: int) -> None:
        if self._is_stopped() or begin >= self.before:
            return
        hashes = self._hashes()
        try:
            if len(hashes) == 1:
                self._walk_chain(hashes[0], begin)
            else:
                self._walk_chains(hashes, begin)
        except StorageError as error:  # the disk does not give a part of the index: the log has it all
            self.notes.append(f"the log was searched: {error}")
            self.place = None
            self._scan(begin)
        if not self._is_stopped():
            self.before, self.place = begin, None

    def _walk_chain(self, key_hash: int, begin: int) -> None:
        walk = self.index.walk(key_hash, begin, self.before, self.start.place)
        while not walk.done and not self.stopped:
            self.place = walk.place
            if not self._has_work():
                return
            steps = self._chain_steps()
            self._examine_all(walk.take(steps))
            self._charge(steps)

    def _chain_steps(self) -> int:
        """No more than fill the page, so that the next page need not walk them again."""
        room = self.messages_max - len(self.records)
        return min(_CHAIN_STEPS, max(room, _CHAIN_STEPS_MIN))

    def _walk_chains(self, hashes: list[int], begin: int) -> None:
        """A page goes through one index file: of many topics, beginning the chains is most of the work."""
        reached = self.index.newest_file_begin(begin, self.before)
        self._merge_chains(hashes, reached)
        self._charge(_WORK_OF_CHAIN * len(hashes))
        if not self._is_stopped() and reached > begin:
            self.before, self.stopped = reached, True

    def _merge_chains(self, hashes: list[int], begin: int) -> None:
        chains = [self.index.candidates(key_hash, begin, self.before) for key_hash in hashes]
        for physical_offset in heapq.merge(*chains, reverse=True):
            if not self._has_work():
                return
            self._examine(physical_offset)
            if self.stopped:
                return

    def _charge(self, work: int) -> None:
        self.work += work
        self.work_left -= work

    def _has_work(self) -> bool:
        """Whether the page may go on. Work is charged when it is done, so that every page gets on."""
        if self.work_left <= 0:
            self.stopped = True
        return not self.stopped

    def _is_stopped(self) -> bool:
        return self.stopped

    # --- candidates ---------------------------------------------------------------------------------
    def _examine_all(self, physical_offsets: list[int]) -> None:
        for physical_offset in physical_offsets:
            if not self._has_work():
                return
            self._examine(physical_offset)
            if self.stopped:
                return

    def _examine(self, physical_offset: int) -> None:
        """Takes the record if it answers the query and the page has room; else passes over it or stops."""
        if physical_offset >= self.before:
            return  # the same record once more: it has two keys of this hash, or was indexed twice
        self._charge(_WORK_OF_CANDIDATE)
        try:
            found = self._answer_at(physical_offset)
        except (StorageError, TroveError):  # the disk does not give it
            self._note(physical_offset)
            found = None
        if found is not None:
            record, fields = found
            if self.records and self._is_full(len(record)):
                self.stopped = True
                return
            queue_offset = queue_offset_of(self.store.consume_queues, record, fields, physical_offset)
            self.records.append(record)
            self.physical_offsets.append(physical_offset)
            self.queue_offsets.append(queue_offset)
            self.byte_count += len(record)
        self.before = physical_offset

    def _is_full(self, size: int) -> bool:
        return (
            len(self.records) >= self.messages_max
            or self.byte_count + size > self.store.settings.query_page_bytes_max
        )

    def _answer_at(self, physical_offset: int) -> tuple[memoryview, RecordFields] | None:
        """The record there, if it answers the query and is sound."""
        if self.query.has_times:
            timestamp = self.store.store_timestamp_at(physical_offset)
            if timestamp is not None and not self.query.in_time(timestamp):
                return None
        record = self.store.record_at(physical_offset, check=False)
        if record is None:
            if not self._is_well_formed(physical_offset):
                self._note(physical_offset)
            return None  # well formed, and yet not served: its topic was deleted
        fields = read_fields(record, 0, len(record))
        assert fields is not None, "the store gives records that are well formed"
        # Its keys are looked at first: to check a foreign record's body would be in vain.
        self._charge(fields.property_size // _PROPERTY_BYTES_OF_WORK)
        if not self.query.accepts(record, fields):
            return None
        self._charge(len(record) // _BODY_BYTES_OF_WORK)
        if not crc_matches(record, fields):
            self.store.damage.met(physical_offset, len(record), RecordState.DAMAGED.value)
            self._note(physical_offset)
            return None
        return record, fields

    def _is_well_formed(self, physical_offset: int) -> bool:
        size = int.from_bytes(self.store.read(physical_offset, 4), signed=True)
        record = self.store.read(physical_offset, max(0, size))
        return read_fields(record, 0, len(record)) is not None

    def _note(self, physical_offset: int) -> None:
        if len(self.notes) < _NOTES_MAX:
            self.notes.append(f"skipped at {physical_offset}: the record is damaged")
