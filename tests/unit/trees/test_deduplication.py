"""Idempotent produce in the engine: an id is stored once within its window, whatever happens in between."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.support.deduplicated import (
    ENDS,
    SETTINGS,
    TOPIC,
    WINDOW_MS,
    ended,
    opened,
    places_of,
    send,
    step,
    stored,
    sweep_a_little,
)
from tests.support.engine import NOW_MS, append, flush, open_store, record
from trovemq_broker.timers.wheel_records import delayed_record, delete_marker
from trovemq_broker.transactions.records import commit_record, half_record, moved_record
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, QueueId
from trovemq_store.engine.deduplication import Deduplication
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.faulty import FaultyFileSystem, fail_always, fail_at
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.trees import unique_ids
from trovemq_store.index.trees.layout import UNIQUE_ID
from trovemq_store.index.trees.unique_ids import MessagePosition
from trovemq_store.index.trees.unique_keys import ids_of, stored_id
from trovemq_store.settings import StoreSettings

IDS = [f"id-{number}" for number in range(8)] + ["x" * 255, "x" * 300, "x" * 299 + "y"]


class Machine(RuleBasedStateMachine):
    """Sends, steps of the trees, restarts, power cuts, changes of the option; compared with the log: an id
    may be stored where, and only where, no message of it lies within the window."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFileSystem()
        self.store, self.deduplication = opened(self.files)
        self.now_ms = NOW_MS
        self.window_ms = WINDOW_MS
        self.model: dict[str, MessagePosition] = {}
        self.next_offsets: dict[int, int] = {}

    def teardown(self) -> None:
        self._read_model()
        self.store.close(self.now_ms)

    @rule(
        ids=st.lists(st.sampled_from([*IDS, ""]), min_size=1, max_size=6),
        queue_id=st.integers(0, 1),
        later_ms=st.sampled_from([0, 1, 3_000, 9_999, 10_000]),
    )
    def send(self, ids: list[str], queue_id: QueueId, later_ms: int) -> None:
        self.now_ms += later_ms
        before = self.store.end_offset
        next_offset = self.next_offsets.get(queue_id, 0)
        result = send(self.deduplication, self.store, ids, queue_id=queue_id, now_ms=self.now_ms)
        places = places_of(result, queue_id)
        since = max(self.now_ms, self.store.last_store_timestamp) - self.window_ms
        for index, (unique_id, place) in enumerate(zip(ids, places, strict=True)):
            known = self.model.get(unique_id)
            if self.window_ms and unique_id and known is not None and known.store_timestamp > since:
                assert result.duplicates[index] == known
            else:
                assert index not in result.duplicates
                assert place.physical_offset >= before
                assert place.queue_offset == next_offset
                next_offset += 1
                self.model[unique_id] = place
        self.next_offsets[queue_id] = next_offset
        assert result.end <= self.store.end_offset

    @rule()
    def flush(self) -> None:
        flush(self.store)

    @rule(bytes_max=st.sampled_from([1, 1 << 20]))
    def step_of_the_trees(self, bytes_max: int) -> None:
        step(self.store, bytes_max)

    @rule()
    def sweep(self) -> None:
        sweep_a_little(self.store)

    @rule(how=st.sampled_from(ENDS))
    def restart(self, how: str) -> None:
        self.files = ended(self.files, self.store, how, self.now_ms)
        self.store, self.deduplication = opened(self.files)
        self._read_model()

    def _read_model(self) -> None:
        """The content of the log; the queues have no holes."""
        found = stored(self.store)
        self.model = dict(found)
        self.next_offsets = {}
        for _, place in found:
            assert place.queue_offset == self.next_offsets.get(place.queue_id, 0)
            self.next_offsets[place.queue_id] = place.queue_offset + 1

    @rule(window=st.sampled_from(["5s", "10s", "20s", "off"]))
    def alter(self, window: str) -> None:
        self.store.topics.alter(TOPIC, options={"deduplicate": window})
        self.window_ms = 0 if window == "off" else int(window[:-1]) * 1_000
        trees = self.store.trees
        assert trees is not None
        flush(self.store)
        end = self.store.end_offset
        while self.window_ms and not trees.ids_known(end):
            assert step(self.store), "there is something to be read until the ids are known"

    @rule()
    def delete_and_make_again(self) -> None:
        self.store.delete_topic(TOPIC, self.now_ms)
        self.store.topics.create(TOPIC, 4, options={"deduplicate": "10s"})
        self.window_ms = WINDOW_MS
        self.model, self.next_offsets = {}, {}


Machine.TestCase.settings = hypothesis_settings(max_examples=25, stateful_step_count=20, deadline=None)
test_an_id_is_stored_where_no_message_of_it_lies_within_the_window = pytest.mark.slow(Machine.TestCase)


def test_a_refused_batch_remembers_nothing() -> None:
    store, deduplication = opened(MemoryFileSystem())
    store.topics.alter(TOPIC, options={"deduplicate": "1h"})
    before = store.end_offset
    with pytest.raises(TroveError) as caught:
        send(deduplication, store, ["a", "b"], body=b"x" * 8_000)
    assert caught.value.spec is errors.BATCH_SIZE_EXCEEDED
    assert store.end_offset == before
    assert not send(deduplication, store, ["a", "b"]).duplicates


def test_a_duplicate_of_what_is_not_synced_waits_for_its_original() -> None:
    store, deduplication = opened(MemoryFileSystem())
    first = send(deduplication, store, ["a"])
    later = send(deduplication, store, ["other"])
    again = send(deduplication, store, ["a"])
    assert again.record_count == 0
    assert again.end == first.end
    assert again.end < later.end
    flush(store)
    step(store)
    assert send(deduplication, store, ["a"]).end <= store.flushed_offset


def test_a_part_of_a_batch_keeps_its_own_offsets() -> None:
    store, deduplication = opened(MemoryFileSystem())
    send(deduplication, store, ["b", "d"])
    result = send(deduplication, store, ["a", "b", "c", "c", "d", "e"])
    assert sorted(result.duplicates) == [1, 3, 4]
    whole = places_of(result, QueueId(0))
    for first in range(6):
        for count in range(1, 7 - first):
            part = result.part(first, count)
            assert places_of(part, QueueId(0)) == whole[first : first + count]
            assert part.end <= store.end_offset
    for counts in ([6], [1] * 6, [2, 1, 3], [1, 4, 1], [5, 1]):
        firsts = [sum(counts[:number]) for number in range(len(counts))]
        parts = [places_of(part, QueueId(0)) for part in result.parts(counts)]
        assert parts == [whole[at : at + n] for at, n in zip(firsts, counts, strict=True)]
    assert [unique_id for unique_id, _ in stored(store)] == ["b", "d", "a", "c", "e"]


class Counted(dict[int, MessagePosition]):
    """Duplicates that count how often they are gone through."""

    times = 0

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        return super().__iter__()


def test_answers_of_coalesced_sends_took_the_square_of_their_duplicates() -> None:
    """Of 8,000 sends in one append, half of them duplicates: 2.8 s of the event loop."""
    store, deduplication = opened(MemoryFileSystem())
    send(deduplication, store, ["a", "b", "c"])
    result = send(deduplication, store, ["a", "x", "b", "y", "c"])
    known = Counted(result.duplicates)
    assert len(list(result._replace(duplicates=known).parts([1] * 5))) == 5
    assert known.times == 1


def test_an_id_that_came_while_a_step_ran_is_known() -> None:
    store, deduplication = opened(MemoryFileSystem())
    send(deduplication, store, ["a"])
    flush(store)
    found = store.begin_trees(1 << 20)
    assert found is not None
    came = send(deduplication, store, ["b"])
    found.run()
    store.finish_trees(found)
    again = send(deduplication, store, ["a", "b", "c"])
    assert sorted(again.duplicates) == [0, 1]
    assert again.duplicates[1].physical_offset == came.physical_offset


@pytest.mark.parametrize("in_the_tree", [False, True])
def test_an_id_of_a_deleted_topic_may_be_sent_again(in_the_tree: bool) -> None:
    store, deduplication = opened(MemoryFileSystem())
    send(deduplication, store, ["a"])
    flush(store)
    while in_the_tree and step(store):
        pass
    store.delete_topic(TOPIC, NOW_MS)
    store.topics.create(TOPIC, 4, options={"deduplicate": "1h"})
    assert not send(deduplication, store, ["a"]).duplicates
    assert send(deduplication, store, ["a"]).duplicates


def test_each_duplicate_is_counted_and_reported() -> None:
    reported: list[tuple[str, bytes]] = []
    store, _ = opened(MemoryFileSystem())
    deduplication = Deduplication(store, lambda topic, unique_id: reported.append((topic, unique_id)))
    send(deduplication, store, ["a"])
    send(deduplication, store, ["a", "b", "b"])
    assert deduplication.duplicates == {TOPIC: 2}
    assert reported == [(TOPIC, b"a"), (TOPIC, b"b")]


def test_topics_have_ids_of_their_own() -> None:
    store, deduplication = opened(MemoryFileSystem())
    store.topics.create("bills", 1, options={"deduplicate": "1h"})
    store.topics.create("plain", 1)
    for topic in (TOPIC, "bills", "plain", "plain"):
        assert not send(deduplication, store, ["a"], topic=topic).duplicates
    flush(store)
    while step(store):
        pass
    assert send(deduplication, store, ["a"], topic="bills").duplicates
    assert not send(deduplication, store, ["a"], topic="plain").duplicates


def _waiting(store: MessageStore, kind: str) -> Any:
    """Writes a message of id `a` as the broker lets it wait; returns the appended record."""
    from trovemq_store.engine.record_writer import NewRecord, RecordWriter

    writer = RecordWriter(store, lambda: None)
    new = NewRecord(TOPIC, QueueId(1), b"body", {"UNIQ_KEY": "a"}, born_timestamp=NOW_MS)
    waiting = half_record(new, 0) if kind == "half" else delayed_record(new, NOW_MS + 60_000, NOW_MS)
    return lambda: writer.append([waiting], NOW_MS)[0]


@pytest.mark.parametrize("kind", ["half", "delayed"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_waiting_message_is_judged_by_the_topic_its_producer_named(kind: str, restarted: bool) -> None:
    files = MemoryFileSystem()
    store, deduplication = opened(files)
    first = deduplication.append_if_absent(TOPIC, b"a", NOW_MS, _waiting(store, kind))
    if restarted:
        flush(store)
        store.close(NOW_MS)
        store, deduplication = opened(files)

    def never() -> Any:
        raise AssertionError("a duplicate is not stored")

    again = deduplication.append_if_absent(TOPIC, b"a", NOW_MS, never)
    assert again.queue_offset(0) == first.first_queue_offset
    assert again.physical_offset == first.physical_offset
    assert send(deduplication, store, ["a"]).duplicates[0].physical_offset == first.physical_offset
    assert not send(deduplication, store, ["b"]).duplicates


def test_copies_that_the_broker_makes_move_no_place() -> None:
    from trovemq_proto.records import decode_message
    from trovemq_store.engine.record_writer import NewRecord, RecordWriter

    files = MemoryFileSystem()
    store, deduplication = opened(files, "1h")
    writer = RecordWriter(store, lambda: None)
    first = deduplication.append_if_absent(TOPIC, b"a", NOW_MS, _waiting(store, "half"))
    flush(store)
    found = store.record_at(first.physical_offset)
    assert found is not None
    half = decode_message(bytes(found))
    rolled = delete_marker(TOPIC, QueueId(1), NOW_MS + 60_000, "a", NOW_MS)
    rolled = rolled.with_properties({"TIMER_ROLL_TIMES": "1"})  # the marker before it said it
    retry = NewRecord("%RETRY%G", QueueId(0), b"body", {"UNIQ_KEY": "a"}, born_timestamp=NOW_MS)
    delivered = NewRecord(
        TOPIC, QueueId(0), b"body", {"UNIQ_KEY": "a", "REAL_TOPIC": TOPIC}, born_timestamp=NOW_MS
    )
    copies = [commit_record(half), moved_record(half, 1), rolled, retry, delivered]
    writer.append(copies, NOW_MS + 1_000)
    flush(store)
    while step(store):
        pass
    for again in (False, True):
        result = send(deduplication, store, ["a"], now_ms=NOW_MS + 2_000)
        assert result.duplicates[0].physical_offset == first.physical_offset
        if not again:
            files = files.after_power_cut()
            files.remove("trovemq/trees/data.mdb")
            store, deduplication = opened(files)


def test_a_commit_that_fails_leaves_every_id_known() -> None:
    """At each call of the trees' file that can fail."""
    for number in range(1, 6):
        plan = fail_at("commit", number, errno.EIO)
        files = FaultyFileSystem(MemoryFileSystem(), plan)
        try:
            store, deduplication = opened(files)
        except (TroveError, StorageError):
            continue
        for count in range(6):
            send(deduplication, store, [f"id-{count}"])
            flush(store)
            try:
                step(store)
            except StorageError:
                assert count < 6
            for known in range(count + 1):
                assert send(deduplication, store, [f"id-{known}"]).duplicates, (number, count, known)


def test_too_many_ids_that_wait_for_the_index_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unique_ids, "RECENT_MAX", 4)
    store, deduplication = opened(MemoryFileSystem())
    send(deduplication, store, ["a", "b", "c"])
    before = store.end_offset
    with pytest.raises(TroveError) as caught:
        send(deduplication, store, ["d", "e"])
    assert caught.value.spec is errors.OS_PAGE_CACHE_BUSY
    assert store.end_offset == before
    trees = store.trees
    assert trees is not None
    urgent = [trees.urgent]
    flush(store)
    step(store)
    assert [*urgent, trees.urgent] == [True, False]
    assert not send(deduplication, store, ["d", "e"]).duplicates


def test_without_the_trees_a_send_is_refused() -> None:
    files = MemoryFileSystem()
    store, _ = opened(files)
    store.close(NOW_MS)
    without = StoreSettings(**{**_fields(SETTINGS), "tree_index_enable": False})
    store = open_store(files, without, topics=())
    deduplication = Deduplication(store)
    with pytest.raises(TroveError) as caught:
        send(deduplication, store, ["a"])
    assert caught.value.spec is errors.INDEX_DISABLED
    assert "tree_index_enable" in caught.value.message
    store.topics.alter(TOPIC, options={"deduplicate": "off"})
    assert not send(deduplication, store, ["a"]).duplicates


def _fields(settings: StoreSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in StoreSettings.__dataclass_fields__}


def test_with_a_full_disk_at_the_start_sends_wait_until_the_ids_are_read() -> None:
    files = MemoryFileSystem()
    store, deduplication = opened(files)
    send(deduplication, store, ["a"])
    flush(store)
    files = files.after_power_cut()
    plan = fail_always("commit", errno.ENOSPC)
    store, deduplication = opened(FaultyFileSystem(files, plan))
    with pytest.raises(TroveError) as caught:
        send(deduplication, store, ["a"])
    assert caught.value.spec is errors.OS_PAGE_CACHE_BUSY


def test_ids_older_than_the_window_are_swept_and_others_stay() -> None:
    store, deduplication = opened(MemoryFileSystem())
    for number in range(20):
        send(deduplication, store, [f"id-{number}"], now_ms=NOW_MS + 1_000 * number)
    flush(store)
    while step(store):
        pass
    trees = store.trees
    assert trees is not None
    while trees.sweep_ids(store.time.since_of(store.last_store_timestamp), store.last_store_timestamp, 3):
        pass
    with trees.trees.read() as reader:
        kept = sorted(int(key[4:].split(b"-")[1]) for key, _ in reader.items(UNIQUE_ID, b""))
    assert kept == list(range(10, 20))
    store.topics.alter(TOPIC, options={"deduplicate": "off"})
    send(deduplication, store, ["z"], now_ms=NOW_MS + 40_000)
    flush(store)
    while step(store):
        pass
    while trees.sweep_ids(store.time.since_of(store.last_store_timestamp), store.last_store_timestamp, 3):
        pass
    with trees.trees.read() as reader:
        assert reader.count(UNIQUE_ID) == 0


def test_where_no_topic_is_deduplicated_the_log_is_not_read_for_it() -> None:
    store = open_store(MemoryFileSystem(), SETTINGS)
    append(store, record(b"body", unique_key="a"))
    flush(store)
    assert store.trees is not None
    current = store.trees.current
    assert current.begin(store.end_offset, 1 << 20) is None
    assert current.position == store.end_offset
    assert current.record_count == 0


def test_no_cut_id_is_the_id_of_another_message() -> None:
    long = b"x" * 4_096
    assert len(stored_id(long)) == 256
    assert stored_id(b"x" * 255) == b"x" * 255
    assert stored_id(long) != stored_id(long + b"y")
    assert stored_id(b"") == b""


def test_ids_of_records_without_one_are_empty() -> None:
    store = open_store(MemoryFileSystem(), SETTINGS)
    append(store, record(b"1", unique_key="a"), record(b"2"), record(b"3", unique_key="c"))
    flush(store)
    ((_, records, _),) = list(store.scan(LOG_ORIGIN, store.end_offset))
    assert ids_of(records) == [b"a", b"", b"c"]


def test_reading_a_longer_window_hides_nothing_that_is_known() -> None:
    """The part that is read again has an older message of the id, in a separate segment."""
    files = MemoryFileSystem()
    store, deduplication = opened(files)
    send(deduplication, store, ["a"])
    for number in range(8):
        send(deduplication, store, [f"filling-{number}"], body=b"x" * 4_000)
    latest = send(deduplication, store, ["a"], now_ms=NOW_MS + WINDOW_MS)
    assert not latest.duplicates
    flush(store)
    while step(store):
        pass
    store.close(NOW_MS + WINDOW_MS)
    store, deduplication = opened(files)
    store.topics.alter(TOPIC, options={"deduplicate": "1h"})
    trees = store.trees
    assert trees is not None
    steps = 0
    while not trees.ids_known(store.end_offset):
        result = send(deduplication, store, ["a"], now_ms=NOW_MS + WINDOW_MS + 1)
        assert result.duplicates[0].physical_offset == latest.physical_offset
        step(store, 1)
        steps += 1
    assert steps > 2
