"""One query over all brokers of a topic, by key or by conditions. Each broker returns its messages in the
order of time, page by page, and so does the merge."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from trovemq._lookup.cursor import BrokerProgress, decode_cursor, encode_cursor, query_digest
from trovemq._net.all_brokers import NOT_ANSWERED, lost_names
from trovemq._net.connections import ConnectionPool
from trovemq._wire.connection import Connection
from trovemq._wire.replica_lags import longest_lag
from trovemq.answers import QueryAnswer
from trovemq.models.replica import ReplicaLag
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueOffset
from trovemq_proto.records import Message, decode_received
from trovemq_proto.records.fields import split_records

if TYPE_CHECKING:
    from trovemq.models.search import SearchAnswer


class AnswerPage(Protocol):
    """A page of one broker's answer; the fields after `last` are set on the last page only."""

    @property
    def records(self) -> bytes: ...

    @property
    def queue_offsets(self) -> Sequence[int] | None: ...

    @property
    def last(self) -> bool: ...

    @property
    def complete(self) -> bool: ...

    @property
    def cursor(self) -> str: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def replica(self) -> ReplicaLag | None: ...


PageT = TypeVar("PageT", bound=AnswerPage)


@dataclass(frozen=True, slots=True)
class MergedQuery(Generic[PageT]):
    """The query of every broker of a topic.

    Attributes:
        topic: The topic.
        broker: Only this one is asked; None: all.
        identity: Distinguishes the query's cursors from another's.
        ask: Requests one broker's pages from a place on, the last one marked.
        newest_first: The order; if false the oldest comes first.
    """

    topic: str
    broker: str | None
    identity: tuple[object, ...]
    ask: Callable[[str, Connection, BrokerProgress], AsyncIterator[PageT]]
    newest_first: bool = True


@dataclass(slots=True)
class _BrokerSource(Generic[PageT]):
    """One broker's messages in the order of the answer, a page at a time.

    Attributes:
        name: The broker.
        connection: Its connection; None if it is in no route (then it is unreachable).
        place: The progress of the query: the messages that the merge has taken so far.
        answers: The last page of each call.
        unreachable: It did not answer; its messages are not in the answer.
    """

    name: str
    connection: Connection | None
    query: MergedQuery[PageT]
    place: BrokerProgress
    answers: list[PageT] = field(default_factory=list)
    unreachable: bool = False
    missing: TroveError | None = None  # TOPIC_NOT_FOUND
    waiting: deque[Message] = field(default_factory=deque)
    _after: BrokerProgress | None = None  # the place once the current page is used up

    @property
    def is_out_of_reach(self) -> bool:
        """Whether it has more messages, and no route leads there."""
        return self.connection is None and not self.place.done

    async def fill(self) -> None:
        """Fetches pages until there is a message, or no more exist. Raises TroveError."""
        while not self.waiting and not self.unreachable:
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
                self.missing, self._after = error, BrokerProgress(done=True)
            elif error.spec in NOT_ANSWERED:
                self.waiting.clear()
                self.unreachable = True
            else:
                raise

    async def _read_pages(self, connection: Connection) -> None:
        async for page in self.query.ask(self.name, connection, self.place):
            messages = decoded(page.records, page.queue_offsets)
            self.waiting += [message for message in messages if self._is_new(message.physical_offset)]
            if page.last:
                done = page.complete or not page.cursor
                self._after = BrokerProgress(
                    page.cursor, None, self.place.page_size, done, done and not page.complete
                )
                self.answers.append(page)
                return
        raise TroveError(errors.BROKER_UNREACHABLE, f"{self.name} ended its answer without a last page")

    def _is_new(self, physical_offset: int) -> bool:
        """Whether the merge has not yet got it from the same page."""
        last = self.place.last
        if last is None:
            return True
        return physical_offset < last if self.query.newest_first else physical_offset > last

    def pop(self) -> Message:
        """Takes the next message."""
        message = self.waiting.popleft()
        self.place = BrokerProgress(self.place.cursor, message.physical_offset, self.place.page_size)
        if not self.waiting and self._after is not None:
            self.place, self._after = self._after, None
        return message


@dataclass(frozen=True, slots=True)
class MergedAnswer(Generic[PageT]):
    """One page of all brokers together; the fields are those of QueryAnswer and SearchAnswer.

    Attributes:
        answers: The last page of each call, by broker.
    """

    messages: tuple[Message, ...]
    complete: bool
    cursor: str | None
    unreachable: tuple[str, ...]
    notes: tuple[str, ...]
    answers: tuple[list[PageT], ...]
    replica: ReplicaLag | None


async def merged_answer(
    pool: ConnectionPool, query: MergedQuery[PageT], count_max: int, cursor: str | None
) -> MergedAnswer[PageT]:
    """Up to `count_max` messages of all brokers, from a cursor on. Raises TroveError."""
    digest = query_digest(*query.identity, query.broker)
    places = decode_cursor(cursor, digest) if cursor else {}
    lost = await lost_names(pool, query.topic) if query.broker is None else set()
    connections = await _connections_to_ask(pool, query.topic, query.broker, {*places, *lost})
    sources = [
        _BrokerSource(name, connection, query, places.get(name, BrokerProgress(page_size=count_max)))
        for name, connection in connections.items()
    ]
    away = {source.name for source in sources if source.is_out_of_reach}
    gone = await _gone(pool, query.topic, away - lost)
    for source in sources:
        if source.name in gone:
            source.place, source.unreachable = BrokerProgress(done=True, lacking=True), True
    messages = await _merged(sources, count_max, query.newest_first)
    missing = [source.missing for source in sources if source.name not in lost]
    if missing and all(missing) and missing[0] is not None:
        raise await pool.explained(missing[0])
    done = all(source.place.done for source in sources)
    notes = [f"{source.name}: {note}" for source in sources for page in source.answers for note in page.notes]
    notes += [f"{name}: is not part of the cluster any more" for name in sorted(gone)]
    return MergedAnswer(
        tuple(messages),
        done and not any(source.place.lacking for source in sources),
        None if done else encode_cursor(digest, {source.name: source.place for source in sources}),
        tuple(source.name for source in sources if source.unreachable),
        (*notes, *_body_notes(messages)),
        tuple(source.answers for source in sources),
        longest_lag(page.replica for source in sources for page in source.answers),
    )


async def _merged(
    sources: Collection[_BrokerSource[PageT]], count_max: int, newest_first: bool
) -> list[Message]:
    """Up to `count_max` messages of all sources by store time. Raises TroveError."""
    found: list[Message] = []
    await asyncio.gather(*(source.fill() for source in sources))
    choose = max if newest_first else min
    while len(found) < count_max:
        waiting = [source for source in sources if source.waiting]
        if not waiting:
            break
        source = choose(waiting, key=lambda one: (one.waiting[0].store_timestamp, one.name))
        found.append(source.pop())
        if not source.waiting and len(found) < count_max:
            await source.fill()
    return found


async def _connections_to_ask(
    pool: ConnectionPool, topic: str, broker: str | None, begun: Collection[str]
) -> dict[str, Connection | None]:
    """The connections by name, in its order: each broker of the topic in the routes, each whose answer had
    begun or that a nameserver has lost (`begun`), and each that left the routes while this client watched.
    None if no route leads there."""
    live = {info.name: info for info in await pool.relays.brokers(broker, topic)}
    live |= {info.name: info for info in pool.routes.brokers() if info.name in begun}
    lost = pool.routes.lost_brokers_of(topic) if broker is None else []
    return {
        name: pool.connection(live[name]) if name in live else None for name in sorted({*live, *begun, *lost})
    }


async def _gone(pool: ConnectionPool, topic: str, names: set[str]) -> set[str]:
    """The brokers that neither this client nor a nameserver knows as lost: only the cursor names them, and
    the query does not wait for them."""
    unknown = names.difference(pool.routes.lost_brokers_of(topic))
    if unknown:
        unknown.difference_update(broker.name for broker in await pool.lost_brokers_of(topic))
    return unknown


async def all_messages(
    ask: Callable[[str | None], Awaitable[QueryAnswer | SearchAnswer]],
) -> AsyncGenerator[Message, None]:
    """The messages of all pages; `ask` answers from a cursor on. Raises TroveError BROKER_UNREACHABLE,
    MESSAGES_REMOVED_EARLY after the messages that were found."""
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


def _body_notes(messages: Iterable[Message]) -> Iterator[str]:
    """A remark on each message whose body could not be read."""
    for message in messages:
        if message.body_error:
            place = f"{message.topic}, queue {message.queue_id}, offset {message.queue_offset}"
            yield f"the body of {message.message_id} ({place}) is left out: {message.body_error}"


def decoded(records: bytes, queue_offsets: Sequence[int] | None) -> list[Message]:
    """The messages of a reply's records, decoded one by one, because a look-up imports no NumPy."""
    if queue_offsets is None:
        return [decode_received(record) for record in split_records(records)]
    return [
        decode_received(record, queue_offset=QueueOffset(offset))
        for record, offset in zip(split_records(records), queue_offsets, strict=True)
    ]
