"""What queries by key and searches have in common: which brokers are asked, and asking until the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection

from trovemq._links import Links
from trovemq._wire.connection import Connection
from trovemq.answers import QueryAnswer
from trovemq.search_model import SearchAnswer
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import Message


def connections_to_ask(
    links: Links, topic: str, broker: str | None, begun: Collection[str]
) -> dict[str, Connection | None]:
    """By name, in its order: each broker of the topic in the routes, each where an answer had begun, and each
    that was lost while this client watched. None where no route leads there."""
    live = {info.name: info for info in links.routes.brokers_of(topic, broker)}
    live |= {info.name: info for info in links.routes.brokers() if info.name in begun}
    lost = links.routes.lost_brokers_of(topic) if broker is None else []
    return {
        name: links.connection(live[name]) if name in live else None
        for name in sorted({*live, *begun, *lost})
    }


async def all_messages(
    ask: Callable[[str | None], Awaitable[QueryAnswer | SearchAnswer]],
) -> AsyncGenerator[Message, None]:
    """Of all pages; `ask` answers from a cursor on. TroveError BROKER_UNREACHABLE, MESSAGES_REMOVED_EARLY
    behind what was found."""
    cursor: str | None = None
    while True:
        answer = await ask(cursor)
        for message in answer.messages:
            yield message
        if answer.unreachable:
            names = ", ".join(answer.unreachable)
            text = f"the answer is not complete: no answer from {names}"
            raise TroveError(errors.BROKER_UNREACHABLE, text, brokers=names)
        if answer.complete:
            return
        if answer.cursor is None:
            raise TroveError(errors.MESSAGES_REMOVED_EARLY, "; ".join(answer.notes))
        cursor = answer.cursor
