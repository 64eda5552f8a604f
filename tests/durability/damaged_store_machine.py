"""IndexedStoreMachine with damage among its steps, and walks of it by chance.

Damage hits a record of the log, or projections' files, while the store is closed. A damaged record lies
below the part that the store knows as written (after that, a crash and damage look alike), and its queue
continues after it: without its files, a queue's last messages leave no trace.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, cast

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.support.damage import Files, contents_of, reported_in_log, scrub, try_open
from tests.support.indexed_store_machine import DATA, HARMS, WINDOWS, IndexedStoreMachine
from tests.support.numbered_steps import ID_KINDS, NUMBER_STEPS, PRODUCERS
from tests.support.store_answers import GROUPS, QUEUES, TAGS, TOPICS, Sent
from tests.support.transaction_steps import IDS, LEASE_MS
from trovemq_proto.errors import TroveError
from trovemq_store.check.repair import repair_files
from trovemq_store.check.store_view import StoreView
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import PAGE_SIZE, SECTOR_SIZE, MemoryFileSystem
from trovemq_store.files.memory_trees import TreeContent
from trovemq_store.files.read_only import ReadOnlyFileSystem
from trovemq_store.log import checkpoint, state
from trovemq_store.log.segments import DIRECTORY, file_name

KEY_INDEX_NOTE: Final = "trovemq/key-index.json"
TABLES: Final = (state.PATH, "config/topics.json", "config/consumerOffset.json")
REFUSALS: Final = ("STORE_FAILED", "STORE_NEWER", "STORE_SETTINGS_MISMATCH")
DAMAGES: Final = ("remove", "remove all", "flip", "cut", "zeros")


class DamagedStoreMachine(IndexedStoreMachine):
    """See the module's text. `choice` picks the place to damage."""

    def stopped(self, clean: bool) -> Files:
        """The files of a closed store, with marks that are not old."""
        if clean:
            self.close()
            return same_files(self.files)
        self.sync()
        self.store.flush_projections(index=True)
        return same_files(self.files.after_process_kill())

    @rule(choice=st.integers(0, 1 << 30), clean=st.booleans())
    def flip_a_bit_of_a_record(self, choice: int, clean: bool) -> None:
        files = self.stopped(clean)
        saved = state.load(files)
        assert saved is not None
        lasts = {
            (m.topic, m.queue_id): m for m in self.sent if not m.hit and m.physical_offset < saved.log_end
        }
        candidates = [m for m in self.sent if m.physical_offset < saved.log_end and m not in lasts.values()]
        at = None
        if candidates:
            chosen = candidates[choice % len(candidates)]
            if not chosen.hit:
                at = self.hit(files, chosen, random.Random(choice))
        self.reopen(files)
        if at is not None and self.settings.message_index_enable:
            assert reported_in_log(self.store, at, scrub(self.store)), "damage is named"

    def hit(self, files: MemoryFileSystem, chosen: Sent, source: random.Random) -> int:
        """The physical offset of the byte that was changed."""
        segment_size = self.settings.commit_log_file_size
        start = chosen.physical_offset // segment_size * segment_size
        file = files.open(f"{DIRECTORY}/{file_name(start)}")
        within = chosen.physical_offset - start
        size = int.from_bytes(file.view()[within : within + 4])
        at = within + source.randrange(size)
        file.write(at, bytes([file.view()[at] ^ 1 << source.randrange(8)]))
        file.sync()
        self.sent[self.sent.index(chosen)] = replace(chosen, hit=True)
        self.hits.add(chosen.physical_offset)
        return start + at

    @rule(
        choice=st.integers(0, 1 << 30),
        clean=st.booleans(),
        how=st.sampled_from(DAMAGES),
        repaired=st.booleans(),
    )
    def damage_projections(self, choice: int, clean: bool, how: str, repaired: bool) -> None:
        """The start rebuilds missing files; `repair` rebuilds wrong ones, and the first of several."""
        files = self.stopped(clean)
        source = random.Random(choice)
        if paths := self.projection_files(files):
            path = source.choice(paths)
            directory = path.rpartition("/")[0]
            for damaged in [p for p in paths if p.startswith(directory)] if how == "remove all" else [path]:
                self.damage(files, damaged, how, source)
            not_last = how == "remove" and "/" in path and path != _last_of(paths, directory)
            if repaired or not_last or not how.startswith("remove"):
                view = StoreView(cast("ReadOnlyFileSystem", files), self.settings)
                repair_files(view, files)
                view.log.close()
        self.reopen(files)

    @rule(choice=st.integers(0, 1 << 30), clean=st.booleans(), how=st.sampled_from(DAMAGES))
    def damage_tables(self, choice: int, clean: bool, how: str) -> None:
        """A copy of the store with a damaged table is not opened, for that file's sake, or it gives every
        answer. The store itself continues with the whole one."""
        files = self.stopped(clean)
        source = random.Random(choice)
        path = source.choice([path for path in self.tables() if path in files._files])
        damaged = same_files(files)
        self.damage(damaged, path, how, source)
        opened = try_open(damaged, self.settings)
        if isinstance(opened, MessageStore):
            sent, visible, self.store = self.sent, self.visible, opened
            self.sent = [m for m in sent if m.physical_offset < opened.end_offset]
            self.visible = len(self.sent)
            assert self.visible >= self.durable, "an acknowledged message is lost"
            self.queues_equal_the_model()
            self.a_scan_of_the_log_equals_the_model()
            self.every_way_to_a_message_leads_there()
            for group, topic, queue_id, offset in opened.offsets.entries():
                if topic in TOPICS:
                    assert offset <= self.queue_end(topic, queue_id, self.visible), (group, topic, queue_id)
            self.sent, self.visible = sent, visible
        else:
            assert isinstance(opened, TroveError)
            assert opened.symbol in REFUSALS, opened
            assert path in str(opened), opened
        self.reopen(files)

    def tables(self) -> list[str]:
        """Without the marks (state.json) a damaged record with zeros in it may be the log's torn end."""
        return [path for path in TABLES if not self.hits or path != state.PATH]

    def projection_files(self, files: MemoryFileSystem) -> list[str]:
        """But those of a queue without messages: they alone have its next offset."""
        living = {f"consumequeue/{m.topic}/{m.queue_id}/" for m in self.sent if not m.hit}
        small = [checkpoint.PATH, KEY_INDEX_NOTE]
        return [
            path
            for path in sorted(files._files)
            if path.startswith(("index/", *sorted(living))) or path in small
        ]

    def damage(self, files: MemoryFileSystem, path: str, how: str, source: random.Random) -> None:
        if how.startswith("remove"):
            files.remove(path)
            return
        data = bytearray(files.read_bytes(path))
        at = source.randrange(max(1, len(data)))
        if how == "flip":
            data[at : at + 1] = bytes(byte ^ 1 << source.randrange(8) for byte in data[at : at + 1])
        elif how == "cut":
            del data[at:]
        else:
            data[at:] = bytes(len(data) - at)
        files.write_atomic(path, bytes(data))


def same_files(files: MemoryFileSystem) -> Files:
    """A copy, all of it on disk, with its trees."""
    copy = Files.of(contents_of(files))
    if DATA in files._files:
        copy._files[DATA].trees = TreeContent(files._files[DATA].trees.maps)
    return copy


def _last_of(paths: list[str], directory: str) -> str:
    return max(path for path in paths if path.startswith(f"{directory}/"))


def random_step(machine: DamagedStoreMachine, source: random.Random) -> Callable[[], None]:
    """One step as Hypothesis would draw it, but messages come more often than stops."""
    flip, odds = source.random() < 0.5, source.choice([0.0, 0.2, 0.5, 0.8, 1.0])
    topic, queue, seed = source.choice(TOPICS), source.randrange(QUEUES), source.randrange(1 << 30)
    sizes = [source.randrange(source.choice([10, 3000])) for _ in range(source.randint(1, 4))]
    many = partial(machine.send_many, source.randint(5, 25), source.randrange(1200), source.randrange(900))
    unit, index, trees = source.choice([PAGE_SIZE, SECTOR_SIZE]), source.random() < 0.8, source.random() < 0.8
    picks = [source.randrange(3 * IDS) for _ in range(source.randint(1, 5))]
    few = [source.randint(1, IDS) for _ in range(source.randint(1, 3))]
    parts = [(source.choice(TOPICS), source.randrange(QUEUES), pick) for pick in picks]
    acknowledged = [source.randrange(100) for _ in range(source.randrange(4))]
    producer = source.choice(PRODUCERS)
    rows = [(source.choice(NUMBER_STEPS), source.choice(ID_KINDS)) for _ in range(source.randint(1, 6))]
    window, declared = source.choice(WINDOWS), source.random() < 0.5
    steps: list[tuple[int, Callable[[], None]]] = [
        (8, partial(machine.send, topic, queue, sizes, source.randrange(1500), source.choice(TAGS), -queue)),
        (3, partial(many, flip)),
        (5, machine.sync),
        (5, partial(machine.flush_projections, flip, source.random() < 0.7)),
        (3, partial(machine.catch_up, source.randint(1, 4096))),
        (3, machine.prepare_segment),
        (1, partial(machine.delete_topic, topic, 0)),
        (3, partial(machine.expire, source.randint(1, 2))),
        (4, partial(machine.commit, source.choice(GROUPS), topic, queue, source.randrange(4))),
        (1, partial(machine.reset_offsets, source.choice(GROUPS), topic)),
        (3, machine.persist_offsets),
        (2, partial(machine.restart, index, trees)),
        (1, machine.kill),
        (3, partial(machine.power_cut, index, trees, seed, odds, unit)),
        (2, partial(machine.power_cut_while_starting, seed, odds)),
        (6, partial(machine.send_ids, topic, queue, picks, source.choice([0, 1, 3_000, 9_999]))),
        (4, partial(machine.send_ids_during_a_step, topic, queue, few, source.choice([1, 1 << 20]))),
        (6, partial(machine.commit_transaction, parts, source.randrange(400), acknowledged)),
        (4, partial(machine.receive, topic, source.randint(1, 6), source.choice([0, 500, LEASE_MS]))),
        (1, machine.flush_events),
        (8, partial(machine.send_numbered, topic, queue, producer, rows, source.choice([0, 1, 3_000]))),
        (1, partial(machine.commit_again, seed)),
        (2, partial(machine.power_cut_at_a_commit, parts, acknowledged, trees, seed, max(0.5, odds))),
        (3, partial(machine.alter, topic, window, flip, declared)),
        (4, partial(machine.step_of_the_trees, source.choice([1, 600, 5_000, 1 << 20]), 2)),
        (2, machine.catch_up_trees),
        (3, partial(machine.sweep, source.randint(2, 60), 3)),
        (1, partial(machine.lose_trees, source.choice(HARMS), flip, trees)),
        (2, partial(machine.flip_a_bit_of_a_record, seed, flip)),
        (2, partial(machine.damage_projections, seed, flip, source.choice(DAMAGES), source.random() < 0.5)),
        (2, partial(machine.damage_tables, seed, flip, source.choice(DAMAGES))),
    ]
    return source.choices([step for _, step in steps], [weight for weight, _ in steps])[0]


def walk(source: random.Random, steps: int) -> None:
    """This number of steps; the invariants are checked after each."""
    machine = DamagedStoreMachine()
    machine.start(source.choice(("sync", "async")), source.random() < 0.8, source.random() < 0.8)
    for topic in TOPICS:
        machine.alter(topic, source.choice(WINDOWS), source.random() < 0.5, source.random() < 0.5)
    for _ in range(steps):
        random_step(machine, source)()
        machine.queues_equal_the_model()
        machine.a_scan_of_the_log_equals_the_model()
        machine.every_way_to_a_message_leads_there()
        machine.positions_are_in_order()
        machine.searches_equal_the_model()
        machine.priorities_come_in_order()
        machine.trees_are_not_ahead()
        machine.the_group_consumed_what_transactions_say()
        machine.producers_stand_where_the_list_says()
