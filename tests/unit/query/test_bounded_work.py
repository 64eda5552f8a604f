"""Answers that take many steps are whole: windows of the log, merged chains, limits that are said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.engine import NOW_MS, open_store, record, send
from tests.unit.query.test_query_by_key import SETTINGS, TOPICS, Scene, ask
from trovemq_broker.query import candidates, log_windows, query_by_key
from trovemq_broker.query.candidates import ResultPage
from trovemq_broker.query.cursor import Cursor
from trovemq_broker.query.get_message import get_message
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.log_windows import windows
from trovemq_broker.query.pages import REQUEST_WORK_MAX, Work
from trovemq_broker.query.query_by_key import query_page
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, QueueOffset
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.layout import BODY_AT
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem


@pytest.fixture
def scene() -> Scene:
    """A store whose key index lags behind all messages."""
    made = Scene()
    made.lag(True)
    return made


def send_some(scene: Scene, count: int) -> None:
    for number in range(count):
        scene.send(TOPICS[number % 3 % 2], (("k1",) if number % 4 == 0 else ()), "", f"U{number % 5}", 1)


# --- records that the index does not have yet
# ------------------------------------------------------------------
@pytest.mark.parametrize("window_bytes", [300, 1_000, 5_000])
def test_a_log_that_is_read_window_by_window_gives_the_same_answer(
    scene: Scene, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_some(scene, 60)
    expected = scene.expected(KeyQuery(TOPICS[0], "k1"))
    monkeypatch.setattr(log_windows, "WINDOW_BYTES", window_bytes)
    cut = list(windows(scene.store.consume_queues, LOG_ORIGIN, scene.store.visible_offset))
    assert len(cut) > 2
    assert [begin for begin, _ in cut[:-1]] == [end for _, end in cut[1:]], "nothing lies between two windows"
    assert (cut[-1][0], cut[0][1]) == (0, scene.store.visible_offset)
    assert ask(scene.store, KeyQuery(TOPICS[0], "k1"))[0] == expected != []


def test_records_of_a_deleted_topic_are_skipped_in_the_log_too(scene: Scene) -> None:
    send_some(scene, 40)
    scene.delete(TOPICS[1])
    send_some(scene, 20)
    for topic in TOPICS:
        query = KeyQuery(topic, "k1")
        assert ask(scene.store, query)[0] == scene.expected(query) != []


def test_a_window_without_messages_in_queues_is_one_with_the_next(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no consume queue names a record within reach, a window is larger rather than begun anywhere."""
    send_some(scene, 1)
    scene.store.topics.create("empty", queue_count=1)
    for _ in range(10):
        send(scene.store, b"x" * 2_000, topic=TOPICS[0])
    last = scene.store.consume_queues.queues(TOPICS[0])[0]
    monkeypatch.setattr(log_windows, "WINDOW_BYTES", 100)
    starts = {
        begin for begin, _ in windows(scene.store.consume_queues, LOG_ORIGIN, scene.store.visible_offset)
    }
    assert starts <= {last.unit(QueueOffset(offset))[0] for offset in range(last.max_offset)}


def test_a_page_that_did_its_work_stops_between_two_windows(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_some(scene, 60)
    monkeypatch.setattr(log_windows, "WINDOW_BYTES", 500)
    query = KeyQuery(TOPICS[0], "k1")
    index = scene.store.key_index
    assert index is not None
    start = Cursor(scene.store.visible_offset)
    in_page = ResultPage(scene.store, query, query.accepts, 7, Work(remaining=1))
    page = query_by_key._PageSearch(scene.store, index, query, in_page, start).run()
    assert not page.complete
    rest = ask(scene.store, query)[0]
    assert page.physical_offsets == rest[: len(page.physical_offsets)]
    later = query_page(scene.store, query, cursor=page.cursor)
    assert page.physical_offsets + later.physical_offsets == rest[: len(page.physical_offsets) + 7]


# --- unique keys over all topics --------------------------------------------------------------------------
@pytest.mark.parametrize("work", [1, 20, 60])
def test_merged_chains_continue_where_a_page_ends(work: int) -> None:
    scene = Scene()
    send_some(scene, 60)
    index = scene.store.key_index
    assert index is not None
    query = KeyQuery("", "U1", KeyType.UNIQUE)
    found: list[int] = []
    pages, before = 0, scene.store.visible_offset
    while True:
        start = Cursor(before)
        in_page = ResultPage(scene.store, query, query.accepts, 3, Work(remaining=work))
        page = query_by_key._PageSearch(scene.store, index, query, in_page, start).run()
        found += page.physical_offsets
        pages += 1
        assert pages < 100
        if page.complete:
            break
        before = Cursor.decode(page.cursor, query).physical_offset
    assert found == scene.expected(query)
    assert pages > 2


def test_a_look_up_over_all_topics_read_all_index_files_in_one_page() -> None:
    """Of ten thousand topics and ten files, to begin the chains alone took a quarter of a second."""
    settings = replace(SETTINGS, index_slot_count=50, index_item_count=12)
    topics = ("one", "two")  # of two hashes
    store = open_store(MemoryFileSystem(), settings, topics=topics)
    keys = ["U" if number % 4 == 0 else f"V{number}" for number in range(60)]
    places = [
        send(store, b"x", topic=topics[number % 2], keys="a b", unique_key=key).physical_offset
        for number, key in enumerate(keys)
    ]
    index = store.key_index
    assert index is not None
    assert len(index.file_names) > 10
    pages = list(query_by_key.query_pages(store, KeyQuery("", "U", KeyType.UNIQUE), messages_max=100))
    assert [place for page in pages for place in page.physical_offsets] == places[::4][::-1]
    assert len(pages) >= len(index.file_names) - 1
    assert pages[-1].complete


def send_one_key(store: MessageStore, count: int, size: int = 1) -> list[int]:
    return [
        send(
            store, b"x" * size, topic=TOPICS[number % 2], unique_key="U", queue_id=number % 4
        ).physical_offset
        for number in range(count)
    ]


def test_a_unique_key_of_many_bytes_says_that_more_messages_have_it() -> None:
    settings = replace(SETTINGS, query_page_bytes_max=1 << 16)
    store = open_store(MemoryFileSystem(), settings, topics=TOPICS)
    places = send_one_key(store, 20, 8_000)
    found = get_message(store, "U")
    assert not found.complete
    assert found.physical_offsets == places[::-1][: len(found.physical_offsets)]
    assert 4 <= len(found.records) < 20


def test_a_unique_key_that_takes_too_much_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    for _ in range(60):
        scene.send("BBTopic", (), "", "BB", 1)
    monkeypatch.setattr(candidates, "WORK_OF_CANDIDATE", REQUEST_WORK_MAX)
    with pytest.raises(TroveError, match="not found within the work of one look-up") as caught:
        get_message(scene.store, "Aa", "AaTopic")  # Aa in AaTopic and BB in BBTopic have one hash
    assert caught.value.symbol == "LIMIT_EXCEEDED"


# --- notes ------------------------------------------------------------------------------------------------
def test_of_many_damaged_records_the_first_are_noted() -> None:
    scene = Scene()
    places = send_one_key(scene.store, 20)
    segment = scene.files.open("commitlog/00000000000000000000")
    for place in places[:12]:
        segment.write(place + BODY_AT, b"?")
    found, page = ask(scene.store, KeyQuery("", "U", KeyType.UNIQUE))
    assert found == places[:11:-1]
    assert len(page.notes) == candidates.NOTES_MAX


@pytest.mark.parametrize(
    ("query", "answers"),
    [
        (KeyQuery("orders", "k"), True),
        (KeyQuery("orders", "k", KeyType.KEY, NOW_MS + 2), False),
        (KeyQuery("orders", ""), False),
        (KeyQuery("orders", "", KeyType.TAG), False),
    ],
)
def test_conditions_that_a_record_meets(query: KeyQuery, answers: bool) -> None:
    """Its time counts; and two spaces between its keys make no empty key, nor does a tag that it lacks."""
    data = memoryview(record(b"x", keys="k  l", store_timestamp=NOW_MS + 1))
    fields = read_fields(data, 0, len(data))
    assert fields is not None
    assert query.accepts(data, fields) == answers


# --- large messages ---------------------------------------------------------------------------------------
LARGE = replace(SETTINGS, commit_log_file_size=1 << 24, body_size_max=4 << 20, batch_size_max=4 << 20)
MANY_PROPERTIES = {f"p{number:x}": "v" for number in range(4_500)}


def pages_of(store: MessageStore, query: KeyQuery) -> list[query_by_key.QueryPage]:
    return list(query_by_key.query_pages(store, query, messages_max=1_000))


@pytest.mark.parametrize("kind", [KeyType.KEY, KeyType.UNIQUE])
def test_a_page_looked_at_as_many_large_messages_as_small_ones(kind: KeyType) -> None:
    """30 KiB of properties take a millisecond to read: a page skips a few of them, found or not."""
    store = open_store(MemoryFileSystem(), LARGE)
    for number in range(40):
        send(store, b"x", keys="k", unique_key=f"U{number}", properties=MANY_PROPERTIES)
    pages = pages_of(store, KeyQuery("orders", "k", kind))
    assert sum(len(page.records) for page in pages) == (40 if kind is KeyType.KEY else 0)
    if kind is KeyType.KEY:
        assert max(len(page.records) for page in pages) <= 4
    assert len(pages) >= 10


def test_a_page_of_large_bodies_counts_their_bytes() -> None:
    store = open_store(MemoryFileSystem(), replace(LARGE, query_page_bytes_max=1 << 30))
    for _ in range(12):
        send(store, b"x" * (1 << 20), keys="k")
    pages = pages_of(store, KeyQuery("orders", "k"))
    assert all(len(page.records) < 11 for page in pages)
    assert sum(len(page.records) for page in pages) == 12


def test_a_request_has_a_share_of_work_and_then_a_cursor() -> None:
    scene = Scene()
    send_some(scene, 60)
    query = KeyQuery(TOPICS[0], "k1")
    expected = scene.expected(query)
    found: list[int] = []
    cursor = ""
    for _ in range(100):
        pages = list(query_by_key.query_pages(scene.store, query, cursor=cursor, work_max=1))
        assert [page.last for page in pages] == [False] * (len(pages) - 1) + [True]
        found += [place for page in pages for place in page.physical_offsets]
        cursor = pages[-1].cursor
        if pages[-1].complete:
            break
    assert found == expected


def test_a_key_is_found_behind_malformed_text_as_before() -> None:
    """A look at the bytes is no stricter than reading them: U+FFFD replaces malformed bytes."""
    data = bytearray(record(b"x", keys="k?y", unique_key="U"))
    at = data.index(b"k?y")
    data[at + 1] = 0xFF
    view = memoryview(data)
    fields = read_fields(view, 0, len(view))
    assert fields is not None
    assert KeyQuery("orders", "k\ufffdy").accepts(view, fields)
    assert not KeyQuery("orders", "k?y").accepts(view, fields)
    assert not KeyQuery("orders", "\ud800").accepts(view, fields)
