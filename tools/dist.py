"""Builds the files of a release: `make dist`.

    python -m tools.dist FOLDER PROJECTS…

PROJECTS: the folders of our distributions. FOLDER is emptied, and gets of each project the wheel and the
source distribution, and

| file             | content                                                                                |
|------------------|----------------------------------------------------------------------------------------|
| requirements.txt | our wheels and all that they need, by version and hash, for `pip --require-hashes`     |
| trovemq.cdx.json | the bill of materials (deploy/sbom.py)                                                 |
| SHA256SUMS       | of all other files, as `sha256sum --check` reads it                                    |

The times in the archives are SOURCE_DATE_EPOCH or, without it, that of the commit. So one commit gives the
same bytes with the same version of Python, on every machine and in every directory. Exit code: 1 if a build
fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deploy.sbom import RUNTIME, bill

ROOT: Final = Path(__file__).resolve().parents[1]
BILL: Final = "trovemq.cdx.json"
REQUIREMENTS: Final = "requirements.txt"
SUMS: Final = "SHA256SUMS"


def build(folder: Path, projects: Sequence[str], root: Path = ROOT) -> None:
    """Raises CalledProcessError, with its output, if a project cannot be built. root: of the tree."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch(root)}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder.absolute())]
    given: dict[str, Any] = {"env": environment, "capture_output": True, "text": True}
    with tempfile.TemporaryDirectory() as scratch:
        for project in projects:
            copy = copied(root, project, Path(scratch))
            subprocess.run(command, cwd=copy, check=True, timeout=300, **given)
    hashes = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    (folder / REQUIREMENTS).write_text(requirements(hashes, root), encoding="utf-8")
    (folder / BILL).write_text(json.dumps(bill(root, hashes), indent=2) + "\n", encoding="utf-8")
    sums = "".join(f"{sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir()))
    (folder / SUMS).write_text(sums, encoding="utf-8")


def copied(root: Path, project: str, to: Path) -> Path:
    """A copy of a project's files, without those that git ignores. Links are files there: each LICENSE
    is one, which a source distribution would have as a link that leads nowhere."""
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", project)
    for name in filter(None, listed.split("\0")):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, to / name)
    return to / project


def epoch(root: Path) -> str:
    """Seconds since 1970."""
    return os.environ.get("SOURCE_DATE_EPOCH") or git(root, "log", "-1", "--format=%ct")


def requirements(hashes: Mapping[str, str], root: Path) -> str:
    """hashes: of the built files. The Spark pipeline is not in locks/run.txt, and so not here."""
    wheels = [(*name.split("-")[:2], digest) for name, digest in hashes.items() if name.endswith(".whl")]
    ours = [
        f"{name.replace('_', '-')}=={version} \\\n    --hash=sha256:{digest}\n"
        for name, version, digest in wheels
        if name != "trovemq_spark"
    ]
    return "".join(ours) + (root / RUNTIME).read_text(encoding="utf-8")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.rstrip()


def main(arguments: Sequence[str]) -> int:
    folder, *projects = arguments
    if changed := git(ROOT, "status", "--porcelain", "--", *projects, "locks"):
        print(f"dist: built of files that are not as in the commit:\n{changed}", file=sys.stderr)
    try:
        build(Path(folder), projects)
    except subprocess.CalledProcessError as error:
        print(f"dist: {error}\n{error.stderr}", file=sys.stderr)
        return 1
    for path in sorted(Path(folder).iterdir()):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
