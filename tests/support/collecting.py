"""Collecting ten thousand tests takes five seconds of the processor in each worker; this makes it less.

| what                                                               | without it                           |
|--------------------------------------------------------------------|--------------------------------------|
| no collection of garbage meanwhile: everything that is made stays  | a seventh more                       |
| then one for ten thousand new objects, as daemons have it, not 700 | the tests take a seventh more        |
| `make quick` imports no module whose tests are all left out of it  | a hundred modules, and Spark, pandas |
"""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Final

import pytest

QUICK: Final = "not slow and not untraced"
"""The tests of `make quick`, as the Makefile chooses them."""
YOUNG_OBJECTS_MAX: Final = 10_000
_LEFT_OUT: Final = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.(?:slow|untraced)\b", re.MULTILINE)


def begin() -> None:
    gc.disable()


def end() -> None:
    """The tests and their modules stay: no later collection of garbage searches them again."""
    gc.enable()
    gc.set_threshold(YOUNG_OBJECTS_MAX)
    gc.collect()
    gc.freeze()


def is_left_out(path: Path, config: pytest.Config) -> bool:
    """Whether all tests of the module have a mark that `make quick` does not want."""
    return (
        config.getoption("markexpr") == QUICK
        and path.name.startswith("test_")
        and path.suffix == ".py"
        and _LEFT_OUT.search(path.read_text(encoding="utf-8")) is not None
    )
