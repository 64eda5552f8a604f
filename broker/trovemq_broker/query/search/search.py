"""A search: exact, in the order of the log or its reverse, in pages of bounded work; an incomplete answer is
marked.

The log is covered in up to three parts, from the oldest:
  [lowest, declared)   before the search's properties were indexed: the trees without them
  [declared, indexed)  the trees
  [indexed, visible)   not in the trees yet: scanned

The times of the search move `lowest` and the end closer together. Every record that a part names is examined.
A store without readable trees is scanned as a whole.

Invariants
- A page answers a contiguous part of the log, from its cursor on to the next cursor; all matching records of
  that part are in the page.
- The trees are read in one snapshot, which is closed before the page is returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from trovemq_broker.query.candidates import ResultPage
from trovemq_broker.query.cursor import Cursor
from trovemq_broker.query.log_windows import WINDOW_BYTES, matches, windows
from trovemq_broker.query.pages import (
    REQUEST_WORK_MAX,
    WORK_MAX,
    WORK_OF_SCANNED_RECORD,
    AnswerPage,
    Work,
    answer_pages,
    page_size,
)
from trovemq_broker.query.search.conditions import SearchQuery
from trovemq_broker.query.search.matching import Mask, answering, answers
from trovemq_broker.query.search.plan import Plan, Planner
from trovemq_broker.query.search.sifting import MISSES_MIN, SIFTED_MAX, may_answer
from trovemq_broker.query.search.time_bounds import within_time
from trovemq_broker.query.search.walks import END, Range, Ranks
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids
from trovemq_store.files.files import UnreadableError
from trovemq_store.files.trees import TreeReader
from trovemq_store.index.trees.layout import META, OFFSET, TOPIC_VALUE, TOPICS, TopicEntry, property_key


@dataclass(frozen=True, slots=True)
class SearchPart:
    """The source for a part [begin, end) of the log. entries: how many entries of the index will be read, or
    at least that many (`at_least`); 0 for a scan, which reads the part's bytes."""

    index: str
    begin: PhysicalOffset
    end: PhysicalOffset
    entries: int = 0
    at_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage(AnswerPage):
    """A page. parts: the plan for the rest of the search, in the answer's order; entries, scanned_bytes: the
    cost of the page. lag_bytes: bytes of the visible log that are not in the trees."""

    parts: tuple[SearchPart, ...]
    entries: int
    scanned_bytes: int
    lag_bytes: int


def search_page(
    store: MessageStore, query: SearchQuery, *, messages_max: int = 0, cursor: str = "", explain: bool = False
) -> SearchPage:
    """The next page of at most messages_max messages (0: maxMsgsNumBatch, which is also the most a page has).

    explain: only `parts`; no record is read.
    Raises TroveError REQUEST_ILLEGAL, CURSOR_ILLEGAL, TOPIC_NOT_FOUND, PROPERTY_NOT_INDEXED.
    """
    query.check()
    messages_max = page_size(store, messages_max)
    start = Cursor.decode(cursor, query).physical_offset if cursor else None
    queue_ids(store, query.topic)  # an unknown topic is an error, never an empty answer
    _check_declared(store, query)
    found = ResultPage(store, query, partial(answers, query), messages_max, Work(WORK_MAX))
    return _PageSearch(store, query, found, start).run(explain)


def search_pages(
    store: MessageStore,
    query: SearchQuery,
    *,
    messages_max: int = 0,
    cursor: str = "",
    work_max: int = REQUEST_WORK_MAX,
) -> Iterator[SearchPage]:
    """Pages until the answer is complete, has messages_max messages (0: maxMsgsNumBatch), or used work_max.

    The caller may do other work between two pages. Raises TroveError REQUEST_ILLEGAL, CURSOR_ILLEGAL,
    TOPIC_NOT_FOUND, PROPERTY_NOT_INDEXED.
    """

    def page_at(remaining: int, cursor: str) -> SearchPage:
        return search_page(store, query, messages_max=remaining, cursor=cursor)

    return answer_pages(page_at, messages_max or store.settings.query_messages_max, cursor, work_max)


def _check_declared(store: MessageStore, query: SearchQuery) -> None:
    declared = store.topics.options(query.topic).indexed_properties
    for name in sorted(query.properties()):
        if name not in declared:
            names = " ".join(f"--indexed-property {one}" for one in (*declared, name))
            raise TroveError(
                errors.PROPERTY_NOT_INDEXED,
                f"{query.topic} does not declare the property {name[:80]} as indexed: "
                f"trovemq topic alter {query.topic} {names[:400]}",
                property=name[:80],
            )


@dataclass(slots=True)
class _PageSearch:
    store: MessageStore
    query: SearchQuery
    found: ResultPage
    start: PhysicalOffset | None
    low: PhysicalOffset = LOG_ORIGIN
    high: PhysicalOffset = LOG_ORIGIN
    done: int = 0
    """The rank (see walks.py) up to which all records were examined."""
    misses: int = 0
    """How many of the last records did not answer, in a row."""
    entries: int = 0
    scanned_bytes: int = 0
    stopped: bool = False
    parts: list[SearchPart] = field(default_factory=list)

    def run(self, explain: bool) -> SearchPage:
        store, newest_first = self.store, self.query.newest_first
        self.low, self.high = store.min_offset, store.visible_offset
        if self.start is not None and newest_first:
            self.high = max(self.low, min(self.high, self.start))
        elif self.start is not None:
            self.low = min(self.high, max(self.low, self.start))
        if self.query.begin > 0:
            self.low = max(self.low, min(self.high, store.lowest_offset_at(self.query.begin)))
        self.done = -self.high if newest_first else self.low - 1
        indexed = self._indexed_to(self.low, self.high)
        order = [(self._indexed, self.low, indexed), (self._scan, indexed, self.high)]
        for serve, begin, end in reversed(order) if newest_first else order:
            if begin < end:
                serve(begin, end, explain)
        return self._page(explain)

    def _page(self, explain: bool) -> SearchPage:
        complete = not self.stopped and not explain
        at = -self.done if self.query.newest_first else self.done + 1
        visible = self.store.visible_offset
        return SearchPage(
            records=self.found.records,
            queue_offsets=self.found.queue_offsets,
            physical_offsets=self.found.physical_offsets,
            complete=complete,
            cursor="" if complete or explain else Cursor(PhysicalOffset(max(0, at))).encode(self.query),
            parts=tuple(self.parts),
            entries=self.entries,
            scanned_bytes=self.scanned_bytes,
            lag_bytes=visible - self._indexed_to(self.store.min_offset, visible),
            notes=tuple(self.found.notes),
            work=self.found.work.done,
        )

    def _indexed_to(self, low: PhysicalOffset, high: PhysicalOffset) -> PhysicalOffset:
        """The end of the indexed part, within [low, high]."""
        trees = self.store.trees
        return min(high, max(low, trees.search.position if trees is not None else LOG_ORIGIN))

    # --- the indexed part of the log ------------------------------------------------------------------
    def _indexed(self, begin: PhysicalOffset, end: PhysicalOffset, explain: bool) -> None:
        trees = self.store.trees
        assert trees is not None, "without trees nothing is indexed"
        assert self.low <= begin < end <= self.high, "a part of the search, and not an empty one"
        try:
            with trees.trees.read() as reader:
                self._in_trees(reader, begin, end, explain)
        except UnreadableError as error:
            self.found.note(f"the log was searched: {error}")
            if self.query.newest_first:
                end = min(end, PhysicalOffset(-self.done))
            else:
                begin = max(begin, PhysicalOffset(self.done + 1))
            self._scan(begin, end, explain)

    def _in_trees(
        self, reader: TreeReader, begin: PhysicalOffset, end: PhysicalOffset, explain: bool
    ) -> None:
        begin, end = within_time(self.store, self.query, reader, begin, end)
        topic = self._topic(reader)
        if topic is None or begin >= end:
            if not explain and not self.stopped:
                self._advance(begin, end)
            self.parts.append(SearchPart("none: there is no such record", begin, end))
            return
        declared = self._declared_from(reader, topic)
        border = min(end, max([begin, *declared.values()]))
        order = [(begin, border), (border, end)]
        for low, high in reversed(order) if self.query.newest_first else order:
            if low < high:
                span = Range(reader, low, high, self.query.newest_first)
                planner = Planner(span, topic, lambda name, low=low: declared[name] <= low)  # type: ignore[misc]
                self._walk(planner.plan(self.query.where), span, explain)

    def _topic(self, reader: TreeReader) -> TopicEntry | None:
        value = reader.get(TOPICS, self.query.topic.encode())
        if value is None:
            return None
        entry = TopicEntry(*TOPIC_VALUE.unpack(value))
        return entry if entry.since >= self.store.deletions.deleted_below(self.query.topic) else None

    def _declared_from(self, reader: TreeReader, topic: TopicEntry) -> dict[str, PhysicalOffset]:
        """For each property that the search names, the place from which on the records have terms of it."""
        found = {}
        for name in self.query.properties():
            value = reader.get(META, property_key(topic.number, name))
            found[name] = PhysicalOffset(OFFSET.unpack(value)[0] if value else END)
        return found

    def _walk(self, plan: Plan, span: Range, explain: bool) -> None:
        self.parts.append(SearchPart(plan.text, span.low, span.high, plan.entries, plan.at_least))
        self.entries += span.touched
        work = self.found.work
        work.charge(span.touched)
        work.remaining = max(work.remaining, WORK_MAX // 4)
        span.touched = 0
        if explain or self.stopped:
            return
        for block in plan.walk():
            self.entries += span.touched
            work.charge(span.touched)
            span.touched = 0
            if not self._examine_in_order(block.ranks):
                return
            if block.edge != END:
                self.done = max(self.done, block.edge)
                if work.remaining <= 0:
                    self.stopped = True
                    return
        self._advance(span.low, span.high)

    def _examine_in_order(self, ranks: Ranks) -> bool:
        """Examines the records at these ranks; False if the page is full. If hardly any record answers, many
        are tested at once first, and only those that can match are examined."""
        at = int(np.searchsorted(ranks, self.done, "right"))
        while at < len(ranks):
            sift = self.misses >= MISSES_MIN and self.found.work.remaining > 0
            part = ranks[at : at + (SIFTED_MAX if sift else MISSES_MIN)]
            at += len(part)
            kept = part
            if sift:
                self.found.work.charge(WORK_OF_SCANNED_RECORD * len(part))
                kept = part[self._may_answer(part)]
            if not self._examine(kept.tolist()):
                return False
            self.done = int(part[-1])
            if sift:
                self.misses = MISSES_MIN if 2 * len(kept) <= len(part) else 0
        return True

    def _may_answer(self, ranks: Ranks) -> Mask:
        if self.query.newest_first:
            return may_answer(self.store, self.query, -ranks[::-1])[::-1]
        return may_answer(self.store, self.query, ranks)

    def _advance(self, begin: PhysicalOffset, end: PhysicalOffset) -> None:
        """Marks [begin, end) as examined."""
        self.done = max(self.done, -begin if self.query.newest_first else end - 1)

    # --- the part that is not indexed yet -------------------------------------------------------------
    def _scan(self, begin: PhysicalOffset, end: PhysicalOffset, explain: bool) -> None:
        self.parts.append(SearchPart("log: scanned", begin, end))
        if explain or self.stopped:
            return
        if self.query.newest_first:
            self._scan_down(begin, end)
        else:
            self._scan_up(begin, end)

    def _scan_down(self, begin: PhysicalOffset, end: PhysicalOffset) -> None:
        for low, high in windows(self.store.consume_queues, begin, end):
            offsets, count = matches(self.store, low, high, partial(answering, self.query))
            if not self._scanned([-offset for offset in offsets], low, high, count):
                return

    def _scan_up(self, begin: PhysicalOffset, end: PhysicalOffset) -> None:
        at = begin
        for physical_offset, records, alive in self.store.scan(begin, end, WINDOW_BYTES):
            chosen = answering(self.query, records)
            if alive is not None:
                chosen &= alive
            run_end = PhysicalOffset(physical_offset + int(records.positions[-1] + records.sizes[-1]))
            ranks = (physical_offset + records.positions[chosen]).tolist()
            if not self._scanned(ranks, at, run_end, len(records)):
                return
            at = run_end
        self._advance(begin, end)

    def _scanned(
        self, ranks: list[int], begin: PhysicalOffset, end: PhysicalOffset, record_count: int
    ) -> bool:
        """Examines the candidates of a scanned part of the log. Returns whether the page continues. The scan
        is charged after them, because it may cost more than a page's share and the page must make
        progress."""
        self.scanned_bytes += end - begin
        continues = self._examine(ranks)
        self.found.work.charge_scan(record_count, end - begin)
        if not continues:
            return False
        self._advance(begin, end)
        if self.found.work.remaining <= 0:
            self.stopped = True
        return not self.stopped

    def _examine(self, ranks: list[int]) -> bool:
        """Examines the records at these ranks. False if the page is full, or has used its share of work."""
        for rank in ranks:
            if rank <= self.done:
                continue
            before = len(self.found.records)
            continues = self.found.work.remaining > 0 and self.found.examine(PhysicalOffset(abs(rank)))
            if not continues:
                self.stopped = True
                if not self.query.newest_first:
                    self.done = rank - 1  # so that a cursor is where a record begins
                return False
            self.done = rank
            self.misses = 0 if len(self.found.records) > before else self.misses + 1
        return True
