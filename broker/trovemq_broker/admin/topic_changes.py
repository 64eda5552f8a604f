"""Creating, altering and deleting topics: on disk before the reply (change_saver.py).

Topics that are created at the same time share a change: the holder of the lock creates all waiting topics.

Invariants
- One change at a time. When it is on disk, the table changes on the event loop.
- No topic is created before the offsets of a deleted one are off the disk: after a crash they would be the
  groups' offsets in the new topic of that name.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trovemq_broker.admin.change_saver import ChangeSaver, Durable, never_logged
from trovemq_broker.security.creators import present_creator
from trovemq_daemon.threads import run_in_thread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.deduplication import disabled
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.topics.config_table import Changed
from trovemq_store.topics.topic_deletion import TopicDeletion
from trovemq_store.topics.topic_options import OFF, canonical_texts
from trovemq_store.topics.topics import NO_OPTIONS, NewTopic, TopicChange, TopicConfig

POLL_S: Final = 0.02
CREATED_AT_ONCE_MAX: Final = 256
PUT_AT_ONCE_MAX: Final = 256


PutTopic = Callable[[TopicConfig | None], TopicConfig]
"""Makes a topic from the present one, or None. TroveError: the refusal."""


@dataclass(slots=True)
class _Wanted:
    """A topic that waits to be created. done: it was created, or refused with the error."""

    topic: NewTopic
    done: bool = False
    refusal: TroveError | None = None


class TopicChanges:
    """`persist_offsets` writes the consumer offsets to disk, without those of a deleted topic; `deleted` is
    called with each deleted topic, `closed` with one that may not be read or written any more. durable(end)
    returns when the log is on disk, and in a replica group committed, up to `end`; TroveError."""

    def __init__(
        self,
        store: MessageStore,
        clock_ms: Callable[[], EpochMs],
        persist_offsets: Callable[[], Awaitable[None]],
        deleted: Callable[[str], None] = lambda _topic: None,
        closed: Callable[[str], None] = lambda _topic: None,
        durable: Durable = never_logged,
    ) -> None:
        self._deleted = deleted
        self._closed = closed
        self._store = store
        self._clock_ms = clock_ms
        self._persist_offsets = persist_offsets
        self._wanted: deque[_Wanted] = deque()
        self._offsets_saved = True
        """Whether the file of the consumer offsets has none of a deleted topic."""
        self.changing: Final = asyncio.Lock()
        """Held while a topic is created, altered or deleted, and while files of queues are removed."""
        self._saver = ChangeSaver(durable, self.changing)

    def check_index(self, name: str, options: Mapping[str, str]) -> None:
        """TroveError INDEX_DISABLED."""
        if self._store.trees is None and options.get("deduplicate", OFF) not in (OFF, ""):
            raise disabled(name)

    async def create(
        self, name: str, queue_count: int, message_type: str, options: Mapping[str, str] = NO_OPTIONS
    ) -> TopicConfig:
        """Raises the errors of TopicTable.create, and INDEX_DISABLED."""
        self.check_index(name, options)
        wanted = _Wanted(NewTopic(name, queue_count, message_type, options, present_creator()))
        self._wanted.append(wanted)
        try:
            async with self.changing:
                while not wanted.done:
                    await self._save_offsets()
                    await self._create_wanted()
        finally:
            if not wanted.done:
                self._wanted.remove(wanted)  # its caller is gone
        if wanted.refusal is not None:
            raise wanted.refusal
        return self._store.topics.require(name)

    async def _create_wanted(self) -> None:
        """Creates the waiting topics, as many as fit into one change. The caller holds the lock."""
        count = min(len(self._wanted), CREATED_AT_ONCE_MAX)
        taken = [self._wanted.popleft() for _ in range(count)]
        failure = TroveError(errors.SERVICE_NOT_AVAILABLE)
        change: TopicChange | None = None
        refusals: list[TroveError | None] = [failure] * count
        try:
            change, refusals = self._store.topics.begin_create_all(
                [one.topic for one in taken], now_ms=self._clock_ms()
            )
            if change is not None:
                await self._save(change)
        except TroveError as error:
            failure = error
        finally:
            made: set[str] = set()
            if change is not None and change is not self._store.topics.pending_change:
                made = {part.name for part in change.parts[: change.saved_parts]}
            for one, refusal in zip(taken, refusals, strict=True):
                one.done, one.refusal = True, refusal or (None if one.topic.name in made else failure)

    async def put_all(self, wanted: Mapping[str, PutTopic]) -> dict[str, TroveError]:
        """Creates or replaces the topics of these names, PUT_AT_ONCE_MAX with one write: `wanted` has for
        each the function that makes it from the present one. Returns the refusals by name: those of the
        functions, TOPIC_ILLEGAL, LIMIT_EXCEEDED, INDEX_DISABLED, DISK_FULL, STORE_FAILED,
        SERVICE_NOT_AVAILABLE. Deduplication works when this returns, also for ids that were stored before."""
        refusals: dict[str, TroveError] = {}
        deduplicated: list[str] = []
        all_names = list(wanted)
        for begin in range(0, len(all_names), PUT_AT_ONCE_MAX):
            made: list[TopicConfig] = []
            async with self.changing:
                for name in all_names[begin : begin + PUT_AT_ONCE_MAX]:
                    try:
                        made.append(wanted[name](self._store.topics.get(name)))
                        self.check_index(name, canonical_texts(made[-1].options))
                    except TroveError as error:
                        refusals[name] = error
                made = [one for one in made if one.name not in refusals]
                try:
                    change = await self._put(made, refusals)
                except TroveError as error:
                    refusals.update({one.name: error for one in made})
                    continue
            deduplicated += [part.name for part in change.parts if _dedupes_longer(part)] if change else []
        for name in deduplicated:
            await self._ids_read(name)
        return refusals

    async def _put(self, made: Sequence[TopicConfig], refusals: dict[str, TroveError]) -> TopicChange | None:
        """One change. The caller holds the lock."""
        await self._save_offsets()
        change, found = self._store.topics.begin_put_all(made, now_ms=self._clock_ms())
        if change is not None:
            await self._saver.save(change, lambda: self._finish_put(change))
        refusals.update({one.name: refusal for one, refusal in zip(made, found, strict=True) if refusal})
        return change

    def _finish_put(self, change: TopicChange) -> None:
        """Perhaps after the caller's wait has timed out."""
        self._store.topics.finish(change)
        for part in change.parts[: change.saved_parts]:
            if part.before is not None and part.after is not None and part.before.perm & ~part.after.perm:
                self._closed(part.name)

    async def _ids_read(self, name: str) -> None:
        """Returns when all message ids of the topic that deduplication needs are known."""
        trees, end = self._store.trees, self._store.end_offset
        while trees is not None and self._store.topics.options(name).deduplicate_ms:
            if trees.ids_known(end) or self._store.failed:
                return
            trees.hurry = True
            await asyncio.sleep(POLL_S)

    async def ensure_internal(self, name: str, queue_count: int) -> None:
        """Raises the errors of TopicTable.ensure_internal."""
        async with self.changing:
            await self._save_offsets()
            change = self._store.topics.begin_internal(name, queue_count, now_ms=self._clock_ms())
            if change is not None:
                await self._save(change)

    async def alter(
        self,
        name: str,
        *,
        queue_count: int | None,
        message_type: str | None,
        options: Mapping[str, str] = NO_OPTIONS,
    ) -> TopicConfig:
        """Raises the errors of TopicTable.alter, and INDEX_DISABLED. If deduplication is switched on or made
        longer, it works when this returns: ids that were stored before count, too."""
        self.check_index(name, options)
        async with self.changing:
            topics = self._store.topics
            change = topics.begin_alter(
                name,
                queue_count=queue_count,
                message_type=message_type,
                options=options,
                now_ms=self._clock_ms(),
            )
            if change is not None:
                await self._save(change)
            config = topics.require(name)
        before = change.before if change is not None else None
        if before is not None and before.options.deduplicate_ms < config.options.deduplicate_ms:
            await self._ids_read(name)
        return config

    async def delete(self, name: str) -> int:
        """Returns the physical offset of the deletion. Raises the errors of MessageStore.delete_topic."""
        async with self.changing:
            work = self._store.begin_delete_topic(name, self._clock_ms())
            if work.change.logged:
                await self._delete_logged(work)
            else:
                try:
                    await run_in_thread(work.run)
                finally:  # a caller that is cancelled waits for the thread, too
                    self._finish_deletion(work)
            await self._save_offsets()
        return work.physical_offset

    async def _delete_logged(self, work: TopicDeletion) -> None:
        """First the records of the topic are dead on disk, then its deletion is in the log."""
        try:
            await run_in_thread(work.prepare)
            await self._saver.save(work.change, lambda: self._finish_deletion(work))
        except BaseException:
            if not work.change.places:
                if work.change is self._store.topics.pending_change:
                    self._finish_deletion(work)
                await run_in_thread(work.undo)
            raise

    def _finish_deletion(self, work: TopicDeletion) -> None:
        try:
            self._store.finish_delete_topic(work)
        finally:
            if work.change.saved:
                self._offsets_saved = False
                self._deleted(work.change.name)

    async def _save_offsets(self) -> None:
        """Saves the consumer offsets if the file may have some of a deleted topic. The caller holds the lock.
        TroveError DISK_FULL, STORE_FAILED."""
        if not self._offsets_saved:
            await self._persist_offsets()
            self._offsets_saved = True

    async def settle(self) -> None:
        """Returns when no change is under way."""
        async with self.changing:
            pass
        if not self._store.failed:
            self._saver.settle(self._store.commit_limit)

    async def _save(self, change: TopicChange) -> None:
        await self._saver.save(change, lambda: self._store.topics.finish(change))


def _dedupes_longer(part: Changed[TopicConfig]) -> bool:
    """Whether an existing topic is deduplicated for longer than before."""
    if part.before is None or part.after is None:
        return False
    return part.before.options.deduplicate_ms < part.after.options.deduplicate_ms
