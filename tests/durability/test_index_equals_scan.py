"""R10: the key index answers as a scan of the log, with hash collisions on purpose.

Each trial is a store of 5,000 messages: keys of which 32 have one hash, topics whose names have one hash
(so that `topic#key` has too), few slots, so that every chain is mixed, and index files that roll. The store
continues after a kill, a power cut or retention; then every kind of look-up is compared with the plain list.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import pytest

from tests.support.engine import NOW_MS, SMALL, append, flush, record
from tests.support.trials import Trials
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_page, query_pages
from trovemq_proto.positions import QueueId
from trovemq_proto.records.hashes import java_hash
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.memory import MemoryFileSystem

MESSAGES: Final = 5_000
STORES: Final = 20
TOPICS: Final = ("orderAa", "orderBB")
FAMILY: Final = tuple("".join(parts) for parts in product(("Aa", "BB"), repeat=5))
ORDINARY: Final = tuple(f"key{number}" for number in range(40))
TAGS: Final = ("", "Aa", "BB", "other")
FAMILY_ASKED: Final = 8
UNIQUE_ASKED: Final = 40
BATCH_MAX: Final = 60
SETTINGS: Final = replace(
    SMALL,
    commit_log_file_size=1 << 18,
    consume_queue_file_size=20 * 1_000,
    index_slot_count=97,
    index_item_count=3_000,
    batch_size_max=1 << 16,
    undispatched_bytes_max=1 << 24,
)
SCENARIOS: Final = ("as it is", "killed", "power cut", "expired")


@dataclass(frozen=True)
class Sent:
    topic: str
    physical_offset: int
    keys: tuple[str, ...]
    tag: str
    unique_key: str


def test_the_collisions_are_collisions() -> None:
    assert len({java_hash(f"{topic}#{key}") for topic in TOPICS for key in FAMILY}) == 1
    assert java_hash("Aa") == java_hash("BB")


def send_batch(store: MessageStore, source: random.Random, count: int, first: int) -> list[Sent]:
    topic, queue_id = source.choice(TOPICS), source.randrange(4)
    rows = []
    for number in range(first, first + count):
        keys = (source.choice(FAMILY), source.choice(ORDINARY))
        rows.append((keys if number % 3 else keys[:1], source.choice(TAGS), f"U{number:07d}"))
    records = [
        record(
            b"x" * source.randrange(40),
            topic=topic,
            queue_id=QueueId(queue_id),
            keys=" ".join(keys),
            tag=tag,
            unique_key=unique_key,
            append_property_crc=SETTINGS.append_property_crc,
        )
        for keys, tag, unique_key in rows
    ]
    result = append(store, *records, topic=topic, queue_id=QueueId(queue_id), now_ms=NOW_MS + first)
    places = [result.physical_offset + position for position in result.positions.tolist()]
    return [Sent(topic, at, *row) for at, row in zip(places, rows, strict=True)]


def fill(store: MessageStore, source: random.Random, sent: list[Sent], end: int) -> None:
    while len(sent) < end:
        count = min(end - len(sent), source.randint(1, BATCH_MAX))
        sent += send_batch(store, source, count, len(sent))
        store.dispatch()
        if source.random() < 0.05:
            store.index_later()
        if source.random() < 0.1:
            flush(store)
            store.flush_projections(index=source.random() < 0.5, queues=source.random() < 0.7)


def interrupted(
    scenario: str, files: MemoryFileSystem, store: MessageStore, source: random.Random, sent: list[Sent]
) -> tuple[MemoryFileSystem, MessageStore]:
    """The store after a half-way failure; `sent` are then the messages that must still be there."""
    if scenario == "killed":
        files = files.after_process_kill()
    elif scenario == "power cut":
        flush(store)
        files = files.after_power_cut(lambda: source.random() < 0.5)
    elif scenario == "expired":
        flush(store)
        store.flush_projections(index=True)
        closed = store.closed_segments()
        trim_now(store.trim(closed[len(closed) // 2].end))
        sent[:] = [one for one in sent if one.physical_offset >= store.min_offset]
        return files, store
    else:
        return files, store
    return files, MessageStore.open(files, SETTINGS, NOW_MS)


def found(store: MessageStore, topic: str, key: str, kind: KeyType) -> list[int]:
    """Every page of the answer, together."""
    pages = list(query_pages(store, KeyQuery(topic, key, kind), messages_max=MESSAGES))
    assert pages[-1].complete, "the last page says that it is"
    return [at for page in pages for at in page.physical_offsets]


def check(store: MessageStore, source: random.Random, sent: list[Sent]) -> None:
    expected: dict[tuple[str, str, KeyType], list[int]] = defaultdict(list)
    for one in sent:
        for key in {*one.keys, one.unique_key}:
            expected[one.topic, key, KeyType.KEY].append(one.physical_offset)
        expected[one.topic, one.unique_key, KeyType.UNIQUE].append(one.physical_offset)
        if one.tag:
            expected[one.topic, one.tag, KeyType.TAG].append(one.physical_offset)
    keys = [*source.sample(FAMILY, FAMILY_ASKED), *source.sample(ORDINARY, FAMILY_ASKED)]
    asked = [(key, KeyType.KEY) for key in (*keys, "nobody's", "AaAaAaAaC#")]
    asked += [(tag, KeyType.TAG) for tag in (*TAGS[1:], "none")]
    for one in source.sample(sent, min(UNIQUE_ASKED, len(sent))):
        asked += [(one.unique_key, KeyType.UNIQUE), (one.unique_key, KeyType.KEY)]
    for topic in TOPICS:
        for key, kind in asked:
            answer = found(store, topic, key, kind)
            assert answer == expected[topic, key, kind][::-1], (topic, key, kind)
    check_pages(store, sent)


def check_pages(store: MessageStore, sent: list[Sent]) -> None:
    """Small pages, one after the other by their cursors, are the whole answer too."""
    topic, key = TOPICS[0], FAMILY[3]
    expected = [one.physical_offset for one in sent if one.topic == topic and key in one.keys]
    answer, cursor = list[int](), ""
    for _ in range(len(expected) + 1):
        page = query_page(store, KeyQuery(topic, key, KeyType.KEY), messages_max=7, cursor=cursor)
        assert len(page.physical_offsets) <= 7
        answer += page.physical_offsets
        if page.complete:
            break
        cursor = page.cursor
    assert answer == expected[::-1]


def catch_up(store: MessageStore) -> None:
    for _ in range(1_000):
        if not store.catch_up(1 << 18):
            return
    raise AssertionError("the index catches up")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_the_index_answers_what_a_scan_answers(part: int, trials: Trials) -> None:
    for number in trials.numbers(STORES, default=4, part=part, parts=4):
        with trials.one(number) as source:
            files, sent = MemoryFileSystem(), list[Sent]()
            store = MessageStore.open(files, SETTINGS, NOW_MS)
            for topic in TOPICS:
                store.topics.create(topic, queue_count=4)
            fill(store, source, sent, MESSAGES // 2)
            begin = len(sent)
            files, store = interrupted(SCENARIOS[number % 4], files, store, source, sent)
            fill(store, source, sent, len(sent) + MESSAGES - begin)
            check_pages(store, sent)  # also where the index lags
            catch_up(store)
            assert store.key_index is not None
            assert len(store.key_index.file_names) >= 3, "several index files"
            check(store, source, sent)
            flush(store)
            store.close(NOW_MS)
            check_pages(MessageStore.open(files, SETTINGS, NOW_MS), sent)
        trials.count("R10", "messages whose index answers equal the scan", MESSAGES)
