"""The lock in etcd of a node's former run, before this run listens.

A killed leader that starts again listens long before it has opened its store: the other nodes then find a
process there, and would wait for the lease of the one that has ended. So a start that holds the store's lock,
and with it knows that no other process has the store, deletes the lock of this store first, by its revision.

Nothing else depends on it: without an answer of etcd the lock goes with its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from trovemq_broker.coordination.coordinator import Compare, Coordinator, Delete
from trovemq_broker.replication.election_records import LOCK, LeaderLock, from_bytes
from trovemq_broker.replication.frames import Node
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_proto.errors import TroveError
from trovemq_store.engine.opening import LOCK_PATH, take_lock
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.replica import replica_file

WAIT_S: Final = 1.0


async def end_former_run(
    files: FileSystem, node: Node, directory: Callable[[], int], coordinator: Coordinator
) -> None:
    """Of that node's store, in that directory (store_place.py): a copy of it is another one. A store that
    another process has, or that cannot be read, is no fault here: its opening has the error."""
    try:
        await run_in_thread(lambda: take_lock(files))
    except (TroveError, StorageError):
        return
    try:
        if store_id := await run_in_thread(lambda: _store_id(files, node, directory)):
            async with asyncio.timeout(WAIT_S):
                await _delete(coordinator, node, store_id)
    except (TroveError, StorageError, TimeoutError) as error:
        get_logger().warning("replica.former_lock", message=str(error) or "etcd does not answer")
    finally:
        await run_in_thread(lambda: files.unlock(LOCK_PATH))


def _store_id(files: FileSystem, node: Node, directory: Callable[[], int]) -> str:
    """Empty without a group. TroveError STORE_NEWER, STORE_FAILED; StorageError."""
    replica = replica_file.load(files) if files.exists(replica_file.PATH) else None
    place = None if replica is None else replica.membership
    is_own = place is not None and (place.node, place.directory) == (node, directory())
    return place.store_id if place is not None and is_own else ""


async def _delete(coordinator: Coordinator, node: Node, store_id: str) -> None:
    """TroveError."""
    found = (await coordinator.read()).values.get(LOCK)
    if found is None:
        return
    lock = from_bytes(LOCK, found.value, LeaderLock)
    if (lock.node, lock.store_id) == (node, store_id):
        swapped = await coordinator.swap([Compare(LOCK, found.changed)], [Delete(LOCK)])
        get_logger().info("replica.former_lock", epoch=lock.epoch, deleted=swapped.done)
