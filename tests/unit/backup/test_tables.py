"""Backups of a store whose tables are records of the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.backups import back_up, fill
from tests.support.engine import NOW_MS, SMALL_SYNC, flush
from trovemq_broker.tools.__main__ import _check_restored
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.backup.restore import restore
from trovemq_store.backup.writer import BackupWriter
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem
from trovemq_store.topics.offsets import OFFSETS_PATH
from trovemq_store.topics.security_entries import SECURITY_PATH
from trovemq_store.topics.subscription_groups import (
    SUBSCRIPTION_GROUPS_PATH,
    SubscriptionGroup,
    SubscriptionGroups,
)
from trovemq_store.topics.table_notes import NOTES_PATH
from trovemq_store.topics.topics_file import TOPICS_PATH

SETTINGS = replace(SMALL_SYNC, tables_in_log=True)
Both = tuple[MessageStore, SubscriptionGroups]


def opened(root: Path) -> Both:
    store = MessageStore.open(RealFileSystem(root), SETTINGS, NOW_MS)
    groups = SubscriptionGroups.load(store.files)
    assert store.tables is not None
    store.tables.attach(groups)
    return store, groups


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    store, groups = opened(tmp_path / "store")
    store.topics.create("orders", 4)
    groups.create(SubscriptionGroup("billing", retry_max=1))
    fill(store, 20)
    flush(store)
    write(store)
    yield store, groups
    store.close(NOW_MS)


def write(store: MessageStore) -> None:
    flush(store)
    assert store.tables is not None
    store.tables.write_now()


def restored(tmp_path: Path) -> Both:
    restore(tmp_path / "backup", tmp_path / "restored", _check_restored)
    return opened(tmp_path / "restored")


def change(both: Both, number: int) -> None:
    """One change of each table."""
    store, groups = both
    groups.alter("billing", retry_max=number)
    store.topics.alter("orders", queue_count=number)
    store.offsets.commit("billing", "orders", QueueId(0), QueueOffset(number - 4))
    store.offsets.record_next("billing", "orders")
    assert store.tables is not None
    store.tables.record_offsets()
    assert store.security is not None
    entries = store.security.begin_change([("user/alice", {"number": number}), ("table", {"version": 1})])
    entries.run()
    store.security.finish(entries)


@pytest.mark.parametrize(
    "path", [NOTES_PATH, SUBSCRIPTION_GROUPS_PATH, TOPICS_PATH, OFFSETS_PATH, SECURITY_PATH]
)
def test_a_backup_whose_file_was_replaced_between_undid_changes(
    both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A file and its notes were not copied at one time: a restored store took it for one that another program
    had changed back."""
    store, _ = both
    read = BackupWriter._bytes_of
    changed: list[str] = []

    def and_changed(writer: BackupWriter, name: str) -> bytes | None:
        content = read(writer, name)
        if name == path and not changed:
            changed.append(name)
            for number in (6, 7):
                change(both, number)
                write(store)
        return content

    change(both, 5)
    flush(store)
    monkeypatch.setattr(BackupWriter, "_bytes_of", and_changed)
    back_up(store, tmp_path / "store", tmp_path / "backup")
    assert changed
    again, its_groups = restored(tmp_path)
    assert again.topics.require("orders").queue_count == 7
    assert its_groups.require("billing").retry_max == 7
    assert again.offsets.get("billing", "orders", QueueId(0)) == 3
    assert again.security is not None
    assert again.security.value_of("user/alice") == {"number": 7}
    again.close(NOW_MS)


def test_changes_that_are_in_the_log_alone_are_in_a_backup(both: Both, tmp_path: Path) -> None:
    store, groups = both
    store.topics.alter("orders", queue_count=9)
    groups.create(SubscriptionGroup("late"))
    flush(store)
    back_up(store, tmp_path / "store", tmp_path / "backup")
    again, its_groups = restored(tmp_path)
    assert again.topics.require("orders").queue_count == 9
    assert "late" in its_groups
    again.close(NOW_MS)
