"""StoreMachine with the steps of B+trees: known ids, options, trees that come and go; by transaction_steps.py
and numbered_steps.py (beside this) transactions and numbered producers.

The invariants after each step: tests/support/indexed_answers.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.support.deduplicated import places_of, step
from tests.support.indexed_answers import Options, place_of
from tests.support.numbered_steps import NumberedSteps
from tests.support.store_answers import QUEUES, TOPICS
from tests.support.store_machine import encoded
from tests.support.transaction_steps import IDS
from trovemq_proto.positions import QueueId
from trovemq_store.files.files import FileSystem
from trovemq_store.files.trees import TreeChange
from trovemq_store.index.trees.layout import FORMAT_KEY, META, NUMBER
from trovemq_store.index.trees.store_trees import TREE_NAMES
from trovemq_store.index.trees.unique_ids import MessagePosition

DIRECTORY: Final = "trovemq/trees"
DATA: Final = f"{DIRECTORY}/data.mdb"
WINDOWS: Final = ("off", "5s", "20s", "10m")
HARMS: Final = ("lost", "damaged", "of another format")


class IndexedStoreMachine(NumberedSteps):
    """See the module's text."""

    # --- ids ------------------------------------------------------------------------------------------
    @rule(
        topic=st.sampled_from(TOPICS),
        queue=st.integers(0, QUEUES - 1),
        picks=st.lists(st.integers(0, 3 * IDS), min_size=1, max_size=5),
        later_ms=st.sampled_from([0, 1, 3_000, 9_999]),
    )
    def send_ids(self, topic: str, queue: int, picks: list[int], later_ms: int) -> None:
        self.made(topic)
        self.now += later_ms
        messages = [self.new_message(topic, queue, pick, 40 * pick) for pick in picks]
        records = [encoded(message) for message in messages]
        before = self.store.end_offset
        if self.trees is None and self.options_of(topic).window_ms:
            self.refused_without_trees(records, topic, queue)
            return
        judged = [self.known(topic, message.unique_key, self.now) for message in messages]
        next_offset = self.queue_end(topic, QueueId(queue), len(self.sent))
        result = self.append(records, topic, queue, self.now)
        stored: dict[str, MessagePosition] = {}
        reported = zip(messages, judged, places_of(result, QueueId(queue)), strict=True)
        for index, (message, (places, certain), place) in enumerate(reported):
            repeated = stored.get(message.unique_key) if self.options_of(topic).window_ms else None
            if index in result.duplicates:
                told_before = place in places or place == repeated or place.physical_offset in self.hits
                assert told_before, f"{message.unique_key!r} is not at {place}"
                continue
            assert not certain, f"{message.unique_key!r} is stored twice"
            assert repeated is None, f"{message.unique_key!r} is stored twice of one batch"
            assert place.physical_offset >= before
            assert place.queue_offset == next_offset
            next_offset += 1
            if message.unique_key:
                stored[message.unique_key] = place
            self.sent.append(self.placed(message, place))
        self.appended()

    @rule(
        topic=st.sampled_from(TOPICS),
        queue=st.integers(0, QUEUES - 1),
        picks=st.lists(st.integers(1, IDS), min_size=1, max_size=3),
        bytes_max=st.sampled_from([1, 1 << 20]),
    )
    def send_ids_during_a_step(self, topic: str, queue: int, picks: list[int], bytes_max: int) -> None:
        """A step of the trees runs in a separate thread: sends come in between."""
        self.send_ids(topic, queue, picks[:1], 0)
        self.sync()
        found = self.store.begin_trees(bytes_max)
        self.send_ids(topic, queue, picks, 1)
        if found is not None:
            found.run()
            self.store.finish_trees(found)
        self.send_ids(topic, queue, picks[::-1], 1)

    # --- options --------------------------------------------------------------------------------------
    @rule(
        topic=st.sampled_from(TOPICS),
        window=st.sampled_from(WINDOWS),
        by_priority=st.booleans(),
        declared=st.booleans(),
    )
    def alter(self, topic: str, window: str, by_priority: bool, declared: bool) -> None:
        if self.store.topics.get(topic) is None:
            return
        self.store.topics.alter(
            topic,
            options={
                "deduplicate": window,
                "order": "priority" if by_priority else "log",
                "indexed_properties": "carrier" if declared else "off",
            },
        )
        window_ms = {"off": 0, "5s": 5_000, "20s": 20_000, "10m": 600_000}[window]
        self.options[topic] = Options(window_ms, by_priority, declared)
        self.check_options()
        if self.trees is not None and window_ms:
            self.sync()
            while not self.trees.ids_known(self.store.end_offset):
                assert step(self.store), "there is something to be read until the ids are known"

    @rule(topic=st.sampled_from(TOPICS), really=st.integers(0, 3))
    def delete_topic(self, topic: str, really: int) -> None:
        there = self.store.topics.get(topic) is not None
        super().delete_topic(topic, really)
        if there and self.store.topics.get(topic) is None:
            self.options.pop(topic, None)
            self.gone = [m for m in self.gone if m.topic != topic]
            self.model.delivery.forget_topic(topic, self.now)
            self.consumed = {place for place in self.consumed if place[0] != topic}
            self.leases = {place: lease for place, lease in self.leases.items() if place[0] != topic}

    # --- trees ----------------------------------------------------------------------------------------
    @rule(bytes_max=st.sampled_from([1, 600, 5_000, 1 << 20]), count=st.integers(1, 4))
    def step_of_the_trees(self, bytes_max: int, count: int) -> None:
        for _ in range(count):
            step(self.store, bytes_max)

    @rule()
    def catch_up_trees(self) -> None:
        self.store.catch_up_trees()
        limit = min(self.store.flushed_offset, self.store.visible_offset)
        assert self.trees is None or all(index.position >= limit for index in self.trees.indexes)

    @rule(entries_max=st.integers(2, 60), count=st.integers(1, 4))
    def sweep(self, entries_max: int, count: int) -> None:
        if self.trees is not None:
            for _ in range(count):
                self.trees.sweep(entries_max)
                self.trees.sweep_ids(
                    self.store.time.since_of(self.store.last_store_timestamp),
                    self.store.last_store_timestamp,
                    entries_max,
                )

    @rule(count=st.integers(1, 2))
    def expire(self, count: int) -> None:
        """The deliveries that a start would read are in a snapshot first."""
        before = list(self.sent)
        segments = self.store.closed_segments()[:count]
        if segments and self.model.saved_log_end < segments[-1].end:
            work = self.model.begin_snapshot(self.now, always=True)
            assert work is not None
            self.sync()
            work.run()
        super().expire(count)
        self.gone += before[: len(before) - len(self.sent)]
        there = {place_of(m) for m in self.sent}
        self.leases = {place: lease for place, lease in self.leases.items() if place in there}

    @rule(how=st.sampled_from(HARMS), clean=st.booleans(), trees=st.booleans())
    def lose_trees(self, how: str, clean: bool, trees: bool) -> None:
        """Trees that are gone, damaged or of another format are rebuilt; the old ones are quarantined."""
        if clean:
            self.close()
        files = self.files if clean else self.files.after_process_kill()
        had = files.exists(DATA)
        if had:
            harm(files, how)
        self.settings = replace(self.settings, tree_index_enable=trees)
        self.reopen(files)
        if self.trees is not None:
            assert bool(self.trees.report.quarantined) == (had and how != "lost")


def harm(files: FileSystem, how: str) -> None:
    """Does it to the trees of a closed store."""
    if how == "lost":
        files.remove(DATA)
    elif how == "damaged":
        files.write_atomic(DATA, b"no trees")
    elif not files.read_bytes(DATA):  # else damaged already, while trees were off
        change = TreeChange(META, [(FORMAT_KEY, NUMBER.pack(999))])
        files.open_trees(DIRECTORY, TREE_NAMES).commit([change])
