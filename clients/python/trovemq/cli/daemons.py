"""server, nameserver, console: start other programs, if they are installed (`trovemq[server]`).

The SDK imports nothing of them. Their distribution declares their command lines as entry points of the group
`trovemq.daemons`; they get all arguments after the verb.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Final

import typer

from trovemq.cli.installed import ALL_ARGUMENTS, find_program

ENTRY_POINTS: Final = "trovemq.daemons"
_DAEMONS: Final = {
    "server": "Start a broker. All options are its own: see `trovemq server --help`.",
    "nameserver": "Start a nameserver. All options are its own: see `trovemq nameserver --help`.",
    "console": "Start a console for browsers. All options are its own: see `trovemq console --help`.",
}
_MISSING: Final = {
    "server": "the daemons: pip install 'trovemq[server]'",
    "nameserver": "the daemons: pip install 'trovemq[server]'",
    "console": "the console: pip install 'trovemq[console]'",
}


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command tree."""
    for name, text in _DAEMONS.items():
        app.command(name, help=text, add_help_option=False, context_settings=ALL_ARGUMENTS)(_starter(name))


def _starter(name: str) -> Callable[[typer.Context], None]:
    def start(context: typer.Context) -> None:
        program = f"trovemq {name}"
        entry = find_program(ENTRY_POINTS, name, program, needs=_MISSING[name])
        # Until the daemon has installed its own handlers, Ctrl-C ends it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        entry.load()([*_server_before(name, context), *context.args], program)

    return start


def daemon_module(name: str, program: str) -> str:
    """The module of a daemon's command line. Where it is not installed, says what `program` needs, and raises
    typer.Exit with code 1."""
    return find_program(ENTRY_POINTS, name, program, needs=_MISSING[name]).module


def _server_before(name: str, context: typer.Context) -> list[str]:
    """The console is a client, too: it uses the server that is given before the verb."""
    if name != "console" or context.obj is None or context.obj.server is None:
        return []
    return ["--server", context.obj.server]
