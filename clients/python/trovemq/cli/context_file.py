"""The file with the contexts: named servers, one of them current.

    {"current": "prod", "contexts": {"prod": {"server": "trovemq://ns1:9876,ns2:9876"}, …}}

It is in the user's configuration folder, or at the path in TROVEMQ_CONFIG, and only its owner may read it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.file_modes import warn_of_mode

VARIABLE: Final = "TROVEMQ_CONFIG"
CONTEXTS_MAX: Final = 1_000
FILE_BYTES_MAX: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


@dataclass(slots=True)
class Contexts:
    """The contexts of the file. servers: by the name of the context."""

    path: Path
    servers: dict[str, str] = field(default_factory=dict)
    current: str | None = None

    def server_of(self, name: str) -> str:
        """Raises TroveError REQUEST_ILLEGAL for an unknown context."""
        if name not in self.servers:
            known = ", ".join(sorted(self.servers)) or "there is none; trovemq context create"
            raise TroveError(
                errors.REQUEST_ILLEGAL, f"no context is called {name}; known: {known}", name=name
            )
        return self.servers[name]

    def save(self) -> None:
        """Replaces the file. Raises TroveError REQUEST_ILLEGAL if it cannot be written."""
        contexts = {name: {"server": server} for name, server in sorted(self.servers.items())}
        text = json.dumps({"current": self.current, "contexts": contexts}, indent=2) + "\n"
        new = self.path.with_name(self.path.name + ".new")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.unlink(missing_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(new, self.path)
        except OSError as error:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{self.path}: {error.strerror or error}") from None


def contexts_path() -> Path:
    """Where the file is."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    if sys.platform == "win32":
        home = Path(os.environ.get("APPDATA") or Path.home())
    elif sys.platform == "darwin":
        home = Path.home() / "Library/Application Support"
    else:
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return home / "trovemq" / "contexts.json"


def check_name(name: str) -> None:
    """Raises TroveError REQUEST_ILLEGAL for an illegal name."""
    if not _NAME.fullmatch(name):
        text = f"{name[:80]!r} is not the name of a context: 1 to 64 letters (ASCII), digits, '-', '_', '.'"
        raise TroveError(errors.REQUEST_ILLEGAL, text)


def load_contexts() -> Contexts:
    """The contexts of the file; none if it is missing. Logs a warning if it has a secret that others may
    read. Raises TroveError REQUEST_ILLEGAL if it cannot be read."""
    path = contexts_path()
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Contexts(path)
    except OSError as error:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{path}: {error.strerror or error}") from None
    try:
        document = json.loads(content)
        servers = {name: str(context["server"]) for name, context in document["contexts"].items()}
        current = document.get("current")
    except (ValueError, KeyError, TypeError, AttributeError):
        text = f"{path} is not a file of contexts; correct or delete it"
        raise TroveError(errors.REQUEST_ILLEGAL, text) from None
    if any("@" in server for server in servers.values()):
        warn_of_mode(path)
    return Contexts(path, servers, current if current in servers else None)


def chosen_server(server: str | None, context: str | None, default: str) -> str:
    """The server of a call: from the options (a server wins), else from the variables TROVEMQ_SERVER and
    TROVEMQ_CONTEXT, else from the current context, else the default."""
    if server:
        return server
    if context:
        return load_contexts().server_of(context)
    if named := os.environ.get("TROVEMQ_SERVER"):
        return named
    contexts = load_contexts()
    name = os.environ.get("TROVEMQ_CONTEXT") or contexts.current
    return default if name is None else contexts.server_of(name)
