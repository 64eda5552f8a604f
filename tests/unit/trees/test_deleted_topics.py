"""The trees' entries of deleted topics: they go, and no topic of the same name gets them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.deduplicated import step
from tests.support.engine import NOW_MS, SMALL_SYNC, flush, open_store, send
from trovemq_proto.positions import QueueId
from trovemq_proto.records.priorities import PRIORITY_DEFAULT
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.trees.layout import META, ORDER, PROPERTY_FROM, RETIRED, TERM, TOPICS, UNIQUE_ID

SETTINGS = replace(SMALL_SYNC, tree_index_enable=True)
TOPIC = "orders"
OPTIONS = {"deduplicate": "1h", "order": "priority", "indexed_properties": "carrier"}


def opened(files: FileSystem) -> MessageStore:
    store = open_store(files, SETTINGS, topics=())
    if store.topics.get(TOPIC) is None:
        store.topics.create(TOPIC, 1, options=OPTIONS)
    return store


def filled(store: MessageStore, *, priority: int = PRIORITY_DEFAULT) -> None:
    properties = {"carrier": "UA", "_SYS_MSG_PRIORITY_": str(priority)}
    for number in range(3):
        send(store, b"body", topic=TOPIC, unique_key=f"id-{number}", properties=properties)
    flush(store)


def caught_up(store: MessageStore) -> None:
    while step(store):
        pass


def sweep(store: MessageStore) -> None:
    assert store.trees is not None
    while store.trees.sweep(10):
        pass


def left(store: MessageStore) -> dict[str, int]:
    """Entries by tree."""
    assert store.trees is not None
    with store.trees.trees.read() as reader:
        found = {tree: reader.count(tree) for tree in (TOPICS, RETIRED, TERM, UNIQUE_ID, ORDER)}
        found["declared"] = sum(key.startswith(PROPERTY_FROM) for key, _ in reader.items(META, b""))
    return found


def test_the_entries_of_a_deleted_topic_stayed_for_ever() -> None:
    files = MemoryFileSystem()
    store = opened(files)
    filled(store)
    caught_up(store)
    assert all(count for tree, count in left(store).items() if tree != RETIRED)
    store.delete_topic(TOPIC, NOW_MS)
    sweep(store)
    assert not any(left(store).values())
    again = open_store(files.after_power_cut(), SETTINGS, topics=())
    assert not any(left(again).values())
    again.topics.create(TOPIC, 1, options=OPTIONS)
    filled(again)
    caught_up(again)
    assert left(again)[UNIQUE_ID] == 3


def test_properties_a_deleted_topic_declared_stayed_when_it_was_recreated() -> None:
    store = opened(MemoryFileSystem())
    for _ in range(3):
        filled(store)
        caught_up(store)
        store.delete_topic(TOPIC, NOW_MS)
        store.topics.create(TOPIC, 1, options=OPTIONS)
    filled(store)
    caught_up(store)
    sweep(store)
    assert left(store)["declared"] == 1
    assert left(store)[TOPICS] == 1


def test_a_failed_sweep_leaves_what_it_would_have_taken_to_the_next_one() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = opened(files)
    filled(store)
    caught_up(store)
    store.delete_topic(TOPIC, NOW_MS)
    files.decide = lambda operation, _path: errno.ENOSPC if operation == "commit" else None
    with pytest.raises(StorageError):
        sweep(store)
    assert left(store)[TOPICS] == 1
    files.decide = lambda _operation, _path: None
    sweep(store)
    assert not any(left(store).values())


def test_messages_of_a_topic_deleted_beside_a_step_went_to_its_namesake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = opened(MemoryFileSystem())
    trees = store.trees
    assert trees is not None

    def made_again() -> None:
        store.delete_topic(TOPIC, NOW_MS)
        store.topics.create(TOPIC, 1, options=OPTIONS)

    def deleting(read: Callable[..., object]) -> Callable[..., object]:
        def and_then(*arguments: object) -> object:
            found = read(*arguments)
            made_again()  # on the event loop, while the step's thread is here
            return found

        return and_then

    for index in trees.indexes:
        filled(store, priority=9)
        with monkeypatch.context() as patch:
            patch.setattr(index, "_read", deleting(index._read))
            caught_up(store)
        filled(store, priority=1)
        caught_up(store)
        assert trees.order.offsets(TOPIC, QueueId(0), 9, 0, 100, 100) == []
        assert trees.order.offsets(TOPIC, QueueId(0), 1, 0, 100, 100) == [0, 1, 2]
        made_again()
    filled(store)
    caught_up(store)
    sweep(store)
    assert left(store)[UNIQUE_ID] == left(store)[ORDER] - 1 == 3
    assert left(store)[TERM] == 4  # three unique keys, one property
