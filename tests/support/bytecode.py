"""The bytecode of the tests, with pytest's assertions in it, is made once and not once in each worker.

Making it takes twice as long as collecting the tests. In a fresh clone each worker therefore imports its
share of the files before it collects all of them; by then the bytecode of the others is there.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.support.collecting import is_left_out

ROOT: Final = Path(__file__).resolve().parents[2]


def import_share(config: pytest.Config) -> None:
    """Every n-th test module, where n workers run everything. A module that fails here fails again when it is
    collected, and is reported then."""
    worker: dict[str, object] | None = getattr(config, "workerinput", None)
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if worker is None or not everything or sys.dont_write_bytecode:
        return
    number = int(str(worker["workerid"]).removeprefix("gw"))
    count = int(str(worker["workercount"]))
    paths = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if not is_left_out(path, config)]
    for path in paths[number::count]:
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
