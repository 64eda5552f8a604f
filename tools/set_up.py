"""Installs an environment: what `make run` needs, or everything, or the tools of one target.

    python3 tools/set_up.py run .venv     creates the environment; daemons, SDK, command line, the demo's data
    python3 tools/set_up.py all .venv     in addition tests, checks, benchmarks and Spark
    python3 tools/set_up.py docs .venv    in addition mkdocs; `audit`: pip-audit

The Makefile calls it where a lock file or a pyproject.toml is newer than its stamp. It runs on the machine's
own Python, before anything is installed, and so imports only the standard library. Everything comes from the
lock files by hash, from the registry that the configuration of pip and uv names. Exit code: that of the
command that failed; 130 after Ctrl-C.
"""

from __future__ import annotations

import csv
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

LOCKS: Final = Path("locks")
OURS: Final = {
    "proto": "trovemq-proto",
    "store": "trovemq-store",
    "rpc": "trovemq-rpc",
    "daemon": "trovemq-daemon",
    "nameserver": "trovemq-nameserver",
    "broker": "trovemq-broker",
    "clients/python": "trovemq",
    "console": "trovemq-console",
}
"""Our distributions that are installed in editable form, by folder, each after those that it requires."""
PIP_INSTALL: Final = ("install", "--quiet", "--disable-pip-version-check", "--no-compile")
"""Without bytecode: a module is compiled when it is first imported."""
PIP_UNINSTALL: Final = ("uninstall", "--quiet", "--quiet", "--disable-pip-version-check", "--yes")
"""The second --quiet is for warnings: some of the distributions may not be there."""
HASHES: Final = "--require-hashes"
INTERRUPTED: Final = 128 + signal.SIGINT
TOOLS: Final = {"docs": "mkdocs", "audit": "pip-audit"}
"""Lock files that one target alone needs."""


class Commands:
    """Starts the commands; tests have another one."""

    def run(self, *command: str) -> None:
        """Raises CalledProcessError for another exit code than 0. Its output is shown."""
        subprocess.run(command, check=True)

    def answer(self, *command: str) -> str | None:
        """Its output; None: it failed, or there is no such program."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None


class SetUp:
    """Steps for one environment. `folder`: of the environment; `locks`: of the lock files."""

    def __init__(self, folder: str, commands: Commands, locks: Path = LOCKS) -> None:
        self.python: Final = f"{folder}/bin/python"
        self.uv: Final = f"{folder}/bin/uv"
        self._folder = folder
        self._commands = commands
        self._locks = locks

    def for_running(self) -> None:
        """What `make run` needs. Creates the environment if its Python does not start."""
        new = self._commands.answer(self.python, "-c", "") is None
        if new:
            self._commands.run(sys.executable, "-m", "venv", "--clear", "--without-pip", self._folder)
        install = (*self._pip(), *PIP_INSTALL)
        say("daemons, SDK, command line, the data of the demo")
        self._commands.run(*install, HASHES, "-r", self._lock("run"), "-r", self._lock("build"))
        self._commands.run(*install, HASHES, "--no-deps", "-r", self._lock("demo"))
        if not new:  # the former version of one may have a script that is now of another
            self._commands.run(*self._pip(), *PIP_UNINSTALL, *OURS.values())
        editable = [part for project in OURS for part in ("-e", project)]
        self._commands.run(*install, "--no-build-isolation", "--no-deps", *editable)

    def for_everything(self) -> None:
        """The tools of all other targets, on top of `for_running`."""
        self._install_uv()
        say("tests, checks, benchmarks, Spark")
        self._uv_install("--compile-bytecode", HASHES, "-r", self._lock("dev"))
        if self._commands.answer(self.python, "pipeline/trovemq_spark/java.py") is None:
            say("Java (none of 17 or newer found)")
            self._uv_install(HASHES, "-r", self._lock("java"))
        self._uv_install("--no-build-isolation", "--no-deps", "-e", "pipeline")
        self._commands.run(self.python, "-m", "compileall", "-q", "-j", "0", f"{self._folder}/lib")

    def for_target(self, name: str) -> None:
        """The tools of one target, on top of `for_everything`. `name`: of the lock file."""
        say(TOOLS[name])
        self._uv_install(HASHES, "-r", self._lock(name))

    def _pip(self) -> tuple[str, ...]:
        """The machine's own pip, which installs into the environment. One older than 22.3 cannot: then pip is
        installed there."""
        outside = (sys.executable, "-m", "pip", "--python", self.python)
        if self._commands.answer(*outside, "--version") is not None:
            return outside
        inside = (self.python, "-m", "pip")
        if self._commands.answer(*inside, "--version") is None:
            self._commands.run(sys.executable, "-m", "venv", self._folder)
        return inside

    def _install_uv(self) -> None:
        """By pip and with hashes, unless the locked version is there; uv installs the rest."""
        locked = locked_version("uv", (self._locks / "uv.txt").read_text(encoding="utf-8"))
        words = (self._commands.answer(self.uv, "--version") or "").split()
        if words[:2] != ["uv", locked]:
            say("uv")
            self._commands.run(*self._pip(), *PIP_INSTALL, HASHES, "-r", self._lock("uv"))

    def _uv_install(self, *arguments: str) -> None:
        self._commands.run(self.uv, "pip", "install", "--quiet", "--python", self.python, *arguments)

    def _lock(self, name: str) -> str:
        return str(self._locks / f"{name}.txt")


def forget_incomplete(folder: Path) -> list[str]:
    """Removes the descriptions of distributions whose files are not all there; returns them.

    A killed installer may leave a distribution's description without its files, and the next one takes the
    description for the distribution. `folder`: of the environment, which may not exist.
    """
    incomplete = [
        described
        for described in sorted(folder.glob("lib/python*/site-packages/*.dist-info"))
        if not is_complete(described)
    ]
    for described in incomplete:
        shutil.rmtree(described)
    return [described.stem for described in incomplete]


def is_complete(described: Path) -> bool:
    """Whether all files of a distribution are there, by the list in its folder *.dist-info."""
    try:
        with open(described / "RECORD", encoding="utf-8", newline="") as record:
            names = [row[0] for row in csv.reader(record) if row]
    except FileNotFoundError:
        return False
    return all(name.endswith(".pyc") or (described.parent / name).exists() for name in names)


def locked_version(name: str, lock: str) -> str:
    """Of a distribution in the text of a lock file. Raises ValueError if it is not there."""
    found = re.search(rf"^{re.escape(name)}==([^\s;\\]+)", lock, re.MULTILINE)
    if found is None:
        raise ValueError(f"the lock file has no {name}")
    return found[1]


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def main(arguments: Sequence[str], commands: Commands) -> int:
    """`PART FOLDER`. Returns the exit code."""
    part, folder = arguments
    set_up = SetUp(folder, commands)
    for name in forget_incomplete(Path(folder)):
        say(f"{name} is incomplete, and is installed again")
    parts: dict[str, Callable[[], None]] = {"run": set_up.for_running, "all": set_up.for_everything}
    try:
        parts[part]() if part in parts else set_up.for_target(part)
    except subprocess.CalledProcessError as error:
        print(f"setup: failed: {' '.join(error.cmd[:6])} …", file=sys.stderr)
        return error.returncode
    except KeyboardInterrupt:
        print("setup: interrupted; the next run installs the rest", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Commands()))
