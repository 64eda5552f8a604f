"""What `make audit` makes of pip-audit's report."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from deploy.audit import LOCKS, outcome, subject

SOUND: dict[str, Any] = {"name": "numpy", "version": "2.0", "vulns": []}
WEAK: dict[str, Any] = {
    "name": "starlette",
    "version": "0.1",
    "vulns": [{"id": "CVE-1", "fix_versions": ["0.2"], "aliases": [], "description": ""}],
}
UNKNOWN: dict[str, Any] = {"name": "lmdb", "skip_reason": "it could not be found"}


@pytest.mark.parametrize(
    ("found", "code", "line"),
    [
        ([SOUND], 0, "1 distributions, no weakness is known"),
        ([SOUND, WEAK, UNKNOWN], 1, "starlette 0.1: CVE-1, mended in 0.2"),
        ([SOUND, UNKNOWN], 2, "the index says nothing about 1 of 2 distributions: lmdb"),
    ],
)
def test_nothing_is_said_of_distributions_that_were_not_looked_up(
    found: list[dict[str, Any]], code: int, line: str
) -> None:
    assert outcome(json.dumps({"dependencies": found})) == (code, [line])


def test_an_answer_names_the_files_and_the_day_for_which_it_counts() -> None:
    text = subject(date(2026, 11, 23))
    assert all(lock in text for lock in LOCKS)
    assert text.endswith("data of 2026-11-23")


@pytest.mark.parametrize("report", ["", "{}", '{"dependencies": []}', '{"dependencies": [{"vulns": [{}]}]}'])
def test_a_report_that_is_none_is_no_good_news(report: str) -> None:
    with pytest.raises(ValueError):
        outcome(report)
