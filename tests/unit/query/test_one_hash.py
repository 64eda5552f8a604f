"""Keys, tags and topics that were made to have one Java hash: nothing is wrong, and no step is long.

An attacker who chooses keys can put every message into one chain of the key index. A query of one of them
then looks at all of them; it does so in pages of bounded work. In a soak there are 100,000.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.engine import SMALL, append, open_store, record
from tests.support.trials import SOAK
from tests.unit.query.one_hash import texts_of_one_hash
from trovemq_broker.fetch.pull import Puller, PullRequest, PullSettings
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.pages import REQUEST_WORK_MAX, WORK_MAX
from trovemq_broker.query.query_by_key import query_pages
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records import java_hash
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem

COUNT = 100_000 if SOAK else 2_000
TOPIC_COUNT = 2_000 if SOAK else 100
STEP = 500
SETTINGS = replace(
    SMALL,
    commit_log_file_size=1 << (28 if SOAK else 22),
    consume_queue_file_size=20 * (200_000 if SOAK else 4_000),
    index_slot_count=1_000,
    index_item_count=400_000 if SOAK else 8_000,
    batch_size_max=1 << 20,
)
WORK_OF_ONE_STEP = 300
"""The last step of a page may go beyond its share: some links of a chain, and one candidate."""


def found_by(store: MessageStore, query: KeyQuery) -> tuple[list[int], int]:
    """Physical offsets of all pages of all requests, and how many pages; each is looked at for its work."""
    found: list[int] = []
    cursor, count = "", 0
    while True:
        work = 0
        for page in query_pages(store, query, cursor=cursor, messages_max=1_000):
            assert page.work <= WORK_MAX + WORK_OF_ONE_STEP
            work += page.work
            count += 1
            found += page.physical_offsets
        assert work <= REQUEST_WORK_MAX + WORK_MAX + WORK_OF_ONE_STEP
        if page.complete:
            return found, count
        cursor = page.cursor


@pytest.fixture(scope="module")
def texts() -> list[str]:
    made = texts_of_one_hash(COUNT)
    assert len(set(made)) == COUNT
    assert len({java_hash(text) for text in made}) == 1
    return made


def filled(texts: list[str], field: str) -> tuple[MessageStore, list[int]]:
    store = open_store(MemoryFileSystem(), SETTINGS)
    places: list[int] = []
    for begin in range(0, COUNT, STEP):
        part = texts[begin : begin + STEP]
        result = append(store, *(record(b"x", properties={field: text}) for text in part))
        store.dispatch()
        places += (result.physical_offset + result.positions).tolist()
    return store, places


def test_100_000_keys_of_one_hash_are_found_each_by_itself(texts: list[str]) -> None:
    store, places = filled(texts, "KEYS")
    for number in (0, COUNT // 2, COUNT - 1):
        found, pages = found_by(store, KeyQuery("orders", texts[number]))
        assert found == [places[number]]
        assert pages >= COUNT * 30 // WORK_MAX
    assert found_by(store, KeyQuery("orders", "AaAa" + texts[0]))[0] == []


def test_100_000_tags_of_one_hash_pass_a_filter_each_by_itself(texts: list[str]) -> None:
    store, places = filled(texts, "TAGS")
    assert found_by(store, KeyQuery("orders", texts[7], KeyType.TAG))[0] == [places[7]]
    puller, offset, found = Puller(store, PullSettings()), 0, 0
    while offset < COUNT:
        result = puller.pull(PullRequest("orders", QueueId(0), QueueOffset(offset), tags=(texts[7],)))
        found += result.message_count
        assert result.next_offset - offset <= 8_192
        offset = result.next_offset
    assert found == 1


def test_topics_of_one_hash_keep_their_messages_apart() -> None:
    topics = texts_of_one_hash(TOPIC_COUNT)
    store = open_store(MemoryFileSystem(), SETTINGS, topics=topics)
    places = [
        append(store, record(b"x", topic=name, keys="k"), topic=name).physical_offset for name in topics
    ]
    store.dispatch()
    for number in (0, TOPIC_COUNT // 2, TOPIC_COUNT - 1):
        assert found_by(store, KeyQuery(topics[number], "k"))[0] == [places[number]]
