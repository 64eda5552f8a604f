"""docs/reports/tests.md names tests that exist, and every row of it names one."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.support.durations import BEGIN

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reports" / "tests.md").read_text(encoding="utf-8").partition(BEGIN)[0]
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| (?!Promise|Setting)", line)]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", PAGE)))


def test_the_tests_that_are_named_exist() -> None:
    assert len(NAMED) > 500
    assert [one for one in NAMED if one != "tests/unit/project/test_promises.py" and not exists(one)] == []


def exists(named: str) -> bool:
    path, _, test = named.partition("::")
    text = text_of(path)
    return text is not None and (
        not test or re.search(rf"^(?:async )?def {test}\(", text, re.MULTILINE) is not None
    )


@cache
def text_of(path: str) -> str | None:
    return (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else None


def test_every_promise_is_shown() -> None:
    assert len(ROWS) > 200
    assert [row for row in ROWS if "`tests/" not in row] == []
