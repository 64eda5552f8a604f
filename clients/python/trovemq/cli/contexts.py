"""context create|use|list|delete: servers by name."""

from __future__ import annotations

from typing import Annotated

import typer

from trovemq.cli.context_file import CONTEXTS_MAX, Contexts, check_name, load_contexts
from trovemq.cli.options import complete_context
from trovemq.cli.session import Session, verb
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

app = typer.Typer(help="Servers by name: create, use, list, delete.", no_args_is_help=True)


NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", show_default=False, autocompletion=complete_context)
]


@verb(app, "create")
async def create(
    session: Session,
    name: NameArgument,
    address: Annotated[
        str,
        typer.Argument(
            metavar="SERVER", help="HOST:PORT, several with commas, or a URL.", show_default=False
        ),
    ],
    use: Annotated[bool, typer.Option("--use", help="Make it the current one.")] = False,
) -> None:
    """Give a server a name, or a name another server. The first one becomes the current one."""
    from trovemq._net.servers import parse_server, with_absolute_files

    check_name(name)
    parse_server(address)
    address = with_absolute_files(address)
    contexts = load_contexts()
    if len(contexts.servers) >= CONTEXTS_MAX and name not in contexts.servers:
        raise TroveError(errors.LIMIT_EXCEEDED, f"there are {CONTEXTS_MAX:,} contexts; delete one")
    contexts.servers[name] = address
    if use or contexts.current is None:
        contexts.current = name
    contexts.save()
    _show(session, contexts)


@verb(app, "use")
async def use(session: Session, name: NameArgument) -> None:
    """Make a context the current one. Its server is asked where none is named."""
    contexts = load_contexts()
    contexts.server_of(name)
    contexts.current = name
    contexts.save()
    _show(session, contexts)


@verb(app, "list")
async def list_(session: Session) -> None:
    """List the contexts; the current one is marked."""
    _show(session, load_contexts())


@verb(app, "delete")
async def delete(session: Session, name: NameArgument) -> None:
    """Delete a context."""
    contexts = load_contexts()
    contexts.server_of(name)
    del contexts.servers[name]
    if contexts.current == name:
        contexts.current = None
    contexts.save()
    _show(session, contexts)


def _show(session: Session, contexts: Contexts) -> None:
    from trovemq._net.servers import without_secret

    servers = {name: without_secret(server) for name, server in sorted(contexts.servers.items())}
    for name, server in servers.items():
        session.output.item({"name": name, "server": server, "current": name == contexts.current})
    if session.output.objects:
        return
    from trovemq.cli.render import printable, table

    rows = [
        ("*" if name == contexts.current else "", name, printable(server)) for name, server in servers.items()
    ]
    session.output.show(table(("", "name", "server"), rows))
