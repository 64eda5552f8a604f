"""Programs of other distributions, which the SDK does not import: they declare them as entry points."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ALL_ARGUMENTS: Final[dict[str, Any]] = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Settings of a verb that leaves all arguments after it to such a program."""


def find_program(group: str, name: str, program: str, *, needs: str) -> EntryPoint:
    """The entry point `name` of a group: a function of arguments and of its name in usage and help.

    Where it is not installed, says that `program` needs `needs`, and raises typer.Exit with code 1.
    """
    from importlib.metadata import entry_points

    found = entry_points(group=group, name=name)
    if not found:
        sys.stderr.write(f"{program} needs {needs}\n")
        raise typer.Exit(1)
    (entry,) = found
    return entry
