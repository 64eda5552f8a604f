"""The trees in this process: made from the log, their bytes, and how soon they answer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from bench.report import Report
from bench.trees.filling import BASE_MS, GENERATED, KEYS, RANDOM, TOPICS, Filled, fill, open_store
from trovemq_broker.query.search.conditions import Has, SearchQuery
from trovemq_broker.query.search.search import search_page
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.index.trees.layout import KEY, UNIQUE_KEY

REBUILT_PER_S_MIN = 300_000
LOOKUPS_PER_S_MIN = 50_000
FIRST_PAGE_MS_MAX = 5.0
LOOKUPS = 20_000
SEARCHES = 500
TOGETHER = 1_000
"""Ids that one call looks up, as a send of this many messages does."""
PAGE = 32
CASE_S_MAX = 2.0


def measure_engine(report: Report, directory: Path, messages: int) -> Filled:
    """Leaves the store closed, with its trees."""
    directory.mkdir(parents=True)
    store = open_store(directory)
    try:
        filled = _timed_fill(report, store, messages)
        _rebuild(report, store, filled)
        _look_up(report, store, filled)
        _search(report, store, filled)
    finally:
        store.close(BASE_MS)
    return filled


def _timed_fill(report: Report, store: MessageStore, messages: int) -> Filled:
    started = time.perf_counter()
    filled = fill(store, messages)
    report.add("trees: messages", messages, "")
    report.add("trees: filling the store in the engine", messages / (time.perf_counter() - started), "msg/s")
    return filled


def _rebuild(report: Report, store: MessageStore, filled: Filled) -> None:
    """All trees from the whole log, each commit synced."""
    assert store.trees is not None
    wall, cpu = time.perf_counter(), time.process_time()
    store.catch_up_trees()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert not store.trees.lag_bytes, store.trees.lag_bytes
    report.add("rebuild of all trees", filled.messages / wall, "msg/s", at_least=REBUILT_PER_S_MIN)
    report.add("rebuild of all trees: CPU a message", cpu / filled.messages * 1e6, "us")
    report.add("trees on disk a message", store.trees.trees.size_bytes / filled.messages, "B")
    report.add("log on disk a message", filled.log_bytes / filled.messages, "B")


def _look_up(report: Report, store: MessageStore, filled: Filled) -> None:
    """id -> where it is stored, exactly, as a send to a deduplicated topic asks."""
    assert store.trees is not None
    chosen = _chosen(filled, RANDOM, LOOKUPS)
    window_ms = store.topics.options(RANDOM).deduplicate_ms
    for count, name in ((TOGETHER, f"{TOGETHER:,} a call"), (1, "one a call")):
        started = time.perf_counter()
        for begin in range(0, len(chosen), count):
            ids = chosen[begin : begin + count]
            since = store.time.since(window_ms, store.last_store_timestamp)
            found = store.trees.unique_ids.find(RANDOM, since, ids)
            assert len(found) == len(set(ids)), "every id is there"
        rate = len(chosen) / (time.perf_counter() - started)
        goal = {"at_least": LOOKUPS_PER_S_MIN} if count > 1 else {}
        report.add(f"exact look-up by id in the engine, {name}", rate, "ids/s", **goal)
    for topic in TOPICS:
        times = [_search_id(store, topic, text) for text in _chosen(filled, topic, SEARCHES)]
        report.add(f"search by id in the engine, with the message, {topic}", 1 / median(times), "ids/s")


def _search_id(store: MessageStore, topic: str, unique_id: bytes) -> float:
    return _page_s(store, SearchQuery(topic, Has(UNIQUE_KEY, unique_id)), at_least=1)


def _search(report: Report, store: MessageStore, filled: Filled) -> None:
    """First pages, the newest first, of prefixes that some messages have, or very many."""
    generator = random.Random(6)
    ids = {topic: _chosen(filled, topic, SEARCHES) for topic in TOPICS}

    def of_id(topic: str, size: int) -> tuple[str, Has]:
        return topic, Has(UNIQUE_KEY, generator.choice(ids[topic])[:size], is_prefix=True)

    def of_key(cut: int) -> tuple[str, Has]:
        key = f"order-{generator.randrange(KEYS):06}".encode()
        return GENERATED, Has(KEY, key[:-cut], is_prefix=True)

    cases: Sequence[tuple[str, Callable[[], tuple[str, Has]]]] = (
        ("256 ids in a row", lambda: of_id(GENERATED, -2)),
        ("4 digits of random ids", lambda: of_id(RANDOM, 4)),
        ("10 keys", lambda: of_key(1)),
        ("1,000 keys", lambda: of_key(3)),
        ("all ids of a topic", lambda: of_id(GENERATED, 16)),
    )
    for name, make in cases:
        times: list[float] = []
        while (len(times) < SEARCHES and sum(times) < CASE_S_MAX) or len(times) < 2:
            topic, condition = make()
            times.append(_page_s(store, SearchQuery(topic, condition)))
        report.add_latency(f"prefix search in the engine, {name}", times, p99_max_ms=FIRST_PAGE_MS_MAX)


def _page_s(store: MessageStore, query: SearchQuery, *, at_least: int = 0) -> float:
    """Until the first page that has messages: one may be empty, where its share of work was done."""
    started = time.perf_counter()
    page = search_page(store, query, messages_max=PAGE)
    while not page.records and not page.complete:
        page = search_page(store, query, messages_max=PAGE, cursor=page.cursor)
    taken = time.perf_counter() - started
    assert len(page.records) >= at_least, query
    return taken


def _chosen(filled: Filled, topic: str, count: int) -> list[bytes]:
    generator = random.Random(7)
    ids = filled.ids[topic]
    return [ids[generator.randrange(len(ids))].encode() for _ in range(count)]
