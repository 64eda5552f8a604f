"""Coverage traces the plain tests of the engine, and nothing else, between tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData

from tests.support.tracing import UNTRACED, Tracing, is_traced

ROOT = Path(__file__).resolve().parents[3]
MODULE = "def doubled(number):\n    if number > 1:\n        return 2 * number\n    return number + number\n"


def test_folders_and_modules_that_are_not_traced_are_there() -> None:
    assert [path for path in UNTRACED if not (ROOT / path.partition("::")[0]).exists()] == []


def test_this_folder_is_not_traced(request: pytest.FixtureRequest) -> None:
    assert not is_traced(request.node)


@pytest.mark.parametrize(("on", "lines"), [(True, [2, 3, 4]), (False, [2, 4])])
def test_only_what_runs_while_tracing_is_on_is_counted(tmp_path: Path, on: bool, lines: list[int]) -> None:
    path = tmp_path / "doubling.py"
    path.write_text(MODULE)
    names: dict[str, object] = {}
    exec(compile(MODULE, str(path), "exec"), names)
    coverage, tracing = Coverage(data_file=None, include=[str(path)], config_file=False), Tracing()
    coverage.start()
    try:
        names["doubled"](1)  # type: ignore[operator]
        tracing.switch(on=on)
        names["doubled"](2)  # type: ignore[operator]
        tracing.switch(on=True)
        names["doubled"](1)  # type: ignore[operator]
    finally:
        coverage.stop()
    data: CoverageData = coverage.get_data()
    assert sorted(data.lines(str(path)) or []) == lines


def test_a_worker_traced_every_test_since_it_has_two_coverages() -> None:
    """pytest-cov starts one when it reads its options, and in a worker one more, which it saves."""
    started = [Coverage(data_file=None, config_file=False) for _ in range(2)]
    tracing = Tracing()
    for one in started:
        one.start()
    try:
        tracing.switch(on=False)
        assert sys.gettrace() is None
        tracing.switch(on=True)
        assert Coverage.current() is started[1], "the one that is saved"
        tracing.switch(on=False)
        assert sys.gettrace() is None
    finally:
        while (other := Coverage.current()) is not None:
            other.stop()
