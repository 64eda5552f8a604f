"""Imports a verb's module when the verb is called, so that help and single verbs need not load all modules.

A module of verbs has `register(app)`, or `app` for a group of verbs with a common first word.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

WrongUsage: Any = typer.BadParameter.__mro__[-4]
"""The class of all errors of usage, the one below Exception: typer.TyperException, which typer 0.27 does not
name."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb as `trovemq --help` shows it.

    Attributes:
        module: Its module, below `trovemq.cli`.
        help: The text of its function, or of its group (a test compares the two).
    """

    name: str
    module: str
    help: str
    hidden: bool = False


class UnloadedVerb(TyperCommand):
    """Stands for a verb in lists until the verb is called."""

    def __init__(self, verb: Verb) -> None:
        super().__init__(name=verb.name, help=verb.help, hidden=verb.hidden, callback=None)
        self.verb = verb


class LazyGroup(TyperGroup):
    """A command tree that loads the verb that is called. A reader of its help who has enough is no error."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """Overrides Typer's: shows the help of all verbs."""
        try:
            return super().make_context(*arguments, **named)
        except BrokenPipeError:
            raise typer.Exit from None

    def invoke(self, ctx: Any) -> Any:
        """Overrides Typer's: shows the help of one verb."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise typer.Exit from None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Resolves the command as Typer does, and imports it."""
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, UnloadedVerb):
            command = load(command.verb)
            self.commands[command.name] = command
        return name, command, rest


def load(verb: Verb) -> Any:
    """The Typer command from the verb's module."""
    module = import_module(f"trovemq.cli.{verb.module}")
    part = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False)
    if hasattr(module, "register"):
        module.register(part)
    else:
        part.add_typer(module.app, name=verb.name)
    return typer.main.get_group(part).commands[verb.name]
