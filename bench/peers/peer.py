"""A broker's server: its names, its version, its command line. Standard library only."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, TypeAlias

HOME: Final = Path(os.environ.get("PEERS", "~/.cache/peers")).expanduser()
PYTHON: Final = HOME / "venv" / "bin" / "python"

Command: TypeAlias = Sequence[str | Path]


class Peer(ABC):
    """One server without replicas, on loopback, its data on disk; `module` is its module's name here.

    syncs: whether it can sync before it acknowledges. python: runs its clients.
    """

    name: ClassVar[str]
    module: ClassVar[str]
    clients: ClassVar[tuple[str, ...]]
    python: ClassVar[Path] = PYTHON
    syncs: bool = True

    @abstractmethod
    def missing(self) -> str | None:
        """The part that is not installed, or None."""

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def command(self, directory: Path, port: int, *, synced: bool) -> Command:
        """Starts the server; may write its configuration first."""


def package_missing(name: str) -> str | None:
    """A Python package of the peers' environment."""
    if PYTHON.exists():
        found = subprocess.run([PYTHON, "-c", f"import uvloop, {name}"], check=False, capture_output=True)
        if found.returncode == 0:
            return None
    return f"Python's {name}"
