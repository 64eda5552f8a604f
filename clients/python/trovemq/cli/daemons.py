"""server, nameserver: the daemons, where they are installed (`pip install 'trovemq[server]'`).

The SDK imports nothing of them. Their distribution names their command lines as entry points of the group
`trovemq.daemons`; all arguments after the verb are theirs.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Final

import typer

ENTRY_POINTS: Final = "trovemq.daemons"
_DAEMONS: Final = {
    "server": "Start a broker; all options are its own: see `trovemq server --help`.",
    "nameserver": "Start a nameserver; all options are its own: see `trovemq nameserver --help`.",
}


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command tree."""
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    for name, text in _DAEMONS.items():
        app.command(name, help=text, add_help_option=False, context_settings=settings)(_starter(name))


def _starter(name: str) -> Callable[[typer.Context], None]:
    def start(context: typer.Context) -> None:
        from importlib.metadata import entry_points

        found = entry_points(group=ENTRY_POINTS, name=name)
        if not found:
            sys.stderr.write(f"trovemq {name} needs the daemons: pip install 'trovemq[server]'\n")
            raise typer.Exit(1)
        # Until the daemon's own handlers are there, Ctrl-C just ends it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        (entry,) = found
        entry.load()(context.args, f"trovemq {name}")

    return start
