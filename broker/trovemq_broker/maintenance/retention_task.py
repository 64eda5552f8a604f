"""Retention as a task of the daemon: checks how full the disk is, and removes old segments.

Calls that may block run in a thread; the engine is only touched on the event loop, between awaits.

Invariants
- Protected messages are removed only if clean_forcibly_enable allows it. That is logged as an error, and the
  highest store time of the removed messages is on disk before readers lose any of them.
- A segment is removed only after its pending messages were appended again and are on disk. The exception: the
  disk is full and has no space for the copies; then each lost message is counted.
- A message that was delivered during the copying is not lost: pending messages are copied once more in the
  same iteration of the event loop that removes the segments for readers.
- Above the warning level new messages are refused; the broker's own records are not.
- Messages that a topic keeps until they are acknowledged are removed only because of a full disk or the
  topic's own age limit. Messages that a full disk removes are counted, and logged by topic and group.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_broker.maintenance.retention_copies import (
    CarryAudit,
    CarryTables,
    RetentionCopies,
    no_tables,
)
from trovemq_broker.maintenance.retention_report import (
    RetentionCounters,
    report_dropped,
    report_unacknowledged,
)
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.state.held_log import (
    NOWHERE,
    HeldLog,
    Subscribers,
    TopicHold,
    held_log,
    held_log_steps,
    topic_hold,
)
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_daemon.ticks import sleep_to_tick
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.steps import Result, Steps
from trovemq_store.engine.trim import StoreTrim
from trovemq_store.files.files import StorageError
from trovemq_store.log.retention import Decision, DiskUse, RetentionPolicy, decide, is_disk_full
from trovemq_store.log.segment_age import closed_segments

POLL_S: Final = 2.0
"""How often a full disk is checked, so that messages are accepted soon after there is space."""

Hold = Callable[[TroveError | None], None]


class RetentionTask:
    """`hold` is called with the error with which new messages are to be refused, and with None when they are
    accepted again. durable(end) returns when the log is on disk up to `end`. No topic is changed while files
    of queues are removed. trusted_ms(kept_ms): the time for removals of messages that are kept that long,
    0 while the clock is not to be trusted; by default the clock's time. copies_need: other copies of the log
    lack it from there on: that is removed only because the disk is full."""

    def __init__(
        self,
        store: MessageStore,
        model: ConsumerState,
        policy: RetentionPolicy,
        interval_ms: int,
        durable: Callable[[PhysicalOffset], Awaitable[None]],
        hold: Hold,
        topic_changes: TopicChanges,
        clock_ms: Callable[[], EpochMs],
        subscribers: Subscribers = lambda _: (),
        carry_audit: CarryAudit = lambda _end, _now_ms: iter(()),
        trusted_ms: Callable[[int], EpochMs] | None = None,
        carry_tables: CarryTables = no_tables,
        copies_need: Callable[[], PhysicalOffset] = lambda: NOWHERE,
    ) -> None:
        self._store = store
        self._model = model
        self._policy = policy
        self._interval_s = interval_ms / 1000
        self._durable = durable
        self._hold = hold
        self._topic_changes = topic_changes
        self._clock_ms = clock_ms
        self._subscribers = subscribers
        self._trusted_ms = trusted_ms or (lambda _kept_ms: clock_ms())
        self._copies_need = copies_need
        self._leaving: StoreTrim | None = None
        self.counters: Final = RetentionCounters()
        self._copies = RetentionCopies(
            store, model, topic_changes, durable, clock_ms, carry_audit, self.counters, carry_tables
        )

    @property
    def reserved_ms(self) -> int:
        """How long messages are kept."""
        return self._policy.reserved_ms

    def apply(self, policy: RetentionPolicy, interval_ms: int) -> None:
        """Sets the policy and the interval from the next run on."""
        self._policy = policy
        self._interval_s = interval_ms / 1000

    async def run(self) -> None:
        """Runs until it is cancelled."""
        cleaned_at = time.monotonic()
        while True:
            await sleep_to_tick(min(self._interval_s, POLL_S))
            try:
                disk = await self.check_disk()
                if time.monotonic() - cleaned_at >= self._interval_s:
                    cleaned_at = time.monotonic()
                    await self.clean(disk)
            except (StorageError, TroveError) as error:
                if isinstance(error, TroveError) and error.spec is errors.STORE_FAILED:
                    raise
                self.counters.failures += 1
                get_logger().warning("retention.failed", reason=str(error))

    async def check_disk(self) -> DiskUse:
        """Reads how full the disk is, and refuses or accepts new messages. Raises StorageError."""
        files = self._store.files
        disk = await run_in_thread(lambda: DiskUse(files.total_bytes(), files.free_bytes()))
        counters = self.counters
        counters.disk_used_percent = disk.used_percent
        full = is_disk_full(self._policy, disk)
        if full != counters.disk_full:
            counters.disk_full = full
            used = round(disk.used_percent, 1)
            get_logger().warning("retention.disk_full" if full else "retention.disk_has_space", used=used)
            self._hold(self._refusal(disk) if full else None)
        self._warn_of_filling(disk)
        return disk

    def _warn_of_filling(self, disk: DiskUse) -> None:
        """Warns once that retention does not free the disk, so that an operator makes space."""
        filling = disk.above(self._policy.forcible_percent) > 0
        if filling and not self.counters.disk_filling and not self._policy.forcible_enable:
            get_logger().warning(
                "retention.disk_filling",
                used=round(disk.used_percent, 1),
                refused_above=self._policy.warning_percent,
                what_to_do="free or add space, or keep messages for less long (reserved_time_ms)",
            )
        self.counters.disk_filling = filling

    def _refusal(self, disk: DiskUse) -> TroveError:
        return TroveError(
            errors.DISK_FULL,
            f"{disk.used_percent:.1f} % of the disk is used, "
            f"new messages are accepted up to {self._policy.warning_percent} %",
        )

    async def clean(self, disk: DiskUse) -> int:
        """Makes one run; returns the number of removed segments. After a StorageError or TroveError the next
        run tries again."""
        if self._leaving is not None:
            async with self._topic_changes.changing:
                await self._remove(self._leaving)
        await self._forget_early()
        decision = await self._decide(disk)
        if not decision.count or self._store.removals_held():
            return 0
        end, carried = await self._copies.make(decision, self._trusted_ms(self._policy.reserved_ms))
        async with self._topic_changes.changing:
            if self._store.removals_held():
                return 0  # a backup has begun, and copies these segments
            if decision.forced:
                await self._note_early(decision.newest_early_ms)
            trim = await self._detach(end, carry=carried, pressed=decision.pressed)
            if trim is None:
                return 0
            count = self._count(trim, decision)
            await self._remove(trim)
        self._log_removed(count, end, decision)
        return count

    async def _note_early(self, newest_ms: EpochMs) -> None:
        """Stores the highest store time of messages removed early; it is on disk when this returns. Raises
        TroveError."""
        early, until_ms = self._store.early_removal, min(newest_ms, self._clock_ms()) + self._kept_max_ms()
        await run_in_thread(lambda: early.note(newest_ms, until_ms))

    async def _forget_early(self) -> None:
        """Removes that note once retention would have removed those messages anyway. Raises StorageError."""
        early = self._store.early_removal
        if early.removed:
            now_ms = self._trusted_ms(self._kept_max_ms())
            await run_in_thread(lambda: early.forget_at(now_ms))

    def _kept_max_ms(self) -> int:
        """How long retention keeps a message at most."""
        options, policy = self._store.topics.options, self._policy
        held = (options(one.topic).retention_age_max_ms for one in self.counters.held.holders)
        ages = [age_ms or policy.unacknowledged_max_ms for age_ms in held]
        return max([policy.reserved_ms, *ages])

    def _log_removed(self, count: int, log_begins: int, decision: Decision) -> None:
        if not decision.forced:
            get_logger().info("retention.removed", segments=count, log_begins=log_begins)
            return
        get_logger().warning(
            "retention.removed_early",
            segments=count,
            log_begins=log_begins,
            newest_stored_ms=decision.newest_early_ms,
            reason="the disk is filling and clean_forcibly_enable is on",
        )

    def _count(self, trim: StoreTrim, decision: Decision) -> int:
        """Counts a trim. Returns the number of its segments."""
        size = trim.physical_offset - trim.begin
        count = size // self._store.settings.commit_log_file_size
        self.counters.removed_segments += count
        self.counters.removed_bytes += size
        self.counters.forced_segments += max(0, count - (decision.count - decision.forced))
        return count

    async def _decide(self, disk: DiskUse) -> Decision:
        store, policy = self._store, self._policy
        now_ms = self._trusted_ms(policy.reserved_ms)
        segments = store.closed_segments()
        if segments and segments[-1].end > self._model.saved_log_end:
            self._model.request_snapshot()  # a start from the present one would look for these segments
        safe = [segment for segment in segments if segment.end <= self._model.saved_log_end]
        min_offset, hour = store.min_offset, time.localtime(self._clock_ms() / 1000).tm_hour
        run = store.time_runs.run_at(PhysicalOffset(segments[0].end - 1)) if segments else None
        before_ms = run.before_ms if run is not None and run.steps_back else 0
        held = await self._find_holders_in_steps(self._trusted_ms(policy.unacknowledged_max_ms))
        needed = self._copies_need()
        return await run_in_thread(
            lambda: decide(
                closed_segments(store.files, safe),
                policy,
                disk,
                min_offset=min_offset,
                hour=hour,
                now_ms=now_ms,
                held_from=min(held.held_from, needed),
                free_to=min(held.free_to, needed),
                before_ms=before_ms,
            )
        )

    async def _find_holders_in_steps(self, now_ms: EpochMs) -> HeldLog:
        """Finds the queues and groups that hold the log; requests run between two topics. The segments are
        checked again, in one step, before they are removed."""
        max_ms = self._policy.unacknowledged_max_ms
        steps = held_log_steps(self._store, self._model, max_ms, self._subscribers, now_ms)
        return self._note_holders(await in_steps(steps))

    def _find_holders(self, now_ms: EpochMs) -> HeldLog:
        max_ms = self._policy.unacknowledged_max_ms
        return self._note_holders(held_log(self._store, self._model, max_ms, self._subscribers, now_ms))

    def topic_hold(self, topic: str) -> TopicHold | None:
        """The present hold of this topic on the log. Raises StorageError."""
        max_ms = self._policy.unacknowledged_max_ms
        return topic_hold(
            self._store, self._model, topic, max_ms, self._subscribers, self._trusted_ms(max_ms)
        )

    def _note_holders(self, held: HeldLog) -> HeldLog:
        """Logs which group keeps the log from being trimmed, once for each topic and group that become the
        first."""
        counters = self.counters
        before = counters.held.holders[:1]
        counters.held = held
        counters.held_bytes = max(0, self._store.end_offset - held.held_from)
        for one in held.holders[:1]:
            if [(one.topic, one.group)] != [(old.topic, old.group) for old in before]:
                get_logger().info(
                    "retention.held", topic=one.topic, group=one.group, bytes_held=counters.held_bytes
                )
        return held

    # --- the removal --------------------------------------------------------------------------------
    async def _detach(self, end: PhysicalOffset, *, carry: bool, pressed: bool) -> StoreTrim | None:
        """Removes the segments for readers. None if a topic holds the log by now."""
        store, model = self._store, self._model
        trim = store.trim(end)
        await in_steps(trim.prepare())
        await run_in_thread(trim.measure)
        held = self._find_holders(self._trusted_ms(self._policy.unacknowledged_max_ms))
        if min(held.held_from, self._copies_need()) < end and not pressed:
            await in_steps(trim.abandon())
            return None
        report_unacknowledged(store, self.counters, held, end)
        if carry:
            self.counters.carried_messages += model.reappend_live_records_before(end, self._clock_ms())
        else:
            outstanding = sorted(set(model.live_records_before(end)))
            report_dropped(store, self.counters, outstanding, end)
        trim.hide()
        self._leaving = trim
        if not carry:
            with suppress(TroveError):  # each finds that its records were removed
                model.reappend_live_records_before(end, self._clock_ms())
        return trim

    async def _remove(self, trim: StoreTrim) -> None:
        await in_steps(trim.follow())
        await self._durable(self._store.end_offset)
        await run_in_thread(trim.remove)
        self._leaving = None


async def in_steps(steps: Steps[Result]) -> Result:
    """The result of the steps; requests run between them."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        await asyncio.sleep(0)
