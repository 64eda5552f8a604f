"""The store time of new records, and how long ago records were stored, by the clocks that the caller reports.

Store time is the clock's, but never earlier than the last record's. Once that has been more than AHEAD_MAX_MS
ahead of the clock for AHEAD_FOR_MS of boot time, a clock had been ahead and is right again: store times then
step back to the clock, once in the log. Boot time runs on evenly since the machine was started.

A deduplication window is real time. Physical offsets are in the order of real time, whatever the clocks say:
tick() notes where the log ended when. Only records from before the first tick are judged by their store
times. Without a tick the caller's times count, and windows go by store time alone.

Invariant: a record leaves a window only after the whole window has passed, as far as the clocks show.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_store.log.time_runs import TimeRun, TimeRuns
from trovemq_store.log.time_windows import Since, SinceOf, stored_since

AHEAD_MAX_MS: Final = 60_000
AHEAD_FOR_MS: Final = 60_000
MARKS_MAX: Final = 2_048
"""The most notes of where the log ended; beyond that, every second one of the older half is forgotten."""


class StoreTime:
    """The time of one store. Used on the engine's thread."""

    def __init__(self, last_ms: EpochMs, runs: TimeRuns, now_ms: EpochMs) -> None:
        """now_ms: the clock as the store is opened."""
        self.last_ms = last_ms
        """Store time of the last record."""
        self.runs: Final = runs
        self.wants_step = False
        """Whether store times are to step back."""
        self._ahead_from_ms: int | None = None
        self._clock_ms = self._first_ms = now_ms
        self._opened_ahead = last_ms > now_ms
        self._boot_ms = 0
        self._boots: list[int] = []
        self._ends: list[PhysicalOffset] = []

    def next_ms(self, now_ms: EpochMs) -> EpochMs:
        """The store time of the next record."""
        return max(now_ms, self.last_ms)

    @property
    def future_ms(self) -> int:
        """How far the latest record of the log is ahead of the clock; 0 before the first tick."""
        return max(0, self.runs.highest_ms - self._clock_ms) if self._boots else 0

    def tick(self, now_ms: EpochMs, boot_ms: int, log_end: PhysicalOffset) -> None:
        """The clock and the boot time, ten times a second, say."""
        if not self._boots:
            self._first_ms = now_ms
        self._clock_ms, self._boot_ms = now_ms, boot_ms
        if not self._ends or log_end > self._ends[-1]:
            self._boots.append(boot_ms)
            self._ends.append(log_end)
            if len(self._boots) > MARKS_MAX:
                del self._boots[1 : MARKS_MAX // 2 : 2]
                del self._ends[1 : MARKS_MAX // 2 : 2]
        if self.last_ms - now_ms <= AHEAD_MAX_MS:
            self._ahead_from_ms, self.wants_step = None, False
        elif self._ahead_from_ms is None:
            self._ahead_from_ms = boot_ms
        elif boot_ms - self._ahead_from_ms >= AHEAD_FOR_MS:
            self.wants_step = True

    def step(self, now_ms: EpochMs) -> None:
        """From now on store time is the clock's again."""
        assert self.last_ms - now_ms > AHEAD_MAX_MS, "store times step back over a large difference only"
        assert self._ahead_from_ms is not None, "and after it was seen for a while"
        self.last_ms = now_ms
        self.postpone_step()

    def postpone_step(self) -> None:
        """The step failed: it is wanted again after AHEAD_FOR_MS."""
        self._ahead_from_ms, self.wants_step = None, False

    def since_of(self, now_ms: EpochMs | None = None) -> SinceOf:
        """The windows as of now, for any thread. now_ms: the clock, if it is known better than by tick()."""
        runs, boots, ends = list(self.runs.runs), list(self._boots), list(self._ends)
        first_ms, boot_ms = self._first_ms, self._boot_ms
        clock_ms = self._clock_ms if now_ms is None else now_ms
        if not boots and (now_ms is not None or not self._opened_ahead):
            clock_ms = self.next_ms(clock_ms)

        def since(window_ms: int) -> Since:
            if not boots:
                return stored_since(runs, clock_ms - window_ms)
            return _since(runs, boots, ends, boot_ms, min(clock_ms, first_ms + boot_ms - boots[0]), window_ms)

        return since

    def since(self, window_ms: int, now_ms: EpochMs) -> Since:
        """since_of() for one window."""
        if not self._boots:
            return stored_since(self.runs.runs, self.next_ms(now_ms) - window_ms)
        boots, boot_ms = self._boots, self._boot_ms
        clock_ms = min(now_ms, self._first_ms + boot_ms - boots[0])
        return _since(self.runs.runs, boots, self._ends, boot_ms, clock_ms, window_ms)

    @property
    def steady_ms(self) -> int:
        """A time that never steps back, for intervals: boot time, or store time without ticks."""
        return self._boot_ms if self._boots else self.last_ms


def _since(
    runs: list[TimeRun],
    boots: list[int],
    ends: list[PhysicalOffset],
    boot_ms: int,
    clock_ms: int,
    window_ms: int,
) -> Since:
    begun = bisect_right(boots, boot_ms - window_ms)
    if begun:
        end = ends[begun - 1]
        return Since(end, end, 0)
    by_time = stored_since(runs, clock_ms - window_ms)
    return by_time._replace(all_from=min(by_time.all_from, ends[0]))
