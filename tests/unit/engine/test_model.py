"""The store against a plain dict-and-list model, with restarts, kills and power cuts among the steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.message_store import MessageStore
from broker.storage.memory import MemoryFileSystem
from tests.support.engine import NOW_MS, SMALL, append, flush, open_store, read_queue, record, scan_bodies
from trovemq_proto.errors import TroveError

TOPICS = ("orders", "bills")
QUEUES = 3


class StoreMachine(RuleBasedStateMachine):
    """`self.queues[topic, queue]` lists the bodies that the store must have, oldest first.

    Everything below `durable` of a queue survives a power cut; what is behind it may or may not, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFileSystem()
        self.now = NOW_MS
        self.counter = 0
        self.queues: dict[tuple[str, int], list[bytes]] = {}
        self.durable: dict[tuple[str, int], int] = {}
        self.visible: dict[tuple[str, int], int] = {}

    @initialize(mode=st.sampled_from(["sync", "async"]), index=st.booleans())
    def start(self, mode: str, index: bool) -> None:
        self.settings = replace(SMALL, flush_mode=mode, message_index_enable=index)  # type: ignore[arg-type]
        self.store: MessageStore = open_store(self.files, self.settings, topics=TOPICS)

    # --- steps --------------------------------------------------------------------------------------
    @rule(
        topic=st.sampled_from(TOPICS),
        queue=st.integers(0, QUEUES - 1),
        sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=4),
        clock=st.integers(-5000, 5000),
    )
    def send(self, topic: str, queue: int, sizes: list[int], clock: int) -> None:
        if self.store.topics.get(topic) is None:
            self.store.topics.create(topic, queue_count=4)
        bodies = [self.next_body(size) for size in sizes]
        records = [
            record(body, topic=topic, queue_id=queue, keys=f"k{i} all", unique_key=f"u{self.counter}-{i}")
            for i, body in enumerate(bodies)
        ]
        present = self.queues.setdefault((topic, queue), [])
        if sum(map(len, records)) + 8 > self.settings.commit_log_file_size:
            with pytest.raises(TroveError, match="BATCH_SIZE_EXCEEDED"):
                append(self.store, *records, topic=topic, queue_id=queue, now_ms=self.now + clock)
            return
        result = append(self.store, *records, topic=topic, queue_id=queue, now_ms=self.now + clock)
        assert result.first_queue_offset == len(present)
        present += bodies
        self.store.dispatch()
        if self.settings.flush_mode == "async":
            self.all_visible()

    def next_body(self, size: int) -> bytes:
        self.counter += 1
        return self.counter.to_bytes(4, "big") + bytes(size)

    def all_visible(self) -> None:
        self.visible = {key: len(bodies) for key, bodies in self.queues.items()}

    @rule()
    def sync(self) -> None:
        flush(self.store)
        self.all_visible()
        self.durable = dict(self.visible)

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

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        if self.store.topics.get(topic) is None:
            return
        self.store.delete_topic(topic, self.now)
        for table in (self.queues, self.durable, self.visible):
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    @rule(index=st.booleans())
    def restart(self, index: bool) -> None:
        self.store.close(self.now)
        self.settings = replace(self.settings, message_index_enable=index)
        self.reopen(self.files)
        self.all_visible()
        self.durable = dict(self.visible)

    @rule()
    def kill(self) -> None:
        self.reopen(self.files.after_process_kill())
        self.all_visible()
        self.durable = dict(self.visible)

    @precondition(lambda self: hasattr(self, "store"))
    @rule()
    def power_cut(self) -> None:
        self.reopen(self.files.after_power_cut())
        for key, bodies in self.queues.items():
            found = [message.body for message in read_queue(self.store, *key)]
            assert len(found) >= self.durable.get(key, 0), "an acknowledged message is lost"
            assert found == bodies[: len(found)]
            del bodies[len(found) :]
        self.all_visible()
        self.durable = dict(self.visible)

    def reopen(self, files: MemoryFileSystem) -> None:
        self.files = files
        self.store = MessageStore.open(files, self.settings, self.now)

    # --- what must hold after each step ---------------------------------------------------------------
    @invariant()
    def queues_equal_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        for (topic, queue), bodies in self.queues.items():
            found = read_queue(self.store, topic, queue)
            expected = bodies[: self.visible.get((topic, queue), 0)]
            assert [message.body for message in found] == expected
            assert [message.queue_offset for message in found] == list(range(len(expected)))
            times = [message.store_timestamp for message in found]
            assert times == sorted(times)

    @invariant()
    def a_scan_of_the_log_equals_the_queues(self) -> None:
        if not hasattr(self, "store"):
            return
        expected = [
            body for key, bodies in self.queues.items() for body in bodies[: self.visible.get(key, 0)]
        ]
        assert sorted(scan_bodies(self.store)) == sorted(expected)

    @invariant()
    def positions_are_in_order(self) -> None:
        if not hasattr(self, "store"):
            return
        store = self.store
        assert store.min_offset <= store.flushed_offset <= store.end_offset
        assert store.visible_offset <= store.end_offset
        if self.settings.flush_mode == "sync":
            assert store.visible_offset <= store.flushed_offset


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
