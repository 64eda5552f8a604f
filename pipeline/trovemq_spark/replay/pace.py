"""A rate limit without a clock: the caller passes the time, and waits for the returned time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

BURST_SECONDS: Final = 0.25
"""How many seconds' messages are sent at once, so that a limit does not send each message alone."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When messages may be sent. Within any time [a, b) at most rate x (b - a) messages and one more part are
    sent; a part is the count that a call of take() gets.

    rate: messages per second, 0 for no limit; free_at: seconds, when the next part may be sent.
    """

    rate: float
    free_at: float = float("-inf")

    def part_max(self, count: int) -> int:
        """The most messages of one part, if a caller would send `count` together; at least 1."""
        return count if not self.rate else max(1, min(count, int(self.rate * BURST_SECONDS)))

    def take(self, count: int, now: float) -> tuple[Pace, float]:
        """For `count` messages: (the state afterwards, seconds to wait before they are sent)."""
        if not self.rate:
            return self, 0.0
        begin = max(now, self.free_at)
        return replace(self, free_at=begin + count / self.rate), begin - now

    def rest(self, now: float) -> float:
        """Seconds to wait before this state is dropped, so that the rate holds over the sent messages."""
        return max(0.0, self.free_at - now) if self.rate else 0.0
