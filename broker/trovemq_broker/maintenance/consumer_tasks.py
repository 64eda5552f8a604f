"""The timed work on the consumer state: delayed messages, ended leases, checks of transactions, events.

Each function runs as a task until it is cancelled. The engine is only touched on the event loop, between
awaits. An append or save that fails, because the disk is full or a call failed, is repeated; a failed sync
ends the daemon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from trovemq_broker.produce.put_status import STORED
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.transactions.records import GIVEN_UP_TOPIC
from trovemq_broker.transactions.transactions import TransactionCheck
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_daemon.ticks import sleep_to_tick
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_store.files.failures import raise_failed_sync
from trovemq_store.files.files import StorageError

Clock = Callable[[], EpochMs]
Result = TypeVar("Result")

TIMER_WAIT_MAX_S: Final = 1.0
"""The longest wait for a timer: the clock may be set meanwhile, so it is read at least this often."""
TIMER_PAUSE_S: Final = 0.01
"""Seconds between two deliveries. Timers that become due meanwhile are delivered together: the cost hardly
depends on their number."""
TIMER_GATHER_S: Final = 0.01
"""Messages that become due within this time after a delivery are delivered together: an append and a wake-up
for each of them would overload a busy broker."""
RETRY_PAUSE_S: Final = 0.5
"""Seconds between a refused call and its repetition."""
RENEW_INTERVAL_MS: Final = 1_000
"""Milliseconds between two renewals of leases."""
SNAPSHOT_POLL_S: Final = 5.0
"""Seconds between two checks whether a snapshot is needed."""
CHECK_POLL_S: Final = 0.5
"""Seconds between two checks for due transactions."""


class TimerTask:
    """Delivers delayed messages at their time."""

    def __init__(self, model: ConsumerState, clock_ms: Clock, *, stopped: bool = False) -> None:
        self._stopped = stopped
        self._model = model
        self._clock_ms = clock_ms
        self._changed = asyncio.Event()
        self._due_ms: int | None = None  # that is waited for
        self.delivered_count = 0
        self.lateness_max_ms = 0

    def changed(self) -> None:
        """Is called when a new timer may be due before the one for which run() waits."""
        if not self._stopped and self._model.timers.next_due_ms() != self._due_ms:
            self._changed.set()

    async def run(self) -> None:
        timers = self._model.timers
        while True:
            due_ms = self._due_ms = None if self._stopped else timers.next_due_ms()
            now_ms = self._clock_ms()
            if due_ms is None or due_ms > now_ms:
                away_s = TIMER_WAIT_MAX_S if due_ms is None else (due_ms - now_ms) / 1000
                await self._wait(min(away_s, TIMER_WAIT_MAX_S))
                continue
            self.lateness_max_ms = max(self.lateness_max_ms, now_ms - due_ms)
            delivered = await _try_append(
                "timers.not_delivered", lambda: timers.deliver_due(self._clock_ms())
            )
            self.delivered_count += delivered or 0
            more = delivered == self._model.settings.timer_batch_max
            await asyncio.sleep(0 if more else TIMER_PAUSE_S)  # requests go in between

    async def _wait(self, seconds: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass


async def flush_events_and_renew_leases(
    model: ConsumerState,
    is_alive: Callable[[str], bool],
    clock_ms: Clock,
    boot_ms: Callable[[], int],
) -> None:
    """Writes events, extends renewed leases, and detects pauses of the process."""
    renew_at_ms = 0
    lease_time, pauses = model.delivery.lease_time, 0
    while True:
        await sleep_to_tick(model.settings.event_interval_ms / 1000)
        now_ms = clock_ms()
        lease_time.tick(now_ms, boot_ms())
        if lease_time.pause_count > pauses:
            pauses = lease_time.pause_count
            get_logger().warning("broker.stood_still", times=pauses, longest_ms=lease_time.paused_ms)
        model.read_unread()
        log_copy_failures(model)
        if now_ms >= renew_at_ms or now_ms < renew_at_ms - RENEW_INTERVAL_MS or model.delivery.is_releasing:
            while model.delivery.renew(now_ms, is_alive):
                await _flush_events(model, clock_ms)
                await asyncio.sleep(0)  # requests go in between
            renew_at_ms = now_ms + RENEW_INTERVAL_MS
        await _flush_events(model, clock_ms)


async def _flush_events(model: ConsumerState, clock_ms: Clock) -> None:
    if model.events.pending_count:
        await _try_append("events.not_written", lambda: model.events.flush(clock_ms()))


def log_copy_failures(model: ConsumerState) -> None:
    """Logs the position of each record that could not be copied since the last call."""
    for failure in model.writer.copy_failures.take():
        get_logger().warning(
            "records.not_copied",
            purpose=failure.purpose,
            physical_offset=failure.physical_offset,
            topic=failure.topic,
            queue_id=failure.queue_id,
            queue_offset=failure.queue_offset,
            reason=failure.reason,
        )


async def check_transactions(
    model: ConsumerState,
    may_ask: Callable[[str, str], bool],
    ask: Callable[[TransactionCheck], Awaitable[None]],
    clock_ms: Clock,
) -> None:
    """Asks producers about transactions that they left open, and logs transactions that are given up."""
    transactions = model.transactions
    while True:
        await sleep_to_tick(CHECK_POLL_S)
        next_ms = transactions.next_check_ms()
        if next_ms is None or next_ms > clock_ms():
            continue
        due = await _try_append(
            "transactions.not_checked", lambda: transactions.due_checks(clock_ms(), may_ask)
        )
        for transaction in due or ():
            await ask(transaction)
        for ended in transactions.take_given_up():
            get_logger().warning(
                "transaction.given_up",
                topic=ended.topic,
                transaction_id=ended.transaction_id,
                client_id=ended.client_id,
                checks=ended.checks,
                kept_in=GIVEN_UP_TOPIC,
            )


async def save_groups(save: Callable[[], Awaitable[None]], interval_ms: int) -> None:
    """Saves groups that were created by their first use."""
    while True:
        await sleep_to_tick(interval_ms / 1000)
        try:
            await save()
        except TroveError as error:
            _log_failure("groups.not_saved", error)


async def save_snapshots(
    model: ConsumerState, durable: Callable[[PhysicalOffset], Awaitable[None]], clock_ms: Clock
) -> None:
    """Saves snapshots of the consumer state, so that a start replays few events."""
    while True:
        await sleep_to_tick(SNAPSHOT_POLL_S)
        try:
            work = model.begin_snapshot(clock_ms())
            if work is not None:
                await durable(work.log_end)
                await run_in_thread(work.run)
        except StorageError as error:
            raise_failed_sync(error)
            model.snapshot_not_saved()
            get_logger().warning("consumers.snapshot_not_saved", reason=str(error))
        except TroveError as error:
            model.snapshot_not_saved()
            _log_failure("consumers.snapshot_not_saved", error)


async def _try_append(event: str, action: Callable[[], Result]) -> Result | None:
    """The action's result. None, after a pause, if the disk is full or a call failed."""
    try:
        return action()
    except StorageError as error:
        _log_failure(event, TroveError(errors.UNKNOWN_ERROR, str(error)))
    except TroveError as error:
        _log_failure(event, error)
    await asyncio.sleep(RETRY_PAUSE_S)
    return None


def _log_failure(event: str, error: TroveError) -> None:
    if not error.retriable and error.spec not in {*STORED, errors.UNKNOWN_ERROR}:
        raise error
    get_logger().warning(event, reason=error.message)
