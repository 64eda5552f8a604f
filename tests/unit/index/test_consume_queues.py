"""Consume queues against a plain model: the right content of each queue, through crashes and cuts."""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS
from tests.support.projections import batch_of, stored, tree
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import RecordBatch, java_hash
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.layout import SYS_FLAG_AT
from trovemq_store.files.faulty import FaultyFileSystem, fail_always, fail_at
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.index.consume_queue import BLANK_SIZE, UNIT_DTYPE, UNIT_SIZE
from trovemq_store.index.consume_queues import ConsumeQueues
from trovemq_store.index.open_files import OpenFiles
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.settings import StoreSettings

SETTINGS = StoreSettings(consume_queue_file_size=5 * UNIT_SIZE)
TOPICS = ("orders", "%RETRY%g")
PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC


@dataclass(frozen=True)
class Entry:
    """One record of the model's log."""

    data: bytes
    physical_offset: int
    topic: str
    queue_id: QueueId
    queue_offset: int
    has_unit: bool
    tag: str

    @property
    def unit(self) -> tuple[int, int, int]:
        return self.physical_offset, len(self.data), java_hash(self.tag)


class Model:
    """A log as a list of records, and the projection under test beside it."""

    def __init__(self, files: MemoryFileSystem, first_offset: int) -> None:
        self.files = files
        self.first_offset = first_offset
        self.log: list[Entry] = []
        self.deleted: dict[str, int] = {}
        self.min_physical = 0
        self.queues = self.opened(None)

    @property
    def end(self) -> int:
        return self.log[-1].physical_offset + len(self.log[-1].data) if self.log else 0

    def opened(self, trusted: PhysicalOffset | None) -> ConsumeQueues:
        queues = ConsumeQueues(self.files, SETTINGS)
        queues.load(trusted)
        return queues

    def expected(self, topic: str, queue_id: QueueId) -> list[Entry]:
        alive = self.deleted.get(topic, 0)
        return [
            entry
            for entry in self.log
            if (entry.topic, entry.queue_id) == (topic, queue_id)
            and entry.has_unit
            and entry.physical_offset >= alive
        ]

    def next_offset(self, topic: str, queue_id: QueueId) -> int:
        units = self.expected(topic, queue_id)
        if units:
            return units[-1].queue_offset + 1
        return self.queues.next_offset(topic, queue_id) or (0 if topic in self.deleted else self.first_offset)

    def append(self, messages: list[tuple[str, int, int, str]]) -> None:
        begin = len(self.log)
        for topic, queue_id, transaction, tag in messages:
            has_unit = transaction in (0, COMMIT)
            offset = self.next_offset(topic, QueueId(queue_id)) if has_unit else 0
            data = bytearray(stored(self.end, offset, NOW_MS, topic=topic, queue_id=queue_id, tag=tag))
            data[SYS_FLAG_AT + 3] |= transaction
            self.log.append(Entry(bytes(data), self.end, topic, QueueId(queue_id), offset, has_unit, tag))
        self.queues.apply(self.batch(self.log[begin:]))

    def batch(self, entries: list[Entry]) -> DispatchBatch:
        start = entries[0].physical_offset
        made = batch_of(b"".join(entry.data for entry in entries), start)
        alive = [entry.physical_offset >= self.deleted.get(entry.topic, 0) for entry in entries]
        return made if all(alive) else replace(made, alive=np.array(alive))

    def replay(self) -> None:
        """As recovery does: from the position (or before it) to the end, in batches."""
        for start in range(0, len(self.log), 3):
            entries = self.log[start : start + 3]
            if self.batch(entries).end > self.queues.position:
                self.queues.apply(self.batch(entries))

    def crash(self) -> None:
        trusted = self.queues.synced_position
        self.files = self.files.after_power_cut()
        self.queues = self.opened(trusted)
        assert self.queues.position == self.queues.synced_position == trusted
        self._recovered()

    def restart(self) -> None:
        self.queues.flush()
        self.queues.close()
        self.files = self.files.after_process_kill()
        self.queues = self.opened(None)
        self._recovered()

    def _recovered(self) -> None:
        for topic, below in self.deleted.items():
            for queue in self.queues.queues(topic):
                if queue.has_units and queue.unit(QueueOffset(queue.max_offset - 1))[0] < below:
                    self.queues.delete_topic(topic)
                    break
        self.replay()
        self.queues.trim_before(PhysicalOffset(self.min_physical))

    def cut(self, count: int) -> None:
        kept = self.log[: max(0, len(self.log) - count)]
        lowest = max([self.min_physical, *self.deleted.values()])
        self.log = kept + [entry for entry in self.log[len(kept) :] if entry.physical_offset < lowest]
        self.queues.truncate_to(PhysicalOffset(self.end))

    def trim(self, index: int) -> None:
        if self.log:
            self.min_physical = max(self.min_physical, self.log[index % len(self.log)].physical_offset)
            self.queues.trim_before(PhysicalOffset(self.min_physical))

    def delete(self, topic: str) -> None:
        self.deleted[topic] = self.end
        self.queues.delete_topic(topic)

    def check(self) -> None:
        for topic in TOPICS:
            for queue_id in (0, 1):
                self._check_queue(topic, QueueId(queue_id))

    def _check_queue(self, topic: str, queue_id: QueueId) -> None:
        expected = self.expected(topic, queue_id)
        queue = self.queues.get(topic, queue_id)
        if not expected:
            assert queue is None or not queue.has_units or queue.min_offset == queue.max_offset
            return
        assert queue is not None
        assert queue.max_offset == expected[-1].queue_offset + 1
        readable = [entry for entry in expected if entry.physical_offset >= self.min_physical]
        assert queue.min_offset == (readable[0].queue_offset if readable else queue.max_offset)
        units = queue.units(queue.min_offset, 1000)
        assert units.tolist() == [entry.unit for entry in readable]
        for entry in readable:
            assert queue.find(PhysicalOffset(entry.physical_offset)) == entry.queue_offset
            assert (
                queue.find(PhysicalOffset(entry.physical_offset + 1), QueueOffset(entry.queue_offset)) is None
            )


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(TOPICS),
        st.sampled_from([0, 0, 1]),
        st.sampled_from([0, 0, 0, PREPARED, COMMIT, ROLLBACK]),
        st.sampled_from(["", "a", "Aa", "polygenelubricants"]),
    ),
    min_size=1,
    max_size=9,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), MESSAGES),
        st.tuples(st.just("append"), MESSAGES),
        st.tuples(st.just("flush"), st.none()),
        st.tuples(st.just("crash"), st.none()),
        st.tuples(st.just("restart"), st.none()),
        st.tuples(st.just("cut"), st.integers(0, 6)),
        st.tuples(st.just("trim"), st.integers(0, 30)),
        st.tuples(st.just("delete"), st.sampled_from(TOPICS)),
    ),
    max_size=14,
)


@given(STEPS, st.sampled_from([0, 0, 3, 12, 15]))
def test_queues_hold_what_the_log_says(steps: list[tuple[str, object]], first_offset: int) -> None:
    model = Model(MemoryFileSystem(), first_offset)
    for name, argument in steps:
        if name == "flush":
            model.queues.flush()
        elif argument is None:
            getattr(model, name)()
        else:
            getattr(model, name)(argument)
        model.check()


def _fill(queues: ConsumeQueues, count: int, first_offset: int = 0) -> bytes:
    data = b""
    for offset in range(count):
        data += stored(len(data), first_offset + offset, NOW_MS)
    queues.apply(batch_of(data, 0))
    return data


@pytest.fixture(params=["memory", "real"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    return MemoryFileSystem() if request.param == "memory" else RealFileSystem(tmp_path)


def test_files_are_full_size_named_by_bytes_and_blank_in_front(files: FileSystem) -> None:
    queues = ConsumeQueues(files, SETTINGS)
    queues.load(None)
    data = _fill(queues, 4, first_offset=7)
    found = tree(files, "consumequeue")
    assert list(found) == [f"consumequeue/orders/0/{start:020d}" for start in (100, 200)]
    assert all(len(content) == SETTINGS.consume_queue_file_size for content in found.values())
    units = np.frombuffer(b"".join(found.values()), UNIT_DTYPE).tolist()
    size = len(data) // 4
    assert units[:2] == [(0, BLANK_SIZE, 0)] * 2
    assert units[2:6] == [(index * size, size, 0) for index in range(4)]
    assert units[6:] == [(0, 0, 0)] * 4
    queue = queues.get("orders", QueueId(0))
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (7, 11)
    assert queues.take_grown() == [("orders", 0)]
    assert queues.take_grown() == []


def test_reading_outside_of_the_queue_names_the_range(files: FileSystem) -> None:
    queues = ConsumeQueues(files, SETTINGS)
    queues.load(None)
    _fill(queues, 4, first_offset=7)
    queue = queues.get("orders", QueueId(0))
    assert queue is not None
    assert len(queue.units(QueueOffset(11), 5)) == 0
    for offset in (4, 12):
        with pytest.raises(TroveError) as caught:
            queue.units(QueueOffset(offset), 1)
        assert caught.value.symbol == "OFFSET_OUT_OF_RANGE"
        assert caught.value.fields == {"min_offset": "7", "max_offset": "11"}


def test_a_gap_is_refused_before_anything_is_written(files: FileSystem) -> None:
    queues = ConsumeQueues(files, SETTINGS)
    queues.load(None)
    data = _fill(queues, 3)
    before = tree(files, "consumequeue")
    more = stored(len(data), 0, NOW_MS, topic="a-other")
    gap = stored(len(data) + len(more), 4, NOW_MS)
    for records in (more + gap, more + gap + stored(len(data) + len(more) + len(gap), 6, NOW_MS)):
        with pytest.raises(TroveError, match="where 3 is next") as caught:
            queues.apply(batch_of(records, len(data)))
        assert caught.value.symbol == "STORE_FAILED"
        assert tree(files, "consumequeue") == before
        assert queues.position == len(data)


@pytest.mark.parametrize("operation", ["write", "create"])
def test_a_failed_write_leaves_the_batch_to_be_applied_again(operation: str) -> None:
    for nth in (1, 2, 3):
        files = FaultyFileSystem(MemoryFileSystem())
        queues = ConsumeQueues(files, SETTINGS)
        queues.load(None)
        data = b"".join(stored(0, offset, NOW_MS, queue_id=queue) for offset in range(12) for queue in (0, 1))
        batch = batch_of(data, 0)
        files.decide = fail_at(operation, nth, errno.ENOSPC)
        with pytest.raises(StorageError):
            queues.apply(batch)
        assert queues.position == 0
        queues.apply(batch)
        for queue in queues.queues("orders"):
            assert queue.units(QueueOffset(0), 99)["size"].tolist() == [len(data) // 24] * 12
            assert queue.min_offset == 0


def test_a_failed_sync_never_counts_as_done() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    queues = ConsumeQueues(files, SETTINGS)
    queues.load(None)
    _fill(queues, 2)
    files.decide = fail_at("sync", 1, errno.EIO)
    for _ in range(2):
        with pytest.raises(StorageError):
            queues.flush()
    assert queues.synced_position == 0


def test_flush_skips_files_that_are_gone() -> None:
    queues = ConsumeQueues(MemoryFileSystem(), SETTINGS)
    queues.load(None)
    _fill(queues, 2)
    queues.delete_topic("orders")
    queues.flush()
    assert queues.synced_position == queues.position


def test_few_files_stay_open() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    open_files = OpenFiles(files, limit=2)
    for name in "abc":
        open_files.create(name, 10)
    assert len(open_files) == 2
    open_files.get("b")
    assert files.calls.count(("open", "b")) == 0
    open_files.get("a")
    assert files.calls.count(("open", "a")) == 1
    open_files.get("c")
    assert files.calls.count(("open", "c")) == 1
    open_files.close()
    assert len(open_files) == 0


def _opened(files: FaultyFileSystem) -> int:
    return sum(operation == "open" and path.startswith("consumequeue") for operation, path in files.calls)


def test_each_message_to_the_257th_queue_and_on_opened_a_file_again(tmp_path: Path) -> None:
    """Queues got a message in turn: of 300, each one's file had been closed before its next message."""
    files = FaultyFileSystem(RealFileSystem(tmp_path / "store"))
    assert files.open_files_max() > 300, "the machine allows enough open files"
    queues = ConsumeQueues(files, SETTINGS)
    queues.load(None)
    position = 0
    for turn, number in product(range(2), range(300)):
        data = stored(position, turn, NOW_MS, topic=f"t{number}")
        queues.apply(batch_of(data, position))
        position += len(data)
    assert (queues.open_file_count, _opened(files)) == (300, 0)
    first = queues.get("t0", QueueId(0))
    assert first is not None
    assert [first.unit(QueueOffset(n))[0] for n in range(2)] == [0, position // 2]
    assert len(first.units(QueueOffset(0), 2)) == len(first.unit_rows(QueueOffset(0), 2)) == 2
    assert _opened(files) == 0
    queues.close()
    assert files.open_count == 0


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("0" * 20, 80, "has 80 bytes instead of 100"),
        (f"{50:020d}", 100, "not named by a multiple"),
        ("stray", 100, "not a file of a consume queue"),
        (f"{300:020d}", 100, "does not follow"),
    ],
)
def test_files_that_do_not_fit_the_settings_are_refused(name: str, size: int, message: str) -> None:
    files = MemoryFileSystem()
    files.write_atomic(f"consumequeue/orders/0/{100:020d}", bytes(100))
    files.write_atomic(f"consumequeue/orders/0/{name}", bytes(size))
    with pytest.raises(TroveError, match=message) as caught:
        ConsumeQueues(files, SETTINGS).load(None)
    assert caught.value.symbol == "STORE_SETTINGS_MISMATCH"


def test_what_is_not_a_queue_is_skipped() -> None:
    files = MemoryFileSystem()
    files.write_atomic("consumequeue/orders/x/00000000000000000000", b"?")
    files.write_atomic("consumequeue/orders/07/00000000000000000000", b"?")
    files.write_atomic("consumequeue/stray", b"?")
    files.write_atomic(f"consumequeue/orders/1/{0:020d}", bytes(100))
    files.write_atomic(f"consumequeue/orders/1/{100:020d}", b"")
    queues = ConsumeQueues(files, SETTINGS)
    queues.load(None)
    assert [queue.queue_id for queue in queues.queues("orders")] == [1]
    assert not files.exists(f"consumequeue/orders/1/{100:020d}")


def test_stale_units_after_the_end_of_a_clean_queue_are_not_believed() -> None:
    """RocketMQ does not clear the units that it cuts: an older timeline's units may follow the last one."""
    files = MemoryFileSystem()
    units = np.array([(0, 100, 0), (100, 100, 0), (50, 100, 0)], UNIT_DTYPE)
    files.write_atomic(f"consumequeue/orders/0/{0:020d}", units.tobytes().ljust(100, b"\0"))
    queues = ConsumeQueues(files, SETTINGS)
    queues.load(None)
    assert queues.next_offset("orders", QueueId(0)) == 2
    assert files.read_bytes(f"consumequeue/orders/0/{0:020d}")[40:] == bytes(60)


def test_a_page_lost_in_front_of_the_first_unit_does_not_stop_the_replay() -> None:
    files = MemoryFileSystem()
    settings = StoreSettings(consume_queue_file_size=1000 * UNIT_SIZE)
    blanks = np.repeat(np.array([(0, BLANK_SIZE, 0)], UNIT_DTYPE), 300).tobytes()
    files.write_atomic(f"consumequeue/orders/0/{0:020d}", blanks.ljust(1000 * UNIT_SIZE, b"\0"))
    queues = ConsumeQueues(files, settings)
    queues.load(LOG_ORIGIN)
    queues.apply(batch_of(stored(0, 700, NOW_MS), 0))
    queue = queues.get("orders", QueueId(0))
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (700, 701)
    assert queue.units(QueueOffset(0), 700)["size"].tolist() == [BLANK_SIZE] * 700


def test_files_after_a_gap_go_after_a_crash() -> None:
    files = MemoryFileSystem()
    unit = np.array([(0, 100, 0)] * 5, UNIT_DTYPE)
    unit["physical_offset"] = np.arange(5) * 100
    for base in (0, 200, 300):
        files.write_atomic(f"consumequeue/orders/0/{base:020d}", unit.tobytes())
    queues = ConsumeQueues(files, SETTINGS)
    queues.load(PhysicalOffset(500))
    assert queues.next_offset("orders", QueueId(0)) == 5
    assert files.list("consumequeue/orders/0") == [f"{0:020d}"]


def test_dispatching_nothing_moves_only_the_position() -> None:
    queues = ConsumeQueues(MemoryFileSystem(), SETTINGS)
    queues.load(None)
    nothing = RecordBatch(b"", np.empty(0, np.int64), np.empty(0, np.int64))
    queues.apply(DispatchBatch(nothing, PhysicalOffset(500), PhysicalOffset(500)))
    assert queues.position == 500
    assert queues.topics() == []


def test_sync_errors_of_directories_are_errors() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    queues = ConsumeQueues(files, SETTINGS)
    queues.load(None)
    _fill(queues, 1)
    files.decide = fail_always("sync_directory", errno.EIO)
    with pytest.raises(StorageError):
        queues.flush()


@given(st.lists(st.integers(1, 12), max_size=8), st.sampled_from(["write", "create"]), st.integers(1, 9))
def test_a_queue_has_the_units_of_each_append_that_succeeded(
    counts: list[int], operation: str, failing: int
) -> None:
    memory = MemoryFileSystem()
    files = FaultyFileSystem(memory)
    queue = ConsumeQueues(files, SETTINGS)._queue("orders", QueueId(0))
    written = [(7, 100, 0)]
    queue.append(QueueOffset(0), np.array(written, UNIT_DTYPE))
    files.decide = fail_at(operation, failing, errno.ENOSPC)
    for count in counts:
        units = [(1_000 * (len(written) + number), 100, number) for number in range(count)]
        try:
            queue.append(queue.max_offset, np.array(units, UNIT_DTYPE))
        except StorageError:
            continue
        written += units
        assert queue.unit(QueueOffset(queue.max_offset - 1)) == written[-1]
    assert queue.units(QueueOffset(0), queue.max_offset).tolist() == written


def test_a_queue_that_came_in_two_parts_showed_a_unit_that_nobody_wrote() -> None:
    queues = ConsumeQueues(MemoryFileSystem(), SETTINGS)
    position = 0
    parts = [QueuePart("orders", 0, 1), QueuePart("others", 0, 1), QueuePart("orders", 0, 1)]
    for places in ([("orders", 0)], [("others", 0)], [("orders", 1), ("others", 1), ("orders", 1)]):
        data = b""
        for topic, queue_offset in places:
            data += stored(position + len(data), queue_offset, NOW_MS, topic=topic)
        batch = batch_of(data, position)
        batch.records.parts = parts if len(places) > 1 else None
        queues.apply(batch)
        position += len(data)
    queue = queues.get("orders", QueueId(0))
    assert queue is not None
    assert [size > 0 for _, size, _ in queue.units(QueueOffset(0), 9).tolist()] == [True, True]
