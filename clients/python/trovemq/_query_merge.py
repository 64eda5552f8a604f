"""One key query over all brokers of a topic: each gives its messages newest first, and so does the merge."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from trovemq._query_cursor import Place
from trovemq._wire.connection import Connection
from trovemq._wire.convert import QueryPageAnswer
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import Message, RecordBatch


@dataclass(frozen=True, slots=True)
class KeyQuestion:
    """What is looked for; `kind` is key, unique or tag, times are epoch ms and inclusive."""

    topic: str
    key: str
    kind: str
    begin: int
    end: int


@dataclass(slots=True)
class BrokerSource:
    """One broker's messages, newest first, a page at a time.

    Attributes:
        name: The broker.
        connection: Its connection; None where it is in no route (then it is unreachable).
        place: Where the query stands: what was handed out so far.
        unreachable: It did not answer; what it has is not in the answer.
    """

    name: str
    connection: Connection | None
    question: KeyQuestion
    place: Place
    unreachable: bool = False
    missing: TroveError | None = None  # TOPIC_NOT_FOUND
    notes: list[str] = field(default_factory=list)
    index_last_update: tuple[int, int] | None = None  # timestamp, physical offset
    _waiting: deque[Message] = field(default_factory=deque)
    _after: Place | None = None  # the place once the current page is used up

    async def fill(self) -> None:
        """Asks for pages until a message waits or nothing more is there. Raises TroveError."""
        while not self._waiting and not self.unreachable:
            if self._after is not None:
                self.place, self._after = self._after, None
            if self.place.done:
                return
            await self._ask()

    async def _ask(self) -> None:
        if self.connection is None:
            self.unreachable = True
            return
        try:
            await self._read_pages(self.connection)
        except TroveError as error:
            if error.spec is errors.TOPIC_NOT_FOUND:
                self.missing, self._after = error, Place(done=True)
            elif error.spec in (errors.BROKER_UNREACHABLE, errors.REQUEST_TIMEOUT):
                self._waiting.clear()
                self.unreachable = True
            else:
                raise

    async def _read_pages(self, connection: Connection) -> None:
        question, place = self.question, self.place
        pages = connection.query_pages(
            question.topic,
            question.key,
            question.kind,
            begin=question.begin,
            end=question.end,
            messages_max=place.page_size,
            cursor=place.cursor,
        )
        async for page in pages:
            for message in RecordBatch.split(page.records).received() if page.records else ():
                if place.last is None or message.physical_offset < place.last:
                    self._waiting.append(message)
            if page.last:
                self._finish(page)
                return
        raise TroveError(errors.BROKER_UNREACHABLE, f"{self.name} ended its answer without a last page")

    def _finish(self, page: QueryPageAnswer) -> None:
        self.notes += [f"{self.name}: {note}" for note in page.notes]
        self.index_last_update = (page.index_last_update_timestamp, page.index_last_update_physical_offset)
        done = page.complete or not page.cursor
        self._after = Place(page.cursor, None, self.place.page_size, done, done and not page.complete)

    @property
    def head(self) -> Message | None:
        """The newest message that waits."""
        return self._waiting[0] if self._waiting else None

    def pop(self) -> Message:
        """Hands out the newest message that waits."""
        message = self._waiting.popleft()
        place = self.place
        self.place = Place(place.cursor, message.physical_offset, place.page_size)
        if not self._waiting and self._after is not None:
            self.place, self._after = self._after, None
        return message


async def merge_newest_first(sources: Sequence[BrokerSource], count_max: int) -> list[Message]:
    """Up to `count_max` messages of all sources by falling store time. Raises TroveError."""
    found: list[Message] = []
    await asyncio.gather(*(source.fill() for source in sources))
    while len(found) < count_max:
        waiting = [source for source in sources if source.head is not None]
        if not waiting:
            break
        source = max(waiting, key=_age)
        found.append(source.pop())
        if source.head is None and len(found) < count_max:
            await source.fill()
    return found


def _age(source: BrokerSource) -> tuple[int, str]:
    assert source.head is not None
    return source.head.store_timestamp, source.name
