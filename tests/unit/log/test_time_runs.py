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
