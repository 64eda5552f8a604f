"""Walks of several brokers by chance: no acknowledged change is lost, nothing deleted comes back, all brokers
end with one table. A part in `make test`, all in `make soak`."""

from __future__ import annotations

import pytest

from tests.support.trials import Trials
from tests.unit.cluster_config.config_whole_walk import walk
from trovemq_broker.cluster_config import messages, owner, table_file

STEPS = 250
TOTAL = 4_000
DEFAULT = 60
PARTS = 4
GOAL = "walks of the cluster's configuration"


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "CHANGES_SIZE_MIN", 2_048)
    monkeypatch.setattr(messages, "PART_ENTRIES_MAX", 3)
    monkeypatch.setattr(owner, "FORGET_FROM", 1)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_walk_loses_no_acknowledged_change(trials: Trials, part: int) -> None:
    done = 0
    for number in trials.numbers(TOTAL, default=DEFAULT, part=part, parts=PARTS):
        with trials.one(number) as source:
            walk(source, STEPS, old_copies=number % 4 == 3)
        done += 1
    trials.count("config", GOAL, done)
