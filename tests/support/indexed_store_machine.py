"""StoreMachine with the steps of B+trees: known ids, atomic transactions, options, trees that come and go.

What must hold after each step: tests/support/indexed_answers.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from broker.append_result import AppendResult
from broker.storage.files import FileSystem
from broker.storage.memory import SECTOR_SIZE
from broker.storage.trees import TreeChange
from broker.trees.layout import FORMAT_KEY, META, NUMBER
from broker.trees.store_trees import TREE_NAMES
from broker.trees.unique_ids import Place
from tests.support.deduplicated import places_of, step
from tests.support.engine import BORN_HOST, record, validated
from tests.support.indexed_answers import IndexedAnswers, Options, Transaction
from tests.support.store_answers import QUEUES, TAGS, TOPICS, Sent
from tests.support.store_machine import encoded
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import encode_offset_msg_id
from trovemq_proto.records.hosts import pack_host

DIRECTORY: Final = "trovemq/trees"
DATA: Final = f"{DIRECTORY}/data.mdb"
WINDOWS: Final = ("off", "5s", "20s", "10m")
IDS: Final = 6
HARMS: Final = ("lost", "damaged", "of another format")


class IndexedStoreMachine(IndexedAnswers):
    """See the module's text."""

    def append(self, records: list[bytes], topic: str, queue: int, now_ms: int) -> AppendResult:
        """As a producer's send; where trees are off, as one to a topic that is not deduplicated."""
        if self.trees is None:
            return super().append(records, topic, queue, now_ms)
        data, batch = validated(self.store, records, topic, queue)
        return self.deduplication.append(
            data, batch, topic=topic, queue_id=queue, now_ms=now_ms, born_host=BORN_HOST
        )

    def new_message(self, topic: str, queue: int, pick: int, size: int) -> Sent:
        """Its id is one of a few, that of a message which is there, a new one, or none."""
        body = self.next_body(size)
        unique_key = f"id-{pick % IDS}" if pick else ""
        if pick > 2 * IDS:
            unique_key = f"u{self.counter}"
        elif pick > IDS and self.sent:
            unique_key = self.sent[-(self.counter * pick) % len(self.sent)].unique_key
        return Sent(topic, queue, 0, 0, 0, "", body, f"k{pick % 4} all", TAGS[pick % 3], unique_key)

    def placed(self, message: Sent, place: Place) -> Sent:
        return replace(
            message,
            queue_offset=place.queue_offset,
            physical_offset=place.physical_offset,
            store_timestamp=place.store_timestamp,
            offset_msg_id=encode_offset_msg_id(pack_host(self.settings.store_host), place.physical_offset),
        )

    def made(self, topic: str) -> None:
        if self.store.topics.get(topic) is None:
            self.store.topics.create(topic, queue_count=4)

    def appended(self) -> None:
        self.store.dispatch()
        if self.settings.flush_mode == "async":
            self.visible = len(self.sent)

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
            data, batch = validated(self.store, records, topic, queue)
            with pytest.raises(TroveError, match="INDEX_DISABLED"):
                self.deduplication.append(
                    data, batch, topic=topic, queue_id=queue, now_ms=self.now, born_host=BORN_HOST
                )
            assert self.store.end_offset == before
            return
        judged = [self.known(topic, message.unique_key, self.now) for message in messages]
        next_offset = self.queue_end(topic, queue, len(self.sent))
        result = self.append(records, topic, queue, self.now)
        stored: dict[str, Place] = {}
        told = zip(messages, judged, places_of(result, queue), strict=True)
        for index, (message, (places, certain), place) in enumerate(told):
            repeated = stored.get(message.unique_key) if self.options_of(topic).window_ms else None
            if index in result.duplicates:
                assert place in places or place == repeated, f"{message.unique_key!r} is not at {place}"
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
        """A step of the trees runs in a thread of its own: sends come in between."""
        self.send_ids(topic, queue, picks[:1], 0)
        self.sync()
        found = self.store.begin_trees(bytes_max)
        self.send_ids(topic, queue, picks, 1)
        if found is not None:
            found.run()
            self.store.finish_trees(found)
        self.send_ids(topic, queue, picks[::-1], 1)

    # --- transactions ---------------------------------------------------------------------------------
    @rule(
        parts=st.lists(
            st.tuples(st.sampled_from(TOPICS), st.integers(0, QUEUES - 1), st.integers(0, 3 * IDS)),
            min_size=1,
            max_size=5,
        ),
        size=st.integers(0, 400),
    )
    def commit_transaction(self, parts: list[tuple[str, int, int]], size: int) -> None:
        for topic, _, _ in parts:
            self.made(topic)
        messages = [self.new_message(topic, queue, pick, size) for topic, queue, pick in parts]
        transaction_id, before = f"t{self.counter}", self.store.end_offset
        may_refuse, must_refuse = self.judged(messages)
        try:
            run = self.commits.new_run(transaction_id)
            for m in messages:
                _, batch = validated(self.store, [encoded(m)], m.topic, m.queue_id)
                run.add(batch, m.topic, m.queue_id)
            committed = self.commits.commit(run, [], self.now)
        except TroveError as error:
            if error.spec not in (errors.TRANSACTION_SIZE_EXCEEDED, *may_refuse):
                raise
            assert self.store.end_offset == before, "nothing of it is stored"
            assert transaction_id not in self.commits.ends
            return
        assert not must_refuse, "a known id is stored again"
        ends = {(m.topic, m.queue_id): self.queue_end(m.topic, m.queue_id, len(self.sent)) for m in messages}
        for m, told in zip(messages, committed.messages, strict=True):
            assert (told.topic, told.queue_id) == (m.topic, m.queue_id)
            assert told.queue_offset == ends[m.topic, m.queue_id]
            ends[m.topic, m.queue_id] += 1
            place = Place(told.physical_offset, m.queue_id, told.queue_offset, committed.store_timestamp)
            self.sent.append(self.placed(m, place))
        begin = committed.messages[0].physical_offset
        self.transactions[transaction_id] = Transaction(begin, committed.end, committed.messages)
        self.appended()

    @rule(
        parts=st.lists(
            st.tuples(st.sampled_from(TOPICS), st.integers(0, QUEUES - 1), st.integers(0, 3 * IDS)),
            min_size=2,
            max_size=5,
        ),
        trees=st.booleans(),
        seed=st.integers(0, 999),
        odds=st.sampled_from([0.5, 0.8]),
    )
    def power_cut_at_a_commit(
        self, parts: list[tuple[str, int, int]], trees: bool, seed: int, odds: float
    ) -> None:
        """Some sectors of it are on the disk, and some are not."""
        self.commit_transaction(parts, 300)
        self.power_cut(self.settings.message_index_enable, trees, seed, odds, SECTOR_SIZE)

    def judged(self, messages: list[Sent]) -> tuple[list[errors.ErrorSpec], bool]:
        """Errors with which it may be refused for its ids, and whether it must be."""
        may: list[errors.ErrorSpec] = []
        must = False
        judged = [m for m in messages if self.options_of(m.topic).window_ms]
        if judged and self.trees is None:
            return [errors.INDEX_DISABLED], True
        counts = Counter((m.topic, m.unique_key) for m in judged if m.unique_key)
        for (topic, unique_key), count in counts.items():
            places, certain = self.known(topic, unique_key, self.now)
            must = must or certain or count > 1
            if places or count > 1:
                may = [errors.TRANSACTION_DUPLICATE]
        return may, must

    @rule(choice=st.integers(0, 999))
    def commit_again(self, choice: int) -> None:
        """Whoever did not get the answer asks again, with the messages or without, and nothing is stored."""
        living = [
            (name, one) for name, one in self.transactions.items() if one.begin >= self.store.min_offset
        ]
        if not living:
            return
        transaction_id, one = living[choice // 2 % len(living)]
        before = self.store.end_offset
        if not any(m.physical_offset in self.hits for m in one.messages):
            run = self.commits.new_run(transaction_id)
            for m in one.messages if choice % 2 else ():
                _, batch = validated(
                    self.store, [record(b"again", topic=m.topic, queue_id=m.queue_id)], m.topic, m.queue_id
                )
                run.add(batch, m.topic, m.queue_id)
            assert self.commits.commit(run, [], self.now).repeated
        self.check_answer(transaction_id, one)
        assert self.store.end_offset == before

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
                self.trees.sweep_ids(self.store.last_store_timestamp, entries_max)

    @rule(count=st.integers(1, 2))
    def expire(self, count: int) -> None:
        before = list(self.sent)
        super().expire(count)
        self.gone += before[: len(before) - len(self.sent)]

    @rule(how=st.sampled_from(HARMS), clean=st.booleans(), trees=st.booleans())
    def lose_trees(self, how: str, clean: bool, trees: bool) -> None:
        """Trees that are gone, damaged or of another format are made again; whatever they were lies aside."""
        if clean:
            self.close()
        files = self.files if clean else self.files.after_process_kill()
        had = files.exists(DATA)
        if had:
            harm(files, how)
        self.settings = replace(self.settings, tree_index_enable=trees)
        self.reopen(files)
        if self.trees is not None:
            assert bool(self.trees.report.put_aside) == (had and how != "lost")


def harm(files: FileSystem, how: str) -> None:
    """Does it to the trees of a store that nobody has open."""
    if how == "lost":
        files.remove(DATA)
    elif how == "damaged":
        files.write_atomic(DATA, b"no trees")
    elif not files.read_bytes(DATA):  # else damaged already, while trees were off
        change = TreeChange(META, [(FORMAT_KEY, NUMBER.pack(999))])
        files.open_trees(DIRECTORY, TREE_NAMES).commit([change])
