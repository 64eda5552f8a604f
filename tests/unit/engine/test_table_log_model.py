"""Random lives of the tables: changes, syncs, writes of the files, removals of the log's beginning, power
cuts at any fault point, lost files, edits by other programs. After each start the tables are a model's."""

from __future__ import annotations

import json
from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.engine import flush, read_queue
from tests.unit.engine.test_table_log import (
    CONFIG_FILES,
    IN_FILES,
    Opened,
    edit_topics,
    fill_segments,
    remove,
    topic_json,
    trim,
)
from trovemq_store.files.fault_points import armed
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.table_notes import NOTES_PATH
from trovemq_store.topics.table_records import META_QUEUE_ID, META_TOPIC, decode_table_record
from trovemq_store.topics.topics_file import TOPICS_PATH

NAMES: Final = ("a", "b", "c", "d")
Model = dict[str, int]


class Life:
    """`model`: the topics of all changes; `durable`: of those that are on disk."""

    def __init__(self) -> None:
        self.files = MemoryFileSystem()
        self.opened = Opened(self.files)
        self.model: Model = {}
        self.durable: Model = {}
        self.possible: list[Model] = []
        """Since the last sync, oldest first."""

    def check(self) -> None:
        topics = self.opened.topics
        found = {name: topics.require(name).queue_count for name in topics.names()}
        assert found == self.model

    # --- steps ----------------------------------------------------------------------------------------
    def put(self, name: str, queue_count: int) -> None:
        topics = self.opened.topics
        if name not in self.model:
            topics.create(name, queue_count)
        elif queue_count > self.model[name]:
            topics.alter(name, queue_count=queue_count)
        else:
            return
        self.changed({**self.model, name: queue_count})

    def delete(self, name: str) -> None:
        if name in self.model:
            self.opened.topics.delete(name)
            self.changed({other: count for other, count in self.model.items() if other != name})

    def changed(self, model: Model) -> None:
        self.model = model
        self.possible.append(model)

    def sync(self) -> None:
        flush(self.opened.store)
        self.durable, self.possible = self.model, []

    def write(self) -> None:
        self.sync()
        self.opened.tables.write_now()

    def trim(self) -> None:
        fill_segments(self.opened, 4)
        self.sync()
        store = self.opened.store
        if any(segment.end > store.min_offset for segment in store.closed_segments()):
            trim(self.opened)

    def start(self, files: MemoryFileSystem) -> None:
        self.files = files
        self.opened = Opened(files)
        topics = self.opened.topics
        found = {name: topics.require(name).queue_count for name in topics.names()}
        assert found in (self.durable, *self.possible)
        self.model = self.durable = found
        self.possible = []

    def cut(self) -> None:
        self.start(self.opened.files.after_power_cut())

    def kill(self) -> None:
        self.possible = self.possible[-1:]
        self.durable = self.model
        self.start(self.opened.files.after_process_kill())

    def restart(self) -> None:
        self.sync()
        self.start(self.opened.close())

    def lose_files(self) -> None:
        self.sync()
        files = self.opened.files.after_power_cut()
        remove(files, CONFIG_FILES)
        self.start(files)

    def damage_file(self) -> None:
        self.sync()
        files = self.opened.files.after_power_cut()
        if files.exists(TOPICS_PATH) and files.exists(f"{TOPICS_PATH}.bak"):
            files.write_atomic(TOPICS_PATH, b"{")
        self.start(files)

    def lose_notes(self) -> None:
        self.sync()
        files = self.opened.files.after_power_cut()
        remove(files, (NOTES_PATH, f"{NOTES_PATH}.bak"))
        self.start(files)

    def edit(self, name: str, queue_count: int, *, clean: bool) -> None:
        """By hand: one topic is set, or deleted (0)."""
        self.sync()
        messages = read_queue(self.opened.store, META_TOPIC, META_QUEUE_ID)
        recorded = {decode_table_record(message.body).name for message in messages}
        files = self.opened.close() if clean else self.opened.files.after_power_cut()
        before: dict[str, Any] = {}
        if files.exists(TOPICS_PATH):
            before = json.loads(files.read_bytes(TOPICS_PATH))["topicConfigTable"]
        was = before.get(name, {}).get("readQueueNums", 0)

        def change(table: dict[str, Any]) -> None:
            if queue_count:
                table[name] = {**table.get(name, {}), **topic_json(name, queue_count)}
            else:
                table.pop(name, None)

        edit_topics(files, change)
        if not files.exists(NOTES_PATH) and name in recorded:
            was = queue_count  # the records win over a file without a note
        expected = {other: count for other, count in self.model.items() if other != name}
        if was != queue_count:
            expected |= {name: queue_count} if queue_count else {}
        else:
            expected |= {name: self.model[name]} if name in self.model else {}
        self.durable = expected
        self.start(files)

    def version_before(self, name: str, queue_count: int) -> None:
        """It opens the store after a clean stop, and ends cleanly, too."""
        self.sync()
        before = Opened(self.opened.close(), IN_FILES)
        if name in before.topics:
            before.topics.delete(name)
            self.durable = {other: count for other, count in self.durable.items() if other != name}
        else:
            before.topics.create(name, queue_count)
            self.durable = {**self.durable, name: queue_count}
        self.start(before.close())


COUNTS = st.integers(1, 5)
NAME = st.sampled_from(NAMES)
STEPS: Final = st.one_of(
    st.tuples(st.just(Life.put), NAME, COUNTS),
    st.tuples(st.just(Life.delete), NAME),
    *(st.just((step,)) for step in (Life.sync, Life.write, Life.trim, Life.cut, Life.kill, Life.restart)),
    *(st.just((step,)) for step in (Life.lose_files, Life.damage_file, Life.lose_notes)),
    st.tuples(st.just(lambda life, name, count: life.edit(name, count, clean=True)), NAME, st.integers(0, 5)),
    st.tuples(
        st.just(lambda life, name, count: life.edit(name, count, clean=False)), NAME, st.integers(0, 5)
    ),
    st.tuples(st.just(Life.version_before), NAME, COUNTS),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=14), st.integers(0, 600))
def test_the_tables_are_those_of_the_model(steps: list[Any], killed_at: int) -> None:
    life = Life()
    left: list[MemoryFileSystem] = []
    allowed: list[Model] = []
    passes = 0

    def act(_name: str) -> None:
        nonlocal passes
        passes += 1
        if passes == killed_at:
            left.append(life.files.after_power_cut())

    with armed(act):
        for step in steps:
            before = [life.durable, *life.possible]
            step[0](life, *step[1:])
            life.check()
            if left and not allowed:
                allowed = [*before, life.durable, *life.possible]
    for files in left:
        opened = Opened(files)
        found = {name: opened.topics.require(name).queue_count for name in opened.topics.names()}
        assert found in allowed
        assert Opened(opened.cut()).topics.names() == sorted(found)
