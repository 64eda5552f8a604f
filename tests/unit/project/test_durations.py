"""The recorded run of all tests keeps its budgets, and docs/reports/tests.md shows it."""

from __future__ import annotations

import pytest

from tests.support import durations


def test_every_file_keeps_its_budget() -> None:
    assert durations.over_budget(durations.recorded()) == []


def test_a_budget_of_its_own_is_for_a_file_that_exists() -> None:
    assert set(durations.FILES_S_MAX) <= set(durations.recorded())


def test_the_page_shows_the_recorded_run() -> None:
    text = durations.PAGE_PATH.read_text(encoding="utf-8")
    for folder, seconds in durations.folders_of(durations.recorded()).items():
        shown = [line for line in text.splitlines() if line.startswith(f"| `{folder}` | ")]
        assert shown, folder
        assert int(shown[0].split("|")[2]) == pytest.approx(seconds, abs=1 + seconds / 100), folder


def test_a_file_over_its_budget_is_named_and_so_is_the_sum() -> None:
    fast = {f"tests/test_{n}.py": 10.0 for n in range(181)}
    assert durations.over_budget({"tests/test_a.py": 25.0}) == ["tests/test_a.py: 25.0 s, its budget is 24 s"]
    assert durations.over_budget(fast) == ["together: 1810 s of 1800 s"]


def test_only_the_section_of_the_page_is_replaced() -> None:
    old = f"before\n{durations.BEGIN}\nold\n{durations.END}\nafter\n"
    new = f"{durations.BEGIN}\nnew\n{durations.END}"
    assert durations.with_section(old, new) == f"before\n{new}\nafter\n"
