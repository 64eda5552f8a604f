"""Making, altering and deleting topics as a service: on disk before the reply, and off the event loop.

Invariants
- One change at a time; the file is written in a thread, the table changes on the loop when that is over.
- A caller that goes away leaves no change half made: the thread is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from broker.message_store import MessageStore
from broker.topics.topics import NO_OPTIONS, TopicChange, TopicConfig
from trovemq_daemon.threads import run_in_thread


class TopicChanges:
    """`persist_offsets` brings the consumer offsets to disk, after those of a deleted topic are gone;
    `deleted` is told of each topic that is gone."""

    def __init__(
        self,
        store: MessageStore,
        clock_ms: Callable[[], int],
        persist_offsets: Callable[[], Awaitable[None]],
        deleted: Callable[[str], None] = lambda _topic: None,
    ) -> None:
        self._deleted = deleted
        self._store = store
        self._clock_ms = clock_ms
        self._persist_offsets = persist_offsets
        self.changing: Final = asyncio.Lock()
        """Held while a topic is made, altered or deleted; whoever removes files of queues holds it too."""

    async def create(
        self, name: str, queue_count: int, message_type: str, options: Mapping[str, str] = NO_OPTIONS
    ) -> TopicConfig:
        """Raises what TopicTable.create raises."""
        async with self.changing:
            topics = self._store.topics
            change = topics.begin_create(
                name, queue_count, message_type, options=options, now_ms=self._clock_ms()
            )
            await self._save(change)
            return topics.require(name)

    async def ensure_internal(self, name: str, queue_count: int) -> None:
        """Raises what TopicTable.ensure_internal raises."""
        async with self.changing:
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
        """Raises what TopicTable.alter raises."""
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
            return topics.require(name)

    async def delete(self, name: str) -> int:
        """Returns the physical offset of the deletion. Raises what MessageStore.delete_topic raises."""
        async with self.changing:
            work = self._store.begin_delete_topic(name, self._clock_ms())
            try:
                await run_in_thread(work.run)
            finally:
                self._store.finish_delete_topic(work)
            self._deleted(name)
        await self._persist_offsets()
        return work.physical_offset

    async def settle(self) -> None:
        """Returns when no change is under way."""
        async with self.changing:
            pass

    async def _save(self, change: TopicChange) -> None:
        try:
            await run_in_thread(change.run)
        finally:
            self._store.topics.finish(change)
