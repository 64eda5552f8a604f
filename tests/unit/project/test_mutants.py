"""The mutants that compare an old suite of tests with a new one (tools/mutants.py)."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import pytest

from tests.durability.planted import ROOT, Planted
from tools.mutants import Suite, Verdict, compare, line_of, mutants, summary

SOURCE: Final = '''"""A module."""
from __future__ import annotations

def clamp(value: int | None, highest: int = 9) -> int:
    """Words."""
    if value is None or not value < highest and True:
        return highest
    calls.append(f"{value:02d}")
    return value + 1
'''
MODULE: Final = "proto/trovemq_proto/varints.py"
LINE_OF_WRITES: Final = 28
"""From there on the module writes numbers; before it reads them."""
TESTS: Final = "tests/unit/sdk/test_frames.py"


def changes(count: int = 100, seed: int = 1) -> list[tuple[int, str]]:
    return [(one.line, one.change) for one in mutants(SOURCE, count, seed)]


def test_each_kind_of_change_is_made_once_and_annotations_stay() -> None:
    right = "not value < highest and True"
    assert sorted(changes()) == sorted(
        [
            (4, "9 -> 10"),
            (6, f"value is None or ({right}) -> value is None and ({right})"),
            (6, "value is None -> value is not None"),
            (6, "not value < highest and True -> not value < highest or True"),
            (6, "not value < highest -> value < highest"),
            (6, "value < highest -> value <= highest"),
            (6, "True -> False"),
            (7, "return highest -> return None"),
            (8, "calls.append(f'{value:02d}') -> pass"),
            (9, "return value + 1 -> return None"),
            (9, "value + 1 -> value - 1"),
            (9, "1 -> 2"),
        ]
    )


def test_a_mutant_differs_from_the_source_in_its_one_line() -> None:
    original = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in mutants(SOURCE, 100, 1):
        lines = mutant.source.splitlines()
        assert len(lines) == len(original)
        assert sum(a != b for a, b in zip(lines, original, strict=True)) == 1


def test_a_seed_draws_the_same_mutants_and_another_seed_others() -> None:
    assert changes(count=4) == changes(count=4)
    assert len(changes(count=4)) == 4
    assert changes(count=4, seed=2) != changes(count=4)


def test_the_summary_counts_the_mutants_that_only_the_old_tests_kill() -> None:
    mutant = mutants(SOURCE, 1, 1)[0]
    verdicts = [Verdict(mutant, True, True), Verdict(mutant, True, False), Verdict(mutant, False, True)]
    assert summary("m.py", verdicts) == "m.py: of 3 mutants the old tests kill 2, the new ones 2; 1 lost"
    assert [line_of(one).endswith("LOST") for one in verdicts] == [False, True, False]


@dataclass
class StubPlanting:
    """Gives the code of pytest for the tests of each mutant."""

    root: Path
    code: ClassVar[int] = 1

    def run(self, bug: Planted) -> tuple[int, str]:
        return self.code, "as pytest prints"


@pytest.mark.parametrize(("code", "message"), [(5, "no tests"), (1, "fail without a fault")])
def test_tests_that_are_not_there_or_fail_anyway_judge_nothing(
    monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    monkeypatch.setattr("tools.mutants.Planting", StubPlanting)
    monkeypatch.setattr(StubPlanting, "code", code)
    with pytest.raises(ValueError, match=message):
        Suite(ROOT, MODULE, [TESTS]).check()


@pytest.mark.slow
def test_a_suite_that_never_calls_a_function_kills_none_of_its_mutants() -> None:
    """`-k` chooses the tests of the two suites."""
    source = (ROOT / MODULE).read_text(encoding="utf-8")
    of_writes = [one for one in mutants(source, 100, seed=1) if one.line > LINE_OF_WRITES][::8]
    old, new = (Suite(ROOT, MODULE, [TESTS, "-k", chosen]) for chosen in ("test_varints", "test_fetch"))
    try:
        verdicts = list(compare(old, new, of_writes))
    finally:
        old.close()
        new.close()
    assert [one.killed_by_new for one in verdicts] == [False] * len(of_writes)
    assert sum(one.killed_by_old for one in verdicts) > 1
