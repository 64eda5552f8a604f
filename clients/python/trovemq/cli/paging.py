"""Reads a long answer in pages, for `query` and `search`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from trovemq.cli.session import Session

if TYPE_CHECKING:
    from trovemq import QueryAnswer, SearchAnswer
    from trovemq_proto.records import Message

PAGE_MESSAGES_MAX: Final = 1_000
_PageT_contra = TypeVar("_PageT_contra", "QueryAnswer", "SearchAnswer", contravariant=True)


class Coverage(Protocol[_PageT_contra]):
    """The coverage of the pages so far."""

    def add(self, page: _PageT_contra) -> None:
        """Adds the coverage of a page."""


async def paged(
    session: Session,
    ask: Callable[[int, str | None], Awaitable[_PageT_contra]],
    count: int,
    cursor: str | None,
    coverage: Coverage[_PageT_contra],
) -> AsyncIterator[Message]:
    """Up to `count` messages from the cursor on, in as many pages as needed. `ask` gets the number of
    messages, and a cursor. A page that lacks a broker's messages is the last one: its cursor asks that broker
    again."""
    left = count
    while left > 0:
        page = await session.call(ask(min(left, PAGE_MESSAGES_MAX), cursor))
        coverage.add(page)
        for message in page.messages:
            yield message
        left -= len(page.messages)
        if page.complete or not page.cursor or page.unreachable:
            return
        cursor = page.cursor
