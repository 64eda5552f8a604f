"""Messages without an acknowledgement at the end of their producer: the log names their number.

| end                                         | messages of `send_nowait` and its like                       |
|---------------------------------------------|--------------------------------------------------------------|
| `Producer.close`, the end of its block      | sent, and waited for                                         |
| `Client.close`                              | dropped; the log has their number                            |
| synchronous client: `close`, and the end of | sent, and waited for up to FLUSH_SECONDS_MAX; the log has    |
| the process                                 | the number of those that are dropped then                    |
| asyncio client that is not closed: the end  | they ended with their event loop; the log has their number   |
| of the process                              |                                                              |
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final
from weakref import WeakSet

_log = logging.getLogger(__name__)

FLUSH_SECONDS_MAX: Final = 5.0


class Unacknowledged:
    """This part of Producer."""

    topic: str
    _reported = False

    def _watch(self) -> None:
        """Begins to report at the end of the process."""
        _producers.add(self)

    def __del__(self) -> None:
        self._report("their producer was dropped")

    def _report(self, end: str) -> None:
        """Logs how many messages have no acknowledgement, unless the log has that number already."""
        count = 0 if self._reported else self.in_flight_count
        if count:
            _log.warning(
                "%d messages of topic %s had no acknowledgement when %s: they may not be stored. Close the"
                " producer before: `async with client.producer(…)` does it",
                count,
                self.topic,
                end,
            )

    @property
    def in_flight_count(self) -> int:
        """Messages that are sent or waiting, and not yet acknowledged; without delayed ones."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Waits until everything sent so far is acknowledged or has failed."""
        raise NotImplementedError

    async def abort(self) -> None:
        """Drops everything that is not acknowledged."""
        raise NotImplementedError


_producers: WeakSet[Unacknowledged] = WeakSet()


async def flush_all(producers: Iterable[Unacknowledged]) -> None:
    """Flushes them, for up to FLUSH_SECONDS_MAX."""
    with suppress(TimeoutError):
        async with asyncio.timeout(FLUSH_SECONDS_MAX):
            await asyncio.gather(*(producer.flush() for producer in producers))


async def abort_all(producers: Iterable[Unacknowledged]) -> None:
    """Aborts them, and reports the messages that they drop."""
    for producer in list(producers):
        producer._report("the client was closed")
        await producer.abort()


def abandon_all(producers: Iterable[Unacknowledged]) -> None:
    """Reports the messages that ended with the producers' event loop."""
    for producer in list(producers):
        producer._report("its event loop had ended")
        producer._reported = True


def report_all() -> None:
    """Reports the messages of all producers; nothing is reported later."""
    for producer in list(_producers):
        producer._report("the process ended")
        producer._reported = True  # when it is deleted, the log is gone


def _forget_all() -> None:
    """In a forked process: the messages are its parent's."""
    for producer in list(_producers):
        producer._reported = True
    _producers.clear()


atexit.register(report_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
