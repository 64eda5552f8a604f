"""A rate cap without a clock: the caller gives the time, and waits as long as the result says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

BURST_SECONDS: Final = 0.25
"""The share of the rate that is sent at once, so that a cap does not send each message alone."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much may be sent when. Within any time [a, b) at most rate x (b - a) messages and one part more are
    sent, where a part is the count of one take().

    rate: messages a second, 0 for no cap; free_at: seconds, when the next part may be sent.
    """

    rate: float
    free_at: float = float("-inf")

    def part_max(self, count: int) -> int:
        """How many messages one part may have, of `count` that a caller would send together; at least 1."""
        return count if not self.rate else max(1, min(count, int(self.rate * BURST_SECONDS)))

    def take(self, count: int, now: float) -> tuple[Pace, float]:
        """For `count` messages: (the state afterwards, seconds to wait from now on before they are sent)."""
        if not self.rate:
            return self, 0.0
        begin = max(now, self.free_at)
        return replace(self, free_at=begin + count / self.rate), begin - now

    def rest(self, now: float) -> float:
        """Seconds until the sent messages are paid for; wait as long before this state is dropped."""
        return max(0.0, self.free_at - now) if self.rate else 0.0
