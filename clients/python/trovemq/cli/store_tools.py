"""store verify|dump|export|repair|restore: tools for the store of a stopped broker.

They are the broker's own, where it is installed (`trovemq[server]`): its distribution declares their command
line as the entry point `store` of the group `trovemq.store_tools`. They get all arguments after the verb.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import typer

from trovemq.cli.installed import ALL_ARGUMENTS, find_program
from trovemq.cli.options import Format, SharedOptions

ENTRY_POINTS: Final = "trovemq.store_tools"
TOOLS: Final = {
    "verify": "Check the store of a stopped broker. See `trovemq store verify --help`.",
    "dump": "Show the parts of a stopped broker's store. See `trovemq store dump --help`.",
    "export": "Write every message of a stopped broker's store. See `trovemq store export --help`.",
    "repair": "Rebuild queues and key index of a stopped broker's store. See `trovemq store repair --help`.",
    "restore": "Create a store from a backup. See `trovemq store restore --help`.",
}
OBJECTS_ALWAYS: Final = ("dump", "export")
"""Their answers are JSON or YAML in any case."""
PROGRAM: Final = "trovemq store"


def add_tools(app: typer.Typer) -> None:
    """Adds the verbs to those of `store`."""
    for name, text in TOOLS.items():
        app.command(name, help=text, add_help_option=False, context_settings=ALL_ARGUMENTS)(_starter(name))


def _starter(name: str) -> Callable[[typer.Context], None]:
    def start(context: typer.Context) -> None:
        needs = "the broker's tools: pip install 'trovemq[server]'"
        entry = find_program(ENTRY_POINTS, "store", f"{PROGRAM} {name}", needs=needs)
        entry.load()([name, *_format_before(name, context), *context.args], PROGRAM)

    return start


def _format_before(name: str, context: typer.Context) -> list[str]:
    """The format that is given before the verbs; one after them wins."""
    shared = context.find_root().obj or SharedOptions()
    if shared.format is None or (shared.format is Format.TABLE and name in OBJECTS_ALWAYS):
        return []
    return ["--output", shared.format.value]
