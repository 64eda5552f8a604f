"""Consumer offsets: a table by group, topic and queue, and its file."""

from __future__ import annotations

import errno
import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.engine import NOW_MS, SMALL_SYNC, flush, open_store, read_queue, send
from tests.unit.engine.test_log_tail import Lines
from trovemq_broker.daemon.recovery_log import log_recovery
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.faulty import FaultyFileSystem, fail_always
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics import offsets
from trovemq_store.topics.offsets import OFFSET_MAX, OFFSETS_PATH, ConsumerOffsets

ROCKETMQ_FILE = b"""{
	"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1795263986242},
	"groupTopicMap":{"G":["T"]},
	"offsetTable":{"T@G":{0:13,1:0},"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:4},"odd":{0:7}}
}"""


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


def stored(files: MemoryFileSystem) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = json.loads(files.read_bytes(OFFSETS_PATH))["offsetTable"]
    return table


def test_rocketmqs_offsets_are_read_and_written_back(files: MemoryFileSystem) -> None:
    files.write_atomic(OFFSETS_PATH, ROCKETMQ_FILE)
    table = ConsumerOffsets.load(files)
    assert list(table.entries()) == [
        ("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 4),
        ("G", "T", 0, 13),
        ("G", "T", 1, 0),
    ]
    assert table.groups() == ["CID_RMQ_SYS_TRANS", "G"]
    assert table.groups("T") == ["G"]
    table.commit("G", "T", QueueId(1), QueueOffset(5), durable=True)
    assert json.loads(files.read_bytes(OFFSETS_PATH)) == {
        "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 1795263986242},
        "offsetTable": {
            "odd": {"0": 7},
            "T@G": {"0": 13, "1": 5},
            "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {"0": 4},
        },
    }
    assert files.read_bytes(f"{OFFSETS_PATH}.bak") == ROCKETMQ_FILE


def test_only_changes_are_written(files: MemoryFileSystem) -> None:
    faulty = FaultyFileSystem(files)
    table = ConsumerOffsets.load(faulty)
    table.persist()
    assert not files.exists(OFFSETS_PATH)
    table.commit("g", "t", QueueId(0), QueueOffset(3))
    table.persist()
    assert stored(files) == {"t@g": {"0": 3}}
    assert table.begin_persist() is None
    faulty.decide = fail_always("write_atomic", errno.EIO)
    table.commit("g", "t", QueueId(0), QueueOffset(3), durable=True)
    table.persist()


def test_a_durable_commit_that_fails_is_not_made(files: MemoryFileSystem) -> None:
    faulty = FaultyFileSystem(files)
    table = ConsumerOffsets.load(faulty)
    table.commit("g", "t", QueueId(0), QueueOffset(3), durable=True)
    faulty.decide = fail_always("write_atomic", errno.ENOSPC)
    with pytest.raises(TroveError, match="DISK_FULL"):
        table.commit("g", "t", QueueId(0), QueueOffset(9), durable=True)
    with pytest.raises(TroveError, match="DISK_FULL"):
        table.commit("other", "t", QueueId(0), QueueOffset(9), durable=True)
    with pytest.raises(TroveError, match="DISK_FULL"):
        table.reset("g", "t", {QueueId(0): QueueOffset(1), QueueId(1): QueueOffset(2)})
    assert list(table.entries()) == [("g", "t", 0, 3)]
    assert table.groups() == ["g"]


def test_a_reset_goes_back_and_is_durable(files: MemoryFileSystem) -> None:
    table = ConsumerOffsets.load(files)
    table.reset("g", "t", {QueueId(0): QueueOffset(50), QueueId(1): QueueOffset(60)})
    table.reset("g", "t", {QueueId(0): QueueOffset(5)})
    assert list(ConsumerOffsets.load(files.after_power_cut()).entries()) == [
        ("g", "t", 0, 5),
        ("g", "t", 1, 60),
    ]


def test_what_is_stored_never_passes_the_synced_log(files: MemoryFileSystem) -> None:
    table = ConsumerOffsets.load(files)
    synced = 4
    table.limit = lambda topic, queue_id: QueueOffset(synced)
    table.commit("g", "t", QueueId(0), QueueOffset(9), durable=True)
    assert table.get("g", "t", QueueId(0)) == 9
    assert stored(files) == {"t@g": {"0": 4}}
    assert table.dirty, "the rest is stored when the log allows it"
    synced = 9
    table.persist()
    assert stored(files) == {"t@g": {"0": 9}}
    assert not table.dirty


def test_capped_after_recovery(files: MemoryFileSystem) -> None:
    table = ConsumerOffsets.load(files)
    for group, offset in [("g", 9), ("h", 3)]:
        table.commit(group, "t", QueueId(0), QueueOffset(offset))
        table.commit(group, "u", QueueId(0), QueueOffset(offset))
    table.cap("t", QueueId(0), QueueOffset(5))
    assert [offset for _, topic, _, offset in table.entries() if topic == "t"] == [5, 3]
    table.cap_all(lambda topic, queue_id: QueueOffset(4 if topic == "u" else 99))
    assert [offset for _, topic, _, offset in table.entries() if topic == "u"] == [4, 3]


def test_a_change_during_the_write_stays_dirty(files: MemoryFileSystem) -> None:
    table = ConsumerOffsets.load(files)
    table.commit("g", "t", QueueId(0), QueueOffset(1))
    work = table.begin_persist()
    assert work is not None
    table.commit("g", "t", QueueId(0), QueueOffset(2))
    work.run()
    table.finish_persist(work)
    assert stored(files) == {"t@g": {"0": 1}}
    assert table.dirty
    table.persist()
    assert stored(files) == {"t@g": {"0": 2}}


@pytest.mark.parametrize(
    ("group", "queue_id", "offset", "symbol"),
    [
        ("", 0, 0, "GROUP_ILLEGAL"),
        ("a@b", 0, 0, "GROUP_ILLEGAL"),
        ("g", -1, 0, "REQUEST_ILLEGAL"),
        ("g", 0, -1, "REQUEST_ILLEGAL"),
        ("g", 0, OFFSET_MAX + 1, "REQUEST_ILLEGAL"),
    ],
)
def test_bad_commits(
    files: MemoryFileSystem, group: str, queue_id: QueueId, offset: int, symbol: str
) -> None:
    table = ConsumerOffsets.load(files)
    with pytest.raises(TroveError, match=symbol):
        table.commit(group, "t", queue_id, QueueOffset(offset))
    assert not table.dirty


def test_groups_and_entries_are_bounded(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ConsumerOffsets.load(files, group_count_max=2)
    table.commit("a", "t", QueueId(0), QueueOffset(1))
    table.commit("b", "t", QueueId(0), QueueOffset(1))
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        table.commit("c", "t", QueueId(0), QueueOffset(1))
    table.delete_topic("t")
    table.commit("c", "t", QueueId(0), QueueOffset(1))
    monkeypatch.setattr(offsets, "ENTRY_COUNT_MAX", 1)
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        table.commit("c", "t", QueueId(1), QueueOffset(1))
    table.commit("c", "t", QueueId(0), QueueOffset(2))


@pytest.mark.parametrize(
    "content",
    [
        b'{"offsetTable":[1]}',
        b'{"offsetTable":{"t@g":1}}',
        b'{"offsetTable":{"t@g":{"0":"x"}}}',
        b'{"offsetTable":{"t@g":{"x":1}}}',
    ],
)
def test_a_file_of_another_shape_names_itself(files: MemoryFileSystem, content: bytes) -> None:
    files.write_atomic(OFFSETS_PATH, content)
    with pytest.raises(TroveError, match=r"STORE_FAILED.*consumerOffset\.json"):
        ConsumerOffsets.load(files)


GROUPS = st.sampled_from(["g", "h"])
TOPICS = st.sampled_from(["t", "u"])
QUEUES = st.integers(0, 2)
OFFSETS = st.integers(0, 9)
Entry = tuple[str, str, int]


class OffsetsMachine(RuleBasedStateMachine):
    """The table is a dictionary; after a power cut it is the dictionary of the last save."""

    @initialize()
    def start(self) -> None:
        self.files = MemoryFileSystem()
        self.table = ConsumerOffsets.load(self.files)
        self.model: dict[Entry, int] = {}
        self.saved: dict[Entry, int] = {}

    @rule(group=GROUPS, topic=TOPICS, queue_id=QUEUES, offset=OFFSETS, durable=st.booleans())
    def commit(self, group: str, topic: str, queue_id: QueueId, offset: int, durable: bool) -> None:
        self.table.commit(group, topic, queue_id, QueueOffset(offset), durable=durable)
        self.model[group, topic, queue_id] = offset
        if durable:
            self.saved = dict(self.model)

    @rule()
    def persist(self) -> None:
        self.table.persist()
        self.saved = dict(self.model)

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        self.table.delete_topic(topic)
        self.model = {entry: offset for entry, offset in self.model.items() if entry[1] != topic}

    @rule(topic=TOPICS, queue_id=QUEUES, offset_max=OFFSETS)
    def cap(self, topic: str, queue_id: QueueId, offset_max: int) -> None:
        self.table.cap(topic, queue_id, QueueOffset(offset_max))
        for entry, offset in self.model.items():
            if entry[1:] == (topic, queue_id):
                self.model[entry] = min(offset, offset_max)

    @rule()
    def power_cut(self) -> None:
        self.files = self.files.after_power_cut()
        self.table = ConsumerOffsets.load(self.files)
        self.model = dict(self.saved)

    @invariant()
    def equal(self) -> None:
        assert {(g, t, q): offset for g, t, q, offset in self.table.entries()} == self.model
        assert len(self.table) == len(self.model)
        assert self.table.groups() == sorted({group for group, _, _ in self.model})


OffsetsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestOffsetsMachine = OffsetsMachine.TestCase


# --- at the opening of a store ----------------------------------------------------------------------------
def emptied(files: MemoryFileSystem) -> MemoryFileSystem:
    """The store without its messages; topics and offsets stay."""
    for path in [path for path in files._files if not path.startswith("config/")]:
        files.remove(path)
    return files


def test_messages_of_an_emptied_store_counted_as_consumed_after_a_kill() -> None:
    """Offsets were lowered to the ends of the queues in memory, and on disk only some time later."""
    place = ("g", "orders", QueueId(0))
    files = MemoryFileSystem()
    store = open_store(files, SMALL_SYNC)
    for number in range(9):
        send(store, b"%d" % number)
    flush(store)
    store.offsets.commit(*place, QueueOffset(9))
    store.close(NOW_MS)
    store = MessageStore.open(emptied(files), SMALL_SYNC, NOW_MS)
    assert store.recovery.lowered_offsets == (("orders", 1),)
    send(store, b"new")
    flush(store)
    store = MessageStore.open(files.after_process_kill(), SMALL_SYNC, NOW_MS)
    assert [message.body for message in read_queue(store)] == [b"new"]
    assert store.offsets.get(*place) == 0
    assert not store.recovery.lowered_offsets


def test_an_older_copy_of_a_damaged_file_was_read_in_silence() -> None:
    files = MemoryFileSystem()
    store = open_store(files, SMALL_SYNC)
    for number in range(9):
        send(store, b"%d" % number)
    flush(store)
    for offset in (3, 7):
        store.offsets.commit("g", "orders", QueueId(0), QueueOffset(offset), durable=True)
    store.close(NOW_MS)
    files.write_atomic(OFFSETS_PATH, b"{")
    store, lines = MessageStore.open(files, SMALL_SYNC, NOW_MS), Lines()
    assert store.offsets.get("g", "orders", QueueId(0)) == 3
    log_recovery(lines, store)
    ((event, fields),) = lines.lines
    assert event == "store.second_copy_read"
    assert fields["reason"].startswith(f"{OFFSETS_PATH}: ")
