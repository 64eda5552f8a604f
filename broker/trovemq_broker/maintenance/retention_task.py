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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_broker.groups.delivery.reappends import CARRIED_TOPIC
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.state.held_log import (
    NOTHING_HELD,
    HeldLog,
    Subscribers,
    TopicHold,
    held_log,
    held_log_steps,
    topic_hold,
)
from trovemq_broker.transactions.records import OP_TOPIC
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_daemon.ticks import sleep_to_tick
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_proto.records import decode_stored, encode_offset_msg_id
from trovemq_proto.records.layout import PROPERTY_REAL_TOPIC, PROPERTY_UNIQ_KEY
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.steps import Result, Steps
from trovemq_store.engine.trim import StoreTrim
from trovemq_store.files.files import StorageError
from trovemq_store.log.retention import Decision, DiskUse, RetentionPolicy, decide, is_disk_full
from trovemq_store.log.segment_age import closed_segments

POLL_S: Final = 2.0
"""How often a full disk is checked, so that messages are accepted soon after there is space."""
CARRY_STEP_BYTES: Final = 256 << 10
"""Bytes of the log whose pending records are copied in one iteration of the event loop."""
CARRIED_PERCENT_MAX: Final = 90
"""If the disk is full and a larger part of the bytes to be freed is pending, pending messages are not copied:
the copies would take the space."""
DROPPED_LINES_MAX: Final = 100
"""The most log lines of one run for dropped messages; the others are only counted."""

Hold = Callable[[TroveError | None], None]
CarryAudit = Callable[[PhysicalOffset, EpochMs], Iterator[int]]
"""Appends again, in steps, the audit records below an offset that are still young at this time."""


@dataclass(slots=True)
class RetentionCounters:
    """Counters since the start; from disk_used_percent on, present values. Dropped: pending messages that
    were removed to free the disk."""

    removed_segments: int = 0
    removed_bytes: int = 0
    forced_segments: int = 0
    carried_messages: int = 0
    dropped_messages: int = 0
    dropped_unacknowledged: int = 0
    """Unacknowledged messages of topics that keep them, which were removed to free the disk."""
    failures: int = 0
    disk_used_percent: float = 0.0
    disk_full: bool = False
    disk_filling: bool = False
    held: HeldLog = NOTHING_HELD
    """The queues and groups that hold the log, as the last run found them."""
    held_bytes: int = 0
    """Bytes from the first held message to the end of the log."""


class RetentionTask:
    """`hold` is called with the error with which new messages are to be refused, and with None when they are
    accepted again. durable(end) returns when the log is on disk up to `end`. No topic is changed while files
    of queues are removed. trusted_ms: see ClockTrust; by default the clock's time."""

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
        self._carry_audit = carry_audit
        self._trusted_ms = trusted_ms or (lambda _kept_ms: clock_ms())
        self._leaving: StoreTrim | None = None
        self.counters: Final = RetentionCounters()

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
        end, carried = await self._carry(decision)
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
            self._model.want_snapshot()  # a start from the present one would look for these segments
        safe = [segment for segment in segments if segment.end <= self._model.saved_log_end]
        min_offset, hour = store.min_offset, time.localtime(self._clock_ms() / 1000).tm_hour
        run = store.time_runs.run_at(PhysicalOffset(segments[0].end - 1)) if segments else None
        before_ms = run.before_ms if run is not None and run.steps_back else 0
        held = await self._find_holders_in_steps(self._trusted_ms(policy.unacknowledged_max_ms))
        return await run_in_thread(
            lambda: decide(
                closed_segments(store.files, safe),
                policy,
                disk,
                min_offset=min_offset,
                hour=hour,
                now_ms=now_ms,
                held_from=held.held_from,
                free_to=held.free_to,
                before_ms=before_ms,
            )
        )

    async def _find_holders_in_steps(self, now_ms: EpochMs) -> HeldLog:
        """Finds what holds the log; requests run between two topics. The segments are checked again, in one
        step, before they are removed."""
        max_ms = self._policy.unacknowledged_max_ms
        steps = held_log_steps(self._store, self._model, max_ms, self._subscribers, now_ms)
        return self._note_holders(await _in_steps(steps))

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

    # --- pending messages ------------------------------------------------------------------------------
    async def _carry(self, decision: Decision) -> tuple[PhysicalOffset, bool]:
        """Appends the pending messages of these segments again, in steps; the copies are on disk when it
        returns. Returns where the log may begin then, and True. If the disk is full and has no space for
        copies, it returns where the log may begin without them, and False if that segment still has pending
        messages.
        """
        await self._carry_audit_records(decision)
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

    async def _carry_audit_records(self, decision: Decision) -> None:
        """Copies the young audit records; they are on disk when it returns. If a full disk has no space for
        the copies, the records are removed."""
        try:
            for count in self._carry_audit(decision.end, self._trusted_ms(self._policy.reserved_ms)):
                self.counters.carried_messages += count
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
                self.counters.carried_messages += model.reappend_live_records_before(
                    position, self._clock_ms()
                )
                await self._durable(store.end_offset)

    def _live_bytes(self, end: PhysicalOffset) -> int:
        sizes = (self._store.read(at, 4) for at in set(self._model.live_records_before(end)))
        return sum(int.from_bytes(size) for size in sizes)

    # --- the removal --------------------------------------------------------------------------------
    async def _detach(self, end: PhysicalOffset, *, carry: bool, pressed: bool) -> StoreTrim | None:
        """Removes the segments for readers. None if a topic holds the log by now."""
        store, model = self._store, self._model
        trim = store.trim(end)
        await _in_steps(trim.prepare())
        await run_in_thread(trim.measure)
        held = self._find_holders(self._trusted_ms(self._policy.unacknowledged_max_ms))
        if held.held_from < end and not pressed:
            await _in_steps(trim.abandon())
            return None
        self._note_unacknowledged(held, end)
        if carry:
            self.counters.carried_messages += model.reappend_live_records_before(end, self._clock_ms())
        else:
            self._note_dropped(end)
        trim.hide()
        self._leaving = trim
        if not carry:
            with suppress(TroveError):  # each finds that its records were removed
                model.reappend_live_records_before(end, self._clock_ms())
        return trim

    async def _remove(self, trim: StoreTrim) -> None:
        await _in_steps(trim.follow())
        await self._durable(self._store.end_offset)
        await run_in_thread(trim.remove)
        self._leaving = None

    def _note_unacknowledged(self, held: HeldLog, end: PhysicalOffset) -> None:
        """Logs the messages that the full disk forces out of topics that are kept until they are
        acknowledged."""
        for one, count in held.count_before(self._store, end).items():
            self.counters.dropped_unacknowledged += count
            get_logger().warning(
                "retention.dropped_unacknowledged",
                topic=one.topic,
                queue_id=one.queue_id,
                group=one.group,
                messages=count,
            )

    def _note_dropped(self, end: PhysicalOffset) -> None:
        outstanding = sorted(set(self._model.live_records_before(end)))
        self.counters.dropped_messages += len(outstanding)
        for physical_offset in outstanding[:DROPPED_LINES_MAX]:
            topic, message_id, unique_key = self._identify(physical_offset)
            get_logger().warning(
                "retention.dropped", topic=topic, offset_msg_id=message_id, unique_key=unique_key
            )
        if outstanding:
            get_logger().warning("retention.dropped_in_all", messages=len(outstanding), log_begins=end)

    def _identify(self, physical_offset: PhysicalOffset) -> tuple[str, str, str]:
        """(topic, offsetMsgId, unique key) of the record at that offset, as far as they can be read."""
        try:
            record = self._store.record_at(physical_offset, check=False)
            message = decode_stored(record or b"")
        except TroveError:
            return "", f"at {physical_offset}", ""
        return (
            message.properties.get(PROPERTY_REAL_TOPIC, message.topic),
            encode_offset_msg_id(message.packed_store_host, physical_offset),
            message.properties.get(PROPERTY_UNIQ_KEY, ""),
        )


async def _in_steps(steps: Steps[Result]) -> Result:
    """The result of the steps; requests run between them."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        await asyncio.sleep(0)
