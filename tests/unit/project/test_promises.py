"""docs/tests.md names tests that exist, and every row of it names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.durations import BEGIN

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "tests.md").read_text(encoding="utf-8").partition(BEGIN)[0]
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| (?!Promise|Setting)", line)]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", PAGE)))


@pytest.mark.parametrize("named", [name for name in NAMED if name != "tests/unit/project/test_promises.py"])
def test_the_test_exists(named: str) -> None:
    path, _, test = named.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not test or re.search(rf"^(?:async )?def {test}\(", text, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS, ids=[row[2:60] for row in ROWS])
def test_every_promise_is_shown(row: str) -> None:
    assert "`tests/" in row
