"""Walks name the records of their entries, in order, whatever the range; equal to sets that are sorted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_broker.query.search import walks
from trovemq_broker.query.search.walks import (
    END,
    Range,
    Walk,
    all_walk,
    any_walk,
    listed_walk,
    merged_walk,
    offsets_of,
    offsets_of_keys,
    term_walk,
    terms_beginning,
)
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.trees import TreeChange
from trovemq_store.index.trees.layout import KEY, OFFSET, TERM, TERM_END, term_prefix

HEAD = term_prefix(1, KEY)
OFFSETS = st.integers(0, 60)
WORDS = st.sampled_from([b"a", b"ab", b"ab0", b"b", b"ba", b"c"])
RECORDS = st.dictionaries(WORDS, st.sets(OFFSETS, min_size=1, max_size=12), max_size=6)
BLOCKS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@pytest.fixture(autouse=True, params=["default", "tight"])
def _sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tight":
        monkeypatch.setattr(walks, "_ENTRIES_FIRST", 1)
        monkeypatch.setattr(walks, "_ENTRIES_MOST", 2)
        monkeypatch.setattr(walks, "_MERGED_MOST", 2)


def spanned(
    records: dict[bytes, set[int]], blocks: Sequence[int], low: int, high: int, *, newest_first: bool
) -> Range:
    """Each word's offsets in entries of these numbers of offsets, round robin."""
    entries = []
    for word, offsets in records.items():
        left, turn = sorted(offsets), 0
        while left:
            count = blocks[turn % len(blocks)]
            packed = [OFFSET.pack(offset) for offset in left[:count]]
            entries.append((HEAD + word + TERM_END + packed[0], b"".join(packed[1:])))
            left, turn = left[count:], turn + 1
    trees = MemoryFileSystem().open_trees("trees", (TERM,))
    trees.commit([TreeChange(TERM, sorted(entries))])
    return Range(trees.read(), PhysicalOffset(low), PhysicalOffset(high), newest_first)


def walked(walk: Walk) -> list[int]:
    """The ranks, each once; edges and ranks keep their promises."""
    found: list[int] = []
    edge = -END
    for block in walk:
        ranks = block.ranks.tolist()
        assert ranks == sorted(set(ranks))
        assert edge <= block.edge
        assert all(rank <= block.edge for rank in ranks)
        new = [rank for rank in ranks if rank > edge or (rank == edge and rank not in found)]
        assert set(ranks) - set(new) <= set(found), "a repeated rank was given before"
        found += new
        edge = block.edge
    assert edge == END
    assert found == sorted(found)
    return found


def in_order(offsets: set[int], span: Range) -> list[int]:
    inside = [offset for offset in offsets if span.low <= offset < span.high]
    return sorted(-offset for offset in inside) if span.newest_first else sorted(inside)


@given(RECORDS, BLOCKS, OFFSETS, OFFSETS, st.booleans(), st.sampled_from([b"", b"a", b"ab", b"b", b"d"]))
def test_terms_are_merged_as_a_set_would_be_sorted(
    records: dict[bytes, set[int]], blocks: list[int], one: int, other: int, newest_first: bool, begin: bytes
) -> None:
    span = spanned(records, blocks, min(one, other), max(one, other) + 1, newest_first=newest_first)
    wanted = {word: offsets for word, offsets in records.items() if word.startswith(begin)}
    terms = terms_beginning(span, HEAD + begin, len(wanted))
    assert terms is not None
    assert span.touched == len(wanted)
    firsts = dict(zip(terms.terms, terms.ranks.tolist(), strict=True))
    for word, offsets in wanted.items():
        if ranks := in_order(offsets, span):
            assert firsts[HEAD + word + TERM_END] <= ranks[0]
        assert walked(term_walk(span, HEAD + word + TERM_END)) == ranks
    assert walked(merged_walk(span, terms)) == in_order({n for part in wanted.values() for n in part}, span)
    if wanted:
        assert terms_beginning(span, HEAD + begin, len(wanted) - 1) is None


@given(st.lists(st.sets(OFFSETS, max_size=12), min_size=1, max_size=4), BLOCKS, st.booleans(), st.booleans())
def test_joined_walks_equal_operations_on_sets(
    sets: list[set[int]], blocks: list[int], newest_first: bool, listed: bool
) -> None:
    records = {b"%d" % n: offsets for n, offsets in enumerate(sets)}
    span = spanned(records, blocks, 5, 50, newest_first=newest_first)

    def each() -> list[Walk]:
        found = [term_walk(span, HEAD + word + TERM_END) for word in records]
        if listed:
            found[0] = listed_walk(span.ranks(np.array(sorted(sets[0]), np.int64)))
        return found

    assert walked(any_walk(each())) == in_order(set.union(*sets), span)
    assert walked(all_walk(each())) == in_order(set.intersection(*sets), span)


@given(st.lists(st.integers(-40, 40)), st.booleans())
def test_ranks_are_put_in_order_each_once(ranks: list[int], in_runs: bool) -> None:
    given_ranks = np.array(sorted(ranks, reverse=True) if in_runs else ranks, np.int64)
    assert walks.in_order(given_ranks).tolist() == sorted(set(ranks))


@given(st.lists(st.tuples(WORDS, st.integers(0, 1 << 50)), max_size=8))
def test_keys_give_the_offsets_of_entries_without_values(found: list[tuple[bytes, int]]) -> None:
    keys = [HEAD + word + TERM_END + OFFSET.pack(offset) for word, offset in found]
    assert offsets_of_keys(keys).tolist() == [offset for _, offset in found]
    assert offsets_of([(key, b"") for key in keys]).tolist() == [offset for _, offset in found]


def test_of_a_thousand_terms_a_page_reads_few() -> None:
    """A prefix under which very many different keys stand took a read of a part of all of them."""
    records = {b"%04d" % n: {n + 1_000 * m for m in range(20)} for n in range(1_000)}
    for newest_first in (True, False):
        span = spanned(records, [1], 0, 20_000, newest_first=newest_first)
        terms = terms_beginning(span, HEAD, 1_000)
        assert terms is not None
        walk = merged_walk(span, terms)
        page = [*next(walk).ranks.tolist(), *next(walk).ranks.tolist(), *next(walk).ranks.tolist()]
        assert page == in_order(set(range(20_000)), span)[: len(page)]
        assert span.touched <= 1_000 + 2 * len(page)
