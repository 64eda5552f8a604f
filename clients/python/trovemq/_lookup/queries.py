"""Look-ups over all brokers that may have the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

from trovemq._common.arguments import check_numbers
from trovemq._lookup.cursor import BrokerProgress
from trovemq._lookup.merge import MergedQuery, all_messages, decoded, merged_answer
from trovemq._net.all_brokers import NOT_ANSWERED, ask_brokers, lost_names, outcomes_of
from trovemq._net.connections import ConnectionPool
from trovemq._wire.connection import Connection
from trovemq._wire.convert import FoundRecords, QueryPageAnswer
from trovemq._wire.replica_lags import longest_lag
from trovemq.answers import GetAnswer, QueryAnswer
from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.cluster import BrokerInfo, QueueOffsets
from trovemq.models.replica import ReplicaLag
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import (
    Message,
    decode_offset_msg_id,
    format_host,
    looks_like_offset_msg_id,
    pack_host,
)

MESSAGES_MAX = 10_000  # of one answer
TIME_MAX = (1 << 63) - 1
KINDS = ("key", "message_id", "tag")


@dataclass(frozen=True, slots=True)
class KeyQuestion:
    """The query; `kind` is key, message_id or tag; times are epoch ms and inclusive."""

    topic: str
    key: str
    kind: str
    begin: int
    end: int


class Queries:
    """The client's look-ups; documented at `Client`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    # --- by identifier --------------------------------------------------------------------------------

    async def get(self, identifier: str, topic: str, broker: str | None) -> GetAnswer:
        brokers = await self._pool.relays.brokers(broker)
        first = [b for b in brokers if _advertises(b, identifier)]
        found = await self._ask_for(identifier, topic, first)
        if not found.by_offset_msg_id:
            found.add(await self._ask_for(identifier, topic, [b for b in brokers if b not in first]))
            if broker is None and not found.lacks_topic:
                found.unreachable += sorted(await lost_names(self._pool, topic) - set(found.unreachable))
        async with self._pool.explaining():
            return found.answer(identifier)

    async def _ask_for(
        self, identifier: str, topic: str, brokers: Sequence[BrokerInfo]
    ) -> _IdentifierAnswers:
        calls = [self._pool.connection(broker).get_message(identifier, topic) for broker in brokers]
        found = _IdentifierAnswers()
        for broker, result in zip(brokers, await outcomes_of(calls), strict=True):
            if isinstance(result, TroveError):
                found.add_failure(broker.name, result)
            else:
                found.add_records(result)
        return found

    async def get_at(self, topic: str, queue_id: int, queue_offset: int, broker: str | None) -> Message:
        server = self._pool.routes.broker_of_queue(topic, queue_id, broker)
        async with self._pool.explaining():
            found = await self._pool.connection(server).get_message_at(topic, queue_id, queue_offset)
        messages = decoded(found.records, found.queue_offsets)
        if not messages:
            raise TroveError(errors.MESSAGE_NOT_FOUND, f"{topic}, queue {queue_id}, offset {queue_offset}")
        return messages[0]

    # --- by key ---------------------------------------------------------------------------------------

    async def query(
        self, question: KeyQuestion, count_max: int, cursor: str | None, broker: str | None
    ) -> QueryAnswer:
        _check(question, count_max)

        def ask(_name: str, connection: Connection, place: BrokerProgress) -> AsyncIterator[QueryPageAnswer]:
            return connection.query_pages(
                question.topic,
                question.key,
                question.kind,
                begin=question.begin,
                end=question.end,
                messages_max=place.page_size,
                cursor=place.cursor,
            )

        identity = (question.topic, question.key, question.kind, question.begin, question.end)
        query = MergedQuery(question.topic, broker, identity, ask)
        found = await merged_answer(self._pool, query, count_max, cursor)
        timestamp, physical_offset = _oldest_update([pages[-1] for pages in found.answers if pages])
        return QueryAnswer(
            found.messages,
            found.complete,
            found.cursor,
            timestamp,
            physical_offset,
            found.unreachable,
            found.notes,
            found.replica,
        )

    def query_all(
        self, question: KeyQuestion, page_size: int, broker: str | None
    ) -> AsyncGenerator[Message, None]:
        return all_messages(lambda cursor: self.query(question, page_size, cursor, broker))

    # --- by time, and bounds --------------------------------------------------------------------------

    async def search_offset(
        self, topic: str, queue_id: int, timestamp: int, upper: bool, broker: str | None
    ) -> int:
        server = self._pool.routes.broker_of_queue(topic, queue_id, broker)
        async with self._pool.explaining():
            return await self._pool.connection(server).search_offset(topic, queue_id, timestamp, upper)

    async def queue_offsets(
        self, topic: str, queue_ids: Sequence[int] | None, broker: str | None
    ) -> BrokerAnswers[QueueOffsets]:
        wanted = tuple(queue_ids or ())
        lists = await ask_brokers(
            self._pool,
            self._pool.routes.brokers_of(topic, broker),
            lambda info: self._pool.connection(info).queue_offsets(topic, wanted, info.name),
            broker=broker,
            topic=topic,
            absent=(errors.TOPIC_NOT_FOUND, errors.QUEUE_NOT_FOUND),
        )
        return lists.of(queue for queues in lists for queue in queues)

    async def broker_time(self, topic: str, broker: str | None) -> int:
        return min(
            await ask_brokers(
                self._pool,
                self._pool.routes.brokers_of(topic, broker),
                lambda info: self._pool.connection(info).clock_ms(),
                broker=broker,
                topic=topic,
            )
        )


class _IdentifierAnswers:
    """The brokers' answers to one identifier."""

    def __init__(self) -> None:
        self.by_offset_msg_id: list[Message] = []
        self.by_message_id: list[Message] = []
        self.unreachable: list[str] = []
        self.refusals: list[TroveError] = []
        self.more = False
        self.lags: list[ReplicaLag | None] = []

    def add_records(self, found: FoundRecords) -> None:
        messages = decoded(found.records, found.queue_offsets)
        self.more |= found.more
        self.lags.append(found.replica)
        (self.by_offset_msg_id if found.kind == "offset_msg_id" else self.by_message_id).extend(messages)

    def add_failure(self, broker: str, error: TroveError) -> None:
        if error.spec in NOT_ANSWERED:
            self.unreachable.append(broker)
        else:
            self.refusals.append(error)

    def add(self, other: _IdentifierAnswers) -> None:
        self.by_offset_msg_id += other.by_offset_msg_id
        self.by_message_id += other.by_message_id
        self.unreachable += other.unreachable
        self.refusals += other.refusals
        self.more |= other.more
        self.lags += other.lags

    @property
    def lacks_topic(self) -> bool:
        """Whether no broker that answered has the topic."""
        return bool(self.refusals) and all(one.spec is errors.TOPIC_NOT_FOUND for one in self.refusals)

    def answer(self, identifier: str) -> GetAnswer:
        lag = longest_lag(self.lags)
        if self.by_offset_msg_id:
            return GetAnswer("offset_msg_id", tuple(self.by_offset_msg_id[:1]), replica=lag)
        if self.by_message_id:
            newest_first = sorted(self.by_message_id, key=lambda message: -message.store_timestamp)
            return GetAnswer("message_id", tuple(newest_first), tuple(self.unreachable), self.more, lag)
        for error in self.refusals:
            if error.spec not in (errors.MESSAGE_NOT_FOUND, errors.TOPIC_NOT_FOUND):
                raise error
        if self.unreachable:
            names = ", ".join(self.unreachable)
            text = f"{identifier}: not found, but no answer from {names}"
            raise TroveError(errors.BROKER_UNREACHABLE, text, brokers=names)
        if self.refusals:
            raise self.refusals[0]
        raise TroveError(
            errors.MESSAGE_NOT_FOUND, f"no message has the identifier {identifier}", id=identifier
        )


def _advertises(broker: BrokerInfo, identifier: str) -> bool:
    """Whether the identifier, taken as an offsetMsgId, names this broker's address."""
    if not looks_like_offset_msg_id(identifier):
        return False
    host, _ = decode_offset_msg_id(identifier)
    try:
        return pack_host(broker.address) == host
    except TroveError:  # a name instead of an address
        return broker.address == format_host(host)


def _check(question: KeyQuestion, count_max: int) -> None:
    if question.kind not in KINDS:
        raise TroveError(errors.REQUEST_ILLEGAL, f"type {question.kind!r} is none of {', '.join(KINDS)}")
    check_numbers(max=count_max, begin=question.begin, end=question.end)
    if not 1 <= count_max <= MESSAGES_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"max={count_max} is not in 1..{MESSAGES_MAX}")


def _oldest_update(pages: Sequence[QueryPageAnswer]) -> tuple[int, int]:
    """(timestamp, physical offset) of the index with the largest lag."""
    updates = [(page.index_last_update_timestamp, page.index_last_update_physical_offset) for page in pages]
    return min(updates, default=(0, 0))
