"""The backup of an open store while requests run: read and written in threads, in slices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Final

from trovemq_broker.server.core.pace import REPORT_S, Pace
from trovemq_broker.server.wire.store_messages import BackupProgress
from trovemq_daemon.threads import run_in_thread
from trovemq_proto.positions import EpochMs
from trovemq_store.backup.capture import Capture, capture_log, queue_steps
from trovemq_store.backup.writer import BackupWriter
from trovemq_store.engine.message_store import MessageStore

SLICE_S: Final = 0.05  # of one slice in a thread
SLICE_BYTES: Final = 4 << 20


class BackupRun:
    """One backup. changing: the lock that is held while files of queues or segments are removed. read: is
    called with the number of bytes read."""

    def __init__(
        self,
        store: MessageStore,
        changing: asyncio.Lock,
        clock_ms: Callable[[], EpochMs],
        read: Callable[[int], None],
    ) -> None:
        self._store = store
        self._changing = changing
        self._clock_ms = clock_ms
        self._read = read

    async def steps(
        self, writer: BackupWriter, pace: Pace, *, link: bool
    ) -> AsyncGenerator[BackupProgress, None]:
        """Runs the backup. Yields the same object each time, with the progress; at the end it is `done`."""
        progress = BackupProgress()
        async with self._changing:
            await run_in_thread(writer.begin)
        async with aclosing(self._in_slices(writer.small_files(), pace)) as sizes:
            async for size in sizes:
                self._read(size)
        capture = await self._capture(link=link)
        progress.log_begin, progress.log_end = capture.log_begin, capture.log_end
        progress.bytes_total = capture.bytes_total
        progress.files_total = writer.file_count + capture.file_count
        reported = time.monotonic()
        settings = self._store.settings
        rest = writer.rest(capture, self._clock_ms(), settings.cluster, settings.broker)
        async with aclosing(self._in_slices(rest, pace)) as sizes:
            async for size in sizes:
                self._read(size)
                progress.bytes_done += size
                if time.monotonic() - reported > REPORT_S:
                    reported = time.monotonic()
                    progress.files_done, progress.linked_files = writer.file_count, writer.linked_files
                    yield progress
        progress.files_done = progress.files_total = writer.file_count
        progress.bytes_total = progress.bytes_done
        progress.linked_files = writer.linked_files
        progress.done = True
        yield progress

    async def _capture(self, *, link: bool) -> Capture:
        async with self._changing:
            capture = capture_log(self._store, link=link)
            for _ in queue_steps(self._store, capture):
                await asyncio.sleep(0)
        return capture

    async def _in_slices(self, steps: Iterator[int], pace: Pace) -> AsyncGenerator[int, None]:
        """Runs the steps in threads, in slices; yields the bytes of each slice."""
        bytes_max = min(SLICE_BYTES, int(pace.bytes_per_second * REPORT_S))
        while True:
            size = await run_in_thread(lambda: _slice(steps, bytes_max))
            if size is None:
                return
            pace.read(size)
            yield size
            while wait_s := pace.wait_s:
                await asyncio.sleep(min(wait_s, REPORT_S))
                yield 0


def _slice(steps: Iterator[int], bytes_max: int) -> int | None:
    """Runs some of the steps, at least one. Returns their bytes; None if no step remains."""
    until = time.monotonic() + SLICE_S
    total, some = 0, False
    for size in steps:
        total, some = total + size, True
        if total >= bytes_max or time.monotonic() > until:
            break
    return total if some else None
