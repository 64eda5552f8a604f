"""What `trovemq doctor` finds, for the overview: examined in the background, while the page is open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from trovemq import TroveError, errors
from trovemq.cli.doctor import evidence_of
from trovemq.cli.doctor_checks import findings
from trovemq.cli.doctor_evidence import Finding
from trovemq_console.cluster import Clock, Cluster

AGE_MAX_S: Final = 30.0
"""An examination asks each broker for its topics, and each group for its lag."""
WATCH_S: Final = 2.0  # as `trovemq doctor`
CALL_SECONDS_MAX: Final = 10.0
SEEN_AT_ONCE: Final = frozenset({"reachable", "lost", "drained", "counters", "balance"})
"""Checks whose findings the page has from its own answers, which are newer."""
OF_OTHERS: Final = frozenset({"groups", "topic_spread", "group_spread"})
"""Checks whose findings are not about one broker, also if it has the name of a group."""
Look = Callable[[], Awaitable[Sequence[Finding]]]
Result = TypeVar("Result")


class Examination:
    """The last findings. `look`: looks for them; `clock`: measures their age."""

    def __init__(self, look: Look, clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._looking: asyncio.Task[None] | None = None
        self._looked_at: float | None = None
        self._found: tuple[Finding, ...] = ()
        self.problem = ""
        """Why the last examination failed; "" if it did not."""

    @property
    def age_s(self) -> float | None:
        """Seconds since the last examination; None before the first one."""
        return None if self._looked_at is None else self._clock() - self._looked_at

    def findings(self) -> tuple[Finding, ...]:
        """Findings of the last examination. Begins another one if it is old."""
        age = self.age_s
        if self._looking is None and (age is None or age > AGE_MAX_S):
            self._looking = asyncio.get_running_loop().create_task(self._look_now(), name="doctor")
        return self._found

    async def _look_now(self) -> None:
        try:
            self._found, self.problem = tuple(await self._look()), ""
        except TroveError as error:
            self.problem = str(error)
        finally:
            self._looked_at, self._looking = self._clock(), None

    async def close(self) -> None:
        """Ends an examination that runs."""
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking


async def examine(cluster: Cluster, server: str) -> list[Finding]:
    """The findings that the page has not seen itself. Raises TroveError if no server answers."""
    evidence = await evidence_of(await cluster.client(), server, WATCH_S, _in_time)
    return [one for one in findings(evidence) if one.check not in SEEN_AT_ONCE]


async def _in_time(awaitable: Awaitable[Result], /) -> Result:
    try:
        async with asyncio.timeout(CALL_SECONDS_MAX):
            return await awaitable
    except TimeoutError:
        text = f"a broker did not answer within {CALL_SECONDS_MAX:g} s"
        raise TroveError(errors.REQUEST_TIMEOUT, text) from None


def about(broker: str, found: Sequence[Finding]) -> list[Finding]:
    """The findings about this broker."""
    return [one for one in found if one.check not in OF_OTHERS and one.where.partition(" at ")[0] == broker]
