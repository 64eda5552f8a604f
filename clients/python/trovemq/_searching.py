"""Searches over all brokers of a topic: each gives its messages in the order of time, as the merge does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from trovemq._links import Links
from trovemq._paging import all_messages, connections_to_ask
from trovemq._queries import MESSAGES_MAX, NOT_ANSWERED, TIME_MAX, body_notes, decoded
from trovemq._query_cursor import Place, decode_cursor, encode_cursor, query_digest
from trovemq._wire.connection import Connection
from trovemq._wire.searches import SearchPageAnswer, SearchQuestion, search_pages
from trovemq.search_model import FIELDS, VALUE_SIZE_MAX, SearchAnswer, SearchPart, Where
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import Message

DEPTH_MAX = 8


class Searches:
    """The client's searches; documented at `Client`."""

    def __init__(self, links: Links) -> None:
        self._links = links

    async def search(
        self, question: SearchQuestion, count_max: int, cursor: str | None, broker: str | None, explain: bool
    ) -> SearchAnswer:
        _check(question, count_max)
        digest = query_digest("search", repr(question), broker)
        places = decode_cursor(cursor, digest) if cursor else {}
        sources = self._sources(question, count_max, places, broker, explain)
        messages = await _merged(sources, 0 if explain else count_max, question.newest_first)
        missing = [source.missing for source in sources]
        if all(missing) and missing[0] is not None:
            raise missing[0]
        unreachable = tuple(source.name for source in sources if source.unreachable)
        done = all(source.place.done for source in sources)
        complete = done and not explain and not any(source.place.lacking for source in sources)
        on = not done and not explain
        return SearchAnswer(
            tuple(messages),
            complete,
            encode_cursor(digest, {source.name: source.place for source in sources}) if on else None,
            tuple(part for source in sources for part in source.parts),
            sum(source.entries for source in sources),
            sum(source.scanned_bytes for source in sources),
            sum(source.lag_bytes for source in sources),
            unreachable,
            (*(note for source in sources for note in source.notes), *body_notes(messages)),
        )

    def _sources(
        self,
        question: SearchQuestion,
        page_size: int,
        places: dict[str, Place],
        broker: str | None,
        explain: bool,
    ) -> list[_Source]:
        timeout_ms = self._links.options.call_timeout_ms
        brokers = connections_to_ask(self._links, question.topic, broker, places)
        return [
            _Source(
                name, connection, question, places.get(name, Place(page_size=page_size)), timeout_ms, explain
            )
            for name, connection in brokers.items()
        ]

    def search_all(
        self, question: SearchQuestion, page_size: int, broker: str | None
    ) -> AsyncGenerator[Message, None]:
        return all_messages(lambda cursor: self.search(question, page_size, cursor, broker, explain=False))


@dataclass(slots=True)
class _Source:
    """One broker's messages in the order of the answer, a page at a time; as BrokerSource of key queries."""

    name: str
    connection: Connection | None
    question: SearchQuestion
    place: Place
    timeout_ms: int
    explain: bool
    unreachable: bool = False
    missing: TroveError | None = None  # TOPIC_NOT_FOUND
    notes: list[str] = field(default_factory=list)
    parts: tuple[SearchPart, ...] = ()
    entries: int = 0
    scanned_bytes: int = 0
    lag_bytes: int = 0
    waiting: deque[Message] = field(default_factory=deque)
    _after: Place | None = None  # the place once the current page is used up

    async def fill(self) -> None:
        """Asks for pages until a message waits or nothing more is there. Raises TroveError."""
        while not self.waiting and not self.unreachable:
            if self._after is not None:
                self.place, self._after = self._after, None
            if self.place.done:
                return
            await self._ask()
            if self.explain:
                return

    async def _ask(self) -> None:
        if self.connection is None:
            self.unreachable = True
            return
        try:
            await self._read_pages(self.connection)
        except TroveError as error:
            if error.spec is errors.TOPIC_NOT_FOUND:
                self.missing, self._after = error, Place(done=True)
            elif error.spec in NOT_ANSWERED:
                self.waiting.clear()
                self.unreachable = True
            else:
                raise

    async def _read_pages(self, connection: Connection) -> None:
        pages = search_pages(
            connection,
            self.name,
            self.question,
            messages_max=self.place.page_size,
            cursor=self.place.cursor,
            timeout_ms=self.timeout_ms,
            explain=self.explain,
        )
        async for page in pages:
            self.waiting += [
                message
                for message in decoded(page.records, page.queue_offsets)
                if self._is_behind(message.physical_offset)
            ]
            if page.last:
                self._finish(page)
                return
        raise TroveError(errors.BROKER_UNREACHABLE, f"{self.name} ended its answer without a last page")

    def _is_behind(self, physical_offset: int) -> bool:
        """Behind what was handed out of this page already."""
        last = self.place.last
        if last is None:
            return True
        return physical_offset < last if self.question.newest_first else physical_offset > last

    def _finish(self, page: SearchPageAnswer) -> None:
        self.notes += [f"{self.name}: {note}" for note in page.notes]
        self.parts, self.lag_bytes = page.parts, page.lag_bytes
        self.entries += page.entries
        self.scanned_bytes += page.scanned_bytes
        done = page.complete or not page.cursor
        self._after = Place(page.cursor, None, self.place.page_size, done, done and not page.complete)

    def pop(self) -> Message:
        """Hands out the next message that waits."""
        message = self.waiting.popleft()
        self.place = Place(self.place.cursor, message.physical_offset, self.place.page_size)
        if not self.waiting and self._after is not None:
            self.place, self._after = self._after, None
        return message


async def _merged(sources: Sequence[_Source], count_max: int, newest_first: bool) -> list[Message]:
    """Up to `count_max` messages of all sources by store time. Raises TroveError."""
    found: list[Message] = []
    await asyncio.gather(*(source.fill() for source in sources))
    while len(found) < count_max:
        waiting = [source for source in sources if source.waiting]
        if not waiting:
            break
        choose = max if newest_first else min
        source = choose(waiting, key=lambda one: (one.waiting[0].store_timestamp, one.name))
        found.append(source.pop())
        if not source.waiting and len(found) < count_max:
            await source.fill()
    return found


def _check(question: SearchQuestion, count_max: int) -> None:
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
            raise TroveError(errors.REQUEST_ILLEGAL, f"the {where.kind} is no valid Unicode")
        return
    if where.kind not in ("all", "any") or not depth:
        text = f"conditions of kind {where.kind!r}, or more than {DEPTH_MAX} deep"
        raise TroveError(errors.REQUEST_ILLEGAL, text)
    for part in where.parts:
        _check_where(part, depth - 1)
