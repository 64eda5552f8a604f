"""Completes the names of topics and groups: asks the server, for a second at most."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import typer

from trovemq.cli.connecting import NAMES, Connecting
from trovemq.cli.context_file import chosen_server
from trovemq.cli.options import SERVER_DEFAULT, SharedOptions

if TYPE_CHECKING:
    from trovemq import Client

ASKING_SECONDS_MAX: Final = 1.0
NAMES_MAX: Final = 1_000


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Topics whose names begin with the text."""

    async def topics(client: Client) -> Iterable[str]:
        return [topic.topic for topic in await client.admin.list_topics()]

    return _names(context, incomplete, topics)


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Groups whose names begin with the text."""

    async def groups(client: Client) -> Iterable[str]:
        return [group.group for group in await client.admin.groups.list_all()]

    return _names(context, incomplete, groups)


def _names(
    context: typer.Context, incomplete: str, ask: Callable[[Client], Awaitable[Iterable[str]]]
) -> list[str]:
    try:
        found = asyncio.run(_asked(_options(context), ask))
    except Exception:  # an error must not appear in the shell's line
        return []
    return sorted({name for name in found if name.startswith(incomplete)})[:NAMES_MAX]


def _options(context: typer.Context) -> SharedOptions:
    """The options in the line so far."""
    outer = context.find_root().params

    def given(name: str) -> Any:
        found = context.params.get(name)
        return outer.get(name) if found is None else found

    connecting = Connecting(**{name: given(name) for name in NAMES})
    return SharedOptions(server=given("server"), context=given("context_name"), connecting=connecting)


async def _asked(options: SharedOptions, ask: Callable[[Client], Awaitable[Iterable[str]]]) -> Iterable[str]:
    import trovemq

    server = chosen_server(options.server, options.context, SERVER_DEFAULT)
    async with asyncio.timeout(ASKING_SECONDS_MAX):
        client = await trovemq.connect(server, options=options.connecting.client_options())
        try:
            return await ask(client)
        finally:
            await client.close()
