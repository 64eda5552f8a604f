"""Prefixes of very many messages: their estimates, and tests by columns."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import pytest

from tests.support.engine import NOW_MS, SMALL, flush, open_store, send
from tests.support.searching import answered, expected
from trovemq_broker.query import candidates
from trovemq_broker.query.search import plan
from trovemq_broker.query.search.conditions import EVERYTHING, AllOf, AnyOf, Has, SearchQuery
from trovemq_broker.query.search.search import search_page
from trovemq_broker.query.search.sifting import may_answer
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.trees import TreeChange
from trovemq_store.index.trees.layout import KEY, OFFSET, TAG, TERM, TERM_END, UNIQUE_KEY
from trovemq_store.settings import StoreSettings

COUNT = 400
SETTINGS = replace(SMALL, tree_index_enable=True, commit_log_file_size=1 << 20)
RARE = Has(TAG, b"rare")
BOTH = SearchQuery("flights", AllOf((Has(KEY, b"k", is_prefix=True), RARE)))


def filled(settings: StoreSettings = SETTINGS) -> MessageStore:
    """Every message has a key that begins with `k`; one of 50 has the tag."""
    store = open_store(MemoryFileSystem(), settings, topics=("flights", "bills"))
    for n in range(COUNT):
        tag = "rare" if n % 50 == 25 else "frequent"
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
    examine = candidates.ResultPage.examine

    def counted(found: candidates.ResultPage, physical_offset: int) -> bool:
        looked_at.append(physical_offset)
        return examine(found, PhysicalOffset(physical_offset))

    monkeypatch.setattr(candidates.ResultPage, "examine", counted)
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
    segment = store.log.segments.at(PhysicalOffset(begin))
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
        about = plan._about(counted, keys[-1])
    assert count / 2 < about < count * 2


def test_a_prefix_of_very_many_messages_is_walked_and_one_of_few_is_listed() -> None:
    store = filled()

    def served(prefix: bytes) -> str:
        page = search_page(store, SearchQuery("flights", Has(KEY, prefix, is_prefix=True)), explain=True)
        return page.parts[0].index

    assert served(b"k").startswith("location")
    assert served(b"k01") == "term: key = k01*"


def _few(*_: object) -> float:
    return 5.0


WAYS: dict[str, dict[str, object]] = {
    "merged": {"TERMS_MAX": 100, "_TERM_COST": 1},
    "listed": {"TERMS_MAX": 0, "_LISTED_COST": 1_000},
    "walked": {"TERMS_MAX": 0, "LISTED_MAX": 0},
    "more terms than thought": {"TERMS_MAX": 3, "_TERM_COST": 1, "_LISTED_COST": 0, "_about": _few},
    "more entries than thought": {"TERMS_MAX": 0, "LISTED_MAX": 60, "_about": _few},
}


@cache
def indexed_in_steps(*, unique: bool) -> MessageStore:
    """Each of twelve keys has an entry of each of six steps, of one or several messages; of unique ids one
    each. Then come messages that are like none of them."""
    store = open_store(MemoryFileSystem(), SETTINGS, topics=("flights", "bills"))
    for n in range(120):
        key = f"k{n * 7 % 12:02} other" if n % 5 else f"k{n % 12:02} k{n % 7:02} k{n % 12:02}"
        topic = "bills" if n % 11 == 3 else "flights"
        number = f"u{n:03}" if unique else ""
        size, tag, now_ms = n % 90, f"t{n % 4}", NOW_MS + n // 2
        send(store, b"b" * size, now_ms, topic=topic, keys=key, tag=tag, unique_key=number)
        if n % 20 == 19:
            flush(store)
            store.catch_up_trees()
    for n in range(10):
        number = f"z{n}" if unique else ""
        send(store, b"b", NOW_MS + 60, topic="flights", keys="z", unique_key=number, tag="z")
    flush(store)
    store.catch_up_trees()
    return store


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "has", [Has(KEY, b"k", True), Has(UNIQUE_KEY, b"u", True), Has(TAG, b"t", True)], ids=str
)
def test_however_a_prefix_is_served_it_is_equal_to_a_scan(
    has: Has, way: str, newest_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = indexed_in_steps(unique=has.kind == UNIQUE_KEY)
    monkeypatch.setattr(plan, "COUNTED_MAX", 10)
    for name, value in WAYS[way].items():
        monkeypatch.setattr(plan, name, value)
    rare = Has(TAG, b"t1")
    for where in (has, AllOf((has, rare)), AnyOf((has, rare)), AllOf((has, has))):
        query = SearchQuery("flights", where, newest_first=newest_first)
        wanted = expected(store, query)
        assert wanted
        for page_size in (0, 7):
            assert answered(store, query, page_size) == wanted
        middle = wanted[len(wanted) // 2]
        time = store.store_timestamp_at(PhysicalOffset(middle))
        assert time is not None
        timed = replace(query, begin=EpochMs(time - 3), end=time + 3)
        assert answered(store, timed, 3) == [
            place
            for place in wanted
            if abs((store.store_timestamp_at(PhysicalOffset(place)) or 0) - time) <= 3
        ]


@pytest.mark.parametrize(
    ("has", "way", "index"),
    [
        (Has(KEY, b"k", True), "merged", "term: key = k*, 12 values"),
        (Has(KEY, b"k", True), "listed", "term: key = k*"),
        (Has(KEY, b"k", True), "walked", "location: "),
        (Has(KEY, b"k", True), "more entries than thought", "location: "),
        (Has(UNIQUE_KEY, b"u", True), "listed", "term: unique id = u*"),
        (Has(UNIQUE_KEY, b"u", True), "more entries than thought", "location: "),
        (Has(TAG, b"t", True), "merged", "term: tag = t*, 4 values"),
        (Has(TAG, b"t", True), "more terms than thought", "location: "),
    ],
)
def test_explain_names_the_plan_that_serves_a_prefix(
    has: Has, way: str, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = indexed_in_steps(unique=has.kind == UNIQUE_KEY)
    monkeypatch.setattr(plan, "COUNTED_MAX", 10)
    for name, value in WAYS[way].items():
        monkeypatch.setattr(plan, name, value)
    (part,) = search_page(store, SearchQuery("flights", has), explain=True).parts
    assert part.index == index or (index.endswith(" ") and part.index.startswith(index))


@pytest.mark.slow
def test_ids_that_lie_together_far_from_where_a_search_begins_are_listed() -> None:
    """The first page of ids in a row came after a walk through every newer message of the topic."""
    store = open_store(MemoryFileSystem(), SETTINGS, topics=("flights",))
    for n in range(2_000):
        send(store, b"b", topic="flights", unique_key=f"{n // 500}{n:04}")
    flush(store)
    store.catch_up_trees()
    for newest_first in (True, False):
        for prefix in (b"0", b"1", b"3"):
            query = SearchQuery("flights", Has(UNIQUE_KEY, prefix, True), newest_first=newest_first)
            page = search_page(store, query, messages_max=10)
            assert page.physical_offsets == expected(store, query)[:10]
            assert page.entries < 1_100


def test_a_log_that_cannot_be_read_in_one_piece_is_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = filled()
    query = SearchQuery("flights", RARE)
    found = np.array(places(store)[50:80])

    def failing(_offset: int, _size: int) -> memoryview:
        raise StorageError("read", "commitlog", errno.EIO)

    assert not may_answer(store, query, found).all()
    monkeypatch.setattr(store, "read", failing)
    assert may_answer(store, query, found).all()
