"""Where the store times of a log step back, because a clock had been ahead and was set right.

The log is divided into runs: within a run store times rise, or step back by at most STEP_MIN_MS below the
highest time before (only in logs that another broker wrote). A look-up by time looks into each run. The runs
of any log can be derived from its records. A store keeps them in `trovemq/state.json` (`timeRuns`: of each
run the five numbers of TimeRun, in its order), valid below `logEnd`; later records are read again.

Invariants
- The runs together cover the log without gaps. The part that was not read yet is one run of unknown slack.
- No record of a run is earlier than any record before it in the run by more than the run's slack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
from trovemq_store.log.projection import DispatchBatch

STEP_MIN_MS: Final = 60_000
"""A record that is earlier than the highest one before by more than this begins a new run."""
RUNS_MAX: Final = 512
"""The most runs; in a log with more steps the last run has a larger slack."""
_HIGHEST: Final = 2
"""The place of a run's highest time in its numbers."""
UNKNOWN_MS: Final = 1 << 62
"""The slack of a part that was not read yet."""


@dataclass(slots=True)
class TimeRun:
    """One run; times in epoch ms. `highest_ms` may be too high, `first_ms` too low. before_ms: the highest
    store time before the run, 0 for the first one."""

    begin: PhysicalOffset
    first_ms: int
    highest_ms: int
    slack_ms: int = 0
    before_ms: int = 0

    @property
    def steps_back(self) -> bool:
        """Whether the run begins earlier than records before it."""
        return self.before_ms > self.first_ms


class TimeRuns:
    """The runs of one log. `position`: everything below was read, or is not in the log any more;
    `known_from`: so was everything from here on. Used on the engine's thread; saved() in any."""

    def __init__(self, saved: Sequence[Sequence[int]] | None = None) -> None:
        self._old: list[TimeRun] = []
        self._new: list[TimeRun] = load_runs(saved or ())
        self.position = self.known_from = LOG_ORIGIN

    # --- reading --------------------------------------------------------------------------------------
    @property
    def complete(self) -> bool:
        return self.position >= self.known_from

    @property
    def runs(self) -> list[TimeRun]:
        """All runs, in log order."""
        if self.complete:
            return self._new
        return [*self._old, TimeRun(self.position, UNKNOWN_MS, UNKNOWN_MS, UNKNOWN_MS), *self._new]

    @property
    def step_count(self) -> int:
        """How often store times step back by more than STEP_MIN_MS, as far as the log was read."""
        return sum(run.steps_back for run in (*self._old, *self._new))

    @property
    def highest_ms(self) -> EpochMs:
        """The highest store time of the log, as far as it was read; 0 if there is none."""
        return EpochMs(_highest((*self._old, *self._new)))

    def run_at(self, physical_offset: PhysicalOffset) -> TimeRun | None:
        """The run of that place; None if there is none."""
        found = None
        for run in self.runs:
            if run.begin > physical_offset:
                break
            found = run
        return found

    def saved(self, log_end: PhysicalOffset, last_ms: EpochMs | None = None) -> list[list[int]] | None:
        """The runs of the log below log_end, as the store's state has them; None while a part is unknown.

        last_ms: the store time of the last record below log_end, or of a later one of its run. Without it the
        last run may have a time of records above log_end as its highest. If these are read again after a
        kill, the run then seems to be out of order.
        """
        if not self.complete:
            return None
        runs = list(self._new)
        kept = [list(astuple(run)) for run in runs if run.begin < log_end]
        if kept and len(kept) == len(runs) and last_ms is not None and not runs[-1].slack_ms:
            kept[-1][_HIGHEST] = min(kept[-1][_HIGHEST], max(runs[-1].first_ms, last_ms))
        return kept

    # --- the log grows, or is read --------------------------------------------------------------------
    def open_at(self, begin: PhysicalOffset, known_to: PhysicalOffset, end: PhysicalOffset) -> None:
        """The log is [begin, end) now, and the saved runs hold below known_to. Call once, before anything
        else; the rest of the log is unknown until it was read."""
        self._new = [run for run in self._new if run.begin < min(known_to, end)]
        if not self._new or known_to <= begin:
            self._new, known_to = [], begin
        self._old, self._new = self._new, []
        self.known_from = end
        self.read_to(min(known_to, end))

    def appended(self, physical_offset: PhysicalOffset, timestamp: EpochMs) -> None:
        """A run of records of that store time was appended."""
        if self._new and timestamp >= self._new[-1].highest_ms:
            self._new[-1].highest_ms = timestamp
        else:
            _extend(self._new, physical_offset, int(timestamp), _highest(self._old))

    def read(self, batch: DispatchBatch) -> None:
        """Takes the next records of the log, from `position` on."""
        if batch.end > self.position and len(batch.records):
            self._add(batch)
        self.read_to(batch.end)

    def read_to(self, end: PhysicalOffset) -> None:
        """Everything below `end` was read."""
        if end >= self.known_from:
            self._join()  # first: when `position` says so, saved() takes the one list in another thread
        self.position = max(self.position, end)

    def trim_before(self, physical_offset: PhysicalOffset) -> None:
        """Forgets the runs of which the log has no record any more."""
        if not self.complete:
            self.read_to(min(physical_offset, self.known_from))
        for runs in (self._old, self._new):
            while len(runs) > 1 and runs[1].begin <= physical_offset:
                del runs[0]

    def _join(self) -> None:
        """One list again, when nothing is unknown any more."""
        before = _highest(self._old)
        for run in self._new:
            run.before_ms = max(run.before_ms, before)
        self._old, self._new = [], [*self._old, *self._new]

    def _add(self, batch: DispatchBatch) -> None:
        times, at = batch.records.store_timestamps, 0
        while at < len(times):
            at += self._take(times[at:]) or self._begin_run(batch.offset_of(at), int(times[at]))

    def _take(self, times: NDArray[np.int64]) -> int:
        """Adds the records that belong to the last run; returns how many do."""
        if not self._old:
            return 0
        run = self._old[-1]
        highest = np.maximum(np.maximum.accumulate(times), run.highest_ms)
        lower_ms = highest - times
        count = len(times)
        if len(self._old) < RUNS_MAX and (lower_ms > STEP_MIN_MS).any():
            count = int((lower_ms > STEP_MIN_MS).argmax())
        if count:
            run.highest_ms = int(highest[count - 1])
            run.slack_ms = max(run.slack_ms, int(lower_ms[:count].max()))
        return count

    def _begin_run(self, begin: PhysicalOffset, first_ms: int) -> int:
        """Begins a run with one record."""
        self._old.append(TimeRun(begin, first_ms, first_ms, 0, _highest(self._old)))
        return 1


def _highest(runs: Iterable[TimeRun]) -> int:
    return max((run.highest_ms for run in runs), default=0)


def _extend(runs: list[TimeRun], begin: PhysicalOffset, time_ms: int, before: int) -> None:
    """Adds records of one time to the last run, or begins a new one if they step back."""
    last = runs[-1] if runs else None
    if last is not None and (time_ms >= last.highest_ms - STEP_MIN_MS or len(runs) >= RUNS_MAX):
        last.slack_ms = max(last.slack_ms, last.highest_ms - time_ms)
        last.highest_ms = max(last.highest_ms, time_ms)
        return
    runs.append(TimeRun(begin, time_ms, time_ms, 0, max(before, _highest(runs))))


def load_runs(saved: Sequence[Sequence[int]]) -> list[TimeRun]:
    """The runs of TimeRuns.saved()."""
    return [_loaded(fields) for fields in saved]


def _loaded(fields: Sequence[int]) -> TimeRun:
    begin, first, highest, slack, before = fields
    return TimeRun(PhysicalOffset(begin), first, highest, slack, before)
