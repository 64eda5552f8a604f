"""Deliberate faults in every package, each found by a fast test: see planted.py and package_faults.py."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from typing import Final

import pytest

from tests.durability.package_faults import PACKAGE_FAULTS
from tests.durability.planted import Planted, Planting, find
from tests.support.trials import SOAK, Trials

DEFAULT: Final = 6
"""How many `make test` plants, chosen by chance, and the same ones in each run."""


def chosen() -> tuple[Planted, ...]:
    return PACKAGE_FAULTS if SOAK else tuple(Random("planted").sample(PACKAGE_FAULTS, DEFAULT))


def test_each_fault_has_its_place_in_the_code_and_a_name_of_its_own() -> None:
    for fault in PACKAGE_FAULTS:
        fault.source()
    assert [
        name for name, count in Counter(fault.name for fault in PACKAGE_FAULTS).items() if count > 1
    ] == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", chosen(), ids=lambda fault: re.sub(r"\W+", "_", fault.name)[:60])
def test_a_fast_test_finds_it(fault: Planted, trials: Trials, planting: Planting) -> None:
    find(fault, planting)
    trials.count("planted", "planted bugs found")
