"""Records consumer offsets that calls have set, those of one iteration of the event loop together.

Invariants
- save() returns when the log is on disk, and committed where it has copies, up to a record of all offsets
  that were to be recorded at its call.
- One record is appended in an iteration, however many calls come. Offsets that could not be appended are
  appended with the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.table_log import TableLog


class OffsetRecords:
    """Of one store. durable(end) returns when the log is on disk, and committed, up to `end`."""

    def __init__(
        self, store: MessageStore, tables: TableLog, durable: Callable[[PhysicalOffset], Awaitable[None]]
    ) -> None:
        self._store = store
        self._tables = tables
        self._durable = durable
        self._gathered: asyncio.Future[PhysicalOffset] | None = None

    async def save(self) -> None:
        """TroveError DISK_FULL, CREATE_MAPPED_FILE_FAILED, STORE_FAILED, NOT_ENOUGH_REPLICAS, NOT_LEADER:
        no record was appended, and the next call tries again; FLUSH_DISK_TIMEOUT, REPLICA_TIMEOUT: it is in
        the log."""
        if self._gathered is None:
            loop = asyncio.get_running_loop()
            self._gathered = loop.create_future()
            loop.call_soon(self._append)
        await self._durable(await asyncio.shield(self._gathered))

    async def save_rest(self) -> None:
        """save() if there is anything to record."""
        if self._store.offsets.unrecorded:
            await self.save()

    def _append(self) -> None:
        reply, self._gathered = self._gathered, None
        assert reply is not None, "a call waits for it"
        try:
            end = self._tables.record_offsets()
        except Exception as error:
            reply.set_exception(error)
            reply.exception()  # the callers may be gone
        else:
            # Without a new record: an earlier one has the offsets, or events that were added just now.
            reply.set_result(self._store.end_offset if end is None else end)
