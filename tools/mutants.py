"""Does a new suite of tests find each fault that an old one found? `make mutants MODULE=... OLD=... NEW=...`

A mutant is one module with one small change: a comparison, an arithmetic or boolean operator, a constant,
a returned value, or a statement that is skipped. A seed draws the mutants, so a run can be repeated. Each
runs in a fork of the server of planted bugs (tests/durability/planting_server.py). A suite kills a mutant if
a test of it fails, or if it does not end in time. The old suite is read from a commit: its tests may be gone
from the tree.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.durability.planted import ROOT, Planted, Planting

TIME_MIN_S: Final = 5.0
"""A suite has this long for a mutant, and in addition three times as long as it takes without a fault."""
_PAIRS: Final[tuple[tuple[type[ast.AST], type[ast.AST]], ...]] = (
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn),
    (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.BitAnd, ast.BitOr),
    (ast.LShift, ast.RShift),
)  # fmt: skip
_SWAPS: Final = {**dict(_PAIRS), **{second: first for first, second in _PAIRS}, ast.Mod: ast.FloorDiv}
_NO_CODE: Final = frozenset({"annotation", "returns", "ctx", "type_comment", "type_params"})


class Site(NamedTuple):
    """A field of a node that can be changed (in a list, a place of it), and the new node."""

    node: ast.AST
    field: str
    place: int | None
    new: ast.AST
    line: int

    @property
    def old(self) -> ast.AST:
        value: Any = getattr(self.node, self.field)
        found: ast.AST = value if self.place is None else value[self.place]
        return found

    def exchange(self, new: ast.AST) -> None:
        if self.place is None:
            setattr(self.node, self.field, new)
        else:
            getattr(self.node, self.field)[self.place] = new


class Mutant(NamedTuple):
    """The module's changed source, and the change in words."""

    line: int
    change: str
    source: str


class Verdict(NamedTuple):
    mutant: Mutant
    killed_by_old: bool
    killed_by_new: bool


def changed(node: ast.AST) -> ast.AST | None:
    """The node's replacement. None: it has none."""
    if type(node) in _SWAPS:
        swapped: ast.AST = _SWAPS[type(node)]()
        return swapped
    match node:
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int(value)):
            return ast.Constant(value + 1)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Return(value=ast.expr(), lineno=line) if not _is_none(node.value):
            return ast.Return(ast.Constant(None), lineno=line)
        case ast.Expr(value=ast.Constant()):
            return None
        case ast.Expr() | ast.AugAssign():
            return ast.Pass()
    return None


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def sites(tree: ast.AST, line: int = 1) -> Iterator[Site]:
    """Every place that can be changed, in the order of the source. Annotations and f-strings are left out."""
    for field, value in ast.iter_fields(tree):
        if field in _NO_CODE or isinstance(tree, ast.JoinedStr):
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST):
                at = getattr(child, "lineno", line)
                if (new := changed(child)) is not None:
                    yield Site(tree, field, index if isinstance(value, list) else None, new, at)
                yield from sites(child, at)


def mutants(source: str, count: int, seed: int) -> list[Mutant]:
    """At most `count` mutants of the source, in its order. The same seed draws the same ones."""
    tree = ast.parse(source)
    every = list(sites(tree))
    chosen = sorted(random.Random(seed).sample(range(len(every)), min(count, len(every))))
    return [_mutant(tree, every[number]) for number in chosen]


def _mutant(tree: ast.Module, site: Site) -> Mutant:
    old = site.old
    before = ast.unparse(site.node if isinstance(old, ast.operator | ast.cmpop | ast.boolop) else old)
    site.exchange(site.new)
    source = ast.unparse(tree)
    after = ast.unparse(site.node if isinstance(old, ast.operator | ast.cmpop | ast.boolop) else site.new)
    site.exchange(old)
    return Mutant(site.line, f"{_short(before)} -> {_short(after)}", source)


def _short(text: str) -> str:
    first, _, more = text.partition("\n")
    return f"{first[:60]}…" if more or len(first) > 60 else first


class Suite:
    """Tests of one tree that run against mutants of a module."""

    def __init__(self, root: Path, module: str, tests: Sequence[str]) -> None:
        self._module = module
        self._tests = ("-x", *tests)
        self._original = (root / module).read_text(encoding="utf-8")
        self._planting = Planting(root)
        self._time_max_s = 300.0

    def kills(self, source: str) -> bool:
        """Whether a test fails, or the tests do not end in time. ValueError: there are no such tests."""
        bug = Planted(
            "mutant", self._module, self._original, source, self._tests, time_max_s=self._time_max_s
        )
        code, printed = self._planting.run(bug)
        if code == 5 or "file or directory not found" in printed:
            raise ValueError(f"no tests: {' '.join(self._tests)}\n{printed[-2_000:]}")
        return code != 0

    def check(self) -> None:
        """Runs it without a fault and measures its time. ValueError: it does not pass."""
        begin = time.monotonic()
        if self.kills(ast.unparse(ast.parse(self._original))):
            raise ValueError(f"the tests fail without a fault: {' '.join(self._tests)}")
        self._time_max_s = TIME_MIN_S + 3 * (time.monotonic() - begin)

    def close(self) -> None:
        self._planting.close()


def compare(old: Suite, new: Suite, every: Sequence[Mutant]) -> Iterator[Verdict]:
    """The verdicts, each as soon as it is known."""
    for suite in (old, new):
        suite.check()
    for mutant in every:
        yield Verdict(mutant, old.kills(mutant.source), new.kills(mutant.source))


def extract(commit: str, target: Path) -> None:
    """The commit's files, written below `target`."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(target, filter="data")


def line_of(verdict: Verdict) -> str:
    words = ["killed" if killed else "alive" for killed in verdict[1:]]
    worse = "   LOST" if verdict.killed_by_old and not verdict.killed_by_new else ""
    return f"{words[0]:>6} {words[1]:>6}  line {verdict.mutant.line}: {verdict.mutant.change}{worse}"


def summary(module: str, verdicts: Sequence[Verdict]) -> str:
    old = sum(one.killed_by_old for one in verdicts)
    new = sum(one.killed_by_new for one in verdicts)
    lost = sum(one.killed_by_old and not one.killed_by_new for one in verdicts)
    return f"{module}: of {len(verdicts)} mutants the old tests kill {old}, the new ones {new}; {lost} lost"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("module", help="a module's path from the top")
    parser.add_argument("--old", required=True, help="test files as they are at --commit")
    parser.add_argument("--new", required=True, help="test files as they are now")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    verdicts = []
    with tempfile.TemporaryDirectory() as temporary:
        extract(given.commit, Path(temporary))
        old = Suite(Path(temporary), given.module, given.old.split())
        new = Suite(ROOT, given.module, given.new.split())
        every = mutants((ROOT / given.module).read_text(encoding="utf-8"), given.count, given.seed)
        for verdict in compare(old, new, every):
            verdicts.append(verdict)
            print(line_of(verdict), flush=True)
        old.close()
        new.close()
    print(summary(given.module, verdicts))
    return int(any(one.killed_by_old and not one.killed_by_new for one in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
