"""Key queries against a scan of a plain list of messages."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, open_store, send
from trovemq_broker.query import query_by_key
from trovemq_broker.query.candidates import ResultPage
from trovemq_broker.query.cursor import Cursor
from trovemq_broker.query.key_query import TIME_MAX, KeyQuery, KeyType
from trovemq_broker.query.pages import Work
from trovemq_broker.query.query_by_key import QueryPage, query_page, query_pages
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.records import decode_message, index_hash, java_hash
from trovemq_proto.records.layout import BODY_AT
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import FileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.index.index_file import IndexFile

TOPICS = ("AaTopic", "BBTopic")
WORDS = ("Aa", "BB", "k1")
SETTINGS = replace(SMALL, index_slot_count=5, index_item_count=40, query_messages_max=7)


@dataclass(frozen=True)
class Sent:
    topic: str
    keys: tuple[str, ...]
    tag: str
    unique_key: str
    timestamp: EpochMs
    physical_offset: int

    def answers(self, query: KeyQuery) -> bool:
        if query.topic not in ("", self.topic) or not query.begin <= self.timestamp <= query.end:
            return False
        if query.type is KeyType.TAG:
            return self.tag == query.key != ""
        if query.key and self.unique_key == query.key:
            return True
        return query.type is KeyType.KEY and query.key in self.keys


def ask(store: MessageStore, query: KeyQuery, messages_max: int = 1 << 30) -> tuple[list[int], QueryPage]:
    """Physical offsets of all pages, and the last page."""
    found: list[int] = []
    last = None
    for last in query_pages(store, query, messages_max=messages_max):
        assert last.complete == (last.cursor == "")
        for record, queue_offset, place in zip(
            last.records, last.queue_offsets, last.physical_offsets, strict=True
        ):
            message = decode_message(record)
            assert (message.queue_offset, message.physical_offset) == (queue_offset, place)
        found += last.physical_offsets
    assert last is not None
    return found, last


class Scene:
    """A store, the list of sent messages, and a switch that keeps the key index from getting a file."""

    def __init__(self) -> None:
        self.files = FaultyFileSystem(MemoryFileSystem(), self._decide)
        self.index_fails = False
        self.store = open_store(self.files, SETTINGS, topics=TOPICS)
        self.sent: list[Sent] = []
        self.now = NOW_MS

    def _decide(self, operation: str, path: str) -> int | None:
        return errno.ENOSPC if self.index_fails and operation == "create" and "index-file" in path else None

    def send(self, topic: str, keys: tuple[str, ...], tag: str, unique_key: str, step: int) -> None:
        self.now += step
        result = send(
            self.store,
            b"body" * 30,
            self.now,
            topic=topic,
            keys=" ".join(keys),
            tag=tag,
            unique_key=unique_key,
        )
        self.sent.append(Sent(topic, keys, tag, unique_key, self.now, result.physical_offset))

    def lag(self, fails: bool) -> None:
        self.index_fails = fails

    def catch_up(self, size: int) -> None:
        self.store.catch_up(size)

    def delete(self, topic: str) -> None:
        self.store.delete_topic(topic, self.now)
        self.store.topics.create(topic, queue_count=4)
        self.sent = [one for one in self.sent if one.topic != topic]

    def restart(self, _: None) -> None:
        self.index_fails = False
        self.store.close(self.now)
        self.store = open_store(self.files, SETTINGS, topics=TOPICS)

    def expected(self, query: KeyQuery) -> list[int]:
        return [one.physical_offset for one in reversed(self.sent) if one.answers(query)]


WORD = st.sampled_from(WORDS)
STEPS = st.lists(
    st.one_of(
        *[
            st.tuples(
                st.just("send"),
                st.tuples(
                    st.sampled_from(TOPICS),
                    st.lists(WORD, max_size=3).map(tuple),
                    st.sampled_from(["", "Aa", "BB"]),
                    st.sampled_from(["", "Aa", "U1"]),
                    st.sampled_from([0, 1, 300, 999, 2500]),
                ),
            )
        ]
        * 6,
        st.tuples(st.just("lag"), st.booleans()),
        st.tuples(st.just("catch_up"), st.sampled_from([1, 1000])),
        st.tuples(st.just("delete"), st.sampled_from(TOPICS)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=40,
)


@given(STEPS, st.integers(0, 9000), st.integers(0, 9000), st.integers(1, 9))
def test_a_query_is_a_scan(steps: list[tuple[str, Any]], begin: int, length: int, most: int) -> None:
    scene = Scene()
    for name, argument in steps:
        if name == "send":
            scene.send(*argument)
        else:
            getattr(scene, name)(argument)
    times = [(0, TIME_MAX), (NOW_MS + begin, NOW_MS + begin + length)]
    for topic in TOPICS:
        for key in (*WORDS, "U1", ""):
            for key_type in KeyType:
                for first, last in times:
                    query = KeyQuery(topic, key, key_type, EpochMs(first), last)
                    expected = scene.expected(query)
                    found, page = ask(scene.store, query)
                    assert found == expected, query
                    assert page.complete
                    some, page = ask(scene.store, query, most)
                    assert some == expected[:most]
                    assert page.complete == (len(expected) <= most)
                    if page.cursor:
                        rest = query_page(scene.store, query, cursor=page.cursor)
                        assert some + rest.physical_offsets == expected[: most + SETTINGS.query_messages_max]
    for key in ("Aa", "U1", "none"):
        query = KeyQuery("", key, KeyType.UNIQUE)
        assert ask(scene.store, query)[0] == scene.expected(query)


@pytest.fixture(params=["memory", "real"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    return MemoryFileSystem() if request.param == "memory" else RealFileSystem(tmp_path)


@pytest.fixture
def store(files: FileSystem) -> Iterator[MessageStore]:
    opened = open_store(files, SETTINGS, topics=TOPICS)
    yield opened
    opened.close(NOW_MS)


def test_strings_of_one_hash_never_show_up_for_each_other(store: MessageStore) -> None:
    assert java_hash("Aa") == java_hash("BB")
    hashes = {index_hash(topic, key) for topic in TOPICS for key in ("Aa", "BB")}
    assert hashes == {10_606_476}
    places = {
        (topic, key): send(store, b"x", topic=topic, keys=key).physical_offset
        for topic, key in [("AaTopic", "Aa"), ("BBTopic", "BB")]
    }
    for topic in TOPICS:
        for key in ("Aa", "BB"):
            expected = [places[topic, key]] if (topic, key) in places else []
            found, page = ask(store, KeyQuery(topic, key))
            assert found == expected
            assert page.complete


def test_foreign_records_do_not_crowd_out_a_true_one(store: MessageStore) -> None:
    wanted = send(store, b"x", topic="AaTopic", keys="Aa").physical_offset
    for _ in range(100):
        send(store, b"x", topic="BBTopic", keys="BB")
    found, page = ask(store, KeyQuery("AaTopic", "Aa"))
    assert found == [wanted]
    assert page.complete


def test_a_user_key_that_looks_like_a_tag_is_none(store: MessageStore) -> None:
    by_key = send(store, b"x", topic="AaTopic", keys="T#red").physical_offset
    by_tag = send(store, b"x", topic="AaTopic", tag="red").physical_offset
    assert ask(store, KeyQuery("AaTopic", "T#red"))[0] == [by_key]
    assert ask(store, KeyQuery("AaTopic", "red", KeyType.TAG))[0] == [by_tag]


def test_times_inside_a_second_are_exact(store: MessageStore) -> None:
    places = [
        send(store, b"x", NOW_MS + ms, topic="AaTopic", keys="k").physical_offset for ms in (0, 1300, 1900)
    ]
    for begin, end, expected in [
        (1300, 1300, places[1:2]),
        (1301, 1899, []),
        (1300, 1899, places[1:2]),
        (0, 1299, places[:1]),
        (1000, 1999, [places[2], places[1]]),
    ]:
        assert ask(store, KeyQuery("AaTopic", "k", KeyType.KEY, NOW_MS + begin, NOW_MS + end))[0] == expected


def test_item_1_of_a_rolled_file_is_found_at_its_own_time(store: MessageStore) -> None:
    """Its seconds count from the file before and decode to a time that is too late by the gap."""
    for _ in range(39):
        send(store, b"x", topic="AaTopic", keys="a")
    later = NOW_MS + 3_600_000
    place = send(store, b"x", later, topic="AaTopic", keys="b").physical_offset
    assert store.key_index is not None
    assert len(store.key_index.file_names) == 2
    assert ask(store, KeyQuery("AaTopic", "b", KeyType.KEY, later, later))[0] == [place]


def test_the_hash_0_of_the_smallest_integer(files: FileSystem) -> None:
    store = open_store(files, SETTINGS, topics=["T"])
    place = send(store, b"x", topic="T", keys="jllgvmc").physical_offset
    assert place == 0
    assert ask(store, KeyQuery("T", "jllgvmc"))[0] == [place]
    store.close(NOW_MS)


def test_a_page_has_a_share_of_work(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_by_key, "_CHAIN_STEPS", 8)
    wanted = send(store, b"x", topic="AaTopic", keys="Aa").physical_offset
    for _ in range(60):
        send(store, b"x", topic="BBTopic", keys="BB")
    query = KeyQuery("AaTopic", "Aa")
    pages, found, cursor = 0, [], ""
    while True:
        assert store.key_index is not None
        start = Cursor.decode(cursor, query) if cursor else Cursor(store.visible_offset)
        in_page = ResultPage(store, query, query.accepts, 7, Work(remaining=1))
        page = query_by_key._PageSearch(store, store.key_index, query, in_page, start).run()
        pages += 1
        found += page.physical_offsets
        if page.complete:
            break
        cursor = page.cursor
    assert found == [wanted]
    assert 5 < pages < 100


def test_a_cursor_continues_in_the_chain_and_does_not_begin_it_again(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All messages of a large tag, page by page, while further ones arrive."""
    places = [send(store, b"x", topic="AaTopic", tag="Aa").physical_offset for _ in range(400)]
    read_item, steps = IndexFile.item, 0

    def counted(file: IndexFile, number: int) -> tuple[int, int, int, int]:
        nonlocal steps
        steps += 1
        return read_item(file, number)

    monkeypatch.setattr(IndexFile, "item", counted)
    found: list[int] = []
    query, cursor, complete = KeyQuery("AaTopic", "Aa", KeyType.TAG), "", False
    while not complete:
        page = query_page(store, query, cursor=cursor)
        found += page.physical_offsets
        cursor, complete = page.cursor, page.complete
        send(store, b"later", topic="AaTopic", tag="Aa")
    assert found == places[::-1], "exactly those that were there when it began"
    assert steps < 6 * len(places), "with the chains started over for each page it would be 30 times as many"


def test_a_page_has_bounded_bytes() -> None:
    settings = replace(SETTINGS, query_page_bytes_max=3000)
    store = open_store(MemoryFileSystem(), settings, topics=TOPICS)
    places = [send(store, b"x" * 1000, topic="AaTopic", keys="k").physical_offset for _ in range(5)]
    large = send(store, b"x" * 5000, topic="AaTopic", keys="k").physical_offset
    sizes = []
    found = []
    for page in query_pages(store, KeyQuery("AaTopic", "k"), messages_max=100):
        sizes.append(len(page.records))
        found += page.physical_offsets
    assert sizes == [1, 2, 2, 1]
    assert found == [large, *reversed(places)]


def test_a_damaged_record_is_skipped_with_a_note(tmp_path: Path) -> None:
    files = RealFileSystem(tmp_path)
    store = open_store(files, SETTINGS, topics=TOPICS)
    places = [send(store, b"x" * 50, topic="AaTopic", keys="k").physical_offset for _ in range(3)]
    log = files.open(f"commitlog/{0:020d}")
    log.write(places[1] + BODY_AT + 10, b"?")
    log.write(places[2] + 4, b"\0\0\0\0")
    found, page = ask(store, KeyQuery("AaTopic", "k"))
    assert found == [places[0]]
    assert page.complete
    assert page.notes == tuple(
        f"skipped at {place}: the record is damaged" for place in (places[2], places[1])
    )


def test_a_cursor_belongs_to_its_query(store: MessageStore) -> None:
    for _ in range(3):
        send(store, b"x", topic="AaTopic", keys="Aa")
    query = KeyQuery("AaTopic", "Aa")
    cursor = query_page(store, query, messages_max=1).cursor
    assert cursor
    for other, text in [
        (replace(query, key="BB"), cursor),
        (replace(query, topic="BBTopic"), cursor),
        (replace(query, type=KeyType.UNIQUE), cursor),
        (replace(query, begin=EpochMs(1)), cursor),
        (query, cursor + "0x"),
        (query, "1"),
        (query, cursor.replace("1.", "2.", 1)),
    ]:
        with pytest.raises(TroveError) as caught:
            query_page(store, other, cursor=text)
        assert caught.value.symbol == "CURSOR_ILLEGAL"


@pytest.mark.parametrize(
    ("query", "messages_max"),
    [
        (KeyQuery("", "k"), 0),
        (KeyQuery("AaTopic", "k" * 40_000), 0),
        (KeyQuery("AaTopic", "k", KeyType.KEY, EpochMs(2), EpochMs(1)), 0),
        (KeyQuery("AaTopic", "k"), -1),
    ],
)
def test_what_makes_no_sense_is_refused(store: MessageStore, query: KeyQuery, messages_max: int) -> None:
    with pytest.raises(TroveError) as caught:
        query_page(store, query, messages_max=messages_max)
    assert caught.value.symbol == "REQUEST_ILLEGAL"


def test_without_an_index_a_query_is_refused_and_not_empty() -> None:
    files = MemoryFileSystem()
    store = open_store(files, replace(SETTINGS, message_index_enable=False), topics=TOPICS)
    place = send(store, b"x", topic="AaTopic", keys="k").physical_offset
    with pytest.raises(TroveError) as caught:
        query_page(store, KeyQuery("AaTopic", "k"))
    assert caught.value.symbol == "INDEX_DISABLED"
    store.close(NOW_MS)
    again = open_store(files, SETTINGS)
    assert ask(again, KeyQuery("AaTopic", "k"))[0] == [place]


def test_the_answer_says_how_far_the_index_is(store: MessageStore) -> None:
    page = query_page(store, KeyQuery("AaTopic", "k"))
    assert (page.index_last_update_timestamp, page.index_last_update_physical_offset) == (0, 0)
    place = send(store, b"x", NOW_MS + 5, topic="AaTopic", keys="k").physical_offset
    send(store, b"x", NOW_MS + 9, topic="AaTopic")
    page = query_page(store, KeyQuery("AaTopic", "k"))
    assert (page.index_last_update_timestamp, page.index_last_update_physical_offset) == (NOW_MS + 5, place)


def test_a_topic_that_is_unknown_is_an_error_and_no_empty_answer(store: MessageStore) -> None:
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        ask(store, KeyQuery("none", "k"))
