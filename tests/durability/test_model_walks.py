"""Walks of 60 steps by chance against plain models: the store with damage among the steps, and a whole engine
with consumers, delayed messages and transactions. Crashes and power cuts are steps of both."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings

from tests.durability.crash_check import Recovered
from tests.durability.crash_script import Script
from tests.durability.damaged_store_machine import DamagedStoreMachine, walk
from tests.support.trials import Trials

pytestmark = pytest.mark.usefixtures("small_timer_wheel")

STEPS = 60
TOTAL = 400
DEFAULT = 8
PARTS = 8
LOOK_EVERY = 12


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_walk_agrees_with_the_models(trials: Trials, part: int) -> None:
    done = 0
    for number in trials.numbers(TOTAL, default=DEFAULT, part=part, parts=PARTS):
        with trials.one(number) as source:
            walk(source, STEPS)
            walk_with_consumers(source)
        done += 1
    trials.count("R9", "walks of 60 steps against the model", done)


def walk_with_consumers(source: random.Random) -> None:
    """Now and then a copy of the files, as a kill would leave them, must keep the promises."""
    script = Script(source)
    for step in range(STEPS):
        script.step()
        if step % LOOK_EVERY == 0:
            tree = script.files.after_process_kill()
            state = (script.settings, script.files.log, script.promises, script.now_ms, source)
            recovered = Recovered(tree, *state)
            recovered.check_store()
            recovered.check_consumers()


TestDamagedStore = pytest.mark.slow(DamagedStoreMachine.TestCase)
TestDamagedStore.settings = settings(
    max_examples=10,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
