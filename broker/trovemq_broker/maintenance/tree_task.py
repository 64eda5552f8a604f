"""Keeps the B+trees up to date with the log, in the background.

While messages arrive, or messages are looked up, the trees use only their share of a processor, and lag;
searches scan the part of the log that is not indexed. In quiet times the trees catch up, then the entries of
removed records are deleted. A long step would hold the interpreter from requests for milliseconds at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_daemon.ticks import sleep_to_tick
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.failures import raise_failed_sync
from trovemq_store.files.files import StorageError

STEP_BYTES_BUSY: Final = 1 << 20
STEP_BYTES_QUIET: Final = 8 << 20
STEP_BYTES_FAR: Final = 64 << 20
"""Bytes of the log in one step: while messages arrive or are looked up, in quiet times, and while the trees
are built."""
FAR_BYTES: Final = 128 << 20
"""Trees that lag by more are being built: each step touches most of their pages, so steps are larger."""
SWEEP_ENTRIES: Final = 4_096
"""Entries that one sweep examines."""
STEP_BYTES_WORTH: Final = 256 << 10
"""While messages arrive, a lag of less waits for the next poll: a step costs a thread and a commit,
however few messages it has. One synced send at a time, with it over without it: p50 0.80, p99 0.51. No
benchmark has a case for other sizes."""
POLL_S: Final = 0.5
"""Seconds between two checks for work."""
QUIET_POLLS: Final = 2
"""Polls between two sweeps (for entries of removed records) while the log does not grow: each sweep takes a
thread."""
FAILURE_PAUSE_S: Final = 1.0
"""Seconds between a failed step and its repetition."""


class TreeTask:
    """The task of one store. share_percent: the share of one processor that the trees use while messages
    arrive or are looked up. looked_up: returns the number of look-ups so far."""

    def __init__(
        self,
        store: MessageStore,
        share_percent: int,
        clock_s: Callable[[], float] = time.perf_counter,
        looked_up: Callable[[], int] = lambda: 0,
    ) -> None:
        self._store = store
        self._looked_up = looked_up
        self._clock_s = clock_s
        self._pause_of_work: Final = 100 / share_percent - 1
        self.failure = ""

    async def run(self) -> None:
        """Runs until it is cancelled. Raises TroveError STORE_FAILED if a sync failed."""
        trees = self._store.trees
        if trees is None:
            return
        self._log_opening()
        requests = self._requests()
        while True:
            before, requests = requests, self._requests()
            busy, seen = requests != before, self._visible
            began = self._clock_s()
            try:
                urgent = trees.urgent
                stepped = await self._step(busy and not urgent)
                little = busy and not trees.urgent and trees.lag_bytes < STEP_BYTES_WORTH
                swept = (little or not stepped) and await self._sweep()
                self.failure = ""
            except StorageError as error:
                await self._pause_after(error)
                continue
            took_s = self._clock_s() - began
            pause_s = took_s * self._pause_of_work
            if not stepped and not swept:
                await self._wait_for_work(seen)
            elif little and not swept and pause_s < POLL_S:
                await sleep_to_tick(POLL_S)
            elif busy and not trees.urgent:
                await asyncio.sleep(pause_s)

    @property
    def _visible(self) -> tuple[int, int]:
        """Both change before the trees have something to read."""
        return self._store.flushed_offset, self._store.visible_offset

    async def _wait_for_work(self, seen: tuple[int, int]) -> None:
        """Returns when there may be work."""
        trees = self._store.trees
        assert trees is not None
        for _ in range(QUIET_POLLS):
            await sleep_to_tick(POLL_S)
            if trees.urgent or self._visible != seen:
                return

    def _requests(self) -> tuple[PhysicalOffset, int]:
        """Changes if messages arrived or were looked up."""
        return self._store.end_offset, self._looked_up()

    async def _step(self, busy: bool) -> bool:
        step = self._store.begin_trees(self._step_bytes(busy))
        if step is None:
            return False
        try:
            await run_in_thread(step.run)
        finally:
            self._store.finish_trees(step)
        return True

    def _step_bytes(self, busy: bool) -> int:
        trees = self._store.trees
        assert trees is not None
        if busy:
            return STEP_BYTES_BUSY
        return STEP_BYTES_FAR if trees.lag_bytes > FAR_BYTES else STEP_BYTES_QUIET

    async def _sweep(self) -> bool:
        trees = self._store.trees
        assert trees is not None
        since_of, steady_ms = self._store.time.since_of(), self._store.time.steady_ms
        trees.hurry = False
        return await run_in_thread(
            lambda: trees.sweep(SWEEP_ENTRIES) or trees.sweep_ids(since_of, steady_ms, SWEEP_ENTRIES)
        )

    async def _pause_after(self, error: StorageError) -> None:
        raise_failed_sync(error)
        if not self.failure:
            get_logger().warning("store.trees_behind", reason=f"searches scan the log: {error}")
        self.failure = str(error)
        await asyncio.sleep(FAILURE_PAUSE_S)

    def _log_opening(self) -> None:
        trees = self._store.trees
        assert trees is not None
        if trees.report.quarantined:
            get_logger().warning(
                "store.trees_quarantined", reason=trees.report.quarantined, kept_in="trovemq/trees-aside"
            )
