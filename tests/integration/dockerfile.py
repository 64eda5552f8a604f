"""The steps of a Dockerfile, run on this machine: there is no container engine where tests run.

Each stage is this machine's own file system below a separate overlay, in place of the base image; a step
runs in it by `chroot`, as it stands in the file, and changes the overlay alone. So it shows that the steps
work, and that the daemons find all they need; it does not show the base image. Needs root.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEP_SECONDS_MAX = 600
_IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info")


@dataclass
class Stage:
    """One stage: its files at `root`, and the settings of its last step."""

    root: Path
    directory: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    command: list[str] = field(default_factory=list)

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """The command in the stage, as its user."""
        inside = f'cd {shlex.quote(self.directory)} && exec "$@"'
        words = ["chroot", f"--userspec={self.user}", str(self.root), "/bin/sh", "-c", inside, "sh", *command]
        return subprocess.Popen(words, env=self.environment, **options)

    def run(self, command: Sequence[str]) -> str:
        """Its output. Raises AssertionError for another exit code than 0."""
        with self.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            output, _ = process.communicate(timeout=STEP_SECONDS_MAX)
        text = output.decode(errors="replace")
        assert process.returncode == 0, f"{shlex.join(command)}\n{text[-4_000:]}"
        return text

    def path(self, name: str) -> Path:
        """Of a path as a step names it."""
        return self.root / os.path.normpath(os.path.join(self.directory, name)).lstrip("/")


class Build:
    """Runs the file's steps; `stages` has the last one at its end. The overlays go with the stack."""

    def __init__(self, dockerfile: Path, context: Path, scratch: Path, stack: ExitStack) -> None:
        self._context = context
        self._scratch = scratch
        self._stack = stack
        self._named: dict[str, Stage] = {}
        self.stages: list[Stage] = []
        for name, rest in instructions(dockerfile.read_text(encoding="utf-8")):
            getattr(self, f"_{name.lower()}")(rest)  # an instruction that we do not know ends it

    def _from(self, rest: str) -> None:
        place = self._scratch / f"stage-{len(self.stages)}"
        for part in ("upper", "work", "root"):
            (place / part).mkdir(parents=True)
        layers = f"lowerdir=/,upperdir={place}/upper,workdir={place}/work"
        self._mount("-t", "overlay", "overlay", "-o", layers, str(place / "root"))
        for shared in ("proc", "dev"):
            self._mount("--rbind", f"/{shared}", str(place / "root" / shared))
        environment = {
            name: os.environ[name] for name in os.environ if name.startswith(("PATH", "PIP_", "SSL_"))
        }
        stage = Stage(place / "root", environment=environment)
        open_to_all(stage)
        self.stages.append(stage)
        if named := re.search(r"\bAS (\S+)$", rest, re.IGNORECASE):
            self._named[named[1]] = stage

    def _mount(self, *arguments: str) -> None:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)
        self._stack.callback(subprocess.run, ["umount", "-l", arguments[-1]], check=True)

    def _workdir(self, rest: str) -> None:
        self.stages[-1].directory = rest
        self.stages[-1].path("").mkdir(parents=True, exist_ok=True)

    def _env(self, rest: str) -> None:
        stage = self.stages[-1]
        for word in shlex.split(rest):
            name, _, value = word.partition("=")
            stage.environment[name] = value.replace("$PATH", stage.environment["PATH"])

    def _copy(self, rest: str) -> None:
        stage, (*sources, target) = self.stages[-1], rest.split()
        if sources[0].startswith("--from="):
            origin = self._named[sources.pop(0).removeprefix("--from=")]
            for source in sources:
                shutil.copytree(origin.path(source), stage.path(target), symlinks=True)
            return
        if target.endswith("/"):
            stage.path(target).mkdir(parents=True, exist_ok=True)
        for path in (self._context / name for name in sources):
            if path.is_dir():
                shutil.copytree(path, stage.path(target), symlinks=True, ignore=_IGNORED, dirs_exist_ok=True)
            else:
                shutil.copy(path, stage.path(target))

    def _run(self, rest: str) -> None:
        self.stages[-1].run(["/bin/sh", "-c", rest])

    def _user(self, rest: str) -> None:
        self.stages[-1].user = rest

    def _cmd(self, rest: str) -> None:
        self.stages[-1].command = json.loads(rest)

    def _stopsignal(self, rest: str) -> None:
        assert rest == "SIGTERM", "the daemons end by it"


def open_to_all(stage: Stage) -> None:
    """A base image's Python is for every user; this machine's may lie in somebody's home."""
    program = Path(
        os.path.realpath(shutil.which("python", path=stage.environment["PATH"]) or "/usr/bin/python3")
    )
    for folder in (*program.parents, *Path.home().parents, Path.home()):
        inside = stage.root / str(folder).lstrip("/")
        if not folder.stat().st_mode & 0o005:
            inside.chmod(folder.stat().st_mode & 0o777 | 0o055)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Each with its arguments; a continued line is one."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in lines.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, rest.strip()
