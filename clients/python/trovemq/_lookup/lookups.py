"""The look-ups of a client: messages by id, place, key or conditions, the track of one, offsets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from trovemq._common.arguments import check_numbers, check_optional_text, check_text
from trovemq._lookup.queries import TIME_MAX, KeyQuestion, Queries
from trovemq._net.connections import ConnectionPool
from trovemq.answers import GetAnswer, QueryAnswer
from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.cluster import QueueOffsets
from trovemq_proto import errors
from trovemq_proto.records import Message

if TYPE_CHECKING:  # imported when they are first needed
    from trovemq._lookup.message_search import Searches
    from trovemq.models.search import SearchAnswer, Where
    from trovemq.models.track import MessageTrack


class Lookups:
    """The part of a client that finds messages."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._queries = Queries(pool)

    @cached_property
    def _searches(self) -> Searches:
        from trovemq._lookup.message_search import Searches

        return Searches(self._pool)

    async def get(
        self,
        id: str,  # noqa: A002  RocketMQ's word
        *,
        topic: str | None = None,
        broker: str | None = None,
    ) -> GetAnswer:
        """The message of an offsetMsgId, or all messages with a message id; says which it was.

        The broker that advertises the address in an offsetMsgId is asked first, then all others.

        Args:
            id: An offsetMsgId or a message id.
            topic: Narrows a message id to one topic.
            broker: Asks this broker only.

        Raises:
            TroveError: MESSAGE_NOT_FOUND, MESSAGE_ID_ILLEGAL, RECORD_DAMAGED, INDEX_DISABLED;
                BROKER_UNREACHABLE if nothing was found and a broker did not answer.
        """
        check_text("id", id, errors.MESSAGE_ID_ILLEGAL)
        check_optional_text("topic", topic, errors.TOPIC_ILLEGAL)
        return await self._queries.get(id, topic or "", broker)

    async def track(
        self,
        id: str | tuple[str, int, int],  # noqa: A002  as `get`
        topic: str | None = None,
        *,
        broker: str | None = None,
    ) -> MessageTrack:
        """The track of a message: its copies, its timeline, and why each group has not consumed it yet.

        Args:
            id: An offsetMsgId, a message id, or a place: (topic, queue id, queue offset).
            topic: Narrows a message id to the messages of one topic.
            broker: Asks this broker only.

        Returns:
            The knowledge of all brokers about it, in the order of time. If several messages have the unique
            key, the tracks of all of them.

        Raises:
            TroveError: MESSAGE_NOT_FOUND, MESSAGE_ID_ILLEGAL, TOPIC_NOT_FOUND, RECORD_DAMAGED,
                INDEX_DISABLED, OFFSET_OUT_OF_RANGE; BROKER_UNREACHABLE if nothing was found and a broker did
                not answer.
        """
        from trovemq._lookup.tracks import ask_all

        return await ask_all(self._pool, id, topic or "", broker)

    biography = track
    """The former name of `track`, until the first release."""

    async def get_at(
        self, topic: str, queue_id: int, queue_offset: int, *, broker: str | None = None
    ) -> Message:
        """The message at one place of a queue.

        Raises:
            TroveError: MESSAGE_NOT_FOUND, OFFSET_OUT_OF_RANGE, TOPIC_NOT_FOUND, QUEUE_NOT_FOUND,
                RECORD_DAMAGED; BROKER_AMBIGUOUS if several brokers have the queue and none is named.
        """
        check_numbers(queue_id=queue_id, queue_offset=queue_offset)
        return await self._queries.get_at(topic, queue_id, queue_offset, broker)

    async def query(
        self,
        topic: str,
        key: str,
        *,
        type: str = "key",  # noqa: A002  the name the command line and the protocol have
        begin: int = 0,
        end: int = TIME_MAX,
        max: int = 64,  # noqa: A002  as above
        cursor: str | None = None,
        broker: str | None = None,
    ) -> QueryAnswer:
        """One page of the messages with a key, newest first, of every broker that has the topic.

        Args:
            topic: The topic.
            key: The key, message id or tag.
            type: `key`, `message_id` or `tag`.
            begin: Earliest store time, epoch ms.
            end: Latest store time, epoch ms.
            max: The most messages of this page, 1 to 10,000.
            cursor: Continues after an earlier page of the same query.
            broker: Asks this broker only.

        Returns:
            The messages; whether these are all; a cursor if not; the brokers that did not answer.

        Raises:
            TroveError: TOPIC_NOT_FOUND, INDEX_DISABLED, CURSOR_ILLEGAL, REQUEST_ILLEGAL.
        """
        question = _question(topic, key, type, begin, end)
        check_optional_text("cursor", cursor, errors.CURSOR_ILLEGAL)
        return await self._queries.query(question, max, cursor, broker)

    async def query_all(
        self,
        topic: str,
        key: str,
        *,
        type: str = "key",  # noqa: A002  as `query`
        begin: int = 0,
        end: int = TIME_MAX,
        page_size: int = 256,
        broker: str | None = None,
    ) -> AsyncGenerator[Message, None]:
        """All messages with a key, newest first.

        Args:
            topic: The topic.
            key: The key, message id or tag.
            type: `key`, `message_id` or `tag`.
            begin: Earliest store time, epoch ms.
            end: Latest store time, epoch ms.
            page_size: The most messages of a page, 1 to 10,000.
            broker: Asks this broker only.

        Raises:
            TroveError: TOPIC_NOT_FOUND, INDEX_DISABLED, REQUEST_ILLEGAL. BROKER_UNREACHABLE, after the
                messages that were found, if a broker did not answer: an iteration that ends without an
                error was complete.
        """
        question = _question(topic, key, type, begin, end)
        async with aclosing(self._queries.query_all(question, page_size, broker)) as messages:
            async for message in messages:
                yield message

    async def search(
        self,
        topic: str,
        where: Where | None = None,
        *,
        key: str | Sequence[str] | None = None,
        key_prefix: str | Sequence[str] | None = None,
        message_id: str | Sequence[str] | None = None,
        message_id_prefix: str | Sequence[str] | None = None,
        tag: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        match: Literal["all", "any"] = "all",
        begin: int = 0,
        end: int = TIME_MAX,
        newest_first: bool = True,
        max: int = 64,  # noqa: A002  as `query`
        cursor: str | None = None,
        explain_only: bool = False,
        broker: str | None = None,
    ) -> SearchAnswer:
        """One page of the messages that meet some conditions, on every broker that has the topic; the result
        is exact.

        Args:
            topic: The topic.
            where: Conditions, combined by `&` and `|` (`Where.key("42") | Where.tag("paid")`).
            key: One of the message's keys. Several values are several conditions; so for the next arguments.
            key_prefix: The beginning of one of its keys.
            message_id: Its id.
            message_id_prefix: The beginning of its id.
            tag: Its tag.
            properties: Values of properties that the topic declares as indexed.
            match: Whether all conditions must be met, or any; without conditions every message answers.
            begin: Earliest store time, epoch ms.
            end: Latest store time, epoch ms.
            newest_first: The order; else the oldest comes first.
            max: The most messages of this page, 1 to 10,000.
            cursor: Continues after an earlier page of the same search.
            explain_only: Only returns how the search would be served (`explain`), and searches nothing.
            broker: Asks this broker only.

        Returns:
            The messages; whether these are all; a cursor if not; the brokers that did not answer; how the
            search was served.

        Raises:
            TroveError: TOPIC_NOT_FOUND, PROPERTY_NOT_INDEXED, CURSOR_ILLEGAL, REQUEST_ILLEGAL.
        """
        from trovemq._wire.searches import SearchQuestion
        from trovemq.models.search import combined

        check_optional_text("cursor", cursor, errors.CURSOR_ILLEGAL)
        condition = combined(
            where,
            key=key,
            key_prefix=key_prefix,
            message_id=message_id,
            message_id_prefix=message_id_prefix,
            tag=tag,
            properties=properties,
            match=match,
        )
        question = SearchQuestion(topic, condition, begin, end, newest_first)
        return await self._searches.search(question, max, cursor, broker, explain_only)

    async def search_all(
        self,
        topic: str,
        where: Where | None = None,
        *,
        begin: int = 0,
        end: int = TIME_MAX,
        newest_first: bool = True,
        page_size: int = 256,
        broker: str | None = None,
    ) -> AsyncGenerator[Message, None]:
        """All messages that meet a condition.

        Args:
            topic: The topic.
            where: The condition; None: every message.
            begin: Earliest store time, epoch ms.
            end: Latest store time, epoch ms.
            newest_first: Whether newer messages come first.
            page_size: The most messages of a page, 1 to 10,000.
            broker: Asks this broker only.

        Raises:
            TroveError: TOPIC_NOT_FOUND, PROPERTY_NOT_INDEXED, REQUEST_ILLEGAL. BROKER_UNREACHABLE, after
                the messages that were found, if a broker did not answer: an iteration that ends without an
                error was complete.
        """
        from trovemq._wire.searches import SearchQuestion
        from trovemq.models.search import EVERY_MESSAGE, check_where

        condition = EVERY_MESSAGE if where is None else check_where(where)
        question = SearchQuestion(topic, condition, begin, end, newest_first)
        async with aclosing(self._searches.search_all(question, page_size, broker)) as messages:
            async for message in messages:
                yield message

    async def search_offset(
        self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False, broker: str | None = None
    ) -> int:
        """The first queue offset stored at or after a time (epoch ms); with `upper` the last at or before
        it."""
        check_numbers(queue_id=queue_id, timestamp=timestamp)
        return await self._queries.search_offset(topic, queue_id, timestamp, upper, broker)

    async def queue_offsets(
        self, topic: str, *, queue_ids: Sequence[int] | None = None, broker: str | None = None
    ) -> BrokerAnswers[QueueOffsets]:
        """The valid offsets of the topic's queues, on every broker that has it.

        Raises:
            TroveError: TOPIC_NOT_FOUND, QUEUE_NOT_FOUND, BROKER_UNREACHABLE.
        """
        return await self._queries.queue_offsets(topic, queue_ids, broker)

    async def broker_time(self, topic: str, *, broker: str | None = None) -> int:
        """The time by the clock of the broker that has the topic, epoch ms; of several brokers the one whose
        clock is slowest. Store times are by this clock: count `an hour ago` from it.

        Raises:
            TroveError: TOPIC_NOT_FOUND, BROKER_UNREACHABLE.
        """
        check_text("topic", topic, errors.TOPIC_ILLEGAL)
        return await self._queries.broker_time(topic, broker)


def _question(topic: str, key: str, kind: str, begin: int, end: int) -> KeyQuestion:
    check_text("topic", topic, errors.TOPIC_ILLEGAL)
    check_text("key", key, errors.KEY_ILLEGAL)
    return KeyQuestion(topic, key, kind, begin, end)
