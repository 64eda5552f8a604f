"""The frames to one follower that are not sent yet.

Invariants
- Frames of the log are sent in their order, after the Welcome. Small ones that wait become one.
- At most one heartbeat waits, the newest, and goes between two frames of the log: a follower that reads
  nothing collects none.
- Data is bounded by the leader's window, and by `frames_max`.
"""

from __future__ import annotations

import asyncio
from collections import deque

from zlib_ng.zlib_ng import crc32

from trovemq_broker.replication.frames import (
    SENT_BYTES_MAX,
    Data,
    Heartbeat,
    LeaderFrame,
    Offset,
    Welcome,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


class Outgoing:
    """`joined_from`: where the records of the leader's epoch begin. Frames from there on may be joined; a
    frame has records of one epoch."""

    def __init__(self, frames_max: int, joined_from: Offset) -> None:
        self._frames_max = frames_max
        self._joined_from = joined_from
        self._log: deque[Welcome | Data] = deque()
        self._heartbeat: Heartbeat | None = None
        self._heartbeat_next = False
        self._wake = asyncio.Event()
        self.error: TroveError | None = None
        """Why the stream has ended."""

    def put(self, frame: LeaderFrame) -> None:
        """TroveError LIMIT_EXCEEDED: the follower reads too slowly."""
        if self.error is not None:
            return
        if isinstance(frame, Heartbeat):
            self._heartbeat = frame
        elif len(self._log) >= self._frames_max:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{len(self._log)} frames wait for the follower")
        else:
            self._log.append(frame)
        self._wake.set()

    def end(self, error: TroveError) -> None:
        """No more is sent; the first reason counts."""
        if self.error is None:
            self.error = error
            self._log.clear()
            self._heartbeat = None
            self._wake.set()

    async def next(self) -> LeaderFrame:
        """The next frame, when there is one. Raises the TroveError of the stream's end."""
        while (frame := self._next()) is None:
            if self.error is not None:
                raise self.error
            self._wake.clear()
            await self._wake.wait()
        return frame

    def __len__(self) -> int:
        return len(self._log) + (self._heartbeat is not None)

    def _next(self) -> LeaderFrame | None:
        heartbeat = self._heartbeat
        if heartbeat is not None and (self._heartbeat_next or not self._log):
            self._heartbeat, self._heartbeat_next = None, False
            return heartbeat
        if not self._log:
            return None
        self._heartbeat_next = True
        first = self._log.popleft()
        return self._joined(first) if isinstance(first, Data) else first

    def _joined(self, first: Data) -> Data:
        """With the frames that follow, as long as all of it is one frame."""
        if first.offset < self._joined_from:
            return first
        parts, size, last = [first.data], len(first.data), first
        while self._log and not last.blank:
            one = self._log[0]
            if not isinstance(one, Data) or size + len(one.data) > SENT_BYTES_MAX:
                break
            assert one.offset == last.end, "frames of the log continue each other"
            self._log.popleft()
            parts.append(one.data)
            size += len(one.data)
            last = one
        if last is first:
            return first
        data = b"".join(parts)
        return Data(last.epoch, first.offset, last.commit, data, crc32(data), last.blank)
