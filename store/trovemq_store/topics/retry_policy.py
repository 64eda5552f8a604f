"""How long a consumer group waits before the redelivery of a failed message.

RocketMQ's member `groupRetryPolicy` of a group:

    {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000, …]}}
    {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000, "multiplier": 2}}

Times are in milliseconds. If the inner object is missing, RocketMQ's defaults apply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.topics.lax_json import JsonObject, integer_member, object_member

RetryPolicyKind = Literal["customized", "exponential"]

STEP_COUNT_MAX: Final = 64
DELAY_MAX_MS: Final = 43_200_000  # the longest time that a message may be invisible
MULTIPLIER_MAX: Final = 100.0
_EXPONENT_MAX: Final = 32
_MINUTE_MS: Final = 60_000
_DEFAULT_NEXT_MS: Final = (
    *(1_000, 5_000, 10_000, 30_000),
    *(minutes * _MINUTE_MS for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`next_ms` is for the customized kind, the other values are for the exponential one."""

    kind: RetryPolicyKind = "customized"
    next_ms: tuple[int, ...] = _DEFAULT_NEXT_MS
    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: float = 2.0

    def delay_ms(self, attempt: int) -> int:
        """The wait after delivery number `attempt` (from 1) failed, as RocketMQ 5 clients compute it."""
        assert attempt >= 1, "deliveries are counted from 1"
        if self.kind == "customized":
            delay_ms = self.next_ms[min(attempt, len(self.next_ms)) - 1]
        else:
            grown = self.initial_ms * self.multiplier ** min(attempt - 1, _EXPONENT_MAX)
            delay_ms = int(min(grown, self.max_ms))
        assert delay_ms >= 0, "no policy has a negative delay"
        return delay_ms

    def check(self) -> None:
        """Raises TroveError REQUEST_ILLEGAL unless a user may give a group this policy."""
        fault = self._customized_fault() if self.kind == "customized" else self._exponential_fault()
        if fault:
            raise TroveError(errors.REQUEST_ILLEGAL, f"retry policy: {fault}", field="retry_policy")

    def to_json(self, base: Mapping[str, object]) -> JsonObject:
        """RocketMQ's object; members of `base` that we do not know stay."""
        if self.kind == "exponential":
            multiplier = int(self.multiplier) if self.multiplier.is_integer() else self.multiplier
            steps = {"initial": self.initial_ms, "max": self.max_ms, "multiplier": multiplier}
            return {**base, "exponentialRetryPolicy": steps, "type": "EXPONENTIAL"}
        named = {} if self.next_ms == _DEFAULT_NEXT_MS else {"next": list(self.next_ms)}
        kept = {name: value for name, value in base.items() if name != "customizedRetryPolicy"}
        return {**kept, **({"customizedRetryPolicy": named} if named else {}), "type": "CUSTOMIZED"}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> RetryPolicy:
        """Raises ValueError if it is not an object of RocketMQ's form."""
        kind = value.get("type", "CUSTOMIZED")
        if kind == "EXPONENTIAL":
            steps = object_member(value, "exponentialRetryPolicy")
            multiplier = steps.get("multiplier", 2)
            if not isinstance(multiplier, int | float) or not 0 < multiplier <= MULTIPLIER_MAX:
                raise ValueError(f"multiplier {multiplier!r} is not over 0 and at most {MULTIPLIER_MAX:g}")
            initial_ms, max_ms = (
                integer_member(steps, "initial", 5_000),
                integer_member(steps, "max", 7_200_000),
            )
            if initial_ms < 0 or max_ms < 0:
                raise ValueError("a delay of exponentialRetryPolicy is negative")
            return cls("exponential", initial_ms=initial_ms, max_ms=max_ms, multiplier=float(multiplier))
        if kind != "CUSTOMIZED":
            raise ValueError(f"groupRetryPolicy has the type {kind!r}")
        steps = object_member(value, "customizedRetryPolicy")
        delays = steps.get("next") or _DEFAULT_NEXT_MS
        if not isinstance(delays, list | tuple) or not all(isinstance(ms, int) and ms >= 0 for ms in delays):
            raise ValueError("next of customizedRetryPolicy is not a list of milliseconds")
        return cls(next_ms=tuple(delays))

    def _customized_fault(self) -> str:
        if not 1 <= len(self.next_ms) <= STEP_COUNT_MAX:
            return f"{len(self.next_ms)} steps; it may have 1 to {STEP_COUNT_MAX}"
        wrong = next((ms for ms in self.next_ms if not 0 <= ms <= DELAY_MAX_MS), None)
        return "" if wrong is None else f"a step of {wrong} ms; it may have 0 to {DELAY_MAX_MS}"

    def _exponential_fault(self) -> str:
        if not 0 <= self.initial_ms <= self.max_ms <= DELAY_MAX_MS:
            return f"{self.initial_ms} ms to {self.max_ms} ms; it must rise, from 0 to {DELAY_MAX_MS} at most"
        if not math.isfinite(self.multiplier) or not 1 <= self.multiplier <= MULTIPLIER_MAX:
            return f"multiplier {self.multiplier}; it may be 1 to {MULTIPLIER_MAX:g}"
        return ""


DEFAULT_RETRY_POLICY: Final = RetryPolicy()
