"""The options that every verb has, before or after its name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import typer

from trovemq.cli.connecting import NOTHING_GIVEN, Connecting


class Format(StrEnum):
    """How an answer is printed."""

    JSON = "json"
    YAML = "yaml"
    TABLE = "table"
    BODY = "body"


def complete_context(incomplete: str) -> list[str]:
    """Names of contexts that begin so."""
    from trovemq.cli.context_file import load_contexts

    try:
        return sorted(name for name in load_contexts().servers if name.startswith(incomplete))
    except Exception:  # the shell's line is no place for an error
        return []


SERVER_DEFAULT: Final = "127.0.0.1:8081"
TIMEOUT_S_DEFAULT: Final = 30.0

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="SERVER",
        help="HOST:PORT of a nameserver or a broker, or trovemq://…; else $TROVEMQ_SERVER, else the current "
        f"context's, else {SERVER_DEFAULT}.",
        show_default=False,
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="The server of a context (trovemq context); else $TROVEMQ_CONTEXT.",
        show_default=False,
        autocompletion=complete_context,
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", help="The answer's objects on standard output, one a line; the rest on standard error."
    ),
]
OutputOption = Annotated[
    Format | None,
    typer.Option(
        "--output",
        "-o",
        help="How to print the answer: json is --json, body the messages' bodies alone.",
        show_default=False,
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.001,
        help=f"For each request (default {TIMEOUT_S_DEFAULT:g}).",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """The global options that were given at one place of the command line; None = not given there."""

    server: str | None = None
    context: str | None = None
    format: Format | None = None
    timeout: float | None = None
    connecting: Connecting = NOTHING_GIVEN

    @classmethod
    def given(
        cls,
        server: str | None,
        context: str | None,
        json: bool,
        output: Format | None,
        timeout: float | None,
        connecting: Connecting,
    ) -> SharedOptions:
        """Raises typer.BadParameter (usage) if --json and --output contradict each other."""
        if json and output not in (None, Format.JSON):
            raise typer.BadParameter(f"give --json or --output {output}, not both")
        return cls(server, context, Format.JSON if json else output, timeout, connecting)

    def over(self, outer: SharedOptions) -> SharedOptions:
        """These options; those of the outer command where one is not given."""
        return SharedOptions(
            server=self.server or (None if self.context else outer.server),
            context=self.context or (None if self.server else outer.context),
            format=self.format or outer.format,
            timeout=self.timeout if self.timeout is not None else outer.timeout,
            connecting=self.connecting.over(outer.connecting),
        )
