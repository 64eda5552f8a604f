"""Clusters of real processes that live through steps by chance, under load and under `trovemq verify`.

`make test` runs STEPS_DEFAULT steps of one seed, `make soak` STEPS of each of SEEDS seeds. A failure prints
the steps, and the command that repeats them. A file of steps, one a line, runs instead: CLUSTER_STEPS=FILE.

In the mode `owner` one broker owns the configuration; the order of FIFO topics holds there.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Final

import pytest

from tests.support.trials import SOAK, Trials
from tests.world.cluster_run import KNOWN_LIMITS, Run, running
from tests.world.cluster_steps import BEGINNING, Step, all_up, begun, draw, read_step

pytestmark = pytest.mark.slow

SEEDS: Final = 2
STEPS: Final = 200
STEPS_DEFAULT: Final = 8
ROUND: Final = 40
"""Steps; then all brokers run, and everything is compared."""
SHOWN_MAX: Final = 20
MODES: Final = ("alone", "owner")


@pytest.mark.parametrize("has_owner", [False, True], ids=MODES)
def test_steps_by_chance_lose_nothing_and_keep_the_order(
    trials: Trials, tmp_path: Path, has_owner: bool
) -> None:
    for number in trials.numbers(SEEDS, default=1):
        with trials.one(number) as source:
            path = tmp_path / str(number)
            path.mkdir()
            rounds = _rounds(source, has_owner=has_owner)
            asyncio.run(_live(path, rounds, source, has_owner=has_owner))
        steps = sum(map(len, rounds))
        trials.count_each("cluster", "steps of real clusters", MODES[has_owner], steps)


def _rounds(source: random.Random, *, has_owner: bool) -> list[list[Step]]:
    cluster = begun(has_owner=has_owner)
    if file := os.environ.get("CLUSTER_STEPS"):
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        steps = [read_step(line) for line in lines if line.strip()]
        if tuple(steps[: len(BEGINNING)]) == BEGINNING:  # as a failure prints them
            del steps[: len(BEGINNING)]
        for step in steps:
            cluster.apply(step)
        return [[*steps, *all_up(cluster)]]
    total = STEPS if SOAK else STEPS_DEFAULT
    return [
        [*draw(source, cluster, min(ROUND, total - done)), *all_up(cluster)]
        for done in range(0, total, ROUND)
    ]


async def _live(path: Path, rounds: list[list[Step]], source: random.Random, *, has_owner: bool) -> None:
    async with running(path, has_owner=has_owner) as run:
        try:
            for steps in rounds:
                await run.follow(steps, source)
                await _compare(run)
        except BaseException as error:
            error.add_note("steps, the last one under way:\n" + "\n".join(run.trace))
            raise


async def _compare(run: Run) -> None:
    report = await run.settle()
    known = () if run.cluster.has_owner else KNOWN_LIMITS
    limits = {kind: len(report.of(kind)) for kind in known}
    print(f"{dict(report.counts)}, known limits {limits}, {run.refusals} removals refused")
    wrong = [f"{one.kind}: {one.text}" for one in report.findings if one.kind not in known]
    assert not wrong, "\n".join([f"{len(wrong)} findings", *wrong[:SHOWN_MAX], str(report.counts)])
    assert report.counts["acknowledged"] > 0
