"""The topic table and its file."""

from __future__ import annotations

import errno
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.files.faulty import FaultyFileSystem, fail_always
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics import config_table, topics
from trovemq_store.topics.topics import MESSAGE_TYPES, TopicConfig, TopicTable
from trovemq_store.topics.topics_file import TOPICS_PATH

ROCKETMQ_FILE = b"""{
	"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1795264009788},
	"futureMember":{0:1},
	"topicConfigTable":{
		"Orders":{"attributes":{"message.type":"FIFO","queue.type":"SimpleCQ"},"order":true,"perm":4,
			"readQueueNums":6,"topicFilterType":"SINGLE_TAG","topicName":"Orders","topicSysFlag":2,
			"writeQueueNums":4,"later":[1]},
		"Old":{"perm":6,"readQueueNums":1,"topicName":"Old","writeQueueNums":1},
		"SCHEDULE_TOPIC_XXXX":{"attributes":{},"order":false,"perm":6,"readQueueNums":18,
			"topicFilterType":"SINGLE_TAG","topicName":"SCHEDULE_TOPIC_XXXX","topicSysFlag":0,"writeQueueNums":18}
	}
}"""


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
def rocketmq_files(files: MemoryFileSystem) -> MemoryFileSystem:
    files.write_atomic(TOPICS_PATH, ROCKETMQ_FILE)
    return files


def test_a_fresh_store_has_no_topics_and_writes_nothing(files: MemoryFileSystem) -> None:
    table = TopicTable.load(files)
    assert (table.names(include_system=True), table.data_version, len(table)) == ([], 0, 0)
    assert not files.exists(TOPICS_PATH)


def test_created_topics_are_durable_in_rocketmqs_shape(files: MemoryFileSystem) -> None:
    table = TopicTable.load(files)
    table.create("flights", 4, "FIFO", now_ms=EpochMs(1_700_000_000_000))
    survivor = files.after_power_cut()
    assert TopicTable.load(survivor).require("flights") == table.get("flights")
    assert json.loads(survivor.read_bytes(TOPICS_PATH)) == {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000},
        "topicConfigTable": {
            "flights": {
                "attributes": {"message.type": "FIFO"},
                "order": False,
                "perm": 6,
                "readQueueNums": 4,
                "topicFilterType": "SINGLE_TAG",
                "topicName": "flights",
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        },
    }


def test_rocketmqs_topics_are_read(rocketmq_files: MemoryFileSystem) -> None:
    table = TopicTable.load(rocketmq_files)
    attributes = {"message.type": "FIFO", "queue.type": "SimpleCQ"}
    orders = TopicConfig("Orders", 6, 4, 4, "FIFO", order=True, topic_sys_flag=2, attributes=attributes)
    assert table.require("Orders") == orders
    assert orders.readable
    assert not orders.writable
    assert table.require("Old") == TopicConfig("Old", 1, 1)
    assert table.names() == ["Old", "Orders"]
    assert table.names(include_system=True) == ["Old", "Orders", "SCHEDULE_TOPIC_XXXX"]
    assert table.data_version == 7


def test_unknown_members_and_the_version_continue(rocketmq_files: MemoryFileSystem) -> None:
    before = rocketmq_topics()
    TopicTable.load(rocketmq_files).alter("Orders", queue_count=8)
    document = json.loads(rocketmq_files.read_bytes(TOPICS_PATH))
    assert document["futureMember"] == {"0": 1}
    assert document["dataVersion"] == {"counter": 8, "stateVersion": 0, "timestamp": 1795264009788}
    changed = {**before["Orders"], "readQueueNums": 8, "writeQueueNums": 8}
    assert document["topicConfigTable"] == {**before, "Orders": changed}


def rocketmq_topics() -> dict[str, dict[str, object]]:
    return {
        name: dict(value)
        for name, value in json.loads(ROCKETMQ_FILE.replace(b"{0:1}", b"{}"))["topicConfigTable"].items()
    }


@pytest.mark.parametrize("count", [-1, 0, 1025])
def test_queue_counts_have_limits(files: MemoryFileSystem, count: int) -> None:
    with pytest.raises(TroveError, match=r"REQUEST_ILLEGAL.*1 to 1024"):
        TopicTable.load(files).create("t", count)


@pytest.mark.parametrize("message_type", ["LITE", "normal", ""])
def test_types_that_are_not_built_are_refused(files: MemoryFileSystem, message_type: str) -> None:
    table = TopicTable.load(files)
    with pytest.raises(TroveError, match="MESSAGE_TYPE_UNSUPPORTED"):
        table.create("t", 1, message_type)
    table.create("t", 1024, "MIXED")
    with pytest.raises(TroveError, match="MESSAGE_TYPE_UNSUPPORTED"):
        table.alter("t", message_type=message_type)


def test_names_that_users_cannot_have(rocketmq_files: MemoryFileSystem) -> None:
    table = TopicTable.load(rocketmq_files, reserved={"DefaultCluster", "broker-a"})
    for name, symbol in [
        ("Orders", "TOPIC_EXISTS"),
        ("%RETRY%g", "TOPIC_ILLEGAL"),
        ("DefaultCluster", "TOPIC_ILLEGAL"),
        ("../x", "TOPIC_ILLEGAL"),
    ]:
        with pytest.raises(TroveError, match=symbol):
            table.create(name)
    table.create("orders")
    assert {"orders", "Orders"} <= set(table.names()), "names are case-sensitive"


def test_queues_are_only_added(rocketmq_files: MemoryFileSystem) -> None:
    table = TopicTable.load(rocketmq_files)
    with pytest.raises(TroveError, match=r"REQUEST_ILLEGAL.*6 to 1024"):
        table.alter("Orders", queue_count=5)
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        table.alter("Missing", queue_count=5)
    with pytest.raises(TroveError, match="TOPIC_ILLEGAL"):
        table.alter("SCHEDULE_TOPIC_XXXX", queue_count=20)
    assert table.alter("Orders", perm=6).writable
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        table.alter("Orders", perm=16)


def test_an_alteration_that_changes_nothing_writes_nothing(rocketmq_files: MemoryFileSystem) -> None:
    TopicTable.load(rocketmq_files).alter("Orders", message_type="FIFO")
    assert rocketmq_files.read_bytes(TOPICS_PATH) == ROCKETMQ_FILE


def test_the_names_that_changed_since_a_moment(
    rocketmq_files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_table, "CHANGES_KEPT", 4)
    table = TopicTable.load(rocketmq_files)
    table.create("a")
    moment = table.change_count
    assert table.changed_since(moment) == []
    table.create("b")
    table.alter("a", queue_count=20)
    table.alter("b", queue_count=20)
    table.delete("a")
    assert table.changed_since(moment) == ["b", "a"]
    with pytest.raises(TroveError, match="TOPIC_EXISTS"):
        table.create("b")
    assert table.changed_since(moment) == ["b", "a"]
    table.alter("b", queue_count=30)
    assert table.changed_since(moment) is None
    assert table.changed_since(moment + 1) == ["a", "b"]


def test_deletion(rocketmq_files: MemoryFileSystem) -> None:
    table = TopicTable.load(rocketmq_files)
    table.delete("Orders")
    assert "Orders" not in TopicTable.load(rocketmq_files.after_power_cut())
    assert "Orders" not in table
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        table.require("Orders")
    with pytest.raises(TroveError, match="TOPIC_ILLEGAL"):
        table.delete("SCHEDULE_TOPIC_XXXX")


def test_a_change_that_cannot_be_saved_is_not_made(rocketmq_files: MemoryFileSystem) -> None:
    faulty = FaultyFileSystem(rocketmq_files)
    table = TopicTable.load(faulty)
    changes: list[int] = []
    table.add_change_listener(lambda: changes.append(table.data_version))
    faulty.decide = fail_always("write_atomic", errno.ENOSPC, TOPICS_PATH)
    before = table.names(include_system=True), table.require("Orders"), table.data_version
    for change in (
        lambda: table.create("new"),
        lambda: table.alter("Orders", queue_count=7),
        lambda: table.delete("Orders"),
    ):
        with pytest.raises(TroveError, match="DISK_FULL"):
            change()
    assert (table.names(include_system=True), table.require("Orders"), table.data_version) == before
    assert changes == []
    faulty.decide = lambda operation, path: None
    table.create("new")
    assert changes == [8]


def test_the_number_of_topics_is_bounded(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TOPIC_COUNT_MAX", 1)
    table = TopicTable.load(files)
    table.create("a")
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        table.create("b")


@pytest.mark.parametrize(
    "content",
    [b'{"topicConfigTable":[]}', b'{"topicConfigTable":{"a":1}}', b'{"topicConfigTable":{"a":{"perm":"x"}}}'],
)
def test_a_file_of_another_shape_names_itself(files: MemoryFileSystem, content: bytes) -> None:
    files.write_atomic(TOPICS_PATH, content)
    with pytest.raises(TroveError, match=r"STORE_FAILED.*config/topics\.json"):
        TopicTable.load(files)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["create", "alter", "delete"]),
            st.sampled_from("abc"),
            st.integers(1, 4),
            st.sampled_from(MESSAGE_TYPES),
        ),
        max_size=12,
    )
)
def test_the_table_is_a_dictionary_that_survives_power_cuts(steps: list[tuple[str, str, int, str]]) -> None:
    files = MemoryFileSystem()
    model: dict[str, tuple[int, str]] = {}
    for operation, name, count, message_type in steps:
        table = TopicTable.load(files)
        assert {
            n: (table.require(n).queue_count, table.require(n).message_type) for n in table.names()
        } == model
        possible = (name in model) != (operation == "create")
        if operation == "alter" and possible:
            possible = count >= model[name][0]
        try:
            if operation == "create":
                table.create(name, count, message_type)
            elif operation == "alter":
                table.alter(name, queue_count=count, message_type=message_type)
            else:
                table.delete(name)
        except TroveError:
            assert not possible
        else:
            assert possible
            if operation == "delete":
                del model[name]
            else:
                model[name] = count, message_type
        files = files.after_power_cut()
