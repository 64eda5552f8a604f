"""R4, for tools on directories: a repair, a backup and a restore killed, failed and held at every point.

killed: the directory at that moment is opened. failed: the call next to the point fails; the work so far is
undone or can be begun again. held: a live store continues, or the tool does after a copy was opened.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.durability.script_check import check_queues, scan
from tests.support.engine import NOW_MS, SMALL_SYNC, append, flush, record, scan_bodies
from tests.support.trials import Trials
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_store.backup.capture import capture_log, queue_steps
from trovemq_store.backup.manifest import MANIFEST_NAME
from trovemq_store.backup.restore import restore
from trovemq_store.backup.writer import BackupWriter
from trovemq_store.check.repair import repair
from trovemq_store.check.store_view import StoreView
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.fault_points import POINTS, armed
from trovemq_store.files.files import StorageError
from trovemq_store.files.real import RealFileSystem

SETTINGS: Final = replace(SMALL_SYNC, index_item_count=64)
SIZES: Final = {
    "commit_log_file_size": SETTINGS.commit_log_file_size,
    "index_slot_count": SETTINGS.index_slot_count,
    "index_item_count": SETTINGS.index_item_count,
}
WHAT: Final = "fault points, each killed, failed and paused"


def points(area: str) -> list[str]:
    return [name for name in POINTS if name.startswith(f"{area}.")]


def fill(store: MessageStore, begin: int, end: int) -> None:
    for number in range(begin, end):
        queue_id = number % 3
        one = record(
            f"{number:05d}".encode().ljust(400),
            queue_id=QueueId(queue_id),
            keys=f"k{number % 5}",
            append_property_crc=SETTINGS.append_property_crc,
        )
        append(store, one, queue_id=QueueId(queue_id), now_ms=NOW_MS + number)
    flush(store)


def make(root: Path) -> MessageStore:
    """An open store of 90 messages; the first of them are removed, and `bills` has nothing left."""
    store = MessageStore.open(RealFileSystem(root), SETTINGS, NOW_MS)
    for topic in ("orders", "bills"):
        store.topics.create(topic, queue_count=3)
    append(
        store,
        record(b"old", topic="bills", append_property_crc=SETTINGS.append_property_crc),
        topic="bills",
    )
    fill(store, 0, 90)
    store.flush_projections(index=True)
    trim_now(store.trim(store.closed_segments()[0].end))
    return store


def check(root: Path, bodies: list[bytes]) -> None:
    """The directory opens, has all of these messages, and queues that continue with the right number."""
    store = MessageStore.open(RealFileSystem(root), SETTINGS, NOW_MS)
    try:
        assert scan_bodies(store) == bodies
        check_queues(store, scan(store))
        assert store.consume_queues.next_offset("bills", QueueId(0)) == 1
    finally:
        store.close(NOW_MS)


def at(point: str, act: Callable[[], None]) -> Callable[[str], None]:
    """Calls `act` when the point is passed first."""
    passed: list[str] = []

    def action(name: str) -> None:
        if name == point and not passed:
            passed.append(name)
            act()

    return action


def fail() -> None:
    raise StorageError("write", "somewhere", errno.EIO)


def fail_as_the_system_does() -> None:
    raise OSError(errno.ENOSPC, "no space")


@pytest.fixture
def closed(tmp_path: Path) -> tuple[Path, list[bytes]]:
    root = tmp_path / "store"
    store = make(root)
    bodies = scan_bodies(store)
    store.close(NOW_MS)
    return root, bodies


def run_repair(root: Path) -> None:
    repair(StoreView.open(root, SIZES | {"consume_queue_file_size": SETTINGS.consume_queue_file_size}), root)


@pytest.mark.parametrize("point", points("repair"))
def test_a_repair(point: str, closed: tuple[Path, list[bytes]], tmp_path: Path, trials: Trials) -> None:
    root, bodies = closed
    killed, failed = tmp_path / "killed", tmp_path / "failed"
    shutil.copytree(root, failed)

    def copy_and_open() -> None:
        shutil.copytree(root, killed)
        shutil.copytree(root, tmp_path / "beside")
        check(tmp_path / "beside", bodies)

    with armed(at(point, copy_and_open)):
        run_repair(root)
    check(root, bodies)
    run_repair(killed)
    check(killed, bodies)
    with armed(at(point, fail)), pytest.raises(StorageError):
        run_repair(failed)
    run_repair(failed)
    check(failed, bodies)
    trials.count("R4", WHAT, 3)


def back_up(store: MessageStore, root: Path, target: Path) -> None:
    """As the service does it: a failed one is undone."""
    writer = BackupWriter(root, target)
    store.removal_holds += 1
    try:
        writer.begin()
        list(writer.small_files())
        capture = capture_log(store, link=True)
        list(queue_steps(store, capture))
        list(writer.rest(capture, NOW_MS, "cluster", "broker"))
    except OSError:
        writer.discard()
        raise
    finally:
        store.removal_holds -= 1


def no_check(_path: Path) -> None:
    """The restored store is opened and checked afterwards."""


@pytest.mark.parametrize("point", points("backup"))
def test_a_backup(point: str, tmp_path: Path, trials: Trials) -> None:
    root, whole, killed = tmp_path / "store", tmp_path / "whole", tmp_path / "killed"
    store = make(root)

    def copy_and_go_on() -> None:
        shutil.copytree(whole, killed)
        fill(store, 90, 120)

    before = scan_bodies(store)
    with armed(at(point, copy_and_go_on)):
        back_up(store, root, whole)
    later = scan_bodies(store)
    restore(whole, tmp_path / "restored", no_check)
    check(tmp_path / "restored", later if point == "backup.begun" else before)
    if (killed / MANIFEST_NAME).exists():
        restore(killed, tmp_path / "from-killed", no_check)
        check(tmp_path / "from-killed", before)
    else:
        with pytest.raises(TroveError, match="STORE_FAILED"):
            restore(killed, tmp_path / "from-killed", no_check)
    failed = tmp_path / "failed"
    with armed(at(point, fail_as_the_system_does)), pytest.raises(OSError, match="no space"):
        back_up(store, root, failed)
    assert not failed.exists(), "a failed backup is removed"
    store.close(NOW_MS)
    check(root, later)
    trials.count("R4", WHAT, 3)


@pytest.mark.parametrize("point", points("restore"))
def test_a_restore(point: str, tmp_path: Path, trials: Trials) -> None:
    store = make(tmp_path / "store")
    bodies = scan_bodies(store)
    back_up(store, tmp_path / "store", tmp_path / "backup")
    store.close(NOW_MS)
    target = tmp_path / "restored"

    def nothing_there() -> None:
        assert not target.exists(), "nothing stands at the store's path before all of it is right"

    with armed(at(point, fail_as_the_system_does)), pytest.raises(OSError, match="no space"):
        restore(tmp_path / "backup", target, no_check)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "store"]
    with armed(at(point, nothing_there)):
        restore(tmp_path / "backup", target, no_check)
    check(target, bodies)
    trials.count("R4", WHAT, 3)
