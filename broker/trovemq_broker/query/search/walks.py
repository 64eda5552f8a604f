"""Walks through the trees: the physical offsets that an index names, in the order of the answer, block by
block.

A position is a *rank*, so that both orders use the same code: oldest first the physical offset itself, newest
first its negative. Ranks rise along every walk. A block has ranks and an edge: all records that the index
names up to the edge (inclusive) were returned. The last block's edge is END.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.trees import TreeReader, key_after
from trovemq_store.index.trees.layout import LOCATION, LOCATION_ENTRY, OFFSET, TERM

Ranks: TypeAlias = NDArray[np.int64]

END: Final = 1 << 62
NO_RANKS: Final = np.zeros(0, np.int64)
_ENTRIES_FIRST: Final = 16
_ENTRIES_MOST: Final = 256
_MERGED_MOST: Final = 64
"""Entries that a walk reads at a time: first, at most, and at most where terms are merged."""
_LOCATION_BLOCKS: Final = 8
_AFTER_OFFSETS: Final = b"\xff" * (OFFSET.size + 1)


class Terms(NamedTuple):
    """Terms (with TERM_END), each with a rank that is not above those of its records in the range."""

    terms: list[bytes]
    ranks: Ranks


class Block(NamedTuple):
    ranks: Ranks
    edge: int


Walk: TypeAlias = Iterator[Block]


@dataclass(slots=True)
class Range:
    """Physical offsets [low, high) of one snapshot, in one order; `touched` counts the entries that were
    read."""

    reader: TreeReader
    low: PhysicalOffset
    high: PhysicalOffset
    newest_first: bool
    touched: int = field(default=0)

    def ranks(self, offsets: Ranks) -> Ranks:
        """The ranks of the offsets that are in the range, sorted."""
        offsets = offsets[(offsets >= self.low) & (offsets < self.high)]
        return in_order(-offsets if self.newest_first else offsets)

    def entries(self, tree: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries with keys `prefix` + physical offset that may reach into the range, in the range's order.
        An entry reaches from its own offset to that of the next one."""
        low, high = prefix + OFFSET.pack(self.low), prefix + OFFSET.pack(self.high)
        if self.newest_first:
            for entry in self.reader.items(tree, prefix, high, reverse=True):
                self.touched += 1
                yield entry
                if entry[0] <= low:
                    return
            return
        first = next(self.reader.items(tree, prefix, low, reverse=True), None)
        for entry in self.reader.items(tree, low if first is None else first[0], high):
            self.touched += 1
            yield entry


def in_order(ranks: Ranks) -> Ranks:
    """Each of the ranks once, ascending. The trees name them in runs that rise or fall, which a stable sort
    takes as they are; for many ranks `np.unique` takes milliseconds."""
    ranks = ranks.copy()
    ranks.sort(kind="stable")
    first = np.ones(len(ranks), np.bool_)
    np.not_equal(ranks[1:], ranks[:-1], out=first[1:])
    return ranks[first]


def _in_both(ranks: Ranks, others: Ranks) -> Ranks:
    """The ranks that are among the others, too; both ascend."""
    at = np.searchsorted(others, ranks)
    inside = at < len(others)
    found: Ranks = ranks[inside][others[at[inside]] == ranks[inside]]
    return found


def offsets_of(entries: Sequence[tuple[bytes, bytes]]) -> Ranks:
    """The physical offsets of entries of `term`."""
    packed = b"".join([key[-8:] + value for key, value in entries])
    return np.frombuffer(packed, ">u8").astype(np.int64)


def offsets_of_keys(keys: Sequence[bytes]) -> Ranks:
    """The offsets of entries without values, by their keys."""
    if len(set(map(len, keys))) != 1:
        return offsets_of([(key, b"") for key in keys])
    rows = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)
    return np.ascontiguousarray(rows[:, -OFFSET.size :]).view(">u8")[:, 0].astype(np.int64)


def term_walk(span: Range, term: bytes) -> Walk:
    """The records of one term; `term` begins the keys and ends with TERM_END."""
    entries = span.entries(TERM, term)
    size = _ENTRIES_FIRST
    while chunk := list(islice(entries, size)):
        offsets = offsets_of(chunk)
        edge = -int(offsets.min()) if span.newest_first else int(offsets.max())
        yield Block(span.ranks(offsets), edge)
        size = min(2 * size, _ENTRIES_MOST)
    yield Block(NO_RANKS, END)


def merged_walk(span: Range, terms: Terms) -> Walk:
    """The records of several terms. A term is read when the walk reaches its first record: of many terms a
    page reads few."""
    merged, size = _merged(span, terms), _ENTRIES_FIRST
    while chunk := list(islice(merged, size)):
        yield Block(in_order(np.array(chunk, np.int64)), chunk[-1])
        size = min(2 * size, _MERGED_MOST)
    yield Block(NO_RANKS, END)


def _merged(span: Range, terms: Terms) -> Iterator[int]:
    order = np.argsort(terms.ranks, kind="stable")
    unread = list(zip(terms.ranks[order].tolist(), order.tolist(), strict=True))[::-1]
    read: list[tuple[int, int, Iterator[int]]] = []
    while unread or read:
        if unread and (not read or unread[-1][0] <= read[0][0]):
            number = unread.pop()[1]
            rest = _term_ranks(span, terms.terms[number])
            first = next(rest, None)
            if first is not None:
                heapq.heappush(read, (first, number, rest))
            continue
        rank, number, rest = read[0]
        yield rank
        following = next(rest, None)
        if following is None:
            heapq.heappop(read)
        else:
            heapq.heapreplace(read, (following, number, rest))


def _term_ranks(span: Range, term: bytes) -> Iterator[int]:
    for key, value in span.entries(TERM, term):
        if value:
            yield from span.ranks(offsets_of([(key, value)])).tolist()
            continue
        offset = int.from_bytes(key[-OFFSET.size :])
        if span.low <= offset < span.high:
            yield -offset if span.newest_first else offset


def listed_walk(ranks: Ranks) -> Walk:
    """A walk over known ranks, in order."""
    yield Block(ranks, END)


def location_walk(span: Range, topic_number: int) -> Walk:
    """Every record of a topic."""
    entries = span.entries(LOCATION, b"")
    while chunk := list(islice(entries, _LOCATION_BLOCKS)):
        found, ends = [], []
        for key, value in chunk:
            block = np.frombuffer(value, LOCATION_ENTRY)
            offsets = OFFSET.unpack(key)[0] + block["distance"].astype(np.int64)
            ends += [int(offsets[0]), int(offsets[-1])]
            found.append(offsets[block["topic"] == topic_number])
        span.touched += sum(map(len, found))
        edge = -min(ends) if span.newest_first else max(ends)
        yield Block(span.ranks(np.concatenate(found)), edge)
    yield Block(NO_RANKS, END)


def terms_beginning(span: Range, begin: bytes, terms_max: int) -> Terms | None:
    """The terms with this prefix that have records in the range; None if there are more of them, in the range
    or not."""
    end = key_after(begin)
    assert end is not None, "a prefix begins with a topic's number and a kind"
    assert span.low < span.high, "every rank lies in the range"
    terms: list[bytes] = []
    places: list[bytes] = []
    each = _last_places if span.newest_first else _first_places
    for count, (term, place) in enumerate(each(span, begin, end)):
        if count == terms_max:
            return None
        span.touched += 1
        if place:
            terms.append(term)
            places.append(place)
    offsets = np.frombuffer(b"".join(places), ">u8").astype(np.int64)
    ranks = -np.minimum(offsets, span.high - 1) if span.newest_first else np.maximum(offsets, span.low)
    return Terms(terms, ranks)


def _first_places(span: Range, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """For each term a physical offset before which none of its records in the range lies; empty if it has no
    record there."""
    cursor = span.reader.cursor(TERM)
    low, high, behind_low = OFFSET.pack(span.low), OFFSET.pack(span.high), OFFSET.pack(span.low + 1)
    entry = cursor.at_least(begin)
    while entry is not None and entry[0] < end:
        term, place = entry[0][: -OFFSET.size], entry[0][-OFFSET.size :]
        if place < low:
            entry = cursor.below(term + behind_low)
            assert entry is not None, "the term's first entry is below"
            assert entry[0].startswith(term), "entries of one term are adjacent"
            place = low
            if (entry[1] or entry[0])[-OFFSET.size :] < low:
                entry = cursor.at_least(term + behind_low)
                inside = entry is not None and entry[0].startswith(term)
                place = entry[0][-OFFSET.size :] if entry is not None and inside else high
        yield term, place if place < high else b""
        entry = cursor.at_least(term + _AFTER_OFFSETS)


def _last_places(span: Range, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """For each term, from the last one on, a physical offset after which none of its records in the range
    lies; empty if it has no record there."""
    cursor, low, high = span.reader.cursor(TERM), OFFSET.pack(span.low), OFFSET.pack(span.high)
    entry = cursor.below(end)
    while entry is not None and entry[0] >= begin:
        term = entry[0][: -OFFSET.size]
        if entry[0][-OFFSET.size :] >= high:
            entry = cursor.below(term + high)
        place = b""
        if entry is not None and entry[0].startswith(term):
            place = (entry[1] or entry[0])[-OFFSET.size :]
        yield term, place if place >= low else b""
        entry = cursor.below(term)


# --- AND, OR ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Ahead:
    """A walk with its unused rest."""

    walk: Walk
    ranks: Ranks = field(default_factory=lambda: NO_RANKS)
    edge: int = -END

    def fill(self) -> None:
        block = next(self.walk)
        self.ranks = np.concatenate((self.ranks, block.ranks)) if len(self.ranks) else block.ranks
        self.edge = block.edge

    def take(self, edge: int) -> Ranks:
        count = int(np.searchsorted(self.ranks, edge, "right"))
        taken, self.ranks = self.ranks[:count], self.ranks[count:]
        return taken

    @property
    def is_over(self) -> bool:
        return self.edge == END and not len(self.ranks)


def any_walk(walks: Sequence[Walk]) -> Walk:
    """The records that at least one of the walks names."""
    ahead = [_Ahead(walk) for walk in walks]
    edge = -END
    while edge < END:
        for one in ahead:
            if one.edge == edge:
                one.fill()
        edge = min(one.edge for one in ahead)
        yield Block(in_order(np.concatenate([one.take(edge) for one in ahead])), edge)


def all_walk(walks: Sequence[Walk]) -> Walk:
    """The records that all walks name."""
    ahead = [_Ahead(walk) for walk in walks]
    edge = -END
    while edge < END:
        for one in ahead:
            if one.edge == edge:
                one.fill()
        edge = min(one.edge for one in ahead)
        found = ahead[0].take(edge)
        for one in ahead[1:]:
            found = _in_both(found, one.take(edge))
        if any(one.is_over for one in ahead):
            edge = END
        yield Block(found, edge)
