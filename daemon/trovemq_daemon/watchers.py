"""Streams that watch a state: each is woken after a change and then reads the latest state.

The queue of a watcher is one flag, so any number of changes while it is slow become one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from trovemq_proto import errors
from trovemq_proto.errors import TroveError


class Watch:
    """One watcher's wake-up flag."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._closed = False

    def wake(self) -> None:
        self._event.set()

    def close(self) -> None:
        self._closed = True
        self._event.set()

    async def changed(self) -> bool:
        """Waits for the next change. False: the server is stopping, and the stream must end."""
        await self._event.wait()
        self._event.clear()
        return not self._closed


class Watchers:
    """The watchers of one state, at most `watchers_max`. For use on one event loop."""

    def __init__(self, watchers_max: int) -> None:
        self._watchers_max = watchers_max
        self._watches: set[Watch] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._watches)

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        """A watch for the duration of the block. TroveError LIMIT_EXCEEDED, SERVICE_NOT_AVAILABLE."""
        if self._closed:
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the server is stopping")
        if len(self._watches) >= self._watchers_max:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{self._watchers_max} watchers are connected already")
        watch = Watch()
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    def notify(self) -> None:
        for watch in self._watches:
            watch.wake()

    def close(self) -> None:
        """Ends the streams of all watchers, and accepts no new ones."""
        self._closed = True
        for watch in self._watches:
            watch.close()
