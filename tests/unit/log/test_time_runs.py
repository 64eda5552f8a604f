"""Where store times step back, while a part of the log is not read yet."""

from __future__ import annotations

from typing import ClassVar

from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_store.log.time_runs import TimeRuns


class Watched(TimeRuns):
    """Notes the runs that another thread could save after each change of an attribute."""

    watched = False
    seen: ClassVar[list[list[list[int]] | None]] = []

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if self.watched and name != "watched":
            self.seen.append(self.saved(PhysicalOffset(3_000)))


def test_a_flush_saved_the_newest_runs_as_those_of_the_whole_log() -> None:
    runs = Watched([[0, 1_000, 9_000_000, 0, 0], [500, 10, 100, 0, 9_000_000]])
    runs.open_at(PhysicalOffset(0), PhysicalOffset(1_000), PhysicalOffset(2_000))
    runs.appended(PhysicalOffset(2_000), EpochMs(200))
    runs.seen.clear()
    runs.watched = True
    runs.read_to(PhysicalOffset(2_000))
    runs.watched = False
    whole = runs.saved(PhysicalOffset(3_000))
    assert whole is not None
    assert [run[0] for run in whole] == [0, 500, 2_000]
    assert [saved for saved in runs.seen if saved is not None] == [whole]


def test_offsets_by_time_were_too_early_after_a_kill() -> None:
    """Records above the saved end had raised the run's highest time, and were below it when they were read
    again."""
    runs = TimeRuns()
    runs.open_at(PhysicalOffset(0), PhysicalOffset(0), PhysicalOffset(0))
    for place, time in ((0, 1_000), (100, 1_001), (200, 1_002)):
        runs.appended(PhysicalOffset(place), EpochMs(time))
    assert runs.saved(PhysicalOffset(100), EpochMs(1_000)) == [[0, 1_000, 1_000, 0, 0]]
    assert runs.saved(PhysicalOffset(100)) == [[0, 1_000, 1_002, 0, 0]], "not known: too high, never too low"
    runs.appended(PhysicalOffset(300), EpochMs(500))  # no step, but a log with a slack
    assert runs.saved(PhysicalOffset(100), EpochMs(1_000)) == [[0, 1_000, 1_002, 502, 0]]
    runs.appended(PhysicalOffset(400), EpochMs(-70_000))
    assert runs.saved(PhysicalOffset(100), EpochMs(-70_000)) == [[0, 1_000, 1_002, 502, 0]]
