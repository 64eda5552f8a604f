"""Random lives of the offsets: calls that set them, deliveries, deletions, writes of the file, trims, power
cuts at any fault point, lost and edited files. After each start the offsets are those of a file that is
written before each reply, as it was before they were records."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, flush, send
from tests.unit.engine.test_offset_records import ALL_FILES, deliver, edit, offsets_of, put
from tests.unit.engine.test_table_log import IN_FILES, Opened, fill_segments, remove, trim
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.files.fault_points import armed
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.offsets import OFFSETS_PATH
from trovemq_store.topics.table_notes import NOTES_PATH

GROUPS: Final = ("a", "b", "c")
WORKERS: Final = "workers"
"""The group whose offsets only deliveries move."""
MESSAGES: Final = 12
Model = dict[str, int]


class Life:
    """`model`: the offsets that calls have set; `durable`: those that were answered; `possible`: since then,
    oldest first. `delivered`: the highest that a delivery has reached."""

    def __init__(self) -> None:
        self.files = MemoryFileSystem()
        self.opened = Opened(self.files)
        self.opened.topics.create("orders", 1)
        self.fill()
        self.model: Model = {}
        self.durable: Model = {}
        self.possible: list[Model] = []
        self.delivered = 0

    def fill(self) -> None:
        for number in range(MESSAGES):
            send(self.opened.store, b"%d" % number)
        flush(self.opened.store)

    def found(self) -> Model:
        return {group: at for (group, _, _), at in offsets_of(self.opened).items() if group != WORKERS}

    def check(self) -> None:
        assert self.found() == self.model
        at = self.opened.store.offsets.get(WORKERS, "orders", QueueId(0))
        assert at is None or at <= self.delivered

    # --- steps ----------------------------------------------------------------------------------------
    def set(self, group: str, offset: int) -> None:
        """A call: its record, and one group commit before the reply."""
        self.model = {**self.model, group: offset}
        self.possible.append(self.model)
        put(self.opened, group, offset)
        self.opened.tables.record_offsets()
        self.sync()

    def set_unanswered(self, group: str, offset: int) -> None:
        self.model = {**self.model, group: offset}
        self.possible.append(self.model)
        put(self.opened, group, offset)
        self.opened.tables.record_offsets()

    def delete(self, group: str) -> None:
        self.model = {other: at for other, at in self.model.items() if other != group}
        self.possible.append(self.model)
        self.opened.store.offsets.delete_group(group)
        self.opened.tables.record_offsets()
        self.sync()

    def make_topic_again(self) -> None:
        self.model, self.delivered = {}, 0
        self.possible.append({})
        self.opened.store.delete_topic("orders", NOW_MS)
        self.sync()
        self.opened.topics.create("orders", 1)
        self.fill()

    def deliver(self, offset: int) -> None:
        self.delivered = max(self.delivered, offset)
        deliver(self.opened, WORKERS, offset)

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
        found = self.found()
        assert found in (self.durable, *self.possible)
        self.model, self.durable, self.possible = found, found, []
        if "orders" not in self.opened.topics:
            self.opened.topics.create("orders", 1)
            self.fill()

    def cut(self) -> None:
        self.start(self.opened.files.after_power_cut())

    def kill(self) -> None:
        self.durable, self.possible = self.model, []
        self.start(self.opened.files.after_process_kill())

    def restart(self) -> None:
        self.sync()
        self.start(self.opened.close())

    def lose_files(self) -> None:
        self.sync()
        files = self.opened.files.after_power_cut()
        remove(files, ALL_FILES)
        self.start(files)

    def lose_notes(self) -> None:
        self.sync()
        files = self.opened.files.after_power_cut()
        remove(files, (NOTES_PATH, f"{NOTES_PATH}.bak"))
        self.start(files)

    def damage_file(self) -> None:
        self.sync()
        files = self.opened.files.after_power_cut()
        if files.exists(OFFSETS_PATH) and files.exists(f"{OFFSETS_PATH}.bak"):
            files.write_atomic(OFFSETS_PATH, b"{")
        self.start(files)

    def edit(self, group: str, offset: int) -> None:
        """By hand, after a clean stop."""
        self.sync()
        files = self.opened.close()
        if files.exists(OFFSETS_PATH):
            edit(files, lambda table: table.update({f"orders@{group}": {"0": offset}}))
            self.durable = {**self.model, group: offset}
        self.start(files)

    def version_before(self, group: str, offset: int) -> None:
        """It opens the store after a clean stop, and ends cleanly, too."""
        self.sync()
        before = Opened(self.opened.close(), IN_FILES)
        before.store.offsets.commit(group, "orders", QueueId(0), QueueOffset(offset))
        self.durable = {**self.durable, group: offset}
        self.start(before.close())


GROUP = st.sampled_from(GROUPS)
OFFSET = st.integers(0, MESSAGES)
STEPS: Final = st.one_of(
    *(st.tuples(st.just(step), GROUP, OFFSET) for step in (Life.set, Life.set, Life.set_unanswered)),
    st.tuples(st.just(Life.delete), GROUP),
    st.tuples(st.just(Life.deliver), OFFSET),
    *(st.just((step,)) for step in (Life.sync, Life.write, Life.trim, Life.cut, Life.kill, Life.restart)),
    *(st.just((step,)) for step in (Life.lose_files, Life.lose_notes, Life.damage_file)),
    st.just((Life.make_topic_again,)),
    *(st.tuples(st.just(step), GROUP, OFFSET) for step in (Life.edit, Life.version_before)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=14), st.integers(0, 600))
def test_the_offsets_are_those_of_the_model(steps: list[Any], killed_at: int) -> None:
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
        life.opened = Opened(files)
        found = life.found()
        assert found in allowed
        life.opened = Opened(life.opened.cut())
        assert life.found() == found
