"""The B+trees of a store: equal to the log at every position, rebuilt where they cannot be trusted."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, append, flush, open_store, record, send
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.faulty import FaultyFileSystem, fail_always, fail_at
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.files.trees import LONG_RUN, TreeChange
from trovemq_store.index.trees import term_entries, tree_index
from trovemq_store.index.trees.layout import (
    DIRECTORY,
    FORMAT_KEY,
    KEY,
    LOCATION,
    LOCATION_ENTRY,
    META,
    OFFSET,
    PROPERTY,
    RETIRED,
    TAG,
    TERM,
    TERM_END,
    TERM_HEAD,
    UNIQUE_KEY,
    postings,
    term_of,
    term_prefix,
)
from trovemq_store.index.trees.store_trees import BY_PRIORITY, OPEN_MARK, QUARANTINE

SETTINGS = replace(SMALL, tree_index_enable=True)
Terms = set[tuple[str, int, str, bytes, int]]
WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="\x01\x02 ", exclude_categories=["Cs"]), min_size=1
)
MESSAGES = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["orders", "bills", "parcels"]),
        "queue_id": st.integers(0, 3),
        "keys": st.lists(WORDS | st.sampled_from(["k", "kk", "x" * 360]), max_size=3).map(" ".join),
        "tag": st.sampled_from(["", "red", "blue"]),
        "unique_key": st.sampled_from(["", "01AB", "01AC"]),
        "carrier": st.sampled_from(["", "UA", "DL"]),
    }
)


def opened(files: FileSystem) -> MessageStore:
    store = open_store(files, SETTINGS, topics=())
    for topic, properties in (("orders", "carrier"), ("bills", "off")):
        if store.topics.get(topic) is None:
            store.topics.create(topic, 4, options={"indexed_properties": properties})
    return store


def sent(store: MessageStore, message: dict[str, Any]) -> None:
    carrier = message["carrier"]
    fields = {name: value for name, value in message.items() if name != "carrier"}
    send(store, b"body", properties={"carrier": carrier} if carrier else {}, **fields)


def in_trees(store: MessageStore) -> tuple[Terms, dict[int, tuple[str, int, int]]]:
    """(topic, kind, property, term, physical offset) of every term; (topic, queue id, queue offset) by
    place."""
    assert store.trees is not None
    names = {}
    for topic in store.trees.numbers.names():
        entry = store.trees.numbers.find(topic)
        assert entry is not None
        names[entry.number] = topic
    terms: Terms = set()
    places = {}
    with store.trees.trees.read() as reader:
        for key, value in reader.items(TERM, b""):
            number, kind = TERM_HEAD.unpack_from(key)
            term = key[TERM_HEAD.size : -9]
            name = b""
            if kind == PROPERTY:
                name, _, term = term.partition(TERM_END)
            assert key[-9:-8] == TERM_END
            offsets = postings(key, value)
            assert offsets == sorted(set(offsets))
            terms |= {(names.get(number, f"#{number}"), kind, name.decode(), term, at) for at in offsets}
        for key, value in reader.items(LOCATION, b""):
            for entry in np.frombuffer(value, LOCATION_ENTRY):
                at = OFFSET.unpack(key)[0] + int(entry["distance"])
                topic = names.get(int(entry["topic"]), f"#{entry['topic']}")
                places[at] = (topic, int(entry["queue_id"]), int(entry["queue_offset"]))
    return terms, places


def in_log(store: MessageStore, end: int | None = None) -> tuple[Terms, dict[int, tuple[str, int, int]]]:
    """The same, message by message from the log."""
    terms: Terms = set()
    places: dict[int, tuple[str, int, int]] = {}
    for start, records, alive in store.scan(
        LOG_ORIGIN, PhysicalOffset(store.visible_offset if end is None else end)
    ):
        for i, message in enumerate(records.messages()):
            if alive is not None and not alive[i]:
                continue
            topic, at = message.topic, start + int(records.positions[i])
            places[at] = (topic, message.queue_id, message.queue_offset)
            properties = message.properties
            found = [(UNIQUE_KEY, "", properties.get("UNIQ_KEY"))]
            found += [(KEY, "", key) for key in properties.get("KEYS", "").split(" ")]
            found += [(TAG, "", properties.get("TAGS"))]
            found += [
                (PROPERTY, name, properties.get(name))
                for name in store.topics.options(topic).indexed_properties
            ]
            terms |= {(topic, kind, name, term_of(text.encode()), at) for kind, name, text in found if text}
    return terms, places


@pytest.mark.slow
@given(st.lists(MESSAGES, max_size=30), st.integers(1, 2_000), st.integers(1, 5))
def test_the_trees_are_equal_to_the_log_after_steps_of_any_size(
    messages: list[dict[str, Any]], step_bytes: int, long_run: int
) -> None:
    store = opened(MemoryFileSystem())
    store.topics.create("parcels", 4, options={"indexed_properties": "carrier,off"})
    for message in messages:
        sent(store, message)
    flush(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(term_entries, "LONG_RUN", long_run)
        while (step := store.begin_trees(step_bytes)) is not None:
            step.run()
            store.finish_trees(step)
            assert in_trees(store) == in_log(store, step.index.position)
    assert in_trees(store) == in_log(store)
    assert store.trees is not None
    assert store.trees.lag_bytes == 0
    counted = {topic: store.trees.numbers.find(topic) for topic in store.trees.numbers.names()}
    for topic, entry in counted.items():
        assert entry is not None
        assert entry.message_count == sum(message["topic"] == topic for message in messages)
    store.close(NOW_MS)


def test_a_step_made_three_changes_for_each_topic() -> None:
    """With a message to each of 10,000 topics, a message took 180 us of a processor, and one topic's took
    3."""
    store = open_store(
        MemoryFileSystem(),
        replace(SETTINGS, commit_log_file_size=1 << 20),
        topics=[f"topic-{number}" for number in range(300)],
    )
    topics = [f"topic-{number}" for number in range(300)] + ["topic-7"] * (LONG_RUN + 10)
    for number, topic in enumerate(topics):
        tag = "red" if number % 2 else ""
        key = f"k{number:04}" if number < 300 + LONG_RUN else f"longer-k{number}"
        send(store, b"body", topic=topic, keys=key, unique_key=f"{number:08}", tag=tag)
    flush(store)
    step = store.begin_trees(1 << 20)
    assert step is not None
    assert store.trees is not None
    committed: list[Sequence[TreeChange]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.trees.trees, "commit", committed.append)
        step.run()
    terms = [change for change in committed[0] if change.tree == TERM]
    number = store.trees.numbers.number("topic-7")
    assert [next(iter([*change.puts, *change.entries()]))[0][:5] for change in terms[1:3]] == [
        term_prefix(number, kind) for kind in (UNIQUE_KEY, KEY)
    ], "long runs have their own changes, to fill their pages"
    assert len(terms) == 4, "and the others lie before and after them"
    assert len(terms[2].puts) == LONG_RUN + 11, "also the keys of another size"
    keys = [key for change in terms for key, _ in [*change.puts, *change.entries()]]
    assert keys == sorted(keys)
    assert len(keys) == 2 * len(topics) + 150, "the tags of topic-7 have one entry"


def test_many_records_of_one_tag_share_entries_of_bounded_size() -> None:
    store = open_store(MemoryFileSystem(), replace(SETTINGS, commit_log_file_size=1 << 20))
    records = [record(b"x", tag="red", unique_key=f"{n:08}") for n in range(50)]
    for _ in range(9):
        append(store, *records)
    store.dispatch()
    flush(store)
    store.catch_up_trees()
    assert store.trees is not None
    with store.trees.trees.read() as reader:
        number = store.trees.numbers.number("orders")
        tags = list(reader.items(TERM, term_prefix(number, TAG), term_prefix(number, TAG + 1)))
        assert [1 + len(value) // 8 for _, value in tags] == [200, 200, 50]
        assert reader.count(LOCATION) == 5
    assert in_trees(store) == in_log(store)


def test_records_of_one_key_share_an_entry_and_a_repeated_key_counts_once() -> None:
    store = opened(MemoryFileSystem())
    for n in range(4):
        sent(store, {"topic": "orders", "keys": f"k k{n} k", "unique_key": "same", "carrier": ""})
    flush(store)
    store.catch_up_trees()
    assert store.trees is not None
    number = store.trees.numbers.number("orders")
    with store.trees.trees.read() as reader:
        keys = list(reader.items(TERM, term_prefix(number, KEY), term_prefix(number, KEY + 1)))
        ids = list(reader.items(TERM, term_prefix(number, UNIQUE_KEY), term_prefix(number, UNIQUE_KEY + 1)))
    assert [(key[5:-9], len(value)) for key, value in keys] == [
        (b"k", 24), (b"k0", 0), (b"k1", 0), (b"k2", 0), (b"k3", 0)
    ]  # fmt: skip
    assert [(key[5:-9], value) for key, value in ids] == [(b"same", b"")] * 4
    assert in_trees(store) == in_log(store)


@pytest.mark.parametrize(
    ("name", "most", "commits"), [("STEP_RECORDS_MAX", 3, 4), ("STEP_HELD_BYTES_MAX", 1, 10)]
)
def test_a_store_far_behind_indexes_in_bounded_steps_for_all_indexes(
    name: str, most: int, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step ends where a run of the log does; killed at any commit, it continues after the last one."""
    monkeypatch.setattr(tree_index, name, most)
    monkeypatch.setattr(tree_index, "RUN_BYTES_MAX", 1)
    for failing in range(1, commits + 2):
        memory = MemoryFileSystem()
        files = FaultyFileSystem(memory)
        store = opened(files)
        for n in range(10):
            sent(store, {"topic": "orders", "keys": f"k{n % 2}", "unique_key": f"id{n}", "carrier": "UA"})
        flush(store)
        store.topics.create("ids", 4, options={"deduplicate": "1h"})
        files.decide = fail_at("commit", failing, errno.EIO)
        if failing <= commits:
            with pytest.raises(StorageError):
                store.catch_up_trees()
        else:
            store.catch_up_trees()
        assert store.trees is not None
        assert {index.position for index in store.trees.indexes if index.name != BY_PRIORITY} == {
            store.trees.search.position
        }
        assert in_trees(store) == in_log(store, store.trees.search.position)
        position = store.trees.search.position
        store = opened(memory.after_power_cut())
        assert store.trees is not None
        assert store.trees.search.position == position
        store.catch_up_trees()
        assert in_trees(store) == in_log(store)


def test_the_trees_take_only_what_is_on_disk() -> None:
    store = opened(MemoryFileSystem())
    send(store, b"in the page cache")
    assert store.visible_offset > store.flushed_offset
    assert store.begin_trees(1 << 20) is None
    flush(store)
    assert store.begin_trees(1 << 20) is not None


@pytest.fixture
def files(tmp_path: Path) -> RealFileSystem:
    return RealFileSystem(tmp_path)


def filled(files: FileSystem, count: int = 5) -> MessageStore:
    store = opened(files)
    for n in range(count):
        sent(store, {"topic": "orders", "keys": f"k{n}", "unique_key": f"id{n}", "carrier": "UA"})
    flush(store)
    store.catch_up_trees()
    return store


def test_they_continue_where_they_were_after_a_restart(files: RealFileSystem) -> None:
    filled(files).close(NOW_MS)
    store = opened(files)
    assert store.trees is not None
    assert (store.trees.report.quarantined, store.trees.lag_bytes) == ("", 0)
    assert in_trees(store) == in_log(store)
    store.close(NOW_MS)


def _damaged(root: Path) -> None:
    (root / DIRECTORY / "data.mdb").write_bytes(b"no tree" * 4_000)


def _missing(root: Path) -> None:
    (root / DIRECTORY / "data.mdb").unlink()


def _of_another_format(root: Path) -> None:
    trees = RealFileSystem(root).open_trees(DIRECTORY, (META,))
    trees.commit([TreeChange(META, [(FORMAT_KEY, b"\0\0\0\x63")])])
    trees.close()


def _of_another_store(root: Path) -> None:
    other = root / "other"
    store = opened(RealFileSystem(other))
    sent(store, {"topic": "bills", "keys": "other", "carrier": ""})
    flush(store)
    store.catch_up_trees()
    store.close(NOW_MS)
    (other / DIRECTORY / "data.mdb").rename(root / DIRECTORY / "data.mdb")


def _of_a_longer_log(root: Path) -> None:
    other = root / "other"
    filled(RealFileSystem(other), 9).close(NOW_MS)
    (other / DIRECTORY / "data.mdb").rename(root / DIRECTORY / "data.mdb")


@pytest.mark.parametrize(
    "harm", [_damaged, _missing, _of_another_format, _of_another_store, _of_a_longer_log]
)
def test_what_cannot_be_trusted_is_quarantined_and_made_again(
    files: RealFileSystem, tmp_path: Path, harm: Any
) -> None:
    filled(files).close(NOW_MS)
    harm(tmp_path)
    for restart in range(2):
        store = opened(files)
        assert store.trees is not None
        aside = harm is not _missing and not restart
        assert bool(store.trees.report.quarantined) == aside
        assert files.exists(f"{QUARANTINE}/data.mdb") == (harm is not _missing)
        store.catch_up_trees()
        assert in_trees(store) == in_log(store)
        store.close(NOW_MS)


@pytest.mark.parametrize("starts", [2, 3])
def test_a_page_that_makes_lmdb_abort_is_found_after_starts_that_aborted(
    files: RealFileSystem, tmp_path: Path, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(files, 400).close(NOW_MS)
    if starts == 3:
        monkeypatch.setattr("trovemq_store.index.trees.store_trees.QUICKLY_CHECKED_BYTES", 0)
    with (tmp_path / DIRECTORY / "data.mdb").open("r+b") as file:
        file.seek(2 * 4096)
        file.write(bytes(4096 * 40))
    (tmp_path / OPEN_MARK).write_bytes(b"%d" % (starts - 1))
    store = opened(files)
    assert store.trees is not None
    assert "damaged" in store.trees.report.quarantined
    store.catch_up_trees()
    assert in_trees(store) == in_log(store)
    store.close(NOW_MS)
    assert not files.exists(OPEN_MARK)


def test_sound_trees_stay_after_any_number_of_kills(files: RealFileSystem, tmp_path: Path) -> None:
    filled(files).close(NOW_MS)
    for count in (b"1", b"2", b"77", b"no number"):
        (tmp_path / OPEN_MARK).write_bytes(count)
        store = opened(files)
        assert store.trees is not None
        assert store.trees.report.quarantined == ""
        store.close(NOW_MS)


def test_trees_that_another_open_store_of_this_process_has_are_left_alone(tmp_path: Path) -> None:
    files = RealFileSystem(tmp_path)
    trees = files.open_trees(DIRECTORY, (META,))
    with pytest.raises(TroveError, match="STORE_FAILED"):
        opened(files)
    trees.close()
    assert not files.exists(f"{QUARANTINE}/data.mdb")


def test_a_failed_commit_leaves_the_trees_unchanged_and_is_retried() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = opened(files)
    sent(store, {"topic": "orders", "keys": "k", "carrier": "UA"})
    flush(store)
    files.decide = fail_at("commit", 1, errno.ENOSPC)
    with pytest.raises(StorageError):
        store.catch_up_trees()
    assert in_trees(store) == (set(), {})
    store.catch_up_trees()
    assert in_trees(store) == in_log(store)


def test_a_full_disk_at_the_start_is_no_reason_to_put_trees_aside() -> None:
    memory = MemoryFileSystem()
    filled(memory).close(NOW_MS)
    files = FaultyFileSystem(memory, fail_always("open_trees", errno.ENOSPC))
    with pytest.raises(Exception, match="DISK_FULL"):
        opened(files)
    files.decide = lambda _operation, _path: None
    store = opened(files)
    assert store.trees is not None
    assert store.trees.lag_bytes == 0


def test_a_topic_deleted_and_created_again_has_none_of_its_old_entries() -> None:
    store = filled(MemoryFileSystem())
    before = store.trees and store.trees.numbers.number("orders")
    store.delete_topic("orders", NOW_MS)
    assert store.trees is not None
    assert store.trees.numbers.find("orders") is None
    store.topics.create("orders", 4)
    sent(store, {"topic": "orders", "keys": "new", "carrier": ""})
    flush(store)
    store.catch_up_trees()
    assert store.trees.numbers.number("orders") != before
    with store.trees.trees.read() as reader:
        assert reader.count(RETIRED) == 1
    while store.trees.sweep(3):
        pass
    terms, _ = in_trees(store)
    assert terms == in_log(store)[0]
    with store.trees.trees.read() as reader:
        assert reader.count(RETIRED) == 0


def _sweeping(store: MessageStore, entries: int) -> Iterator[None]:
    assert store.trees is not None
    while store.trees.sweep(entries):
        yield


def test_properties_declared_in_the_order_of_records_were_put_unsorted() -> None:
    """Into a tree whose entries LMDB appends in their order; trees in memory check it."""
    store = opened(MemoryFileSystem())
    for topics, properties in ((("orders", "bills"), "off"), (("bills", "orders"), "shop,carrier")):
        for topic in topics:
            store.topics.alter(topic, options={"indexed_properties": properties})
            sent(store, {"topic": topic, "carrier": "UA"})
        flush(store)
        store.catch_up_trees()
    assert {topic for topic, kind, *_ in in_trees(store)[0] if kind == PROPERTY} == {"orders", "bills"}


@pytest.mark.parametrize("entries", [2, 7, 1_000])
def test_entries_of_what_retention_removed_are_swept_and_no_others(entries: int) -> None:
    store = opened(MemoryFileSystem())
    for n in range(120):
        sent(
            store,
            {"topic": "orders", "keys": f"k{n % 7}", "unique_key": f"id{n}", "tag": "red", "carrier": "UA"},
        )
    flush(store)
    store.flush_projections(index=True)
    store.catch_up_trees()
    begin = store.closed_segments()[0].end
    trim_now(store.trim(begin))
    for _ in range(3):
        for _ in _sweeping(store, entries):
            pass
    terms, places = in_trees(store)
    expected_terms, expected_places = in_log(store)
    assert terms == expected_terms
    assert {at: place for at, place in places.items() if at >= begin} == expected_places
    assert sum(at < begin for at in places) < 96
