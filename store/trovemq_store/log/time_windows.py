"""The records that belong to a window of time: those that were stored since a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.log.time_runs import TimeRun

_END: Final = PhysicalOffset((1 << 63) - 1)


class Since(NamedTuple):
    """The records of a window: those at or above all_from; from `begin` on those that were stored after
    since_ms; none below."""

    begin: PhysicalOffset
    all_from: PhysicalOffset
    since_ms: int

    def has(self, physical_offset: int, store_ms: int) -> bool:
        return physical_offset >= self.all_from or (
            physical_offset >= self.begin and store_ms > self.since_ms
        )


SinceOf = Callable[[int], Since]
"""The records of a window of this number of milliseconds."""


def stored_since(runs: Sequence[TimeRun], since_ms: int) -> Since:
    """Records before a run that begins at or before since_ms were stored before it."""
    all_from = _END
    for run in reversed(runs):
        if run.first_ms - run.slack_ms <= since_ms:
            return Since(run.begin if run.first_ms <= since_ms else LOG_ORIGIN, all_from, since_ms)
        all_from = run.begin
    return Since(LOG_ORIGIN, all_from if runs else _END, since_ms)
