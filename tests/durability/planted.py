"""Deliberate faults: would the tests see them?

A planted bug is one module whose source has one exact text replaced, in a process that ends with the tests.
The tests that are said to find it run there, and have to fail; every other run shows that they pass without
it. This module is loaded there as a plugin of pytest, with the bug in an environment variable, before
anything of the broker (planting_server.py); it puts a loader in front of Python's own and of pytest's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

ROOT: Final = Path(__file__).parents[2]
VARIABLE: Final = "PLANTED_BUG"
_SOURCE_ROOTS: Final = (
    "proto/",
    "store/",
    "rpc/",
    "daemon/",
    "nameserver/",
    "broker/",
    "console/",
    "pipeline/",
    "clients/python/",
)
_OF_THIS_RUN: Final = ("TRIAL", "SOAK", "WHOLE")


@dataclass(frozen=True)
class Planted:
    """`old`, which `path` has exactly once, becomes `new`; every test of `finds` (pytest's node ids) then
    fails. `environment`: further variables for these tests, as TRIAL=n or SOAK=1. The tests are ended after
    `time_max_s`."""

    name: str
    path: str
    old: str
    new: str
    finds: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    time_max_s: float = 100.0

    def source(self) -> str:
        """The module's text with the bug. AssertionError where the text that it replaces is not there."""
        text = (ROOT / self.path).read_text()
        assert text.count(self.old) == 1, (
            f"the planted bug {self.name!r} is stale: {self.path} has the text that it replaces "
            f"{text.count(self.old)} times. Plant the same fault in the code as it is now"
        )
        return text.replace(self.old, self.new)

    def module(self) -> str:
        """The module's dotted name."""
        path = self.path
        for root in _SOURCE_ROOTS:
            path = path.removeprefix(root)
        return path.removesuffix(".py").replace("/", ".")


class _Loader(SourceFileLoader):
    """Loads one module from changed source; no bytecode of it is read or written."""

    def __init__(self, bug: Planted) -> None:
        super().__init__(bug.module(), str(ROOT / bug.path))
        self._bug = bug

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._bug.source(), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, bug: Planted) -> None:
        self._bug = bug

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._bug.module():
            return None
        return spec_from_file_location(fullname, ROOT / self._bug.path, loader=_Loader(self._bug))


def _plant(bug: Planted) -> None:
    """From now on the module is imported with the bug."""
    assert bug.module() not in sys.modules, f"{bug.module()} is loaded already"
    sys.meta_path.insert(0, _Finder(bug))


class Planting:
    """The server that runs the tests of a bug: those of the tree at `root`."""

    def __init__(self, root: Path = ROOT) -> None:
        inherited = {name: value for name, value in os.environ.items() if name not in _OF_THIS_RUN}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.durability.planting_server"],
            cwd=root,
            env={**inherited, "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, bug: Planted) -> tuple[int, str]:
        """pytest's exit code and output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(bug)) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline() or '{"code": -1, "said": "the server has ended"}')
        return reply["code"], reply["said"]

    def close(self) -> None:
        self._process.communicate(timeout=240)


def find(bug: Planted, planting: Planting) -> None:
    """Runs the bug's tests with it. AssertionError, with pytest's output, where one does not fail."""
    bug.source()
    code, printed = planting.run(bug)
    said = printed[-8_000:]
    assert code in (0, 1), f"pytest ended with {code} and the bug {bug.name!r}:\n{said}"
    failed = [line.split()[1] for line in printed.splitlines() if line.startswith("FAILED ")]
    for test in bug.finds:
        assert any(name == test or name.startswith(f"{test}[") for name in failed), (
            f"{test} passes although {bug.path} has the bug {bug.name!r}:\n{said}"
        )


if VARIABLE in os.environ:
    _plant(Planted(**json.loads(os.environ[VARIABLE])))
