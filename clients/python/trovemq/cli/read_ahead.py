"""Reads messages in a thread: complete ones are sent while the thread waits for more of a slow input."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Final

from trovemq.cli.produce_input import Outgoing

CHUNK_MESSAGES_MAX: Final = 1_000
CHUNK_BYTES_MAX: Final = 1 << 20


class ReadAhead:
    """The messages in chunks; at most one chunk waits. Close it, and the thread ends with its next
    message."""

    def __init__(self, messages: Iterator[Outgoing]) -> None:
        self._messages = messages
        self._condition = threading.Condition()
        self._waiting: list[Outgoing] = []
        self._waiting_bytes = 0
        self._failure: BaseException | None = None
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        # A daemon thread, because nothing can interrupt a read of standard input.
        threading.Thread(target=self._read, name="produce-input", daemon=True).start()

    def _read(self) -> None:
        try:
            for message in self._messages:
                with self._condition:
                    self._condition.wait_for(self._has_space)
                    if self._ended:
                        return
                    self._waiting.append(message)
                    self._waiting_bytes += len(message.body)
                    is_first = len(self._waiting) == 1
                if is_first:
                    self._tell()
        except BaseException as failure:
            self._failure = failure
        self._ended = True
        self._tell()

    def _has_space(self) -> bool:
        few = len(self._waiting) < CHUNK_MESSAGES_MAX and self._waiting_bytes < CHUNK_BYTES_MAX
        return few or self._ended

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:
            self._ended = True  # the loop is closed: the messages are not needed

    async def chunks(self) -> AsyncIterator[list[Outgoing]]:
        """All messages in their order, until the input ends or one is wrong: see `check`."""
        while True:
            await self._news.wait()
            self._news.clear()
            ended = self._ended
            with self._condition:
                chunk, self._waiting, self._waiting_bytes = self._waiting, [], 0
                self._condition.notify()
            if chunk:
                yield chunk
            if ended:
                break

    def check(self) -> None:
        """After `chunks`. Raises the exception that ended the reading."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Ends the reading."""
        with self._condition:
            self._ended = True
            self._condition.notify()
