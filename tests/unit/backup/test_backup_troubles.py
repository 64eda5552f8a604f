"""Backups with obstacles: other file systems, full disks, links, files that change."""

from __future__ import annotations

import errno
import json
import os
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.backups import back_up, queues, refuse_restore, restored
from tests.support.engine import NOW_MS
from trovemq_broker.cluster_config import table_file
from trovemq_broker.security import table as security_table
from trovemq_broker.tools.__main__ import _check_restored
from trovemq_proto.errors import TroveError
from trovemq_store.backup import capture as capture_module
from trovemq_store.backup import copying
from trovemq_store.backup.capture import capture_log, queue_steps
from trovemq_store.backup.manifest import MANIFEST_NAME, STORE_NAME, load_manifest
from trovemq_store.backup.restore import SUFFIX, restore
from trovemq_store.backup.writer import LAST_OF_ALL, BackupWriter, checked_target
from trovemq_store.engine.message_store import MessageStore


def test_where_no_hard_links_can_be_made_files_are_copied(
    store: MessageStore,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", no_links)
    assert back_up(store, root, tmp_path / "backup", link=True).linked_files == 0
    assert queues(restored(tmp_path)) == queues(store)


def test_a_link_that_fails_otherwise_ends_the_backup(
    store: MessageStore,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", failing)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        back_up(store, root, tmp_path / "backup", link=True)
    assert not (tmp_path / "backup" / MANIFEST_NAME).exists()


def test_a_file_that_became_shorter_ends_the_backup(
    store: MessageStore,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, size, at) if at < 8_192 else b"")
    monkeypatch.setattr(copying, "CHUNK_BYTES", 4_096)
    with pytest.raises(OSError, match="ends at 8192 of"):
        back_up(store, root, tmp_path / "backup", link=False)
    assert not (tmp_path / "backup" / MANIFEST_NAME).exists()


def test_no_link_in_the_backup_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config").symlink_to(outside)
    with pytest.raises(FileExistsError):
        copying.write_file(tmp_path / "target", "config/topics.json", b"{}")
    assert not any(outside.iterdir())


def test_a_user_made_during_a_backup_was_in_no_table_of_the_copy(root: Path, tmp_path: Path) -> None:
    """Its deletion did not end its rights there. A change is stored in the table first, then in the users."""
    table, users = root / table_file.PATH, root / security_table.PATH
    copies = [path.with_name(f"{path.name}.bak") for path in (table, users)]

    def change(version: int) -> None:
        for path in (table, copies[0], users, copies[1]):
            path.write_text(str(version), encoding="utf-8")

    writer = BackupWriter(root, tmp_path / "backup")
    table.parent.mkdir(parents=True)
    change(0)
    writer.begin()
    last = (writer._copy_if_there(path) for path in LAST_OF_ALL)
    for version, _ in enumerate(chain(writer.small_files(), writer._topics(), *last), 1):
        change(version)
    copied = tmp_path / "backup" / STORE_NAME
    read = [
        int((copied / one.relative_to(root)).read_text(encoding="utf-8")) for one in (users, *copies, table)
    ]
    assert max(read[0], read[2]) <= min(read[1], read[3]), read


def test_a_link_in_the_store_is_not_copied(
    store: MessageStore,
    root: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "secret").write_text("secret")
    (root / "config" / "linked").symlink_to(tmp_path / "secret")
    back_up(store, root, tmp_path / "backup")
    assert "config/linked" not in {entry.path for entry in load_manifest(tmp_path / "backup").files}
    assert not (tmp_path / "backup" / STORE_NAME / "config/linked").exists()


@pytest.mark.parametrize("other_disk", [False, True])
def test_a_disk_without_space_is_reported_before_the_log_is_copied(
    store: MessageStore,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other_disk: bool,
) -> None:
    """On a separate disk a backup takes as much as the store has, also where it could be linked."""
    writer = BackupWriter(root, checked_target(str(tmp_path / "backup"), root))
    writer.begin()
    list(writer.small_files())
    capture = capture_log(store, link=True)
    list(queue_steps(store, capture))
    space = capture.bytes_total - 1 if other_disk else 0
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=space, f_frsize=1))
    if other_disk:
        real_stat, target = Path.stat, tmp_path / "backup"
        monkeypatch.setattr(
            Path,
            "stat",
            lambda path, **given: SimpleNamespace(st_dev=-1) if path == target else real_stat(path, **given),
        )
    with pytest.raises(TroveError, match="has no space") as caught:
        list(writer.rest(capture, NOW_MS, "cluster", "broker"))
    assert caught.value.symbol == "DISK_FULL"
    monkeypatch.undo()
    assert not (tmp_path / "backup" / STORE_NAME / "commitlog").exists()
    writer.discard()
    assert not (tmp_path / "backup").exists()


def test_a_backup_that_never_began_has_nothing_to_discard(root: Path, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    writer = BackupWriter(root, tmp_path / "backup")
    writer.discard()
    assert (tmp_path / "backup").is_dir()


def test_a_topic_deleted_while_its_queues_are_copied_is_not_in_the_backup(
    store: MessageStore,
    root: Path,
    tmp_path: Path,
) -> None:
    """One file of its queue was copied by then, and goes again."""

    def delete() -> None:
        store.delete_topic("orders", NOW_MS)
        first = root / "consumequeue/orders/0" / f"{0:020d}"
        first.parent.mkdir(parents=True)
        first.write_bytes(bytes(400))

    back_up(store, root, tmp_path / "backup", after_capture=delete)
    paths = {entry.path for entry in load_manifest(tmp_path / "backup").files}
    assert not [path for path in paths if path.startswith("consumequeue/orders")]
    assert not (tmp_path / "backup" / STORE_NAME / "consumequeue/orders/0" / f"{0:020d}").exists()
    assert restored(tmp_path).topics.get("orders") is None


def test_the_queues_of_a_large_store_are_captured_in_steps(
    store: MessageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capture_module, "QUEUES_AT_ONCE", 2)
    capture = capture_log(store, link=True)
    assert len(list(queue_steps(store, capture))) == 2
    assert len(capture.queues) == 4


# --- restores ---------------------------------------------------------------------------------------------
def test_an_empty_directory_is_replaced_by_the_restored_store(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "restored").mkdir()
    again = restored(tmp_path)
    assert sum(map(len, queues(again))) == 100
    again.close(NOW_MS)


def test_files_of_an_interrupted_restore_are_not_touched(backup: Path, tmp_path: Path) -> None:
    left = tmp_path / f"restored{SUFFIX}"
    left.mkdir()
    with pytest.raises(TroveError, match="a restore left it unfinished"):
        restore(tmp_path / "backup", tmp_path / "restored", _check_restored)
    assert left.is_dir()
    assert not (tmp_path / "restored").exists()


def test_a_manifest_that_is_a_link(backup: Path, tmp_path: Path) -> None:
    manifest = backup.parent / MANIFEST_NAME
    manifest.rename(tmp_path / "elsewhere")
    manifest.symlink_to(tmp_path / "elsewhere")
    assert "is not a manifest" in refuse_restore(tmp_path)


def test_a_manifest_that_names_a_file_twice(backup: Path, tmp_path: Path) -> None:
    manifest = backup.parent / MANIFEST_NAME
    document = json.loads(manifest.read_bytes())
    document["files"].append(document["files"][0])
    manifest.write_text(json.dumps(document))
    assert "names a file twice" in refuse_restore(tmp_path)
