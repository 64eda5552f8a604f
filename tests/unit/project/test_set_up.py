"""The steps of `make setup`, with commands that only answer."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.set_up import OURS, Commands, SetUp, forget_incomplete, locked_version, main

ROOT = Path(__file__).resolve().parents[3]
UV_LOCKED = "0.9.1"
OUTSIDE = (sys.executable, "-m", "pip", "--python", "v/bin/python")
INSIDE = ("v/bin/python", "-m", "pip")


class Machine(Commands):
    """`python`: the environment's Python starts; `pip`: the machine's pip can install into it; `uv`: its
    version in the environment; `java`: one is found; `fails`: a word of the command that fails."""

    def __init__(self, *, python: bool = True, pip: bool = True, uv: str = "", java: bool = True) -> None:
        self.python, self.pip, self.uv, self.java = python, pip, uv, java
        self.pip_inside = False
        self.fails = ""
        self.done: list[tuple[str, ...]] = []

    def run(self, *command: str) -> None:
        self.done.append(command)
        if self.fails in command:
            raise subprocess.CalledProcessError(7, command)
        self.pip_inside = self.pip_inside or command == (sys.executable, "-m", "venv", "v")

    def answer(self, *command: str) -> str | None:
        match command:
            case ("v/bin/python", "-c", ""):
                there = self.python
            case ("v/bin/python", "pipeline/trovemq_spark/java.py"):
                there = self.java
            case ("v/bin/python", "-m", "pip", "--version"):
                there = self.pip_inside
            case ("v/bin/uv", "--version"):
                return f"uv {self.uv} (x86_64)\n" if self.uv else None
            case _:
                assert command == (*OUTSIDE, "--version")
                there = self.pip
        return "" if there else None

    def locks(self) -> list[str]:
        """The lock files that were installed, in their order."""
        return [Path(word).stem for command in self.done for word in command if word.endswith(".txt")]


def set_up(machine: Machine, folder: Path) -> SetUp:
    (folder / "uv.txt").write_text(f"uv=={UV_LOCKED} \\\n    --hash=sha256:00\n", encoding="utf-8")
    return SetUp("v", machine, folder)


def test_a_new_environment_is_installed_by_the_machines_pip(tmp_path: Path) -> None:
    machine = Machine(python=False)
    set_up(machine, tmp_path).for_running()
    assert machine.done[0] == (sys.executable, "-m", "venv", "--clear", "--without-pip", "v")
    assert machine.locks() == ["run", "build", "demo"]
    assert all(command[: len(OUTSIDE)] == OUTSIDE for command in machine.done[1:])
    assert machine.done[-1][-2 * len(OURS) :] == tuple(part for one in OURS for part in ("-e", one))


def test_an_environment_that_works_is_not_created_again(tmp_path: Path) -> None:
    machine = Machine()
    set_up(machine, tmp_path).for_running()
    assert not any("venv" in command for command in machine.done)


def test_a_script_that_moved_to_another_distribution_was_missing(tmp_path: Path) -> None:
    """The former version of trovemq-broker had it, and was removed after trovemq-nameserver was installed."""
    machine = Machine()
    set_up(machine, tmp_path).for_running()
    remove, install = machine.done[-2:]
    assert remove[: len(OUTSIDE) + 1] == (*OUTSIDE, "uninstall")
    assert set(OURS.values()) < set(remove)
    assert "-e" in install
    new = Machine(python=False)
    set_up(new, tmp_path).for_running()
    assert not any("uninstall" in command for command in new.done)


def test_our_distributions_have_the_names_of_their_projects() -> None:
    for folder, name in OURS.items():
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
        assert project["project"]["name"] == name


def test_a_pip_that_cannot_install_elsewhere_is_installed_there_once(tmp_path: Path) -> None:
    machine = Machine(pip=False)
    steps = set_up(machine, tmp_path)
    steps.for_running()
    steps.for_everything()
    assert [command for command in machine.done if "venv" in command] == [(sys.executable, "-m", "venv", "v")]
    by_pip = [command for command in machine.done if "pip" in command and command[0] != "v/bin/uv"]
    assert all(command[: len(INSIDE)] == INSIDE for command in by_pip)


@pytest.mark.parametrize(
    ("there", "wanted"), [("", ["uv", "dev"]), ("0.9.0", ["uv", "dev"]), (UV_LOCKED, ["dev"])]
)
def test_uv_is_installed_where_its_locked_version_is_missing(
    there: str, wanted: list[str], tmp_path: Path
) -> None:
    machine = Machine(uv=there)
    set_up(machine, tmp_path).for_everything()
    assert machine.locks() == wanted


def test_java_is_installed_where_the_machine_has_none(tmp_path: Path) -> None:
    machine = Machine(uv=UV_LOCKED, java=False)
    set_up(machine, tmp_path).for_everything()
    assert machine.locks() == ["dev", "java"]


def test_everything_from_a_registry_is_installed_by_hash(tmp_path: Path) -> None:
    machine = Machine(python=False, java=False)
    steps = set_up(machine, tmp_path)
    steps.for_running()
    steps.for_everything()
    steps.for_target("docs")
    steps.for_target("audit")
    assert machine.locks() == ["run", "build", "demo", "uv", "dev", "java", "docs", "audit"]
    for command in machine.done:
        assert "install" not in command or ("--require-hashes" in command) != ("-e" in command)
    assert {path.stem for path in (ROOT / "locks").glob("*.txt")} == set(machine.locks())


def test_the_first_command_that_fails_ends_it_with_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine()
    machine.fails = "--no-deps"
    assert main(["run", "v"], machine) == 7
    assert machine.locks() == ["run", "build", "demo"]
    assert "failed" in capsys.readouterr().err


def installed(packages: Path, name: str, files: dict[str, str | None]) -> Path:
    """A distribution's folder *.dist-info, with these files in its list; None: the file is not there."""
    described = packages / f"{name}-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Name: {name}\n", encoding="utf-8")
    for path, text in files.items():
        if text is not None:
            (packages / path).parent.mkdir(parents=True, exist_ok=True)
            (packages / path).write_text(text, encoding="utf-8")
    lines = [f"{path},sha256=00,1\n" for path in (f"{described.name}/METADATA", *files)]
    (described / "RECORD").write_text("".join(lines), encoding="utf-8")
    return described


def test_a_killed_installer_left_a_package_without_its_modules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """uv was killed while it linked fonttools, and every later run took it for installed."""
    packages = tmp_path / "lib/python3.11/site-packages"
    whole = installed(packages, "whole", {"whole/__init__.py": "", "whole/__init__.pyc": None})
    torn = installed(packages, "torn", {"torn/__init__.py": "", '"torn/a,b.py"': None})
    unlisted = installed(packages, "unlisted", {})
    (unlisted / "RECORD").unlink()
    assert main(["docs", str(tmp_path)], Machine()) == 0
    assert whole.is_dir()
    assert not torn.exists()
    assert not unlisted.exists()
    said = [line for line in capsys.readouterr().out.splitlines() if "incomplete" in line]
    assert [line.split()[1] for line in said] == ["torn-1.0", "unlisted-1.0"]
    assert forget_incomplete(tmp_path) == []
    assert forget_incomplete(tmp_path / "none") == []


def test_ctrl_c_printed_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupted(Machine):
        def run(self, *command: str) -> None:
            raise KeyboardInterrupt

    assert main(["run", "v"], Interrupted()) == 130
    assert capsys.readouterr().err == "setup: interrupted; the next run installs the rest\n"


def test_a_program_that_is_not_there_is_no_answer(tmp_path: Path) -> None:
    commands = Commands()
    assert commands.answer(str(tmp_path / "none")) is None
    assert commands.answer(sys.executable, "-c", "raise SystemExit(1)") is None
    assert commands.answer(sys.executable, "-c", "print('here')") == "here\n"


def test_a_locked_version_is_read_and_its_absence_is_an_error() -> None:
    lock = "uvloop==1 \\\n    --hash=sha256:00\nuv==0.9.1 ; python_version > '3' \\\n    --hash=sha256:00\n"
    assert locked_version("uv", lock) == "0.9.1"
    with pytest.raises(ValueError, match="no pip"):
        locked_version("pip", lock)
