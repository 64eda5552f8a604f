"""Many topics: a change costs the same however many there are; RocketMQ reads them after a clean stop."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_proto.errors import TroveError
from trovemq_store.files.faulty import FaultyFileSystem, fail_at
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.paths import parent_directory
from trovemq_store.topics import topic_journal, topics_file
from trovemq_store.topics.lax_json import JsonObject, render
from trovemq_store.topics.topic_journal import PATH, TopicJournal, belongs_to
from trovemq_store.topics.topics import MESSAGE_TYPES, NewTopic, TopicTable
from trovemq_store.topics.topics_file import TOPICS_PATH


@pytest.fixture(autouse=True, scope="module")
def _small_tables_use_the_journal() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics_file, "JOURNAL_FROM", 2)
        patch.setattr(topic_journal, "FILE_SIZE", 2_048)
        yield


def _topics(table: TopicTable) -> dict[str, tuple[int, str]]:
    return {
        name: (table.require(name).queue_count, table.require(name).message_type) for name in table.names()
    }


def _made(files: MemoryFileSystem, *names: str) -> TopicTable:
    table = TopicTable.load(files)
    for name in names:
        table.create(name)
    return table


def _in_file(files: MemoryFileSystem) -> list[str]:
    document: JsonObject = json.loads(files.read_bytes(TOPICS_PATH))
    assert render(document) == files.read_bytes(TOPICS_PATH), "as one rendering of it all"
    table = document["topicConfigTable"]
    assert isinstance(table, dict)
    return sorted(table)


@pytest.mark.parametrize("there_before", [10, 300])
def test_making_a_topic_cost_as_much_as_there_were_topics(
    monkeypatch: pytest.MonkeyPatch, there_before: int
) -> None:
    monkeypatch.setattr(topic_journal, "FILE_SIZE", 1 << 20)
    memory = MemoryFileSystem()
    _made(memory, *(f"t{number}" for number in range(there_before)))
    calls: list[tuple[str, str]] = []

    def noted(operation: str, path: str) -> None:
        calls.append((operation, path))

    written = 0
    table = TopicTable.load(FaultyFileSystem(memory, noted))
    calls.clear()
    for group in range(4):
        change, refusals = table.begin_create_all([NewTopic(f"new{group}-{number}") for number in range(64)])
        assert change is not None
        assert refusals == [None] * 64
        change.run()
        table.finish(change)
        written += sum(operation in ("write", "write_atomic", "create", "rename") for operation, _ in calls)
        assert [call for call in calls if "sync" in call[0]] == [("sync", PATH)]
        calls.clear()
    assert written == 4, "one write for 64 topics"
    assert len(TopicTable.load(memory)) == there_before + 256


def test_rocketmq_reads_every_topic_after_a_clean_stop() -> None:
    files = MemoryFileSystem()
    table = _made(files, "a", "b", "c", "d")
    table.alter("a", queue_count=9)
    table.delete("b")
    assert _in_file(files) == ["a", "b"], "the rest is in the journal"
    table.write_file()
    assert _in_file(files) == ["a", "c", "d"]
    content = files.read_bytes(TOPICS_PATH)
    table.write_file()
    assert files.read_bytes(TOPICS_PATH) == content
    assert json.loads(content)["dataVersion"]["counter"] == 6
    assert _topics(TopicTable.load(files)) == _topics(table)


def test_topics_of_a_crashed_store_that_rocketmq_wrote_to_since_are_there() -> None:
    files = MemoryFileSystem()
    _made(files, "a", "b", "ours")
    document = json.loads(files.read_bytes(TOPICS_PATH))
    document["topicConfigTable"]["theirs"] = {**document["topicConfigTable"]["a"], "topicName": "theirs"}
    document["dataVersion"]["counter"] += 5
    files.write_atomic(TOPICS_PATH, render(document))
    table = TopicTable.load(files)
    assert table.names() == ["a", "b", "ours", "theirs"]
    table.create("more")
    assert _in_file(files) == ["a", "b", "more", "ours", "theirs"]
    assert _topics(TopicTable.load(files)) == _topics(table)


@pytest.mark.parametrize("count", [3, 40])
def test_topics_that_rocketmq_deleted_after_a_clean_stop_stay_deleted(count: int) -> None:
    files = MemoryFileSystem()
    table = _made(files, "a", "b", "c")
    for number in range(count - 3):  # enough for a new journal
        table.alter("c", queue_count=9 + number)
    table.write_file()
    files = files.after_power_cut()
    document = json.loads(files.read_bytes(TOPICS_PATH))
    del document["topicConfigTable"]["c"]
    files.write_atomic(TOPICS_PATH, render(document))
    table = TopicTable.load(files)
    assert table.names() == ["a", "b"]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_refused_topic_leaves_no_trace(operation: str) -> None:
    memory = MemoryFileSystem()
    _made(memory, "a", "b", "c")
    files = FaultyFileSystem(memory, fail_at(operation, 1, errno.EIO, PATH), tear=True)
    table = TopicTable.load(files)
    with pytest.raises(TroveError):
        table.create("refused")
    assert "refused" not in table
    assert TopicTable.load(memory).names() == ["a", "b", "c"]
    table.create("taken")
    assert TopicTable.load(memory).names() == ["a", "b", "c", "taken"]


def test_a_damaged_entry_hides_no_topic_after_it() -> None:
    files = MemoryFileSystem()
    _made(files, "a", "b", "c", "d")
    data = bytearray(files.read_bytes(PATH))
    data[data.index(b'"c"') + 1] ^= 1
    files.write_atomic(PATH, bytes(data))
    with pytest.raises(TroveError, match="is damaged at"):
        TopicTable.load(files)


def test_a_torn_last_entry_is_no_damage() -> None:
    files = MemoryFileSystem()
    _made(files, "a", "b", "c", "d")
    data = bytearray(files.read_bytes(PATH))
    data[data.index(b'"d"') + 1] ^= 1
    files.write_atomic(PATH, bytes(data))
    assert TopicTable.load(files).names() == ["a", "b", "c"]
    journal = TopicJournal(files)
    assert len(journal.load()) == 1


def test_a_change_after_the_table_shrank_was_lost_by_a_crash() -> None:
    """The journal of the larger table named an older file: its entries were applied to the later one."""
    files = MemoryFileSystem()
    table = _made(files, "a", "b", "c")
    for count in (9, 16):
        table.alter("a", queue_count=count)
    for name in ("b", "c"):
        table.delete(name)
    for count in (20, 21):
        table.alter("a", queue_count=count)
        assert TopicTable.load(files.after_power_cut()).require("a").queue_count == count


@pytest.mark.parametrize("restarted", [False, True])
def test_after_a_full_disk_no_topic_could_be_created_any_more(restarted: bool) -> None:
    memory, full = MemoryFileSystem(), True
    _made(memory, *"abcdef")

    def decide(operation: str, _path: str) -> int | None:
        return errno.ENOSPC if full and operation in ("write_atomic", "create") else None

    files = FaultyFileSystem(memory, decide)
    table, made, refusals = TopicTable.load(files), list("abcdef"), set[str]()
    for number in range(40):
        if restarted:
            files = FaultyFileSystem(memory := memory.after_power_cut(), decide)
            table = TopicTable.load(files)
        try:
            table.create(f"t{number}")
        except TroveError as error:
            refusals.add(error.symbol)
        else:
            made.append(f"t{number}")
    assert refusals == {"DISK_FULL"}
    full = False
    table.create("later")
    assert sorted(_topics(TopicTable.load(memory.after_power_cut()))) == sorted([*made, "later"])


class NoDescriptors(FaultyFileSystem):
    """The machine has no descriptors left when topics.json has its new content, before its directory is
    synced."""

    exhausted = False

    def write_atomic(self, path: str, data: bytes) -> None:
        if not self.exhausted:
            super().write_atomic(path, data)
        self.exhausted = self.exhausted or path == TOPICS_PATH
        if self.exhausted:
            raise StorageError("open", parent_directory(path), errno.EMFILE)


def test_a_topic_made_after_a_refused_file_was_lost_by_a_crash() -> None:
    memory = MemoryFileSystem()
    full_of = _made(memory, *"abcdef").names()
    files = NoDescriptors(memory)
    table = TopicTable.load(files)
    change, _ = table.begin_create_all([NewTopic(f"refused{number}") for number in range(20)])
    assert change is not None
    with pytest.raises(TroveError):
        change.run()
    table.finish(change)
    table.create("taken")  # in the journal
    assert belongs_to(memory.read_bytes(PATH), crc32(memory.read_bytes(TOPICS_PATH)), memory)
    assert {*full_of, "taken"} <= set(TopicTable.load(memory.after_power_cut()).names())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["create", "create", "alter", "delete", "stop", "cut"]),
            st.sampled_from("abcdefgh"),
            st.integers(1, 4),
            st.sampled_from(MESSAGE_TYPES),
        ),
        max_size=40,
    )
)
def test_the_table_is_a_dictionary_whatever_comes(steps: list[tuple[str, str, int, str]]) -> None:
    files = MemoryFileSystem()
    table = TopicTable.load(files)
    model: dict[str, tuple[int, str]] = {}
    for operation, name, count, message_type in steps:
        try:
            if operation == "create":
                table.create(name, count, message_type)
            elif operation == "alter":
                table.alter(name, queue_count=count, message_type=message_type)
            elif operation == "delete":
                table.delete(name)
        except TroveError:
            assert operation != "create" or name in model
            continue
        if operation in ("create", "alter"):
            model[name] = count, message_type
        elif operation == "delete":
            del model[name]
        elif operation == "stop":
            table.write_file()
            assert _in_file(files) == sorted(model) if model else True
            table = TopicTable.load(files)
        else:
            files = files.after_power_cut()
            table = TopicTable.load(files)
        assert _topics(table) == model
        assert _topics(TopicTable.load(files.after_power_cut())) == model
        assert table.priority_topics() == {n for n, (_, kind) in model.items() if kind == "PRIORITY"}


@given(st.integers(0, 60), st.sampled_from("abc"))
def test_whichever_call_fails_the_table_is_what_was_acknowledged(nth: int, operation: str) -> None:
    kind = {"a": "write", "b": "write_atomic", "c": "create"}[operation]
    memory = MemoryFileSystem()
    files = FaultyFileSystem(memory, fail_at(kind, nth, errno.EIO), tear=True)
    table = TopicTable.load(files)
    acknowledged: dict[str, tuple[int, str]] = {}
    for number in range(20):
        try:
            table.create(f"t{number}", 1 + number % 4)
        except TroveError:
            continue
        acknowledged[f"t{number}"] = 1 + number % 4, "NORMAL"
    assert _topics(table) == acknowledged
    assert _topics(TopicTable.load(memory)) == acknowledged
