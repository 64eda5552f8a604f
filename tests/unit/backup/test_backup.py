"""Backups of open stores, and their restores, on real files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.backups import back_up, fill, queues, refuse_restore, restored
from tests.support.engine import NOW_MS, SMALL_SYNC, flush, open_store, scan_bodies, send
from trovemq_broker.cluster_config.entries import ChangeKind, ClockMs, ConfigChange, Kind
from trovemq_broker.cluster_config.owner import Owner, begin_founding
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.security import changes
from trovemq_broker.security.sealing import SealingKey, SecretSealer
from trovemq_broker.security.table import SecurityTable
from trovemq_broker.tools.__main__ import _check_restored
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.backup.capture import capture_log, queue_steps
from trovemq_store.backup.manifest import MANIFEST_NAME, STORE_NAME, FileEntry, load_manifest
from trovemq_store.backup.restore import restore
from trovemq_store.backup.writer import BackupWriter, checked_target
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.real import RealFileSystem
from trovemq_store.topics import topic_journal, topics_file


# --- whole backups ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("link", [True, False])
def test_a_restored_store_has_what_was_synced(
    store: MessageStore, root: Path, tmp_path: Path, link: bool
) -> None:
    expected, offsets = queues(store), store.end_offset
    store.offsets.commit("billing", "orders", QueueId(0), QueueOffset(7))
    store.offsets.persist()
    writer = back_up(store, root, tmp_path / "backup", link=link, after_capture=lambda: fill(store, 30, 500))
    assert (writer.linked_files > 2) == link
    copy = restored(tmp_path)
    assert queues(copy) == expected
    assert copy.end_offset == offsets
    assert copy.topics.names() == ["gone", "orders"]
    assert copy.offsets.get("billing", "orders", QueueId(0)) == 7
    assert copy.key_index is not None
    copy.catch_up(1 << 20)
    assert copy.key_index.position == offsets
    fill(copy, 5, 900)
    assert queues(copy)[0][-1] == b"orders 904".ljust(300)
    copy.close(NOW_MS)


def test_users_and_rules_are_in_it_sealed(store: MessageStore, root: Path, tmp_path: Path) -> None:
    key, secret = SealingKey(bytes(range(32))), b"canary-secret-7"
    table = SecurityTable.load(store.files, key, bytes)
    made = new_user("alice", UserKind.NORMAL, secret, salt=bytes(16), now_ms=0)
    after = changes.add_user(table.state, made)
    after, _ = changes.add_rule(after, "alice", allow=True, actions="Pub", resource="Topic:orders")
    change = table.begin(after)
    change.run()
    table.finish(change)
    back_up(store, root, tmp_path / "backup", link=False)
    assert not [
        path for path in (tmp_path / "backup").rglob("*") if path.is_file() and secret in path.read_bytes()
    ]
    copy = restored(tmp_path)
    again = SecurityTable.load(copy.files, key, bytes)
    assert again.state == table.state
    with pytest.raises(TroveError, match="SEALING_KEY_MISMATCH"):
        SecurityTable.load(copy.files, SealingKey(bytes(32)), bytes)
    copy.close(NOW_MS)


def test_users_of_the_cluster_are_in_it_sealed(store: MessageStore, root: Path, tmp_path: Path) -> None:
    key, secret = SealingKey(bytes(range(32))), b"canary-secret-8"
    table = StoredTable.load(store.files, SecretSealer(key, bytes, "cluster:"))
    work = begin_founding(table, "a", "store-a", cluster="c1", mark="0123456789abcdef")
    work.run()
    table.finish(work)
    begun = Owner(table, "a", ClockMs(0)).begin(
        [ConfigChange(ChangeKind.CREATE, Kind.USER, "alice", secrets=secret)]
    )
    begun.run()
    assert begun.stored is not None
    table.finish(begun.stored)
    back_up(store, root, tmp_path / "backup", link=False)
    assert not [
        path for path in (tmp_path / "backup").rglob("*") if path.is_file() and secret in path.read_bytes()
    ]
    copy = restored(tmp_path)
    again = StoredTable.load(copy.files, SecretSealer(key, bytes, "cluster:"))
    assert again.table.image() == table.table.image()
    with pytest.raises(TroveError, match="SEALING_KEY_MISMATCH"):
        StoredTable.load(copy.files, SecretSealer(SealingKey(bytes(32)), bytes, "cluster:"))
    copy.close(NOW_MS)


def test_what_is_not_synced_is_not_in_it(store: MessageStore, root: Path, tmp_path: Path) -> None:
    expected = scan_bodies(store)
    back_up(store, root, tmp_path / "backup", before_capture=lambda: fill(store, 30, 500))
    copy = restored(tmp_path)
    assert scan_bodies(copy) == expected
    assert sum(map(len, queues(copy))) == len(expected)
    copy.close(NOW_MS)


def test_it_takes_what_is_synced_after_the_small_files(
    store: MessageStore, root: Path, tmp_path: Path
) -> None:
    def more() -> None:
        store.topics.create("late", queue_count=4)
        fill(store, 8, topic="late")
        flush(store)

    back_up(store, root, tmp_path / "backup", before_capture=more)
    copy = restored(tmp_path)
    assert queues(copy, "late")[0] == [b"late 0".ljust(300), b"late 4".ljust(300)]
    copy.close(NOW_MS)


def test_changes_of_many_topics_during_a_backup_were_not_in_it(
    store: MessageStore, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal was copied at the beginning and topics.json at the end."""
    monkeypatch.setattr(topics_file, "JOURNAL_FROM", 2)
    store.topics.create("before", queue_count=4)
    store.topics.create("altered", queue_count=4)

    def change() -> None:
        store.topics.create("late", queue_count=4)
        store.topics.alter("altered", queue_count=8)
        store.delete_topic("before", NOW_MS)

    back_up(store, root, tmp_path / "backup", before_capture=change)
    copy = restored(tmp_path)
    assert copy.topics.get("late") is not None
    assert copy.topics.get("before") is None
    assert copy.topics.require("altered").queue_count == 8
    copy.close(NOW_MS)


@pytest.mark.parametrize("changes", [1, 10, 30])
def test_topics_that_change_while_they_are_copied_are_those_of_one_time(
    store: MessageStore, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    """topics.json is replaced between its copy and that of the journal, the first few times."""
    monkeypatch.setattr(topics_file, "JOURNAL_FROM", 2)
    monkeypatch.setattr(topic_journal, "FILE_SIZE", 2_048)
    read, counts, reads = BackupWriter._bytes_of, {4}, 0
    store.topics.create("altered", queue_count=4)

    def and_changed(writer: BackupWriter, path: str) -> bytes | None:
        nonlocal reads
        data, reads = read(writer, path), reads + 1
        if reads <= 9:
            for _ in range(changes):
                counts.add(len(counts) + 4)
                store.topics.alter("altered", queue_count=max(counts))
        return data

    monkeypatch.setattr(BackupWriter, "_bytes_of", and_changed)
    back_up(store, root, tmp_path / "backup")
    copy = restored(tmp_path)
    assert copy.topics.require("altered").queue_count in counts
    assert len(copy.topics) == len(store.topics)
    if changes > 1:
        assert copy.topics.require("altered").queue_count == max(counts), "it was read again"
    copy.close(NOW_MS)


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_meanwhile(
    store: MessageStore, root: Path, tmp_path: Path, again: bool
) -> None:
    fill(store, 20, topic="gone")
    flush(store)

    def delete() -> None:
        store.delete_topic("gone", NOW_MS)
        if again:
            store.topics.create("gone", queue_count=4)
            fill(store, 8, 700, topic="gone")
            flush(store)

    back_up(store, root, tmp_path / "backup", after_capture=delete)
    copy = restored(tmp_path)
    assert (copy.topics.get("gone") is not None) == again
    assert queues(copy, "gone") == [[], [], [], []]
    assert queues(copy) == queues(store)
    copy.close(NOW_MS)


def test_a_queue_whose_messages_are_all_gone_keeps_its_place(root: Path, tmp_path: Path) -> None:
    store = open_store(RealFileSystem(root), SMALL_SYNC, topics=("orders", "rare"))
    send(store, b"once", topic="rare")
    for first in range(0, 120, 10):
        fill(store, 10, first)
        flush(store)
    store.flush_projections()
    trim_now(store.trim(store.closed_segments()[-1].end))
    assert store.min_offset > 0
    back_up(store, root, tmp_path / "backup")
    copy = restored(tmp_path)
    assert copy.min_offset == store.min_offset
    assert copy.consume_queues.next_offset("rare", QueueId(0)) == 1
    assert queues(copy) == queues(store)
    store.close(NOW_MS)
    copy.close(NOW_MS)


def test_a_linked_segment_is_not_changed_by_the_store_that_continues(
    store: MessageStore, root: Path, tmp_path: Path
) -> None:
    back_up(store, root, tmp_path / "backup")
    first = tmp_path / "backup" / STORE_NAME / "commitlog" / f"{0:020d}"
    assert first.stat().st_nlink == 2
    fill(store, 100, 500)
    flush(store)
    store.flush_projections()
    trim_now(store.trim(store.closed_segments()[-1].end))
    assert first.stat().st_nlink == 1
    restore(tmp_path / "backup", tmp_path / "restored", _check_restored)
    assert (tmp_path / "restored" / "commitlog" / first.name).stat().st_nlink == 1


def test_the_manifest_names_every_file(store: MessageStore, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    back_up(store, root, target)
    manifest = load_manifest(target)
    there = {str(p.relative_to(target / STORE_NAME)) for p in (target / STORE_NAME).rglob("*") if p.is_file()}
    assert {entry.path for entry in manifest.files} == there
    assert (manifest.cluster, manifest.broker, manifest.log_end) == (
        "cluster",
        "broker",
        store.flushed_offset,
    )
    assert {path.split("/")[0] for path in there} == {"abort", "checkpoint", "commitlog", "config",
                                                      "consumequeue", "trovemq"}  # fmt: skip


def test_a_cancelled_backup_restores_the_target(store: MessageStore, root: Path, tmp_path: Path) -> None:
    for target in (tmp_path / "new", tmp_path / "empty"):
        if target.name == "empty":
            target.mkdir()
        writer = BackupWriter(root, checked_target(str(target), root))
        writer.begin()
        list(writer.small_files())
        capture = capture_log(store, link=True)
        list(queue_steps(store, capture))
        next(writer.rest(capture, NOW_MS, "cluster", "broker"))
        writer.discard()
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "empty").iterdir()) == []


# --- directories that are refused -------------------------------------------------------------------------
def refuse(directory: object, root: Path) -> str:
    with pytest.raises(TroveError) as caught:
        checked_target(str(directory), root)
    assert caught.value.spec is errors.REQUEST_ILLEGAL
    return caught.value.message


def test_directories_that_are_refused(root: Path, tmp_path: Path) -> None:
    root.mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "real").mkdir()
    (tmp_path / "around").symlink_to(tmp_path / "real")
    assert "not a plain absolute path" in refuse("backup", root)
    assert "not a plain absolute path" in refuse(f"{tmp_path}/a/../b", root)
    assert "not a plain absolute path" in refuse(f"{tmp_path}/a\0", root)
    assert "not a plain absolute path" in refuse("", root)
    assert "in each other" in refuse(root / "backup", root)
    assert "in each other" in refuse(root, root)
    assert "in each other" in refuse(tmp_path, root)
    assert "not a plain absolute path" in refuse("/", root)
    assert "not an empty directory" in refuse(tmp_path / "full", root)
    assert "not an empty directory" in refuse(tmp_path / "full" / "file", root)
    assert "symbolic link" in refuse(tmp_path / "link", root)
    assert "symbolic link" in refuse(tmp_path / "around" / "backup", root)
    assert "not a directory" in refuse(tmp_path / "missing" / "backup", root)
    assert checked_target(f"{tmp_path}/backup", root) == tmp_path / "backup"


# --- restores that are refused ----------------------------------------------------------------------------
def test_a_changed_byte(backup: Path, tmp_path: Path) -> None:
    path = backup / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    assert "another SHA-256" in refuse_restore(tmp_path)


def test_bytes_after_the_end(backup: Path, tmp_path: Path) -> None:
    path = max((backup / "commitlog").iterdir())
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"garbage!")
    assert "is not zero from byte" in refuse_restore(tmp_path)


def test_another_size(backup: Path, tmp_path: Path) -> None:
    os.truncate(backup / "commitlog" / f"{0:020d}", 100)
    assert "has 100 bytes instead of 12288" in refuse_restore(tmp_path)


def test_a_file_too_few_or_too_many(backup: Path, tmp_path: Path) -> None:
    (backup / "extra").touch()
    assert "has, unnamed in its manifest, 1 files: extra" in refuse_restore(tmp_path)
    (backup / "extra").unlink()
    (backup / "config" / "topics.json").unlink()
    assert "lacks 1 files: config/topics.json" in refuse_restore(tmp_path)


def test_a_backup_without_a_manifest(backup: Path, tmp_path: Path) -> None:
    (backup.parent / MANIFEST_NAME).unlink()
    assert "is not a whole backup" in refuse_restore(tmp_path)


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../b", "", ".", "a//b", "a\0b"])
def test_a_manifest_that_leads_out_of_the_store(backup: Path, tmp_path: Path, path: str) -> None:
    manifest = backup.parent / MANIFEST_NAME
    document = json.loads(manifest.read_bytes())
    document["files"][0]["path"] = path
    manifest.write_text(json.dumps(document))
    assert "is damaged" in refuse_restore(tmp_path)


def test_a_manifest_of_a_newer_version(backup: Path, tmp_path: Path) -> None:
    manifest = backup.parent / MANIFEST_NAME
    manifest.write_text(json.dumps({**json.loads(manifest.read_bytes()), "format": 2}))
    assert "has format 2" in refuse_restore(tmp_path)


def test_a_store_with_damage_that_was_backed_up_is_not_put_in_place(
    store: MessageStore, root: Path, tmp_path: Path
) -> None:
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(200)
        file.write(b"damage")
    back_up(store, root, tmp_path / "backup")
    assert "findings" in refuse_restore(tmp_path)


def test_a_store_that_is_there_is_not_replaced(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "restored").mkdir()
    (tmp_path / "restored" / "mine").touch()
    with pytest.raises(TroveError, match="is there, and is not an empty directory"):
        restore(tmp_path / "backup", tmp_path / "restored", _check_restored)
    assert (tmp_path / "restored" / "mine").exists()


def test_an_entry_is_checked() -> None:
    with pytest.raises(ValueError, match="has 5 of 4 bytes"):
        FileEntry(path="a", size=4, data_size=5, sha256="")
