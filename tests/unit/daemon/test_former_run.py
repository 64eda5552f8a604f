"""The lock of a node's former run, before this run listens."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.unit.daemon.memory_coordinator import MemoryCoordinator
from trovemq_broker.coordination.coordinator import Put
from trovemq_broker.daemon.replica import former_run
from trovemq_broker.daemon.replica.former_run import end_former_run
from trovemq_broker.replication.election_records import LOCK, LeaderLock, to_bytes
from trovemq_store.engine.opening import LOCK_PATH
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.replica.membership import Member, Members, Membership
from trovemq_store.replica.replica_file import ReplicaFile

pytestmark = pytest.mark.asyncio
LISTED = Members.first([Member("a", "a:1", "a:2")])


def store_of(node: str = "a", directory: int = 7) -> MemoryFileSystem:
    files = MemoryFileSystem()
    place = Membership(cluster="c", group="g", node=node, store_id="s1", directory=directory, listed=LISTED)
    ReplicaFile.open(files).take_place(place)
    return files


async def etcd_with(holder: str, store_id: str) -> MemoryCoordinator:
    etcd = MemoryCoordinator()
    lock = LeaderLock(epoch=64, node=holder, store_id=store_id)
    await etcd.swap([], [Put(LOCK, to_bytes(lock))])
    return etcd


def is_free(files: MemoryFileSystem) -> bool:
    with suppress(StorageError):
        files.lock(LOCK_PATH)
        return True
    return False


async def test_a_killed_leader_that_started_again_kept_its_group_waiting() -> None:
    """It listened before it had opened its store, so the others waited for its lease."""
    files, etcd = store_of(), await etcd_with("a", "s1")
    await end_former_run(files, "a", lambda: 7, etcd)
    assert LOCK not in etcd.values
    assert is_free(files), "the store is opened next"


@pytest.mark.parametrize(("holder", "store_id"), [("b", "s1"), ("a", "s2")])
async def test_the_lock_of_another_store_stays(holder: str, store_id: str) -> None:
    files, etcd = store_of(), await etcd_with(holder, store_id)
    await end_former_run(files, "a", lambda: 7, etcd)
    assert LOCK in etcd.values
    assert is_free(files)


async def test_a_second_process_of_a_store_takes_nothing_from_the_first() -> None:
    files, etcd = store_of(), await etcd_with("a", "s1")
    files.lock(LOCK_PATH)
    await end_former_run(files, "a", lambda: 7, etcd)
    assert LOCK in etcd.values
    assert not is_free(files)


async def test_the_lock_stays_where_the_store_is_a_copy_or_new() -> None:
    etcd = await etcd_with("a", "s1")
    for files in (store_of("b"), store_of(directory=8), MemoryFileSystem()):
        await end_former_run(files, "a", lambda: 7, etcd)
        assert LOCK in etcd.values
        assert is_free(files)


async def test_a_start_goes_on_without_etcd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former_run, "WAIT_S", 0.01)
    files, etcd = store_of(), await etcd_with("a", "s1")
    etcd.is_away = True
    await end_former_run(files, "a", lambda: 7, etcd)
    assert is_free(files)
