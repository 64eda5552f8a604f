"""The committed offsets of consumer groups: checked against the queue, on disk before the reply.

Invariants
- A stored offset lies within the queue, and never beyond the synced part of the log: a commit beyond that
  (async mode) waits for the sync of the log first.
- A reply is sent when the log has a record with the offset on disk (offset_records.py), or, where tables are
  in files alone, after the file was written; commits that arrive during a write share the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from trovemq_broker.fetch.offset_records import OffsetRecords
from trovemq_broker.fetch.pull import out_of_range, recreated
from trovemq_daemon.threads import run_in_thread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids, queue_range
from trovemq_store.topics.names import check_group_name


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The new position of a group; exactly one field is set."""

    timestamp: EpochMs | None = None  # epoch ms: the first message at or after it
    offset: QueueOffset | None = None
    to_min: bool = False
    to_max: bool = False


@dataclass(frozen=True, slots=True)
class ResetEntry:
    queue_id: QueueId
    offset_before: QueueOffset | None
    offset: QueueOffset
    in_flight: int = 0  # messages in flight that are forgotten


Moved = Callable[[str, str, Mapping[QueueId, QueueOffset]], Mapping[QueueId, int]]


def _nothing_moved(
    _group: str, _topic: str, _offsets: Mapping[QueueId, QueueOffset]
) -> Mapping[QueueId, int]:
    return {}


async def _no_file() -> None:
    """Of a store whose file of offsets is written at its end."""


class OffsetKeeper:
    """Commits, reads and resets offsets. `sync_log` returns when the log is on disk, and committed, up to a
    physical offset; `search` is (topic, queue id, epoch ms) -> queue offset. `moved` is called with (group,
    topic, offsets by queue) for every offset that is set here, and returns for each queue the number of
    messages in flight that are forgotten. `write_file` writes the file of offsets that are records of the
    log, if they have changed."""

    def __init__(
        self,
        store: MessageStore,
        sync_log: Callable[[PhysicalOffset], Awaitable[None]],
        search: Callable[[str, QueueId, EpochMs], QueueOffset],
        moved: Moved = _nothing_moved,
        write_file: Callable[[], Awaitable[None]] = _no_file,
    ) -> None:
        self._store = store
        self._sync_log = sync_log
        self._search = search
        self._moved = moved
        self._write_file = write_file
        self._writing = asyncio.Lock()
        self._records = None if store.tables is None else OffsetRecords(store, store.tables, sync_log)

    async def commit(self, group: str, topic: str, queue_id: QueueId, offset: QueueOffset) -> None:
        """`offset` is the next one to consume. Raises GROUP_ILLEGAL, TOPIC_NOT_FOUND, QUEUE_NOT_FOUND,
        OFFSET_OUT_OF_RANGE, DISK_FULL, STORE_FAILED, FLUSH_DISK_TIMEOUT."""
        check_group_name(group)
        if not self._is_invisible(topic, queue_id, offset):
            self._check_range(topic, queue_id, offset)
        await self._log_behind(topic, {queue_id: offset})
        self._check_range(topic, queue_id, offset)  # the topic may have been deleted during the wait
        self._moved(group, topic, {queue_id: offset})
        self._set(group, topic, {queue_id: offset})
        await self.save()

    def get(self, group: str, topic: str, queue_id: QueueId) -> QueueOffset | None:
        """The group's offset; None if it has none for the queue. Raises GROUP_ILLEGAL, TOPIC_NOT_FOUND, …"""
        check_group_name(group)
        queue_range(self._store, topic, queue_id)
        return self._store.offsets.get(group, topic, queue_id)

    async def reset(
        self, group: str, topic: str, queue_id: QueueId | None, target: ResetTarget, *, only_new: bool = False
    ) -> list[ResetEntry]:
        """Sets the offset of one queue, or of every queue of the topic; with `only_new` only where the group
        has none. If it has one of another queue of the topic, those without one came later: of the whole
        topic, they are set to their beginning, whatever the target is. Raises TroveError."""
        targets = self._targets(group, topic, queue_id, target)
        await self._log_behind(topic, targets)
        planned = self._planned(group, topic, targets, whole=queue_id is None, only_new=only_new)
        targets = {entry.queue_id: entry.offset for entry in planned}
        forgotten = self._moved(group, topic, targets)
        self._set(group, topic, targets)
        await self.save()
        return [replace(entry, in_flight=forgotten.get(entry.queue_id, 0)) for entry in planned]

    def preview(
        self, group: str, topic: str, queue_id: QueueId | None, target: ResetTarget, *, only_new: bool = False
    ) -> list[ResetEntry]:
        """The changes that reset() would make; nothing is set. Raises TroveError."""
        targets = self._targets(group, topic, queue_id, target)
        return self._planned(group, topic, targets, whole=queue_id is None, only_new=only_new)

    def _planned(
        self,
        group: str,
        topic: str,
        targets: Mapping[QueueId, QueueOffset],
        *,
        whole: bool,
        only_new: bool,
    ) -> list[ResetEntry]:
        """The changes. reset() asks after its wait, because a member may have begun to read meanwhile."""
        entries = self._entries(group, topic, targets)
        if not only_new:
            return entries
        new = [entry for entry in entries if entry.offset_before is None]
        if whole and self._store.offsets.of(group, topic):
            return [replace(each, offset=queue_range(self._store, topic, each.queue_id)[0]) for each in new]
        return new

    def _set(self, group: str, topic: str, targets: Mapping[QueueId, QueueOffset]) -> None:
        offsets = self._store.offsets
        for queue_id, offset in targets.items():
            if offsets.get(group, topic, queue_id) != offset or not offsets.has_record(group, topic):
                offsets.commit(group, topic, queue_id, offset)
                offsets.record_next(group, topic)

    def _targets(
        self, group: str, topic: str, queue_id: QueueId | None, target: ResetTarget
    ) -> dict[QueueId, QueueOffset]:
        check_group_name(group)
        chosen = queue_ids(self._store, topic) if queue_id is None else [queue_id]
        return {number: self._target_offset(topic, number, target) for number in chosen}

    def _entries(self, group: str, topic: str, targets: Mapping[QueueId, QueueOffset]) -> list[ResetEntry]:
        """The entries of all queues. Raises the error of the first offset that is out of its queue's
        range."""
        entries = []
        for number, offset in targets.items():
            self._check_range(topic, number, offset)
            entries.append(ResetEntry(number, self._store.offsets.get(group, topic, number), offset))
        return entries

    def _target_offset(self, topic: str, queue_id: QueueId, target: ResetTarget) -> QueueOffset:
        low, high = queue_range(self._store, topic, queue_id)
        if target.to_min:
            return low
        if target.to_max:
            return high
        if target.timestamp is not None:
            return self._search(topic, queue_id, target.timestamp) if high > low else low
        if target.offset is None:
            raise TroveError(errors.REQUEST_ILLEGAL, "a reset needs a timestamp, an offset, to_min or to_max")
        return target.offset  # its range is checked before anything is set

    def _check_range(self, topic: str, queue_id: QueueId, offset: QueueOffset) -> None:
        low, high = queue_range(self._store, topic, queue_id)
        if not low <= offset <= high:
            raise out_of_range(topic, queue_id, offset, low, high)

    def _is_invisible(self, topic: str, queue_id: QueueId, offset: QueueOffset) -> bool:
        """Whether the log has the messages below this offset, and not all of them are visible yet."""
        _, high = queue_range(self._store, topic, queue_id)
        return high < offset <= self._store.next_queue_offset(topic, queue_id)

    async def _log_behind(self, topic: str, offsets: dict[QueueId, QueueOffset]) -> None:
        """Waits for the log if one of these offsets lies beyond its part that is on disk and visible.
        TroveError TOPIC_RECREATED if the offsets are of a topic that is another one after the wait."""
        flushed_offset, identity = self._store.flushed_offset, self._store.topic_identity(topic)
        for queue_id, offset in offsets.items():
            queue = self._store.consume_queues.get(topic, queue_id)
            if (queue is not None and offset > queue.lower_bound(flushed_offset)) or self._is_invisible(
                topic, queue_id, offset
            ):
                await self._sync_log(self._store.end_offset)
                exists = self._store.topics.get(topic) is not None
                if exists and self._store.topic_identity(topic) != identity:
                    raise recreated(topic, queue_id, offset)
                return

    async def settle(self) -> None:
        """Returns when nothing is being written."""
        async with self._writing:
            pass

    async def save(self) -> None:
        """Brings the offsets that were set, or deleted, to disk. Raises DISK_FULL, STORE_FAILED,
        FLUSH_DISK_TIMEOUT; in a replica group NOT_ENOUGH_REPLICAS, REPLICA_TIMEOUT, too."""
        if self._records is None:
            await self.persist()
        else:
            await self._records.save()

    async def persist(self) -> None:
        """Writes changed offsets to the file, off the event loop; one write at a time. Raises the errors of
        save(), StorageError."""
        if self._records is not None:
            await self._records.save_rest()
            async with self._writing:
                await self._write_file()
            return
        async with self._writing:
            offsets = self._store.offsets
            while offsets.dirty and offsets.log_needed > self._store.lasting_offset:
                await self._sync_log(offsets.log_needed)
            work = offsets.begin_persist()
            if work is not None:
                await run_in_thread(work.run)
                self._store.offsets.finish_persist(work)
