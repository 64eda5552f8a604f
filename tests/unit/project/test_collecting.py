"""Modules that `make quick` does not import have only tests that it would leave out."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import collecting

ROOT = Path(__file__).resolve().parents[3]


def config(chosen: str) -> Any:
    return SimpleNamespace(getoption={"markexpr": chosen}.__getitem__)


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ("import os\n\npytestmark = pytest.mark.slow\n", True),
        ("pytestmark = [pytest.mark.slow, pytest.mark.asyncio]\n", True),
        ("pytestmark = [\n    pytest.mark.untraced,\n]\n", True),
        ("pytestmark = pytest.mark.asyncio\n", False),
        ("@pytest.mark.slow\ndef test_one() -> None: ...\n", False),
        ("    pytestmark = pytest.mark.slow\n", False),
        ("pytestmark = pytest.mark.slowly\n", False),
    ],
)
def test_a_module_of_slow_tests_alone_is_not_imported(text: str, left_out: bool, tmp_path: Path) -> None:
    module = tmp_path / "test_it.py"
    module.write_text(text, encoding="utf-8")
    assert collecting.is_left_out(module, config(collecting.QUICK)) is left_out
    assert not collecting.is_left_out(module, config("not slow"))
    other = module.rename(tmp_path / "conftest.py")
    assert not collecting.is_left_out(other, config(collecting.QUICK))


def test_quick_chooses_its_tests_by_the_expression_known_here() -> None:
    assert f'-m "{collecting.QUICK}"' in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_garbage_is_collected_while_tests_run() -> None:
    assert gc.isenabled()
