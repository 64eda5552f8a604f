"""mcp: serves an agent on standard input and output."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from trovemq.cli.session import Session, verb


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "mcp")(mcp)


async def mcp(
    session: Session,
    no_bodies: Annotated[
        bool, typer.Option("--no-bodies", help="Agents do not see bodies of messages.")
    ] = False,
    allow_resend: Annotated[
        bool, typer.Option("--allow-resend", help="Agents may send dead letters again.")
    ] = False,
) -> None:
    """Serve an agent by the Model Context Protocol. On standard input and output; its tools only read."""
    if find_spec("mcp") is None:
        sys.stderr.write("trovemq mcp needs the package mcp: pip install 'trovemq[mcp]'\n")
        raise typer.Exit(1)
    from trovemq.mcp import make_server

    async with session.client() as client:

        async def connected() -> object:
            return client

        server = make_server(connected, bodies=not no_bodies, resend=allow_resend)  # type: ignore[arg-type]
        await server.run_stdio_async()
