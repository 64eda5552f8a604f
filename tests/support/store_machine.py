"""The store against a plain list of messages: restarts, kills and power cuts are steps like all others.

A power cut keeps what was synced and any of the pages (or sectors), sizes, names that were not. After every
step each way to a message must give what the list says: queue offset, key, unique key, tag, offsetMsgId and
time. Of a record that was hit (tests/support/damaged_store_machine.py) all that counts is that no answer has
it.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.message_store import MessageStore
from broker.query.get_message import get_message, get_message_at
from broker.query.key_query import KeyQuery, KeyType
from broker.query.query_by_key import query_pages
from broker.query.search_offset import search_offset
from broker.storage.memory import PAGE_SIZE, SECTOR_SIZE, MemoryFileSystem
from broker.store_trim import trim_now
from tests.support.engine import NOW_MS, SMALL, append, flush, open_store, record
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import decode_message

TOPICS: Final = ("orders", "bills")
TAGS: Final = ("", "Aa", "BB")  # the hashes of the last two are equal
QUEUES: Final = 3
GROUPS: Final = ("billing", "audit")


@dataclass(frozen=True)
class Sent:
    """One message as it was appended; in the list all stand in log order. `hit`: its record was damaged."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int
    offset_msg_id: str
    body: bytes
    keys: str
    tag: str
    unique_key: str
    hit: bool = False

    def has(self, key_type: KeyType, key: str) -> bool:
        if key_type is KeyType.TAG:
            return self.tag == key
        return self.unique_key == key or (key_type is KeyType.KEY and key in self.keys.split(" "))


class StoreMachine(RuleBasedStateMachine):
    """`self.sent` lists the living messages, oldest first; those before `self.visible` can be read, those
    before `self.durable` survive a power cut, and what is behind survives from the front. `self.expired`
    counts what retention removed of each queue."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFileSystem()
        self.now = NOW_MS
        self.counter = 0
        self.sent: list[Sent] = []
        self.visible = self.durable = 0
        self.committed: dict[tuple[str, str, int], int] = {}
        self.stored: dict[tuple[str, str, int], int] = {}
        self.asked = 0
        self.expired: dict[tuple[str, int], int] = {}

    @initialize(mode=st.sampled_from(["sync", "async"]), index=st.booleans())
    def start(self, mode: str, index: bool) -> None:
        self.settings = replace(SMALL, flush_mode=mode, message_index_enable=index)  # type: ignore[arg-type]
        self.store: MessageStore = open_store(self.files, self.settings, topics=TOPICS)

    # --- steps --------------------------------------------------------------------------------------
    @rule(
        topic=st.sampled_from(TOPICS),
        queue=st.integers(0, QUEUES - 1),
        sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=4),
        long_key=st.integers(0, 1500),
        tag=st.sampled_from(TAGS),
        clock=st.integers(-5000, 5000),
    )
    def send(self, topic: str, queue: int, sizes: list[int], long_key: int, tag: str, clock: int) -> None:
        if self.store.topics.get(topic) is None:
            self.store.topics.create(topic, queue_count=4)
        messages = [
            Sent(
                topic,
                queue,
                0,
                0,
                0,
                "",
                self.next_body(size),
                f"k{i} all {'x' * long_key}",
                tag,
                f"u{self.counter}",
            )
            for i, size in enumerate(sizes)
        ]
        records = [
            record(m.body, topic=topic, queue_id=queue, keys=m.keys, tag=m.tag, unique_key=m.unique_key)
            for m in messages
        ]
        if sum(map(len, records)) + 64 * len(records) > self.settings.commit_log_file_size:
            self.refuse(records, topic, queue)
            return
        result = append(self.store, *records, topic=topic, queue_id=queue, now_ms=self.now + clock)
        assert result.first_queue_offset == self.queue_end(topic, queue, len(self.sent))
        self.sent += [
            replace(
                message,
                queue_offset=result.first_queue_offset + i,
                physical_offset=result.physical_offset + int(result.positions[i]),
                store_timestamp=result.store_timestamp,
                offset_msg_id=result.offset_msg_ids()[i],
            )
            for i, message in enumerate(messages)
        ]
        self.store.dispatch()
        if self.settings.flush_mode == "async":
            self.visible = len(self.sent)

    def refuse(self, records: list[bytes], topic: str, queue: int) -> None:
        """More than a segment holds: no trace of it stays."""
        with pytest.raises(TroveError, match="BATCH_SIZE_EXCEEDED"):
            append(self.store, *records, *records, topic=topic, queue_id=queue, now_ms=self.now)

    @rule(
        count=st.integers(5, 25),
        size=st.integers(0, 1200),
        long_key=st.integers(0, 900),
        synced=st.booleans(),
    )
    def send_many(self, count: int, size: int, long_key: int, synced: bool) -> None:
        for i in range(count):
            self.send(TOPICS[i // 3 % 2], i % QUEUES, [size + i, size], long_key, TAGS[i % 3], i)
        if synced:
            self.sync()

    def next_body(self, size: int) -> bytes:
        self.counter += 1
        return self.counter.to_bytes(4, "big") + bytes(size)

    def queue(self, topic: str, queue_id: int, end: int) -> list[Sent]:
        return [m for m in self.sent[:end] if (m.topic, m.queue_id) == (topic, queue_id)]

    def queue_begin(self, topic: str, queue_id: int) -> int:
        return self.expired.get((topic, queue_id), 0)

    def queue_end(self, topic: str, queue_id: int, end: int) -> int:
        return self.queue_begin(topic, queue_id) + len(self.queue(topic, queue_id, end))

    @rule()
    def sync(self) -> None:
        flush(self.store)
        self.visible = self.durable = len(self.sent)

    @rule(index=st.booleans())
    def flush_projections(self, index: bool) -> None:
        self.store.flush_projections(index=index)

    @rule(budget=st.integers(1, 4096))
    def catch_up(self, budget: int) -> None:
        self.store.catch_up(budget)

    @rule()
    def prepare_segment(self) -> None:
        work = self.store.spare_work()
        if work is not None:
            work.run()
            self.store.finish_spare(work)

    @rule(topic=st.sampled_from(TOPICS), really=st.integers(0, 3))
    def delete_topic(self, topic: str, really: int) -> None:
        if really or self.store.topics.get(topic) is None:
            return  # seldom: the other steps need messages
        self.store.delete_topic(topic, self.now)
        self.visible -= sum(m.topic == topic for m in self.sent[: self.visible])
        self.durable -= sum(m.topic == topic for m in self.sent[: self.durable])
        self.sent = [m for m in self.sent if m.topic != topic]
        self.expired = {key: count for key, count in self.expired.items() if key[0] != topic}
        for table in (self.committed, self.stored):
            for key in [key for key in table if key[1] == topic]:
                del table[key]
        self.note_stored_offsets()

    @rule(
        group=st.sampled_from(GROUPS),
        topic=st.sampled_from(TOPICS),
        queue=st.integers(0, QUEUES - 1),
        back=st.integers(0, 3),
    )
    def commit(self, group: str, topic: str, queue: int, back: int) -> None:
        end = self.queue_end(topic, queue, self.visible)
        self.committed[group, topic, queue] = max(0, end - back)
        self.store.offsets.commit(group, topic, queue, max(0, end - back))

    @rule(group=st.sampled_from(GROUPS), topic=st.sampled_from(TOPICS))
    def reset_offsets(self, group: str, topic: str) -> None:
        """Back to the beginning; on disk when it returns."""
        begins = {queue: self.queue_begin(topic, queue) for queue in range(QUEUES)}
        self.store.offsets.reset(group, topic, begins)
        self.committed.update({(group, topic, queue): begin for queue, begin in begins.items()})
        self.note_stored_offsets()

    @rule()
    def persist_offsets(self) -> None:
        self.store.offsets.persist()
        self.note_stored_offsets()

    @rule(count=st.integers(1, 2))
    def expire(self, count: int) -> None:
        segments = self.store.closed_segments()[:count]
        if not segments:
            return
        begin = segments[-1].end
        trim_now(self.store.trim(begin))
        assert self.store.min_offset == begin
        gone = [m for m in self.sent if m.physical_offset < begin]
        for m in gone:
            self.expired[m.topic, m.queue_id] = m.queue_offset + 1
        del self.sent[: len(gone)]
        self.visible -= len(gone)
        self.durable -= len(gone)
        assert self.durable >= 0, "what is not on disk stays"

    def note_stored_offsets(self) -> None:
        """What the file has: nothing beyond what the log has on disk."""
        self.stored = {
            key: min(offset, self.queue_end(key[1], key[2], self.durable))
            for key, offset in self.committed.items()
        }

    # --- stops and starts ---------------------------------------------------------------------------
    @rule(index=st.booleans())
    def restart(self, index: bool) -> None:
        self.close()
        self.settings = replace(self.settings, message_index_enable=index)
        self.reopen(self.files)
        assert self.store.recovery.clean

    def close(self) -> None:
        self.store.close(self.now)
        self.visible = self.durable = len(self.sent)
        self.stored = dict(self.committed)

    @rule()
    def kill(self) -> None:
        self.reopen(self.files.after_process_kill())

    @rule(
        index=st.booleans(),
        seed=st.integers(0, 999),
        odds=st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]),
        unit=st.sampled_from([PAGE_SIZE, SECTOR_SIZE]),
    )
    def power_cut(self, index: bool, seed: int, odds: float, unit: int) -> None:
        self.settings = replace(self.settings, message_index_enable=index)
        self.reopen(self.files.after_power_cut(coin(seed, odds), unit=unit))

    @rule(seed=st.integers(0, 999), odds=st.sampled_from([0.2, 0.5, 0.8]))
    def power_cut_while_starting(self, seed: int, odds: float) -> None:
        """The recovery after a kill is cut itself."""
        files = self.files.after_process_kill()
        MessageStore.open(files, self.settings, self.now)
        self.reopen(files.after_power_cut(coin(seed, odds)))

    def reopen(self, files: MemoryFileSystem) -> None:
        self.files = files
        self.store = MessageStore.open(files, self.settings, self.now)
        end = self.store.end_offset
        kept = [m for m in self.sent if m.physical_offset < end]
        assert len(kept) >= self.durable, "an acknowledged message is lost"
        self.sent = kept
        self.visible = self.durable = len(kept)
        self.committed = {}
        for group, topic, queue_id, offset in self.store.offsets.entries():
            assert offset <= self.queue_end(topic, queue_id, self.visible)
            self.committed[group, topic, queue_id] = offset
        assert self.committed == self.stored

    # --- what must hold after each step ---------------------------------------------------------------
    @invariant()
    def queues_equal_the_model(self) -> None:
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                expected = self.queue(topic, queue_id, self.visible)
                begin = self.queue_begin(topic, queue_id)
                assert [m.queue_offset for m in expected] == list(range(begin, begin + len(expected)))
                self.check_ends(topic, queue_id, expected)
                for m in expected:
                    self.check_at_its_offset(m)
        times = [m.store_timestamp for m in self.sent]
        assert times == sorted(times)

    def check_ends(self, topic: str, queue_id: int, expected: list[Sent]) -> None:
        queue, begin = self.store.consume_queues.get(topic, queue_id), self.queue_begin(topic, queue_id)
        if queue is None:
            assert not expected
            return
        assert queue.max_offset == begin + len(expected)
        # A queue that is made anew begins with the first record that is whole.
        first = next((m.queue_offset for m in expected if not m.hit), queue.max_offset)
        assert begin <= queue.min_offset <= first

    def check_at_its_offset(self, message: Sent) -> None:
        place = (self.store, message.topic, message.queue_id, message.queue_offset)
        if message.hit:
            with pytest.raises(TroveError) as caught:
                get_message_at(*place)
            assert caught.value.spec in (
                errors.RECORD_DAMAGED,
                errors.MESSAGE_NOT_FOUND,
                errors.OFFSET_OUT_OF_RANGE,
            )
            return
        found = decode_message(get_message_at(*place).records[0])
        assert (found.body, found.queue_offset) == (message.body, message.queue_offset)
        assert found.properties.get("KEYS", "") == message.keys

    @invariant()
    def a_scan_of_the_log_equals_the_model(self) -> None:
        found = dict(self.scanned())
        for m in self.sent:
            if m.hit:
                found.pop(m.physical_offset, None)
        assert found == {m.physical_offset: m.body for m in self.sent[: self.visible] if not m.hit}

    def scanned(self) -> list[tuple[int, bytes]]:
        store, hit, found = self.store, {m.physical_offset for m in self.sent if m.hit}, []
        for begin, records, alive in store.scan(store.min_offset, store.visible_offset):
            for i, position in enumerate(records.positions.tolist()):
                if begin + position not in hit and (alive is None or alive[i]):
                    raw = records.data[position : position + int(records.sizes[i])]
                    found.append((begin + position, decode_message(raw).body))
        return found

    @invariant()
    def every_way_to_a_message_leads_there(self) -> None:
        """One of the ways after each step, in turn: all would be most of a walk's time."""
        self.asked += 1
        chosen = self.asked * 7 % max(1, len(self.sent))
        unique_key = self.sent[chosen].unique_key if self.sent else "none"
        key_type, key = (
            (KeyType.KEY, "all"),
            (KeyType.UNIQUE, unique_key),
            (KeyType.KEY, f"k{chosen % 4}"),
            (KeyType.TAG, TAGS[1 + chosen % 2]),
        )[self.asked % 4]
        self.check_keys(key_type, key)
        if self.sent:
            self.check_identifiers(self.sent[chosen], chosen < self.visible)
            self.check_times(self.sent[chosen])

    def check_keys(self, key_type: KeyType, key: str) -> None:
        for topic in TOPICS:
            query = KeyQuery(topic, key, key_type)
            if self.store.topics.get(topic) is None:
                with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
                    list(query_pages(self.store, query))
                continue
            if not self.settings.message_index_enable:
                with pytest.raises(TroveError, match="INDEX_DISABLED"):
                    list(query_pages(self.store, query))
                continue
            pages = list(query_pages(self.store, query, messages_max=100_000))
            assert pages[-1].complete
            found = [physical_offset for page in pages for physical_offset in page.physical_offsets]
            readable = [m for m in self.sent[: self.visible] if m.topic == topic and not m.hit]
            assert found == [m.physical_offset for m in reversed(readable) if m.has(key_type, key)]

    def check_identifiers(self, message: Sent, visible: bool) -> None:
        if message.hit:
            with pytest.raises(TroveError):
                get_message(self.store, message.offset_msg_id)
            return
        place = (self.store, message.topic, message.queue_id, message.queue_offset)
        if visible:
            for found in (get_message(self.store, message.offset_msg_id), get_message_at(*place)):
                assert decode_message(found.records[0]).body == message.body
                assert found.queue_offsets == [message.queue_offset]
            return
        with pytest.raises(TroveError) as caught:
            get_message(self.store, message.offset_msg_id)
        assert caught.value.spec in (errors.MESSAGE_NOT_FOUND, errors.INDEX_DISABLED)
        with pytest.raises(TroveError, match="OFFSET_OUT_OF_RANGE"):
            get_message_at(*place)

    def check_times(self, message: Sent) -> None:
        queue = self.queue(message.topic, message.queue_id, self.visible)
        if any(m.hit for m in queue):
            return  # the time of a damaged record is anything
        times = [m.store_timestamp for m in queue]
        for timestamp in (message.store_timestamp - 1, message.store_timestamp, message.store_timestamp + 1):
            lower, upper = (
                search_offset(self.store, message.topic, message.queue_id, timestamp, upper=upper)
                for upper in (False, True)
            )
            begin = self.queue_begin(message.topic, message.queue_id)
            assert lower == begin + bisect_left(times, timestamp)
            assert upper == begin + max(0, bisect_right(times, timestamp) - 1)

    @invariant()
    def positions_are_in_order(self) -> None:
        store = self.store
        assert store.min_offset <= store.flushed_offset <= store.end_offset
        assert store.visible_offset <= store.end_offset
        if self.settings.flush_mode == "sync":
            assert store.visible_offset <= store.flushed_offset


def coin(seed: int, odds: float) -> Callable[[], bool]:
    source = random.Random(seed)
    return lambda: source.random() < odds
