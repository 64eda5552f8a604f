"""The rest of a read: a connection does a bounded share of work in a turn of the loop, then the others have
theirs.

A flood's frames cost 1 to 15 us each, so one large read of them could hold up the others for half a second.
"""

from __future__ import annotations

from typing import Final

from trovemq_rpc.http2.receiving import WORK_UNLIMITED
from trovemq_rpc.loop_parts import LoopParts

WORK_A_TURN_MAX: Final = 512
"""As `Receiving.parse` counts it: some 100 calls, or a few ms of a flood."""
RESTS_SIZE_MAX: Final = 16 << 20
"""The most bytes that all connections of a loop leave for later. Beyond it they leave nothing: bounded memory
is more important than fairness."""


class Rest:
    """One connection's. While there is some, its transport does not read."""

    __slots__ = ("_parts", "_size", "data")

    def __init__(self, parts: LoopParts) -> None:
        self.data: memoryview | None = None
        self._parts = parts
        self._size = 0  # counted in `rests_size`: of the copy that `data` is the end of

    @property
    def work_max(self) -> int:
        """The work that the connection may do now."""
        return WORK_A_TURN_MAX if self._parts.rests_size < RESTS_SIZE_MAX else WORK_UNLIMITED

    def keep(self, data: memoryview) -> None:
        """`data` is left: the end of the earlier rest, or of the receive buffer."""
        if self.data is None:
            self._count(len(data))
            data = memoryview(bytes(data))
        self.data = data

    def add(self, data: memoryview) -> None:
        """More came, of a transport that reads on though it is paused."""
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
