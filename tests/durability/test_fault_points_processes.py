"""Some of R4's fault points in their own processes, over real files: each ends one there and then.

A process is killed under load, the next one ends at the point (while it recovers, or under its load), and one
more checks that everything acknowledged is there.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.durability.engine_process import Life
from tests.durability.killed_engine import KilledEngine, Moment
from trovemq_store.files.fault_points import POINTS

pytestmark = pytest.mark.slow

STEPS = 80
PASSES_MAX = 3
SAMPLE = (
    "log.before_write",
    "log.after_write",
    "segments.before_rename",
    "flush.after_sync",
    "queues.after_write",
    "queues.before_cut",
    "projections.before_directory",
    "index.after_items",
    "index.before_note",
    "state.before_save",
    "checkpoint.after_save",
    "close.before_abort_removed",
    "recovery.after_projections",
    "json.before_content",
    "events.after_append",
    "transactions.before_commit",
)
MISSED_MAX = 8
"""A pass of a number by chance may not come."""


def test_a_process_that_ends_at_a_fault_point_has_lost_nothing(tmp_path: Path, engine: KilledEngine) -> None:
    assert set(SAMPLE) <= POINTS.keys()
    missed = []
    for number, point in enumerate(SAMPLE):
        source = random.Random(f"process {number}")
        first, second, third = (
            Life(
                store=str(tmp_path / f"{number}"),
                ledger=str(tmp_path / f"{number}.ledger"),
                seed=f"{number} {at}",
                number=at,
                steps=(0, STEPS, STEPS // 2)[at],
                ends_at=point if at == 1 else "",
                ends_at_pass=source.randint(1, PASSES_MAX),
            )
            for at in range(3)
        )
        try:
            engine.live(first, Moment.draw(source, STEPS))
            if engine.live(second, None).done:
                missed.append(point)
            engine.live(third, None)
        except AssertionError as error:
            error.add_note(f"a process ended at {point}")
            raise
    assert len(missed) <= MISSED_MAX, missed
