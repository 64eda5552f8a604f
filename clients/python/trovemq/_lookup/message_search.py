"""Searches over all brokers of a topic."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from trovemq._common.arguments import check_numbers
from trovemq._lookup.cursor import BrokerProgress
from trovemq._lookup.merge import MergedQuery, all_messages, merged_answer
from trovemq._lookup.queries import MESSAGES_MAX, TIME_MAX
from trovemq._net.connections import ConnectionPool
from trovemq._wire.connection import Connection
from trovemq._wire.searches import SearchPageAnswer, SearchQuestion, search_pages
from trovemq.models.search import FIELDS, VALUE_SIZE_MAX, SearchAnswer, Where
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import Message

DEPTH_MAX = 8


class Searches:
    """The client's searches; documented at `Client`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def search(
        self, question: SearchQuestion, count_max: int, cursor: str | None, broker: str | None, explain: bool
    ) -> SearchAnswer:
        _check(question, count_max)

        def ask(name: str, connection: Connection, place: BrokerProgress) -> AsyncIterator[SearchPageAnswer]:
            return search_pages(
                connection,
                name,
                question,
                messages_max=place.page_size,
                cursor=place.cursor,
                timeout_ms=self._pool.options.call_timeout_ms,
                explain=explain,
            )

        query = MergedQuery(question.topic, broker, ("search", repr(question)), ask, question.newest_first)
        found = await merged_answer(self._pool, query, count_max, cursor)
        pages = [page for pages in found.answers for page in pages]
        last = [pages[-1] for pages in found.answers if pages]
        return SearchAnswer(
            found.messages,
            found.complete and not explain,
            None if explain else found.cursor,
            tuple(part for page in last for part in page.parts),
            sum(page.entries for page in pages),
            sum(page.scanned_bytes for page in pages),
            sum(page.lag_bytes for page in last),
            found.unreachable,
            found.notes,
            found.replica,
        )

    def search_all(
        self, question: SearchQuestion, page_size: int, broker: str | None
    ) -> AsyncGenerator[Message, None]:
        return all_messages(lambda cursor: self.search(question, page_size, cursor, broker, explain=False))


def _check(question: SearchQuestion, count_max: int) -> None:
    check_numbers(max=count_max, begin=question.begin, end=question.end)
    if not 1 <= count_max <= MESSAGES_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"max={count_max} is not in 1..{MESSAGES_MAX}")
    if not 0 <= question.begin <= question.end <= TIME_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"times {question.begin} to {question.end}")
    _check_where(question.where, DEPTH_MAX)


def _check_where(where: Where, depth: int) -> None:
    if where.kind in FIELDS:
        if not 1 <= len(where.value) <= VALUE_SIZE_MAX:
            text = f"a {where.kind} of {len(where.value)} characters; 1 to {VALUE_SIZE_MAX} are possible"
            raise TroveError(errors.REQUEST_ILLEGAL, text)
        if any("\ud800" <= character <= "\udfff" for character in where.value + where.name):
            raise TroveError(errors.REQUEST_ILLEGAL, f"the {where.kind} is not valid Unicode")
        return
    if where.kind not in ("all", "any") or not depth:
        text = f"conditions of kind {where.kind!r}, or more than {DEPTH_MAX} deep"
        raise TroveError(errors.REQUEST_ILLEGAL, text)
    for part in where.parts:
        _check_where(part, depth - 1)
