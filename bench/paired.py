"""Measures the cases of a benchmark beside another source tree, or beside other constants.

    python -m bench.appends                                a table
    python -m bench.appends --against TREE                 beside it the same of another source tree
    python -m bench.appends --with ROWS_MAX=0 --case any   beside it the same with another constant

Each side is a process, and the two are measured alternately, round by round: other work of the machine
affects both. A figure is the median of the rounds, in microseconds of processor time. The ratio is the median
of the rounds' ratios: above 1, this tree with its constants is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

PACKAGES: Final = ("proto", "daemon", "store", "broker", "rpc", "clients/python")
HERE: Final = Path(__file__).resolve().parents[1]

Measure = Callable[[int], float]
"""One round of the case with this number, in microseconds."""


def serve(measure: Measure, constants: Sequence[str]) -> None:
    """Measures in this process: reads the number of a case per line, answers with its microseconds."""
    for line in sys.stdin:
        set_constants(constants)
        print(measure(int(line)), flush=True)


def set_constants(constants: Sequence[str]) -> None:
    """Sets each NAME=VALUE in every module of ours that has the name."""
    for name, _, value in (text.partition("=") for text in constants):
        for module in [each for key, each in sys.modules.items() if key.startswith("trovemq")]:
            if name in vars(module):
                setattr(module, name, int(value))


class Side:
    """A process that measures one source tree with these constants."""

    def __init__(self, module: str, tree: Path, constants: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", module, "--serve"]
        for constant in constants:
            command += ["--with", constant]
        paths = os.pathsep.join(str(tree / package) for package in PACKAGES)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=HERE,
            env={**os.environ, "PYTHONPATH": paths},
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def round_us(self, number: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def measured(sides: Sequence[Side], number: int, rounds: int) -> tuple[list[float], float]:
    """Median microseconds of each side, and the ratio of the last side to the first."""
    for side in sides:
        side.round_us(number)
    times = []
    for index in range(rounds):
        order = list(enumerate(sides))[:: 1 if index % 2 else -1]
        found = {place: side.round_us(number) for place, side in order}
        times.append([found[place] for place in range(len(sides))])
    medians = [median(row[place] for row in times) for place in range(len(sides))]
    return medians, median(row[-1] / row[0] for row in times)


def rows(
    module: str, cases: Sequence[str], options: argparse.Namespace
) -> Iterator[tuple[str, list[float], float]]:
    """The chosen cases: name, median microseconds of each side, ratio."""
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(module, HERE))]
        if options.against is not None or options.constants:
            other = HERE if options.against is None else options.against.resolve()
            sides.append(stack.enter_context(Side(module, other, options.constants)))
        for number, name in enumerate(cases):
            if options.case in name:
                yield name, *measured(sides, number, options.rounds)


def main(module: str, cases: Sequence[str], measure: Measure, *, rounds: int) -> None:
    """module: by which `python -m` runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="another source tree")
    parser.add_argument(
        "--with", dest="constants", action="append", default=[], help="NAME=VALUE of the other side"
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--case", default="", help="only cases with this in their name")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(measure, options.constants)
        return
    for name, medians, ratio in rows(module, cases, options):
        if options.json:
            print(json.dumps({"case": name, "us": medians, "ratio": ratio}), flush=True)
            continue
        print(f"{name:45}" + "".join(f"{each:10.2f}" for each in medians), end="")
        print(f"{ratio:10.3f}" if len(medians) > 1 else "", flush=True)
