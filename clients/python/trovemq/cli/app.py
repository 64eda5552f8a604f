"""The command tree and the rules of every verb.

- Standard output has only the answer, and only when it is complete: a verb that fails prints nothing there
  (except for `tail`, which runs until it is stopped).
- Standard error carries notes and errors; with `--json` or `-o yaml` as one JSON object.
- Exit code 0 is an answer (also an empty one), 1 an error, 2 wrong usage, 130 Ctrl-C. `verify check` or
  `store scrub` that found something wrong prints its answer and ends with 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Final

import typer

from trovemq.cli.connecting import (
    Connecting,
    MaxLagOption,
    ReplicaOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    TlsOption,
    TlsServerNameOption,
    TransportOption,
)
from trovemq.cli.lazy import LazyGroup, UnloadedVerb, Verb, WrongUsage
from trovemq.cli.options import (
    ContextOption,
    Format,
    JsonOption,
    OutputOption,
    ServerOption,
    SharedOptions,
    TimeoutOption,
)

VERBS: Final = (
    Verb("send", "messages", "Send one message and wait until it is stored."),
    Verb(
        "produce",
        "producing",
        "Send the messages of a file or of standard input. One a line or row; it waits until all are stored.",
    ),
    Verb(
        "consume",
        "consuming",
        "Receive a topic's messages as a member of a group. It ends with Ctrl-C, or as --max and --wait say.",
    ),
    Verb(
        "pull",
        "messages",
        "Read messages of one queue from an offset on. At the end of the queue it stops and does not wait.",
    ),
    Verb(
        "tail",
        "tailing",
        "Print a topic's messages as they are stored. From all its queues, until Ctrl-C.",
    ),
    Verb(
        "get",
        "messages",
        "Get the message that an identifier names. Of a message id every message, newest first.",
    ),
    Verb(
        "query",
        "queries",
        "Find messages by key, message id or tag. Newest first; those that wait for their delivery time too.",
    ),
    Verb("offset", "queries", "Find the queue offset of a point in time."),
    Verb(
        "producer",
        "queries",
        "Show the number of a producer's next message. On each broker of a deduplicated topic.",
    ),
    Verb(
        "search",
        "searching",
        "Find messages by several conditions. Keys, beginnings of keys, ids, tags, properties; newest first.",
    ),
    Verb("track", "track", "Show the track of a message. It says, too, why a group has not consumed it yet."),
    Verb(
        "biography",
        "track",
        "Show the track of a message. It says, too, why a group has not consumed it yet.",
        hidden=True,
    ),
    Verb(
        "consume-directly",
        "commands",
        "Have one consumer consume one message now. Its result is shown; offsets and attempts do not change.",
    ),
    Verb("stack-trace", "commands", "Show the stacks of one consumer's threads."),
    Verb("recall", "commands", "Take a delayed message back before it is delivered."),
    Verb(
        "apply",
        "apply",
        "Create or alter topics, groups and users as a file says. Prints the changes, and deletes nothing.",
    ),
    Verb(
        "export",
        "export",
        "Write topics, groups and users as a file for apply. Without secrets: YAML, or JSON with --json.",
    ),
    Verb("doctor", "doctor", "Look for faults in a cluster. Prints what to do about each."),
    Verb("cluster", "clusters", "List the brokers that the server knows. With the number of their topics."),
    Verb("top", "top", "Watch rates, lag and brokers' states. Of the whole cluster, until Ctrl-C."),
    Verb(
        "stats",
        "counters",
        "Show each broker's figures and their growth a second. With --all also those that are 0.",
    ),
    Verb(
        "support-bundle",
        "support_bundle",
        "Collect evidence to find a fault. Settings, metrics, logs, topology, health, without secrets.",
    ),
    Verb(
        "mcp",
        "mcp",
        "Serve an agent by the Model Context Protocol. On standard input and output; its tools only read.",
    ),
    Verb("errors", "status", "Explain an error. Its meaning, whether to try again, and the remedy."),
    Verb("server", "daemons", "Start a broker. All options are its own: see `trovemq server --help`."),
    Verb(
        "nameserver",
        "daemons",
        "Start a nameserver. All options are its own: see `trovemq nameserver --help`.",
    ),
    Verb(
        "console",
        "daemons",
        "Start a console for browsers. All options are its own: see `trovemq console --help`.",
    ),
    Verb("topic", "topics", "Topics: create, list, describe, alter, spread, delete."),
    Verb(
        "group",
        "groups",
        "Consumer groups: create, list, lag, reset and more.",
    ),
    Verb("context", "contexts", "Servers by name: create, use, list, delete."),
    Verb("dlq", "dead_letters", "Dead letters of a consumer group: list, show, resend."),
    Verb("user", "users", "Users: create, list, rotate, enable, disable, delete."),
    Verb("acl", "acl", "Rules of access: allow, deny, delete, list, test."),
    Verb("quota", "quotas", "Quotas: set, list."),
    Verb("audit", "audit", "Audit records: list, tail."),
    Verb("broker", "brokers", "Brokers: drain, remove."),
    Verb("config", "config", "Settings of running brokers: list, get, set."),
    Verb(
        "store",
        "store",
        "A broker's store: scrub, backup, verify and more. All but scrub and backup need a stopped broker.",
    ),
    Verb("bench", "bench", "Measure one producer or one reader."),
    Verb("cert", "certificates", "Certificates for development."),
    Verb("verify", "verify", "Test a deployment. Nothing acknowledged may be lost or altered."),
)

OBJECT_FORMATS: Final = ("json", "yaml")
_PLAIN: Final = {
    "is not a valid int range": "is not a whole number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float range": "is not a number",
}
"""Typer's words in plain ones."""

FORMER_NAMES: Final = {
    "id": "message-id",
    "id-prefix": "message-id-prefix",
    "id-field": "message-id-field",
    "unique": "message-id",
    "directory": "dir",
    "to-min": "to-earliest",
    "to-max": "to-latest",
}
"""Options and their values that had another name before the first release; they are still accepted."""

app = typer.Typer(
    cls=LazyGroup,
    name="trovemq",
    help="TroveMQ: send messages, pull them, and find every one of them again.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"token_normalize_func": lambda name: FORMER_NAMES.get(name, name)},
)


def show_version(asked: bool) -> None:
    """Prints the version and ends, without reading anything else."""
    if asked:
        from importlib.metadata import version

        typer.echo(f"trovemq {version('trovemq')}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=show_version),
]


@app.callback()
def shared(
    context: typer.Context,
    version: VersionOption = False,
    server: ServerOption = None,
    context_name: ContextOption = None,
    json: JsonOption = False,
    output: OutputOption = None,
    timeout: TimeoutOption = None,
    grpc_transport: TransportOption = None,
    tls: TlsOption = None,
    tls_ca: TlsCaOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_server_name: TlsServerNameOption = None,
    replica: ReplicaOption = None,
    max_lag_ms: MaxLagOption = None,
) -> None:
    """Options before the verb; the same ones after it win."""
    connecting = Connecting(
        grpc_transport, tls, tls_ca, tls_cert, tls_key, tls_server_name, replica, max_lag_ms
    )
    context.obj = SharedOptions.given(server, context_name, json, output, timeout, connecting)


def run(arguments: Sequence[str]) -> int:
    """Runs one command line (without the program's name) and returns its exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write beside our JSON object
    objects = wants_objects(arguments)
    try:
        command_line = command_tree()
        return _exit_code(command_line(args=list(arguments), prog_name="trovemq", standalone_mode=False))
    except WrongUsage as error:
        _show_wrong_usage(error, objects=objects)
        return 2
    except SystemExit as stop:
        return _exit_code(stop.code)
    except typer.Abort:
        return 1


@cache
def command_tree() -> Any:
    """The tree of all verbs (a Typer group), none of them loaded."""
    tree: Any = typer.main.get_command(app)
    for verb in VERBS:
        tree.add_command(UnloadedVerb(verb))
    return tree


def wants_objects(arguments: Sequence[str]) -> bool:
    """Whether `--json` or `-o yaml` is given: needed before the parser runs, because its errors are JSON
    then."""
    before = ""
    for argument in arguments:
        if argument == "--":
            return False
        name, _, value = argument.partition("=")
        if argument == "--json" or (name == "--output" and value in OBJECT_FORMATS):
            return True
        if before in ("-o", "--output") and argument in OBJECT_FORMATS:
            return True
        if argument.startswith("-o") and argument[2:] in OBJECT_FORMATS:
            return True
        before = argument
    return False


def _show_wrong_usage(error: Any, *, objects: bool) -> None:
    """Shows an error in one line with what to do; shows the help of a call without arguments unchanged."""
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError" and not objects:
        sys.stderr.write(f"{message}\n")
        return
    from trovemq.cli.output import Output

    for words, plain in _PLAIN.items():
        message = message.replace(words, plain)
    command = getattr(getattr(error, "ctx", None), "command_path", "trovemq")
    output = Output.open(Format.JSON if objects else Format.TABLE)
    output.usage(message, f"See `{command} --help`.")
    output.close()


def _exit_code(code: object) -> int:
    if isinstance(code, int):
        return code
    if code is not None:
        sys.stderr.write(f"{code}\n")
        return 1
    return 0
