"""The page of tests says how much of each goal is run."""

from __future__ import annotations

from pathlib import Path

from tests.support.trials import GOALS

PAGE = Path(__file__).parents[2] / "docs" / "reports" / "tests.md"


def test_the_page_says_how_much_of_each_goal_is_run() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for goal in GOALS:
        soak = f"{goal.total:,}" if goal.total else "all"
        assert f"\n- {goal.identifier}, {goal.what}: {goal.default:,}; {soak}." in page, goal
