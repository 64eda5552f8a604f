"""Old faults found again: docs/reports/track-record.md, each with its fix reverted (planted.py)."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.durability.old_faults import FAULTS
from tests.durability.planted import ROOT, Planted, Planting, find
from tests.support.trials import SOAK, Trials

PAGE: Final = (ROOT / "docs" / "reports" / "track-record.md").read_text(encoding="utf-8")


def test_each_mend_is_in_the_code() -> None:
    for fault in FAULTS:
        fault.source()


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    FAULTS if SOAK else FAULTS[::6],
    ids=lambda fault: re.sub(r"\W+", "_", fault.name)[:60],
)
def test_with_its_fix_reverted_the_test_finds_it_again(
    fault: Planted, trials: Trials, planting: Planting
) -> None:
    find(fault, planting)
    trials.count("R22", "old faults found again")


# --- the page -------------------------------------------------------------------------------------------
def rows() -> list[list[str]]:
    """The rows of the page's tables: the fault, where it was, how it was found, the tests, reverted or
    not."""
    lines = [line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line] for line in lines if line[3].strip() != "Test"]


def cells(fault: Planted) -> list[str]:
    tests = {name.partition("[")[0] for name in fault.finds}
    return [fault.name, f"`{fault.path}`", ", ".join(f"`{name}`" for name in sorted(tests)), "yes"]


def test_the_page_and_the_faults_here_are_the_same() -> None:
    on_the_page = [[fault, where, tests, again] for fault, where, _, tests, again in rows() if again == "yes"]
    assert sorted(on_the_page) == sorted(cells(fault) for fault in FAULTS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: re.sub(r"\W+", "_", row[0])[:60])
def test_every_fault_has_a_test_that_is_there(row: list[str]) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row[3])
    assert named
    assert row[4] in ("yes", "no")
    for path, test in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not test or re.search(rf"^(?:async )?def {test}\(", text, re.MULTILINE), test
