"""Reports the clock and the boot time to the store, and says so when they disagree.

The effects of a step: trovemq_store.engine.store_time (store times), trovemq_store.engine.clock_trust
(removal by age).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trovemq_broker.maintenance.background import log_failure
from trovemq_broker.maintenance.projection_flushes import ProjectionFlushes
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_daemon.ticks import sleep_to_tick
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.clock_trust import ClockTrust
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.store_time import AHEAD_MAX_MS
from trovemq_store.files.files import StorageError

TICK_S: Final = 0.1
"""Seconds between two reports of the clock."""
SAVE_PAUSE_MS: Final = 60_000
"""Until a file that could not be written is tried again."""
REMEDY: Final = "run a time service (chrony, ntpd) on the broker's machine"


class ClockTask:
    """The task of one store."""

    def __init__(
        self,
        store: MessageStore,
        trust: ClockTrust,
        flushes: ProjectionFlushes,
        wall_ms: Callable[[], EpochMs],
        boot_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._trust = trust
        self._flushes = flushes
        self._wall_ms = wall_ms
        self._boot_ms = boot_ms
        self._logged = False
        self._save_from_ms = 0  # boot time

    async def run(self) -> None:
        """Runs until it is cancelled. Raises TroveError STORE_FAILED if a sync failed."""
        while True:
            await self.tick()
            await sleep_to_tick(TICK_S)

    async def tick(self) -> None:
        now_ms, boot_ms = self._wall_ms(), self._boot_ms()
        stepped_ms = self._trust.tick(now_ms, boot_ms)
        if stepped_ms:
            self._save_from_ms = boot_ms
            get_logger().warning(
                "clock.stepped",
                seconds=round(stepped_ms / 1000),
                effect="no message is removed for its age for an hour",
                what_to_do=REMEDY,
            )
        wants_step = self._store.tick(now_ms, boot_ms)
        self._log_future()
        try:
            if self._trust.unsaved and boot_ms >= self._save_from_ms:
                self._save_from_ms = boot_ms + SAVE_PAUSE_MS
                await run_in_thread(self._trust.save)
            if wants_step:
                await self._step()
        except StorageError as error:
            log_failure("clock.not_saved", error)
        except TroveError as error:
            if error.spec is errors.STORE_FAILED:
                raise
            get_logger().warning("clock.not_saved", reason=error.message)

    async def _step(self) -> None:
        """Store times step back, once the checkpoint on disk is early enough. StorageError."""
        store, last_ms = self._store, self._store.last_store_timestamp
        async with self._flushes.flushing:
            store.begin_time_step(self._wall_ms())
            try:
                await run_in_thread(store.flush_projections)
            finally:
                stepped = store.finish_time_step(self._wall_ms())
        if stepped:
            get_logger().warning(
                "store.times_stepped_back",
                seconds=round((last_ms - store.last_store_timestamp) / 1000),
                reason="the clock had been ahead",
                what_to_do=REMEDY,
            )

    def _log_future(self) -> None:
        """One line when the store has messages of a future time, also at a start; again after they were
        past."""
        text = future_text(self._store)
        if text and not self._logged:
            get_logger().warning("store.times_in_future", reason=text, what_to_do=REMEDY)
        self._logged = bool(text)


def future_text(store: MessageStore) -> str:
    """How far store times are in the future; an empty text if they are not."""
    future_ms = store.time.future_ms
    if future_ms <= AHEAD_MAX_MS:
        return ""
    return f"messages were stored up to {round(future_ms / 1000)} s in the future: the clock was ahead"


def clock_warning(store: MessageStore, trust: ClockTrust) -> str:
    """A warning about the clock, with the remedy, or an empty text."""
    texts = [future_text(store)] if future_text(store) else []
    if trust.stepped_ms and trust.remaining_ms:
        texts.append(
            f"the clock stepped by {round(trust.stepped_ms / 1000)} s: no message is removed for its age for "
            f"{-(-trust.remaining_ms // 60_000)} more minutes"
        )
    return "; ".join([*texts, REMEDY]) if texts else ""
