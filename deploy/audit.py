"""Known weaknesses of the pinned distributions: `make audit`. Needs a network.

pip-audit asks the package index about each distribution of the lock files. An index that has no such data, or
cannot be reached, is no answer: "nothing is known" is said of all of them, or not at all.

| exit code | meaning                                                   |
|-----------|-----------------------------------------------------------|
| 0         | the index was asked about all, and knows of no weakness   |
| 1         | a distribution has a known weakness                       |
| 2         | some could not be asked about: nothing is said            |
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCKS: Final = ("locks/run.txt", "locks/dev.txt")
NAMED_MAX: Final = 8
COMMAND: Final = (
    *(sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"),
    *("--disable-pip", "--require-hashes"),
)


def outcome(report: str) -> tuple[int, list[str]]:
    """Exit code and lines of pip-audit's report in JSON. ValueError where it is none."""
    try:
        found = json.loads(report)["dependencies"]
        unknown = sorted(one["name"] for one in found if "skip_reason" in one)
        weak = [
            f"{one['name']} {one['version']}: {weakness['id']}, mended in {_text(weakness['fix_versions'])}"
            for one in found
            for weakness in one.get("vulns", ())
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"no report of pip-audit: {error}") from error
    if not found:
        raise ValueError("the report is empty")
    if weak:
        return 1, weak
    if unknown:
        named = ", ".join(unknown[:NAMED_MAX]) + (", …" if len(unknown) > NAMED_MAX else "")
        return 2, [f"the index says nothing about {len(unknown)} of {len(found)} distributions: {named}"]
    return 0, [f"{len(found)} distributions, no weakness is known"]


def subject(today: date) -> str:
    """The files and the day for which an answer counts."""
    digests = ((lock, hashlib.sha256((ROOT / lock).read_bytes()).hexdigest()[:16]) for lock in LOCKS)
    locks = ", ".join(f"{lock} (SHA-256 {digest}…)" for lock, digest in digests)
    return f"{locks}, by the package index's data of {today}"


def _text(versions: list[str]) -> str:
    return ", ".join(versions) or "no version"


def main() -> int:
    files = [part for lock in LOCKS for part in ("-r", str(ROOT / lock))]
    done = subprocess.run([*COMMAND, *files], capture_output=True, text=True, check=False, cwd=ROOT)
    try:
        code, lines = outcome(done.stdout)
    except ValueError:
        code, lines = 2, [done.stderr.strip().rpartition("\n")[2] or "pip-audit gave no report"]
    if code == 2:
        lines.append(
            "not audited: run `make audit` where a package index with data on vulnerabilities is in reach"
        )
    else:
        lines.append(subject(datetime.now(UTC).date()))
    print("\n".join(f"audit: {line}" for line in lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
