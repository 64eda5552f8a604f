"""How much of the engine the tests in this process went through: `python -m tests.support.engine_coverage`.

Reads the data of `pytest --cov`, prints each package's share of branches and where the missing ones are, and
exits with 1 where fewer than BRANCHES_MIN of all are covered. Daemons and files that tracing.py leaves out
are not counted: the figures are those of the plain tests.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from coverage import Coverage

BRANCHES_MIN: Final = 0.95
MISSING_SHOWN: Final = 12


def main() -> int:
    files = _measured()
    packages: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    missing: list[tuple[int, str, list[list[int]]]] = []
    for path, file in files.items():
        summary = file["summary"]
        package = packages[
            str(Path(path).parent if Path(path).parent.name != "trovemq_broker" else Path(path))
        ]
        package[0] += summary["covered_branches"]
        package[1] += summary["num_branches"]
        missing.append((len(file["missing_branches"]), path, file["missing_branches"]))
    print("branches of the engine that the tests went through")
    for name, (covered, total) in sorted(packages.items()):
        if total:
            print(f"  {name:34} {covered:5} of {total:5}  {covered / total:6.1%}")
    covered, total = (sum(package[i] for package in packages.values()) for i in (0, 1))
    print(f"  {'together':34} {covered:5} of {total:5}  {covered / total:6.1%}")
    if covered >= BRANCHES_MIN * total:
        return 0
    print(f"fewer than {BRANCHES_MIN:.0%}; most are missing in")
    for count, path, branches in sorted(missing, reverse=True)[:MISSING_SHOWN]:
        print(f"  {path}: {count}: {' '.join(f'{begin}->{end}' for begin, end in branches)}")
    return 1


def _measured() -> dict[str, Any]:
    coverage = Coverage()
    coverage.load()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "coverage.json"
        coverage.json_report(outfile=str(path))
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return dict(report["files"])


if __name__ == "__main__":
    sys.exit(main())
