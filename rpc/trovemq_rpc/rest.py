"""The rest of a read. In an iteration of the loop a connection does a limited amount of work. Further bytes
wait until the other connections were served.

A frame of a flood costs 1 to 15 us, so one large read of them could hold up the others for half a second.
"""

from __future__ import annotations

from typing import Final

from trovemq_rpc.loop_parts import LoopParts

WORK_MAX: Final = 1_024
"""Of a connection in an iteration of the loop, in the units of `Receiving.parse`: 256 small calls, or about a
millisecond of a flood. bench/rpc/hostile.py, "the longest turn of the loop".
"""
RECORD_WORK: Final = 2
"""For each TLS record: records of one byte are work, too, and may be no whole frame."""
MESSAGES_MAX: Final = 256
"""Of its streams in an iteration: a frame of 64 KiB may have 13,000, and to handle one takes 10 to 100 us (no
benchmark has a case for it)."""
RENEWED_BELOW: Final = MESSAGES_MAX - 16
"""A share that still has this many is not renewed: the next iteration has up to 16 fewer. Renewed for every
message, it would cost a callback of the loop each time.
"""
RESTS_SIZE_MAX: Final = 16 << 20
"""Bytes that all connections of a loop leave for later, from which each reads READ_SIZE_SHORT at a time."""
READ_SIZE_SHORT: Final = 4 << 10  # about an iteration's work, if it is frames of a flood


class Rest:
    """The rest of one connection. While there is one, the transport does not read."""

    __slots__ = ("_parts", "_size", "data")

    def __init__(self, parts: LoopParts) -> None:
        self.data: memoryview | None = None
        self._parts = parts
        self._size = 0  # of the copy whose end `data` is, and of the records; counted in `rests_size`

    def keep(self, data: memoryview, sealed_size: int) -> None:
        """`data` is left over: the end of the rest before it, or of the receive buffer (which is copied).
        `sealed_size`: bytes of TLS records that wait with it.
        """
        if self.data is None:
            self._count(len(data) + sealed_size)
            data = memoryview(bytes(data))
        self.data = data

    def add(self, data: memoryview) -> None:
        """More bytes came, from a transport that reads although it is paused."""
        assert self.data is not None
        joined = bytes(self.data) + bytes(data)
        self._count(len(joined))
        self.data = memoryview(joined)

    def end(self) -> None:
        self.data = None
        self._count(0)

    def _count(self, size: int) -> None:
        self._parts.rests_size += size - self._size
        self._size = size


class Share:
    """The messages of a connection's streams that may still be handled in this iteration of the loop."""

    __slots__ = ("_loop", "_renewing", "left")

    def __init__(self, parts: LoopParts) -> None:
        self.left = MESSAGES_MAX
        self._loop = parts.loop
        self._renewing = False

    def take(self, count: int) -> None:
        assert 0 < count <= self.left, "more than the share has"
        self.left -= count
        if self.left < RENEWED_BELOW and not self._renewing:
            self._renewing = True
            self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        self.left = MESSAGES_MAX
        self._renewing = False
