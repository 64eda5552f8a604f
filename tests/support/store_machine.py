"""The store against a plain list of messages: restarts, kills and power cuts are steps like all others.

A power cut keeps the synced bytes and any of the pages (or sectors), sizes, names that were not synced. The
invariants after every step: tests/support/store_answers.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.support.engine import SMALL, append, flush, open_store, record
from tests.support.store_answers import GROUPS, QUEUES, TAGS, TOPICS, Sent, StoreAnswers
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.engine.message_store import AppendResult, MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.memory import PAGE_SIZE, SECTOR_SIZE, MemoryFileSystem


class StoreMachine(StoreAnswers):
    """Its steps; its right answers after each of them: StoreAnswers."""

    @initialize(mode=st.sampled_from(["sync", "async"]), index=st.booleans(), trees=st.booleans())
    def start(self, mode: str, index: bool, trees: bool) -> None:
        settings = replace(SMALL, message_index_enable=index, tree_index_enable=trees)
        self.settings = replace(settings, flush_mode=mode)  # type: ignore[arg-type]
        self.store = open_store(self.files, self.settings, topics=TOPICS)
        self.opened()

    def opened(self) -> None:
        """The store has just been opened."""

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
                QueueId(queue),
                0,
                0,
                EpochMs(0),
                "",
                self.next_body(size),
                f"k{i} all {'x' * long_key}",
                tag,
                f"u{self.counter}",
            )
            for i, size in enumerate(sizes)
        ]
        records = [encoded(message) for message in messages]
        if sum(map(len, records)) + 64 * len(records) > self.settings.commit_log_file_size:
            self.refuse(records, topic, queue)
            return
        result = self.append(records, topic, queue, self.now + clock)
        assert result.first_queue_offset == self.queue_end(topic, QueueId(queue), len(self.sent))
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

    def append(self, records: list[bytes], topic: str, queue: int, now_ms: EpochMs) -> AppendResult:
        return append(self.store, *records, topic=topic, queue_id=QueueId(queue), now_ms=now_ms)

    def refuse(self, records: list[bytes], topic: str, queue: int) -> None:
        """More than a segment holds: no trace of it stays."""
        with pytest.raises(TroveError, match="BATCH_SIZE_EXCEEDED"):
            append(self.store, *records, *records, topic=topic, queue_id=QueueId(queue), now_ms=self.now)

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

    @rule()
    def sync(self) -> None:
        flush(self.store)
        self.visible = self.durable = len(self.sent)

    @rule(index=st.booleans(), queues=st.booleans())
    def flush_projections(self, index: bool, queues: bool) -> None:
        self.store.flush_projections(index=index, queues=queues)

    @rule()
    def leave_few_records_to_the_index(self) -> None:
        """As the daemon does; until the next start."""
        self.store.index_later()

    @rule()
    def leave_index_files_to_others(self) -> None:
        """As the daemon does; until the next start."""
        self.store.index_files_by_work()

    @rule()
    def make_index_file(self) -> None:
        work = self.store.index_file_work()
        if work is not None:
            work.run()
            self.store.finish_index_file(work)

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
        self.sync_what_offsets_need()
        self.store.delete_topic(topic, self.now)
        self.visible -= sum(m.topic == topic for m in self.sent[: self.visible])
        self.durable -= sum(m.topic == topic for m in self.sent[: self.durable])
        self.sent = [m for m in self.sent if m.topic != topic]
        self.expired = {key: count for key, count in self.expired.items() if key[0] != topic}
        self.expired_whole = {key: count for key, count in self.expired_whole.items() if key[0] != topic}
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
        end = self.queue_end(topic, QueueId(queue), self.visible)
        self.committed[group, topic, queue] = max(0, end - back)
        self.store.offsets.commit(group, topic, QueueId(queue), QueueOffset(max(0, end - back)))

    @rule(group=st.sampled_from(GROUPS), topic=st.sampled_from(TOPICS))
    def reset_offsets(self, group: str, topic: str) -> None:
        """Back to the beginning; on disk when it returns."""
        queues = map(QueueId, range(QUEUES))
        begins = {queue: QueueOffset(self.queue_begin(topic, queue)) for queue in queues}
        self.sync_what_offsets_need()
        self.store.offsets.reset(group, topic, begins)
        self.committed.update({(group, topic, queue): begin for queue, begin in begins.items()})
        self.note_stored_offsets()

    @rule()
    def persist_offsets(self) -> None:
        self.sync_what_offsets_need()
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
            if not m.hit:
                self.expired_whole[m.topic, m.queue_id] = m.queue_offset + 1
        del self.sent[: len(gone)]
        self.visible -= len(gone)
        self.durable -= len(gone)
        assert self.durable >= 0, "unsynced messages stay"

    def sync_what_offsets_need(self) -> None:
        """The caller that stores offsets syncs the log first."""
        if self.store.offsets.log_needed > self.store.flushed_offset:
            self.sync()

    def note_stored_offsets(self) -> None:
        """The offsets in the file: none beyond the synced part of the log."""
        self.stored = {
            key: min(offset, self.queue_end(key[1], QueueId(key[2]), self.durable))
            for key, offset in self.committed.items()
        }

    # --- stops and starts ---------------------------------------------------------------------------
    @rule(index=st.booleans(), trees=st.booleans())
    def restart(self, index: bool, trees: bool) -> None:
        self.close()
        self.settings = replace(self.settings, message_index_enable=index, tree_index_enable=trees)
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
        trees=st.booleans(),
        seed=st.integers(0, 999),
        odds=st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]),
        unit=st.sampled_from([PAGE_SIZE, SECTOR_SIZE]),
    )
    def power_cut(self, index: bool, trees: bool, seed: int, odds: float, unit: int) -> None:
        self.settings = replace(self.settings, message_index_enable=index, tree_index_enable=trees)
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
        self.hits = {at for at in self.hits if at < end}
        self.visible = self.durable = len(kept)
        self.committed = {}
        for group, topic, queue_id, offset in self.store.offsets.entries():
            assert offset <= self.queue_end(topic, queue_id, self.visible)
            if group in GROUPS:
                self.committed[group, topic, queue_id] = offset
        assert self.committed == self.stored
        self.opened()


def encoded(message: Sent) -> bytes:
    """The record as its producer sends it."""
    return record(
        message.body,
        topic=message.topic,
        queue_id=message.queue_id,
        keys=message.keys,
        tag=message.tag,
        unique_key=message.unique_key,
        properties=message.properties,
    )


def coin(seed: int, odds: float) -> Callable[[], bool]:
    source = random.Random(seed)
    return lambda: source.random() < odds
