"""Prefixes that very many messages have: what of them is estimated, and tested by columns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from broker.message_store import MessageStore
from broker.search import candidates, plan
from broker.search.conditions import EVERYTHING, AllOf, Has, SearchQuery
from broker.search.search import search_page
from broker.search.sifting import may_answer
from broker.search.walks import Range
from broker.storage.memory import MemoryFileSystem
from broker.storage.trees import TreeChange
from broker.store_settings import StoreSettings
from broker.trees.layout import KEY, OFFSET, TAG, TERM, TERM_END
from tests.support.engine import SMALL, flush, open_store, send
from tests.support.searching import answered, expected

COUNT = 400
SETTINGS = replace(SMALL, tree_index_enable=True, commit_log_file_size=1 << 20)
RARE = Has(TAG, b"rare")
BOTH = SearchQuery("flights", AllOf((Has(KEY, b"k", is_prefix=True), RARE)))


def filled(settings: StoreSettings = SETTINGS) -> MessageStore:
    """Every message has a key that begins with `k`; one of 50 has the tag."""
    store = open_store(MemoryFileSystem(), settings, topics=("flights", "bills"))
    for n in range(COUNT):
        tag = "rare" if n % 50 == 25 else "usual"
        send(store, b"b" * (n % 90), topic="bills" if n % 7 == 3 else "flights", keys=f"k{n:04}", tag=tag)
    flush(store)
    store.catch_up_trees()
    return store


def places(store: MessageStore) -> list[int]:
    return [
        place
        for physical_offset, records, _ in store.scan(store.min_offset, store.visible_offset)
        for place in (physical_offset + records.positions).tolist()
    ]


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_walk_that_hardly_ever_meets_its_conditions_looks_at_few_records(
    monkeypatch: pytest.MonkeyPatch, newest_first: bool
) -> None:
    monkeypatch.setattr(plan, "COUNTED_MAX", 4)
    monkeypatch.setattr(plan, "LISTED_MAX", 8)
    monkeypatch.setattr(plan, "TERMS_MAX", 1)
    looked_at: list[int] = []
    look_at = candidates.Found.look_at

    def counted(found: candidates.Found, physical_offset: int) -> bool:
        looked_at.append(physical_offset)
        return look_at(found, physical_offset)

    monkeypatch.setattr(candidates.Found, "look_at", counted)
    store = filled()
    query = SearchQuery("flights", Has(TAG, b"ra", is_prefix=True), newest_first=newest_first)
    monkeypatch.setattr(plan.Planner, "_has", lambda *_: None)  # every message of the topic is walked
    assert answered(store, query) == expected(store, query)
    assert len(looked_at) < COUNT // 8


def test_what_is_damaged_or_out_of_reach_has_to_be_looked_at() -> None:
    store = filled()
    found = places(store)
    query = SearchQuery("flights", RARE)
    needed = may_answer(store, query, np.array(found))
    assert [place for place, one in zip(found, needed.tolist(), strict=True) if one] == sorted(
        expected(store, query)
    )
    begin, end = found[100], store.visible_offset
    for offsets in ([begin, end], [begin, begin + 1], [begin + 1, found[101]], [begin, begin + (1 << 20)]):
        assert may_answer(store, query, np.array(offsets)).tolist()[1]
    segment = store.log.segments.at(begin)
    assert segment is not None
    segment.file.write(begin - segment.start + 4, b"????")  # its magic
    assert may_answer(store, query, np.array(found[98:104]))[2:].all()


def test_records_of_two_segments_are_looked_at_one_by_one() -> None:
    store = filled(replace(SETTINGS, commit_log_file_size=1 << 15))
    assert len(store.log.segments) > 1
    assert may_answer(store, SearchQuery("flights", RARE), np.array(places(store))).all()
    for query in (BOTH, SearchQuery("flights", EVERYTHING)):
        assert answered(store, query) == expected(store, query)


@pytest.mark.parametrize("count", [2_000, 20_000])
@pytest.mark.parametrize(
    "term",
    [
        lambda n, _: f"order-{n:06}",
        lambda _, numbers: f"{numbers.getrandbits(128):032x}",
        lambda n, numbers: f"{numbers.getrandbits(64):x}"[: 5 + n % 9],
        lambda n, _: f"bill-{n // 10:05}",
    ],
)
def test_how_many_entries_a_prefix_has_is_known_within_a_factor_of_two(
    count: int, term: Callable[[int, random.Random], str]
) -> None:
    """Numbers, uuids, texts of several lengths, terms that ten records have."""
    numbers = random.Random(1)
    terms = [term(n, numbers).encode() for n in range(count)]
    keys = sorted({b"head" + text + TERM_END + OFFSET.pack(n) for n, text in enumerate(terms)})
    trees = MemoryFileSystem().open_trees("trees", (TERM,))
    trees.commit([TreeChange(TERM, keys=keys)])
    with trees.read() as reader:
        counted = list(islice(reader.items(TERM, b"head"), plan.COUNTED_MAX))
        about = plan._about(Range(reader, 0, count, newest_first=True), counted, b"head")
    assert count / 2 < about < count * 2


def test_a_prefix_of_very_many_messages_is_walked_and_one_of_few_is_listed() -> None:
    store = filled()

    def served(prefix: bytes) -> str:
        page = search_page(store, SearchQuery("flights", Has(KEY, prefix, is_prefix=True)), explain=True)
        return page.parts[0].index

    assert served(b"k").startswith("location")
    assert served(b"k01") == "term: key = k01*"
