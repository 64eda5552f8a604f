"""Copies the pending messages and the young audit records of segments, before retention removes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_broker.groups.delivery.reappends import CARRIED_TOPIC
from trovemq_broker.maintenance.retention_report import RetentionCounters
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.transactions.records import OP_TOPIC
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.log.retention import Decision

CARRY_STEP_BYTES: Final = 256 << 10
"""Bytes of the log whose pending records are copied in one iteration of the event loop."""
CARRIED_PERCENT_MAX: Final = 90
"""If the disk is full and a larger part of the bytes to be freed is pending, pending messages are not copied:
the copies would take the space."""

CarryAudit = Callable[[PhysicalOffset, EpochMs], Iterator[int]]
"""Appends again, in steps, the audit records below an offset that are still young at this time."""

CarryTables = Callable[[PhysicalOffset], Awaitable[None]]
"""Appends the entries of tables again whose records lie below an offset."""


async def no_tables(_end: PhysicalOffset) -> None:
    """For a store whose tables are not in the log."""


class RetentionCopies:
    """Makes the copies in one store. durable(end) returns when the log is on disk up to `end`."""

    def __init__(
        self,
        store: MessageStore,
        model: ConsumerState,
        topic_changes: TopicChanges,
        durable: Callable[[PhysicalOffset], Awaitable[None]],
        clock_ms: Callable[[], EpochMs],
        carry_audit: CarryAudit,
        counters: RetentionCounters,
        carry_tables: CarryTables = no_tables,
    ) -> None:
        self._store = store
        self._model = model
        self._topic_changes = topic_changes
        self._durable = durable
        self._clock_ms = clock_ms
        self._carry_audit = carry_audit
        self._counters = counters
        self._carry_tables = carry_tables

    async def make(self, decision: Decision, audit_now_ms: EpochMs) -> tuple[PhysicalOffset, bool]:
        """Appends the pending messages of these segments again, in steps, and their audit records that are
        young at audit_now_ms; the copies are on disk when it returns. Returns where the log may begin then,
        and True. If the disk is full and has no space for copies, it returns where the log may begin without
        them, and False if that segment still has pending messages.
        """
        await self._carry_entries(decision)
        await self._carry_audit_records(decision, audit_now_ms)
        freed = decision.end - self._store.min_offset
        if decision.pressed and self._live_bytes(decision.end) > freed * CARRIED_PERCENT_MAX // 100:
            return self._least_removable(decision.end)
        try:
            await self._reappend_in_steps(decision.end)
        except TroveError as error:
            no_space = error.spec in (errors.DISK_FULL, errors.CREATE_MAPPED_FILE_FAILED)
            if not (decision.pressed and no_space):
                raise
            return self._least_removable(decision.end)
        return decision.end, True

    async def _carry_entries(self, decision: Decision) -> None:
        """Copies the records of tables. If a full disk has no space for the copies, they are only in their
        files, until there is space: the next run, or the next start, tries again."""
        try:
            await self._carry_tables(decision.end)
        except TroveError as error:
            no_space = error.spec in (errors.DISK_FULL, errors.CREATE_MAPPED_FILE_FAILED)
            if not (decision.pressed and no_space):
                raise
            get_logger().warning("retention.tables_in_files_alone", reason=str(error))

    async def _carry_audit_records(self, decision: Decision, now_ms: EpochMs) -> None:
        """Copies the young audit records; they are on disk when it returns. If a full disk has no space for
        the copies, the records are removed."""
        try:
            for count in self._carry_audit(decision.end, now_ms):
                self._counters.carried_messages += count
                await self._durable(self._store.end_offset)
        except TroveError as error:
            no_space = error.spec in (errors.DISK_FULL, errors.CREATE_MAPPED_FILE_FAILED)
            if not (decision.pressed and no_space):
                raise
            get_logger().warning("retention.dropped_audit_records", reason=str(error))

    def _least_removable(self, end: PhysicalOffset) -> tuple[PhysicalOffset, bool]:
        """The segments before the first one with pending records; if there are none, the oldest segment, with
        its pending records."""
        size, begin = self._store.settings.commit_log_file_size, self._store.min_offset
        outstanding = min(self._model.live_records_before(end), default=end)
        if outstanding >= begin + size:
            return PhysicalOffset(outstanding // size * size), True
        return PhysicalOffset(begin + size), False

    async def _reappend_in_steps(self, end: PhysicalOffset) -> None:
        store, model = self._store, self._model
        lowest = model.lowest_live_record()
        if lowest is None or lowest >= end:
            return
        await self._topic_changes.ensure_internal(CARRIED_TOPIC, 1)
        if model.transactions.open_count:
            await self._topic_changes.ensure_internal(OP_TOPIC, 1)
        position = store.min_offset
        while position < end:
            lowest = model.lowest_live_record()
            if lowest is None:
                return
            position = min(PhysicalOffset(max(position, lowest) + CARRY_STEP_BYTES), end)
            if lowest < position:
                self._counters.carried_messages += model.reappend_live_records_before(
                    position, self._clock_ms()
                )
                await self._durable(store.end_offset)

    def _live_bytes(self, end: PhysicalOffset) -> int:
        sizes = (self._store.read(at, 4) for at in set(self._model.live_records_before(end)))
        return sum(int.from_bytes(size) for size in sizes)
