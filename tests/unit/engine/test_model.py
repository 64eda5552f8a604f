"""The store against a plain list of messages, with restarts, kills and power cuts among the steps.

A power cut keeps what was synced and any of the pages, sizes and names that were not. After every step each
way to a message must give what the list says: queue offset, key, unique key, tag, offsetMsgId and time.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.message_store import MessageStore
from broker.query.get_message import get_message, get_message_at
from broker.query.key_query import KeyQuery, KeyType
from broker.query.query_by_key import query_pages
from broker.query.search_offset import search_offset
from broker.storage.memory import MemoryFileSystem
from broker.store_trim import trim_now
from tests.support.engine import NOW_MS, SMALL, append, flush, open_store, read_queue, record, scan_bodies
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import decode_message

TOPICS = ("orders", "bills")
TAGS = ("", "Aa", "BB")  # the hashes of the last two are equal
QUEUES = 3
GROUPS = ("billing", "audit")


@dataclass(frozen=True)
class Sent:
    """One message as it was appended; in the list all stand in log order."""

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
        if sum(map(len, records)) + 8 > self.settings.commit_log_file_size:
            with pytest.raises(TroveError, match="BATCH_SIZE_EXCEEDED"):
                append(self.store, *records, topic=topic, queue_id=queue, now_ms=self.now + clock)
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
        self.store.close(self.now)
        self.settings = replace(self.settings, message_index_enable=index)
        self.stored = dict(self.committed)
        self.reopen(self.files)
        assert self.store.recovery.clean

    @rule()
    def kill(self) -> None:
        self.reopen(self.files.after_process_kill())

    @rule(index=st.booleans(), seed=st.integers(0, 999), odds=st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]))
    def power_cut(self, index: bool, seed: int, odds: float) -> None:
        self.settings = replace(self.settings, message_index_enable=index)
        self.reopen(self.files.after_power_cut(coin(seed, odds)))

    @rule(seed=st.integers(0, 999), odds=st.sampled_from([0.2, 0.5, 0.8]))
    def power_cut_while_starting(self, seed: int, odds: float) -> None:
        """The recovery after a kill is cut itself."""
        files = self.files.after_process_kill()
        MessageStore.open(files, self.settings, self.now)
        self.reopen(files.after_power_cut(coin(seed, odds)))

    def reopen(self, files: MemoryFileSystem) -> None:
        self.files = files
        self.store = MessageStore.open(files, self.settings, self.now)
        found = scan_bodies(self.store)
        assert len(found) >= self.durable, "an acknowledged message is lost"
        assert found == [m.body for m in self.sent[: len(found)]]
        del self.sent[len(found) :]
        self.visible = self.durable = len(self.sent)
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
                found = read_queue(self.store, topic, queue_id)
                expected = self.queue(topic, queue_id, self.visible)
                assert [m.body for m in found] == [m.body for m in expected]
                begin = self.queue_begin(topic, queue_id)
                assert [m.queue_offset for m in found] == list(range(begin, begin + len(expected)))
                assert [m.properties.get("KEYS", "") for m in found] == [m.keys for m in expected]
        times = [m.store_timestamp for m in self.sent]
        assert times == sorted(times)

    @invariant()
    def a_scan_of_the_log_equals_the_model(self) -> None:
        assert scan_bodies(self.store) == [m.body for m in self.sent[: self.visible]]

    @invariant()
    def every_way_to_a_message_leads_there(self) -> None:
        self.asked += 1
        self.check_keys(KeyType.KEY, "all")
        self.check_keys(KeyType.KEY, f"k{self.asked % 4}")
        self.check_keys(KeyType.TAG, TAGS[1 + self.asked % 2])
        if self.sent:
            chosen = self.asked * 7 % len(self.sent)
            self.check_keys(KeyType.UNIQUE, self.sent[chosen].unique_key)
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
            expected = [m for m in self.sent[: self.visible] if m.topic == topic and m.has(key_type, key)]
            assert found == [m.physical_offset for m in reversed(expected)]

    def check_identifiers(self, message: Sent, visible: bool) -> None:
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
        times = [m.store_timestamp for m in self.queue(message.topic, message.queue_id, self.visible)]
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


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)


def random_step(machine: StoreMachine, source: random.Random) -> Callable[[], None]:
    """One step as Hypothesis would draw it, but messages come more often than stops."""
    flip, odds = source.random() < 0.5, source.choice([0.0, 0.2, 0.5, 0.8, 1.0])
    topic, queue, seed = source.choice(TOPICS), source.randrange(QUEUES), source.randrange(1 << 30)
    sizes = [source.randrange(source.choice([10, 3000])) for _ in range(source.randint(1, 4))]
    many = partial(machine.send_many, source.randint(5, 25), source.randrange(1200), source.randrange(900))
    steps: list[tuple[int, Callable[[], None]]] = [
        (8, partial(machine.send, topic, queue, sizes, source.randrange(1500), source.choice(TAGS), -queue)),
        (3, partial(many, flip)),
        (5, machine.sync),
        (5, partial(machine.flush_projections, flip)),
        (3, partial(machine.catch_up, source.randint(1, 4096))),
        (3, machine.prepare_segment),
        (1, partial(machine.delete_topic, topic, 0)),
        (3, partial(machine.expire, source.randint(1, 2))),
        (4, partial(machine.commit, source.choice(GROUPS), topic, queue, source.randrange(4))),
        (3, machine.persist_offsets),
        (2, partial(machine.restart, source.random() < 0.8)),
        (1, machine.kill),
        (3, partial(machine.power_cut, source.random() < 0.8, seed, odds)),
        (2, partial(machine.power_cut_while_starting, seed, odds)),
    ]
    return source.choices([step for _, step in steps], [weight for weight, _ in steps])[0]


@pytest.mark.parametrize("seed", range(14))
def test_a_random_walk_agrees_with_the_model(seed: int) -> None:
    source = random.Random(seed)
    machine = StoreMachine()
    machine.start("sync" if seed % 2 else "async", source.random() < 0.8)
    for _ in range(60):
        random_step(machine, source)()
        machine.queues_equal_the_model()
        machine.a_scan_of_the_log_equals_the_model()
        machine.every_way_to_a_message_leads_there()
        machine.positions_are_in_order()
