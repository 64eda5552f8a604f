"""The fast tests on each Python that this machine has: `make test-pythons`.

Each version gets the packages of `make quick` in a separate environment, `.venv-3.12` and so on; the version
of `.venv` is tested there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
OURS: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_QUESTION: Final = "import sys; print('%d.%d' % sys.version_info[:2], sys.implementation.name)"


def candidates(path: str, pyenv: Path) -> Iterator[Path]:
    """Programs that may be a Python: by their names on the PATH, then those of pyenv, newest first."""
    for version in VERSIONS:
        for folder in path.split(os.pathsep):
            yield Path(folder or ".") / f"python{version}"
    for version in VERSIONS:
        patches = pyenv.glob(f"versions/{version}.*/bin/python")
        yield from sorted(patches, key=lambda found: _numbers(found.parents[1].name), reverse=True)


def version_of(program: Path) -> str | None:
    """`3.12`; None: no CPython that runs. A shim of pyenv may stand for a version that is not there."""
    if not os.access(program, os.X_OK):
        return None
    answer = subprocess.run([program, "-c", _QUESTION], capture_output=True, text=True, check=False)
    version, _, implementation = answer.stdout.strip().partition(" ")
    return version if implementation == "cpython" else None


def interpreters(found: Iterator[Path], ask: Callable[[Path], str | None] = version_of) -> dict[str, Path]:
    """The first program of each version."""
    first: dict[str, Path] = {}
    for program in found:
        version = ask(program)
        if version in VERSIONS:
            first.setdefault(version, program)
    return dict(sorted(first.items()))


def environment(version: str) -> str:
    """The name of its folder."""
    return ".venv" if version == OURS else f".venv-{version}"


def main(arguments: Sequence[str]) -> int:
    """Tests them one after the other, also after a failure. Returns 1 if one of them failed."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = interpreters(candidates(os.environ.get("PATH", ""), pyenv))
    print("Python", ", ".join(found), "of", ", ".join(VERSIONS), flush=True)
    failed = []
    for version, program in found.items():
        print(f"--- Python {version}: {program}", flush=True)
        command = ["make", "quick", f"PYTHON={program}", f"VENV={environment(version)}", *arguments]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(version)
    print("failed with Python", ", ".join(failed)) if failed else print("all passed")
    return 1 if failed else 0


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
