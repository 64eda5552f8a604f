"""Which failed calls may be tried again, and when: exponential back-off with jitter, as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom

from trovemq_proto import errors
from trovemq_proto.errors import TroveError


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `delay_ms` to `delay_max_ms`; each is drawn between half of that and all of it.

    Attributes:
        delay_ms: Upper bound of the first delay.
        delay_max_ms: Upper bound of every delay.
        uniform: Draws a number of [0, 1); tests give their own.
    """

    delay_ms: float = 20.0
    delay_max_ms: float = 1_000.0
    uniform: Callable[[], float] = SystemRandom().random  # the program's own numbers stay as it seeded them

    def seconds(self, failures: int) -> float:
        """The delay in seconds after that many failures in a row (1 or more)."""
        bound = min(self.delay_max_ms, self.delay_ms * 2.0 ** min(failures - 1, 30))
        return bound * (0.5 + 0.5 * self.uniform()) / 1000.0


def may_pass(error: TroveError) -> bool:
    """Whether the same call may succeed later; this includes errors that the server did not expect."""
    return error.retriable or error.spec is errors.UNKNOWN_ERROR
