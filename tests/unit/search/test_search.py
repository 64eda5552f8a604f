"""Searches are equal to a scan of the log: whatever is asked, wherever the trees are, whatever the page."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import (
    NOW_MS,
    SMALL,
    append_batch,
    flush,
    open_store,
    record,
    send,
    with_crc_property,
)
from tests.support.searching import answered, expected
from trovemq_broker.query.pages import WORK_MAX
from trovemq_broker.query.search import plan, search, walks
from trovemq_broker.query.search.conditions import (
    CONDITIONS_MAX,
    DEPTH_MAX,
    EVERYTHING,
    TIME_MAX,
    AllOf,
    AnyOf,
    Condition,
    Has,
    SearchQuery,
)
from trovemq_broker.query.search.search import search_page, search_pages
from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_proto.records import RecordBatch
from trovemq_proto.records.layout import SYS_FLAG_AT, SYS_FLAG_TRANSACTION_ROLLBACK
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.files import FileSystem, storage_error
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.trees.layout import KEY, PROPERTY, TAG, UNIQUE_KEY

SETTINGS = replace(SMALL, tree_index_enable=True)
STEMS = ["N14", "N142", "N142AB", "é", "éa", "k" * 349, "k" * 350 + "a", "k" * 351, "k" * 400, "x\x01y", "x"]
KEYS = st.lists(st.sampled_from(STEMS) | st.text("abN1é", min_size=1, max_size=4), max_size=3).map(" ".join)
TAGS = st.sampled_from(["", "red", "reddish", "blue"])
IDS = st.sampled_from(["", "01AB", "01AC", "01ACD", "0"])
CARRIERS = st.sampled_from(["", "UA", "U", "DL"])

SENDS = st.fixed_dictionaries(
    {
        "do": st.just("send"),
        "topic": st.sampled_from(["flights", "flights", "flights", "bills"]),
        "queue_id": st.integers(0, 3),
        "keys": KEYS,
        "tag": TAGS,
        "unique_key": IDS,
        "carrier": CARRIERS,
        "passed_ms": st.sampled_from([0, 0, 1, 500, 90_000_000]),
        "rolled_back": st.sampled_from([False] * 9 + [True]),
    }
)
OTHERS = st.sampled_from(["index", "delete", "declare", "undeclare", "trim", "damage", "restart", "sweep"])
STEPS = st.lists(SENDS | SENDS | SENDS | SENDS | OTHERS.map(lambda name: {"do": name}), max_size=40)

VALUES = st.sampled_from(STEMS) | st.text("abN1é0C", min_size=1, max_size=3)
HAS = st.one_of(
    st.builds(Has, st.just(KEY), VALUES.map(str.encode), st.booleans()),
    st.builds(Has, st.just(TAG), st.sampled_from(["red", "blue", "none"]).map(str.encode), st.booleans()),
    st.builds(
        Has, st.just(UNIQUE_KEY), st.sampled_from(["01AB", "01AC", "0", "1"]).map(str.encode), st.booleans()
    ),
    st.builds(
        Has, st.just(PROPERTY), st.sampled_from([b"UA", b"U", b"DL"]), st.booleans(), st.just("carrier")
    ),
)
CONDITIONS: st.SearchStrategy[Condition] = st.recursive(
    HAS,
    lambda parts: (
        st.builds(AllOf, st.lists(parts, max_size=3).map(tuple))
        | st.builds(AnyOf, st.lists(parts, min_size=1, max_size=3).map(tuple))
    ),
    max_leaves=5,
)
TIMES = st.integers(NOW_MS - 1, NOW_MS + 200_000_000)
SPANS = st.just((0, TIME_MAX)) | st.tuples(TIMES, TIMES).map(lambda two: (min(two), max(two)))
QUERIES = st.builds(
    lambda where, span, newest_first: SearchQuery("flights", where, span[0], span[1], newest_first),
    CONDITIONS,
    SPANS,
    st.booleans(),
)


def opened(files: FileSystem) -> MessageStore:
    store = open_store(files, SETTINGS, topics=("bills",))
    if store.topics.get("flights") is None:
        store.topics.create("flights", 4, options={"indexed_properties": "carrier"})
    return store


def append_rolled_back(store: MessageStore, encoded: bytes, now_ms: EpochMs) -> None:
    """A record as RocketMQ writes it when a transaction is rolled back; a client cannot send one."""
    data = bytearray(with_crc_property(encoded))
    data[SYS_FLAG_AT : SYS_FLAG_AT + 4] = SYS_FLAG_TRANSACTION_ROLLBACK.to_bytes(4)
    batch = RecordBatch.split(data)
    topic, queue_id = batch.topics[0], int(batch.queue_ids[0])
    append_batch(store, batch, topic, queue_id, now_ms)
    store.dispatch()


class Script:
    """Steps against one store; the property stays declared when it is asked for."""

    def __init__(self) -> None:
        self.files = MemoryFileSystem()
        self.store = opened(self.files)
        self.now_ms = NOW_MS
        self.sent: list[int] = []

    def step(self, step: dict[str, Any]) -> None:
        match step["do"]:
            case "send":
                self.send({name: value for name, value in step.items() if name != "do"})
            case "index":
                flush(self.store)
                if (one := self.store.begin_trees(600)) is not None:
                    one.run()
                    self.store.finish_trees(one)
            case "delete":
                flush(self.store)
                self.store.delete_topic("flights", self.now_ms)
                self.store.topics.create("flights", 4, options={"indexed_properties": "carrier"})
            case "declare":
                self.store.topics.alter("flights", options={"indexed_properties": "carrier"})
            case "undeclare":
                self.store.topics.alter("flights", options={"indexed_properties": "off"})
            case "trim":
                flush(self.store)
                self.store.flush_projections()
                if closed := self.store.closed_segments():
                    trim_now(self.store.trim(closed[0].end))
            case "damage":
                self.damage()
            case "restart":
                self.store.close(self.now_ms)
                self.store = opened(self.files)
            case "sweep":
                assert self.store.trees is not None
                self.store.trees.sweep(5)

    def send(self, message: dict[str, Any]) -> None:
        self.now_ms += message.pop("passed_ms")
        carrier, rolled_back = message.pop("carrier"), message.pop("rolled_back")
        properties = {"carrier": carrier} if carrier else {}
        if rolled_back:
            message["queue_id"] = 7  # it has no place in a queue, so that no other message may come after it
            append_rolled_back(self.store, record(b"body", properties=properties, **message), self.now_ms)
            return
        result = send(self.store, b"body", self.now_ms, properties=properties, **message)
        self.sent.append(result.physical_offset)

    def damage(self) -> None:
        """A byte of the newest record's body goes bad, once it is on disk."""
        flush(self.store)
        if self.sent and self.sent[-1] >= self.store.min_offset:
            segment = self.store.log.segments.at(PhysicalOffset(self.sent[-1]))
            assert segment is not None
            record = self.store.read(PhysicalOffset(self.sent[-1]), 4)
            size = int.from_bytes(record)
            body = bytes(self.store.read(PhysicalOffset(self.sent[-1]), size)).find(b"body")
            if body < 0:
                return  # it is damaged already
            segment.file.write(self.sent[-1] - segment.start + body, b"B")


@pytest.fixture(params=["default", "tight", "merging", "listing"])
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults, bounds that small stores reach, or bounds by which one plan serves all prefixes."""
    terms_max, listed_max = {"tight": (2, 4), "merging": (64, 64), "listing": (0, 256)}.get(
        request.param, (plan.TERMS_MAX, plan.LISTED_MAX)
    )
    monkeypatch.setattr(plan, "TERMS_MAX", terms_max)
    monkeypatch.setattr(plan, "LISTED_MAX", listed_max)
    if request.param != "default":
        monkeypatch.setattr(search, "WORK_MAX", 30)
        monkeypatch.setattr(plan, "COUNTED_MAX", 2)
        monkeypatch.setattr(plan, "_TERM_COST", 1)
        monkeypatch.setattr(search, "MISSES_MIN", 1)
        monkeypatch.setattr(search, "SIFTED_MAX", 3)


@pytest.mark.slow
@pytest.mark.usefixtures("bounds")
@given(STEPS, st.lists(QUERIES, min_size=1, max_size=4), st.integers(1, 5))
def test_a_search_is_equal_to_a_scan_of_the_log(
    steps: list[dict[str, Any]], queries: list[SearchQuery], page_size: int
) -> None:
    script = Script()
    for step in steps:
        script.step(step)
    script.step({"do": "declare"})
    for query in queries:
        query.check()
        assert answered(script.store, query, page_size) == expected(script.store, query)
    script.store.catch_up_trees()
    for query in queries:
        assert answered(script.store, query) == expected(script.store, query)


# --- refusals ---------------------------------------------------------------------------------------------


def _deep(depth: int) -> Condition:
    where: Condition = Has(KEY, b"k")
    for _ in range(depth):
        where = AllOf((where,))
    return where


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (SearchQuery(""), "topic"),
        (SearchQuery("flights", begin=EpochMs(2), end=EpochMs(1)), "begin 2"),
        (SearchQuery("flights", begin=EpochMs(-1)), "begin -1"),
        (SearchQuery("flights", Has(KEY, b"")), "the key is empty"),
        (SearchQuery("flights", Has(KEY, b"", is_prefix=True)), "the key is empty"),
        (SearchQuery("flights", Has(UNIQUE_KEY, b"x" * 32_768)), "unique id has 32768 bytes"),
        (SearchQuery("flights", Has(PROPERTY, b"x")), "property's name is missing"),
        (SearchQuery("flights", AnyOf(())), "none of no conditions"),
        (SearchQuery("flights", _deep(DEPTH_MAX + 1)), "deep"),
        (SearchQuery("flights", AnyOf((Has(KEY, b"k"),) * (CONDITIONS_MAX + 1))), "65 conditions"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(query: SearchQuery, text: str) -> None:
    with pytest.raises(TroveError, match=text) as refused:
        search_page(opened(MemoryFileSystem()), query)
    assert refused.value.spec is errors.REQUEST_ILLEGAL


def test_conditions_as_deep_and_as_many_as_they_may_be_are_answered() -> None:
    store = opened(MemoryFileSystem())
    send(store, b"body", topic="flights", keys="k")
    for where in (_deep(DEPTH_MAX), AnyOf((Has(KEY, b"k"),) * CONDITIONS_MAX)):
        assert len(search_page(store, SearchQuery("flights", where)).records) == 1


def test_a_topic_that_is_not_here_and_a_negative_count_are_errors() -> None:
    store = opened(MemoryFileSystem())
    with pytest.raises(TroveError) as refused:
        search_page(store, SearchQuery("nowhere"))
    assert refused.value.spec is errors.TOPIC_NOT_FOUND
    with pytest.raises(TroveError) as refused:
        search_page(store, SearchQuery("flights"), messages_max=-1)
    assert refused.value.spec is errors.REQUEST_ILLEGAL


def test_the_error_of_an_undeclared_property_says_how_to_declare_it() -> None:
    store = opened(MemoryFileSystem())
    with pytest.raises(TroveError) as refused:
        search_page(store, SearchQuery("flights", Has(PROPERTY, b"red", name="color")))
    assert refused.value.spec is errors.PROPERTY_NOT_INDEXED
    assert "--indexed-property carrier --indexed-property color" in str(refused.value)


QUERY = SearchQuery("flights", Has(KEY, b"k"))


@pytest.mark.parametrize(
    "other",
    [
        replace(QUERY, where=Has(KEY, b"kk")),
        replace(QUERY, where=Has(TAG, b"k")),
        replace(QUERY, where=Has(KEY, b"k", is_prefix=True)),
        replace(QUERY, newest_first=False),
        replace(QUERY, begin=EpochMs(1)),
        replace(QUERY, topic="bills"),
    ],
)
def test_a_cursor_of_another_search_is_refused(other: SearchQuery) -> None:
    store = opened(MemoryFileSystem())
    for _ in range(3):
        send(store, b"body", topic="flights", keys="k")
    cursor = search_page(store, QUERY, messages_max=1).cursor
    assert len(search_page(store, QUERY, cursor=cursor).records) == 2
    for wrong in (cursor, "", cursor + "9", "1.x.2"):
        if wrong:
            with pytest.raises(TroveError) as refused:
                search_page(store, other, cursor=wrong)
            assert refused.value.spec is errors.CURSOR_ILLEGAL


# --- how it is served -------------------------------------------------------------------------------------


def filled(files: FileSystem, count: int = 40, *, indexed_each: int = 0) -> MessageStore:
    """indexed_each: after this many messages the trees catch up, so that a key has an entry for each time."""
    store = opened(files)
    for n in range(count):
        if indexed_each and n and n % indexed_each == 0:
            flush(store)
            store.catch_up_trees()
        send(
            store,
            b"body",
            topic="flights",
            keys=f"N{n % 7}",
            tag="even" if n % 2 == 0 else "odd",
            unique_key=f"id{n:04}",
            properties={"carrier": "UA"},
        )
    flush(store)
    return store


def served(store: MessageStore, where: Condition) -> list[tuple[str, int, bool]]:
    page = search_page(store, SearchQuery("flights", where), explain=True)
    assert (page.records, page.complete, page.cursor) == ([], False, "")
    return [(part.index, part.entries, part.at_least) for part in page.parts]


def test_explain_names_the_index_and_how_many_entries_it_will_touch() -> None:
    store = filled(MemoryFileSystem())
    assert served(store, Has(KEY, b"N1")) == [("log: scanned", 0, False)]
    store.catch_up_trees()
    assert served(store, Has(KEY, b"N1")) == [("term: key = N1", 1, False)]
    assert served(store, Has(UNIQUE_KEY, b"id000", is_prefix=True)) == [
        ("term: unique id = id000*", 10, False)
    ]
    both = AllOf((Has(TAG, b"odd"), Has(KEY, b"N1")))
    assert served(store, both) == [("term: key = N1 and term: tag = odd", 2, False)]
    assert served(store, AnyOf(both.parts)) == [("(term: tag = odd or term: key = N1)", 2, False)]
    assert served(store, Has(PROPERTY, b"UA", name="carrier")) == [("term: property carrier = UA", 1, False)]
    assert served(store, EVERYTHING)[0][0].startswith("location: every message of the topic")
    send(store, b"not indexed yet", topic="flights", keys="N1")
    assert served(store, Has(KEY, b"N1")) == [("log: scanned", 0, False), ("term: key = N1", 1, False)]
    page = search_page(store, SearchQuery("flights", Has(KEY, b"N1")))
    assert page.lag_bytes == page.scanned_bytes == store.visible_offset - store.flushed_offset > 0


def test_a_count_that_is_bounded_says_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "COUNTED_MAX", 4)
    store = filled(MemoryFileSystem(), indexed_each=7)
    store.catch_up_trees()
    assert served(store, Has(KEY, b"N1")) == [("term: key = N1", 4, True)]
    assert served(store, Has(KEY, b"N", is_prefix=True)) == [("term: key = N*, 7 values", 7, True)]


def test_a_property_declared_later_is_looked_up_in_every_earlier_message() -> None:
    store = opened(MemoryFileSystem())
    store.topics.alter("flights", options={"indexed_properties": "off"})
    send(store, b"before", topic="flights", properties={"carrier": "UA"})
    flush(store)
    store.catch_up_trees()
    store.topics.alter("flights", options={"indexed_properties": "carrier"})
    where = Has(PROPERTY, b"UA", name="carrier")
    assert len(served(store, where)) == 1
    send(store, b"after", topic="flights", properties={"carrier": "UA"})
    flush(store)
    store.catch_up_trees()
    assert [index.partition(":")[0] for index, _, _ in served(store, where)] == ["term", "location"]
    query = SearchQuery("flights", where)
    assert answered(store, query) == expected(store, query)
    assert len(expected(store, query)) == 2


def test_a_store_without_trees_is_scanned() -> None:
    store = open_store(MemoryFileSystem(), SMALL, topics=("flights",))
    for n in range(5):
        send(store, b"body", topic="flights", keys=f"k{n % 2}")
    assert store.trees is None
    for newest_first in (True, False):
        query = SearchQuery("flights", Has(KEY, b"k1"), newest_first=newest_first)
        assert answered(store, query, 1) == expected(store, query)
        assert len(expected(store, query)) == 2


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("with_trees", [True, False])
def test_a_search_of_very_many_small_unindexed_records_never_ended(
    with_trees: bool, newest_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a part of the log that is scanned at once took a page's whole share, every page gave the same
    cursor again."""
    monkeypatch.setattr(search, "WORK_MAX", 30)
    store = open_store(MemoryFileSystem(), replace(SMALL, tree_index_enable=with_trees), topics=("flights",))
    for n in range(60):
        send(store, b"b", topic="flights", keys=f"k{n % 3}")
    query = SearchQuery("flights", Has(KEY, b"k1"), newest_first=newest_first)
    assert answered(store, query) == expected(store, query)
    assert len(expected(store, query)) == 20


class FailingReader:
    """Gives some entries, then the disk fails."""

    def __init__(self, reader: Any, entries: int) -> None:
        self._reader = reader
        self._remaining = entries

    def __enter__(self) -> FailingReader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get(self, tree: str, key: bytes) -> bytes | None:
        return self._reader.get(tree, key)  # type: ignore[no-any-return]

    def items(self, *arguments: Any, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        for entry in self._reader.items(*arguments, **options):
            self._remaining -= 1
            if self._remaining < 0:
                raise storage_error("read", "trovemq/trees", errno.EIO)
            yield entry


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("entries", [0, 3, 9])
def test_unreadable_trees_are_named_in_a_note_and_the_log_answers(
    newest_first: bool, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "COUNTED_MAX", 2)
    monkeypatch.setattr(walks, "_ENTRIES_FIRST", 1)
    store = filled(MemoryFileSystem(), indexed_each=7)
    store.catch_up_trees()
    assert store.trees is not None
    read = store.trees.trees.read
    monkeypatch.setattr(store.trees.trees, "read", lambda: FailingReader(read(), entries))
    query = SearchQuery("flights", Has(KEY, b"N1"), newest_first=newest_first)
    assert answered(store, query) == expected(store, query)
    page = search_page(store, query)
    if entries < 9:
        assert any("the log was searched" in note for note in page.notes)


def test_a_damaged_record_is_noted_and_the_others_are_found() -> None:
    script = Script()
    for n in range(3):
        message = {"queue_id": 0, "keys": "k", "tag": "", "unique_key": f"{n}"}
        script.send({**message, "topic": "flights", "carrier": "", "passed_ms": 0, "rolled_back": False})
    script.damage()
    for caught_up in (False, True):
        if caught_up:
            script.store.catch_up_trees()
        page = search_page(script.store, QUERY)
        assert page.physical_offsets == [script.sent[1], script.sent[0]]
        assert page.notes == (f"skipped at {script.sent[2]}: the record is damaged",)


def test_times_narrow_the_part_of_the_log_that_is_walked() -> None:
    store = opened(MemoryFileSystem())
    day = 86_400_000
    for n in range(300):
        send(store, b"x" * 2_000, topic="flights", keys="k", now_ms=NOW_MS + n * day)
    flush(store)
    store.catch_up_trees()
    for newest_first in (True, False):
        query = replace(QUERY, begin=NOW_MS + 140 * day, end=NOW_MS + 143 * day, newest_first=newest_first)
        page = search_page(store, query)
        assert page.physical_offsets == expected(store, query)
        assert len(page.records) == 4
        assert page.complete
        (part,) = page.parts
        assert part.end - part.begin < 200_000
    assert sum(len(page.records) for page in search_pages(store, QUERY, messages_max=170)) == 170


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_record_the_disk_does_not_give_is_noted_and_narrows_no_times(
    newest_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(MemoryFileSystem())
    day = 86_400_000
    for n in range(120):
        send(store, b"x" * 2_000, topic="flights", keys="k", now_ms=NOW_MS + n * day)
    flush(store)
    store.catch_up_trees()
    query = replace(QUERY, begin=NOW_MS + 40 * day, end=NOW_MS + 60 * day, newest_first=newest_first)
    wanted = expected(store, query)
    lost = wanted[10]
    record_at = store.record_at

    def failing(physical_offset: int, *, check: bool = True) -> memoryview | None:
        if physical_offset == lost or (check and physical_offset % 3 == 0):
            raise DamagedError(errors.RECORD_DAMAGED)
        if check and physical_offset % 3 == 1:
            return None
        return record_at(PhysicalOffset(physical_offset), check=check)

    monkeypatch.setattr(store, "record_at", failing)
    page = search_page(store, query)
    assert page.physical_offsets == [offset for offset in wanted if offset != lost]
    assert page.notes == (f"skipped at {lost}: the record is damaged",)


def test_a_flipped_bit_that_only_the_crc_shows_is_noted() -> None:
    files = MemoryFileSystem()
    store = open_store(files, replace(SETTINGS, append_property_crc=False), topics=("flights",))
    places = [send(store, b"body", topic="flights", keys="k").physical_offset for _ in range(3)]
    flush(store)
    store.catch_up_trees()
    segment = store.log.segments.at(places[1])
    assert segment is not None
    at = places[1] - segment.start
    segment.file.write(at + bytes(segment.file.view()[at : at + 200]).find(b"body"), b"B")
    page = search_page(store, QUERY)
    assert page.physical_offsets == [places[2], places[0]]
    assert page.notes == (f"skipped at {places[1]}: the record is damaged",)


def test_a_record_that_is_not_a_record_any_more_is_noted() -> None:
    store = opened(MemoryFileSystem())
    places = [send(store, b"body", topic="flights", keys="k").physical_offset for _ in range(3)]
    flush(store)
    store.catch_up_trees()
    segment = store.log.segments.at(places[1])
    assert segment is not None
    segment.file.write(places[1] - segment.start, bytes(100))
    page = search_page(store, QUERY)
    assert page.physical_offsets == [places[2], places[0]]
    assert page.notes == (f"skipped at {places[1]}: the record is damaged",)


def test_a_page_of_records_with_many_properties_held_the_event_loop() -> None:
    store = open_store(
        MemoryFileSystem(), replace(SETTINGS, commit_log_file_size=4 << 20), topics=("flights",)
    )
    many = {f"{number:x}": "v" for number in range(4_000)}
    for _ in range(60):
        send(store, b"body", topic="flights", keys="k", tag="t", properties=many)
    flush(store)
    store.catch_up_trees()
    query = SearchQuery("flights", AllOf((Has(KEY, b"k"), Has(TAG, b"t"), Has(UNIQUE_KEY, b"none", True))))
    assert search_page(store, query).complete, "an index names none of them"
    query = SearchQuery("flights", AnyOf((Has(KEY, b"k"), Has(TAG, b"t"))))
    pages = list(search_pages(store, query, messages_max=60))
    assert sum(len(page.records) for page in pages) == 60
    size = len(bytes(pages[0].records[0])) - 120
    assert max(len(page.records) for page in pages) <= WORK_MAX * 32 // size + 1
