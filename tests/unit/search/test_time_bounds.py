"""Times narrow the part of the log that is walked, and never by a record whose time cannot be trusted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.engine import NOW_MS, SMALL, flush, open_store, send
from tests.support.searching import answered, expected
from trovemq_broker.query.search import time_bounds
from trovemq_broker.query.search.conditions import Has, SearchQuery
from trovemq_broker.query.search.search import search_page
from trovemq_broker.query.search.time_bounds import within_time
from trovemq_proto import errors
from trovemq_proto.errors import DamagedError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.trees.layout import KEY, LOCATION

SETTINGS = replace(SMALL, tree_index_enable=True, commit_log_file_size=1 << 20)
STEP_MS = 43_200_000
COUNT = 200
QUERY = SearchQuery("flights", Has(KEY, b"k"))


def filled(indexed_each: int = 10) -> MessageStore:
    """One segment; a step of the clock between two messages."""
    store = open_store(MemoryFileSystem(), SETTINGS, topics=("flights",))
    for n in range(COUNT):
        send(store, b"x" * (n * 7 % 900), topic="flights", keys="k", now_ms=NOW_MS + n * STEP_MS)
        if n % indexed_each == indexed_each - 1:
            flush(store)
            store.catch_up_trees()
    flush(store)
    store.catch_up_trees()
    return store


def queries() -> list[SearchQuery]:
    times = [NOW_MS + n * STEP_MS for n in (0, 9, 90, 151, COUNT + 9)]
    spans = [(begin, end) for begin in times for end in times if begin <= end]
    return [replace(QUERY, begin=begin + 1, end=end + 1) for begin, end in spans]


def narrowed(store: MessageStore, query: SearchQuery) -> tuple[int, int]:
    assert store.trees is not None
    with store.trees.trees.read() as reader:
        return within_time(store, query, reader, store.min_offset, store.visible_offset)


@pytest.fixture(autouse=True)
def _fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_bounds, "_FINE", 1 << 10)


def test_a_range_of_times_reads_little_more_than_what_it_holds() -> None:
    store = filled()
    for query in queries():
        wanted = expected(store, query)
        low, high = narrowed(store, query)
        assert all(low <= place < high for place in wanted)
        assert high - low < sum(900 + 300 for _ in range(len(wanted) + 30))
        assert answered(store, query) == wanted
        assert answered(store, replace(query, newest_first=False), 3) == wanted[::-1]


def test_a_block_of_records_that_reaches_beyond_the_range_hides_none_of_it() -> None:
    store = filled(indexed_each=COUNT)
    for query in queries():
        assert answered(store, query) == expected(store, query)


@pytest.mark.parametrize("how", ["damaged", "not there"])
def test_records_that_are_not_to_be_had_narrow_no_range_of_times(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled()
    assert store.trees is not None
    with store.trees.trees.read() as reader:
        firsts = [int.from_bytes(key) for key, _ in reader.items(LOCATION, b"")]
    assert len(firsts) >= COUNT // 10
    wanted = {query: expected(store, query) for query in queries()}
    record_at = store.record_at

    def failing(physical_offset: int, *, check: bool = True) -> memoryview | None:
        if check and physical_offset in firsts:
            if how == "damaged":
                raise DamagedError(errors.RECORD_DAMAGED)
            return None
        return record_at(PhysicalOffset(physical_offset), check=check)

    monkeypatch.setattr(store, "record_at", failing)
    for query, places in wanted.items():
        page = search_page(store, query)
        assert page.physical_offsets == places[: len(page.records)]
        assert narrowed(store, query) == (
            max(store.min_offset, store.lowest_offset_at(query.begin)),
            store.visible_offset,
        )
