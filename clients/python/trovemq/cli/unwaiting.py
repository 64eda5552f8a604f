"""Writes to a standard stream without waiting for its reader: for a verb whose loop serves on meanwhile."""

from __future__ import annotations

import asyncio
import io
import select
from contextlib import suppress
from os import write
from typing import IO, Final

REST_MAX: Final = 1 << 20
"""Bytes that wait for a reader; more are an error, and dropped."""


class UnwaitingWriter:
    """Writes as much as the reader takes now, and the rest later, in order. Use it in a loop; close it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._rest = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None

    def write(self, data: bytes) -> None:
        """Raises BrokenPipeError and other OSError; BlockingIOError if too much waits for the reader."""
        try:
            descriptor = self._stream.fileno()
        except io.UnsupportedOperation:  # in memory
            self._stream.write(data)
            self._stream.flush()
            return
        if len(self._rest) + len(data) > REST_MAX:
            raise BlockingIOError("nothing reads it")
        self._rest += data
        self._go(descriptor)

    def _go(self, descriptor: int) -> None:
        try:
            while self._rest and _is_free(descriptor):
                del self._rest[: write(descriptor, self._rest[: select.PIPE_BUF])]
        except OSError:
            self._rest.clear()
            raise
        finally:
            self._wait(descriptor)

    def close(self) -> None:
        """Drops the rest."""
        self._rest.clear()
        if self._loop is not None:
            self._wait(self._stream.fileno())

    def _wait(self, descriptor: int) -> None:
        """Continues when the reader takes more."""
        if self._rest and self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_writer(descriptor, self._go_on, descriptor)
        elif not self._rest and self._loop is not None:
            self._loop.remove_writer(descriptor)
            self._loop = None

    def _go_on(self, descriptor: int) -> None:
        with suppress(OSError):  # the next write has the same one
            self._go(descriptor)


def _is_free(descriptor: int) -> bool:
    """Whether a short write does not wait; also where it will fail."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))
