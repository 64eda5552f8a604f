"""The options that every verb has, before it and after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from trovemq.cli.connecting import NOTHING_GIVEN, Connecting

SERVER_DEFAULT: Final = "127.0.0.1:8081"
TIMEOUT_S_DEFAULT: Final = 30.0

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="HOST:PORT",
        help=f"A nameserver or a broker; else $TROVEMQ_SERVER, else {SERVER_DEFAULT}.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", help="The answer's objects on standard output, one a line; the rest on standard error."
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
    """The global options as given at one place of the command line; None = not given there."""

    server: str | None = None
    json: bool = False
    timeout: float | None = None
    connecting: Connecting = NOTHING_GIVEN

    def over(self, outer: SharedOptions) -> SharedOptions:
        """These, and where one is not given, the outer command's."""
        return SharedOptions(
            server=self.server or outer.server,
            json=self.json or outer.json,
            timeout=self.timeout if self.timeout is not None else outer.timeout,
            connecting=self.connecting.over(outer.connecting),
        )
