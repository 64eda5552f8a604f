"""Background work of the broker: each of these functions runs as a task until it is cancelled.

Whatever may block runs in a thread; the engine itself is only touched on the event loop, between awaits. A
cancelled task ends after its thread, so that the store can then be closed. While the disk is full, appends
are refused and a task waits. A failed call is repeated; a failed sync ends the daemon.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from trovemq_broker.fetch.offsets import OffsetKeeper
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_daemon.ticks import sleep_to_tick
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.failures import failed_sync, raise_failed_sync
from trovemq_store.files.files import DeletedError, ScarceError, StorageError

CATCH_UP_BYTES: Final = 1 << 20  # the most bytes of the log in one step on the loop
CATCH_UP_PAUSE_S: Final = 0.002  # between steps, in which requests are served
LAG_POLL_S: Final = 0.5
"""Seconds between two checks for records that are not indexed. A step takes about a millisecond, for one
record or for 500: at 1,000 messages a second, the 99th percentile of their times does not show two such
waits."""
SEGMENT_PAUSE_S: Final = 0.05
SPACE_POLL_S: Final = 1.0  # how often a full disk is checked
FREEZE_POLL_S: Final = 5.0
TOPICS_FROZEN_MIN: Final = 1_000  # with fewer of them a full collection takes a few milliseconds


async def persist_offsets(keeper: OffsetKeeper, interval_ms: int) -> None:
    """Writes the file of consumer offsets, and records those that a commit could not record."""
    while True:
        await sleep_to_tick(interval_ms / 1000)
        try:
            await keeper.persist()
        except StorageError as error:
            log_failure("store.offsets_not_saved", error)
        except TroveError as error:
            if error.spec is errors.STORE_FAILED:
                raise
            get_logger().warning("store.offsets_not_saved", reason=error.message)


async def catch_up(store: MessageStore) -> None:
    """Lets projections that lag catch up with the log, in small steps."""
    loop = asyncio.get_running_loop()
    # In the next iteration of the loop: at the end of this one its replies are written.
    store.index_later(lambda index: loop.call_soon(loop.call_soon, index))
    store.index_files_by_work()
    try:
        await _catch_up(store)
    finally:
        store.index_later()  # another thread may close the store now


async def _catch_up(store: MessageStore) -> None:
    logged = False
    while True:
        made = await _make_index_file(store)
        try:
            more = store.catch_up(CATCH_UP_BYTES) or (made and store.index_file_work() is not None)
            reads_times = store.read_times()
        except ScarceError as error:  # nothing of the log was skipped
            log_failure("store.index_behind", error)
            await sleep_to_tick(LAG_POLL_S)
            continue
        stuck = bool(store.lagging) and not more
        if stuck and not logged:
            failure = store.key_index and store.key_index.create_failure
            get_logger().warning(
                "store.index_behind",
                reason=f"no index file can be made: {failure}",
                effect="queries scan the log",
            )
        logged = stuck
        if more or reads_times:
            await asyncio.sleep(CATCH_UP_PAUSE_S)
        else:
            await sleep_to_tick(LAG_POLL_S)


async def _make_index_file(store: MessageStore) -> bool:
    """Creates the file for which the key index waits. False if that failed: look-ups then read the log."""
    work = store.index_file_work()
    if work is None:
        return True
    try:
        await run_in_thread(work.run)
    except StorageError as error:
        raise_failed_sync(error)
    finally:
        store.finish_index_file(work)
    return work.ready


async def keep_reserve(
    store: MessageStore, on_messages_available: Callable[[list[tuple[str, QueueId]]], None]
) -> None:
    """Keeps the disk reserve full, and resumes writes that a full disk has stopped. Raises STORE_FAILED if a
    sync of any file has failed, STORE_DELETED when the log was deleted beneath the process."""
    logged = False
    while True:
        with suppress(DeletedError):  # the store has noted it
            store.check_linked()
        if store.failed:
            failure = store.files.sync_failure
            raise TroveError(failed_sync(failure), f"the disk or the memory failed: {failure}")
        await _refill_reserve(store)
        logged = _log_full_disk(store, logged)
        if store.undispatched_bytes:
            on_messages_available(store.dispatch())
        await sleep_to_tick(SPACE_POLL_S)


async def _refill_reserve(store: MessageStore) -> None:
    try:
        work = store.reserve.work()
    except ScarceError as error:
        log_failure("store.reserve_unknown", error)
        return
    if work is not None:
        try:
            await run_in_thread(work.run)
        finally:
            store.reserve.finish(work)


def _log_full_disk(store: MessageStore, logged: bool) -> bool:
    """One line when a full disk begins to refuse new messages, and one when they are accepted again."""
    full = store.reserve.is_full()
    if full and not logged:
        why = store.reserve.failure or "no new segment can be made"
        get_logger().warning("store.disk_full", reason=f"new messages are refused: {why}")
    if logged and not full:
        get_logger().info("store.disk_has_space", reason="new messages are accepted again")
    return full


async def freeze_lasting_objects(topic_count: Callable[[], int]) -> None:
    """Lets garbage collections skip the objects of topics and queues, whenever there are twice as many.

    A full collection examines each of them: with 10,000 topics it takes 50 ms, every few thousand messages.
    Frozen objects are freed when nothing refers to them; a cycle stays, so this happens a few times at most.
    """
    frozen = max(topic_count(), TOPICS_FROZEN_MIN // 2)
    while True:
        await sleep_to_tick(FREEZE_POLL_S)
        if (count := topic_count()) >= 2 * frozen:
            frozen = count
            gc.collect()
            gc.freeze()


async def make_segments_ahead(store: MessageStore, appended: asyncio.Event) -> None:
    """Creates the file of the next segment before it is needed."""
    while True:
        await appended.wait()
        appended.clear()
        if (spare := store.spare_work()) is not None:
            try:
                await run_in_thread(spare.run)
            except StorageError as error:
                log_failure("store.spare_segment_failed", error)
            finally:
                store.finish_spare(spare)
        await asyncio.sleep(SEGMENT_PAUSE_S)


def log_failure(event: str, error: StorageError) -> None:
    """Logs a failed call that will be repeated; raises TroveError STORE_FAILED if it was a sync."""
    raise_failed_sync(error)
    get_logger().warning(event, reason=str(error))
