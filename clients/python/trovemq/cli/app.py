"""The command tree and the rules of every verb.

- Standard output carries the answer alone and only once it is whole: a verb that fails prints nothing there
  (`tail`, which never ends by itself, is the exception).
- Standard error carries notes and errors; with `--json` as one JSON object.
- Exit code 0 is an answer (also an empty one), 1 an error, 2 wrong usage, 130 Ctrl-C. `verify check` or
  `store scrub` that found something wrong prints its answer and ends with 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache

import typer

from trovemq.cli import (
    apply,
    bench,
    commands,
    daemons,
    dead_letters,
    groups,
    messages,
    queries,
    searching,
    status,
    store,
    topics,
    track,
    verify,
)
from trovemq.cli.output import Output
from trovemq.cli.session import JsonOption, ServerOption, SharedOptions, TimeoutOption

app = typer.Typer(
    name="trovemq",
    help="TroveMQ: send messages, pull them, and find every one of them again.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(topics.app, name="topic")
app.add_typer(groups.app, name="group")
app.add_typer(dead_letters.app, name="dlq")
app.add_typer(store.app, name="store")
app.add_typer(bench.app, name="bench")
app.add_typer(verify.app, name="verify")
messages.register(app)
queries.register(app)
searching.register(app)
track.register(app)
commands.register(app)
apply.register(app)
status.register(app)
daemons.register(app)


@app.callback()
def shared(
    context: typer.Context,
    server: ServerOption = None,
    json: JsonOption = False,
    timeout: TimeoutOption = None,
) -> None:
    """Options before the verb; the same ones after it win."""
    context.obj = SharedOptions(server=server, json=json, timeout=timeout)


def run(arguments: Sequence[str]) -> int:
    """Runs one command line (without the program's name) and returns its exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write beside our JSON object
    if _wants_json(arguments):
        return _run_json(arguments)
    try:
        _command_tree()(args=list(arguments), prog_name="trovemq")
    except SystemExit as stop:
        return _exit_code(stop.code)
    return 0


@cache
def _command_tree() -> Callable[..., object]:
    """The command tree, which `app(…)` would rebuild for each command line."""
    return typer.main.get_command(app)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` is there: known before the parser runs, since its errors are JSON then, too."""
    for argument in arguments:
        if argument == "--":
            return False
        if argument == "--json":
            return True
    return False


def _run_json(arguments: Sequence[str]) -> int:
    """As `run`, with wrong usage as a JSON object instead of the parser's own text."""
    try:
        command_line = _command_tree()
        return _exit_code(command_line(args=list(arguments), prog_name="trovemq", standalone_mode=False))
    except typer.TyperException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "trovemq")
        output = Output.open(json=True)
        output.usage(error.format_message(), f"See `{command} --help`.")
        output.close()
        return 2
    except SystemExit as stop:
        return _exit_code(stop.code)
    except typer.Abort:
        return 1


def _exit_code(code: object) -> int:
    if isinstance(code, int):
        return code
    if code is not None:
        sys.stderr.write(f"{code}\n")
        return 1
    return 0
