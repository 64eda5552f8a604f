"""The losses of a broker's removal.

A broker's place in a cluster is its routes, which its stop ends, and its name among the lost brokers of each
nameserver, which `forget` ends. Its topics, messages, groups and their offsets, timers and transactions are
in its own store: no other broker refers to them. They stay on its disk, and come back if it is started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from typing import Final

from trovemq._admin.groups import RESEND_MAX
from trovemq._net.connections import ConnectionPool
from trovemq._wire.connection import Connection
from trovemq._wire.groups import GroupCalls
from trovemq.models.broker import Remainder
from trovemq.models.cluster import BrokerInfo, QueueOffsets, TopicDescription
from trovemq.models.group import GroupDescription, QueueLag
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

DEAD_LETTER_PREFIX: Final = "%DLQ%"
ASKED_AT_ONCE_MAX: Final = 16
LETTERS_MAX: Final = 10_000  # of a group
_COUNTERS: Final = {
    "timers_pending": "delayed",
    "half_messages": "half_messages",
    "atomic_open": "transactions",
}
_GONE: Final = (errors.GROUP_NOT_FOUND, errors.TOPIC_NOT_FOUND)


async def remainders(pool: ConnectionPool, info: BrokerInfo) -> tuple[Remainder, ...]:
    """All of it, by kind. Raises TroveError; ACCESS_DENIED if the user does not see all topics.

    Delayed messages, half messages and transactions are counted before and after the queues: so a message
    that moves from one to the other meanwhile is counted.
    """
    connection = pool.connection(info)
    before = (await connection.statistics()).counters
    topics = await connection.list_topics(True)
    listed = await GroupCalls(connection, info.name).list_all()
    groups = [one.group for one in listed]
    lags = await _lags(GroupCalls(connection, info.name), listed)
    read = {queue.topic for queues in lags for queue in queues}
    unread = [one async for one in _unread(connection, info.name, topics, read)]
    after = (await connection.statistics()).counters
    _check_sees_all(info.name, len(topics), min(before.get("topics", 0), after.get("topics", 0)))
    waiting = {kind: max(before.get(name, 0), after.get(name, 0)) for name, kind in _COUNTERS.items()}
    return (
        *_unconsumed(groups, lags),
        *unread,
        *(Remainder(kind, count) for kind, count in waiting.items() if count),
        *_alone(pool, info.name, topics),
    )


def _check_sees_all(broker: str, seen: int, there: int) -> None:
    """Lists leave out the names that the user may not see; counters count them."""
    if seen < there:
        text = (
            f"this user sees {seen} of the {there} topics on {broker}, so the messages cannot be counted:"
            " remove it as a user who may see all topics and groups"
        )
        raise TroveError(errors.ACCESS_DENIED, text, broker=broker)


async def _lags(calls: GroupCalls, groups: Sequence[GroupDescription]) -> list[list[QueueLag]]:
    slots = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def one(group: GroupDescription) -> list[QueueLag]:
        async with slots:
            try:
                return await _lag(calls, group.group, "")
            except TroveError as error:
                if error.spec is not errors.LIMIT_EXCEEDED:
                    raise
            # It reads more queues than one answer may have: the answers of its topics, one after the other.
            found = [await _lag(calls, group.group, topic) for topic in group.topics]
            return [queue for queues in found for queue in queues]

    return list(await asyncio.gather(*map(one, groups)))


async def _lag(calls: GroupCalls, group: str, topic: str) -> list[QueueLag]:
    """Nothing if the group or the topic was deleted meanwhile."""
    try:
        return await calls.lag(group, topic)
    except TroveError as error:
        if error.spec not in _GONE:
            raise
        return []


def _unconsumed(groups: Sequence[str], lags: Sequence[Sequence[QueueLag]]) -> Iterator[Remainder]:
    for group, queues in zip(groups, lags, strict=True):
        for topic in sorted({queue.topic for queue in queues}):
            count = sum(queue.lag for queue in queues if queue.topic == topic)
            if count:
                yield Remainder("unconsumed", count, topic, group)


async def _unread(
    connection: Connection, broker: str, topics: Sequence[TopicDescription], read: Collection[str]
) -> AsyncIterator[Remainder]:
    """Messages of topics that no group reads, and dead letters that were not sent again."""
    calls = GroupCalls(connection, broker)
    slots = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def count(topic: str) -> int:
        async with slots:
            try:
                queues = await connection.queue_offsets(topic, (), broker)
                messages = sum(queue.max_offset - queue.min_offset for queue in queues)
                if messages and topic.startswith(DEAD_LETTER_PREFIX):
                    messages -= await _sent_again(calls, topic.removeprefix(DEAD_LETTER_PREFIX), queues)
            except TroveError as error:
                if error.spec not in _GONE:
                    raise
                return 0
            return messages

    names = [one.topic for one in topics if one.topic not in read and _has_messages_of_users(one)]
    for topic, messages in zip(names, await asyncio.gather(*map(count, names)), strict=True):
        if messages and topic.startswith(DEAD_LETTER_PREFIX):
            yield Remainder("dead_letters", messages, topic, topic.removeprefix(DEAD_LETTER_PREFIX))
        elif messages:
            yield Remainder("unread", messages, topic)


async def _sent_again(calls: GroupCalls, group: str, queues: Sequence[QueueOffsets]) -> int:
    """How many dead letters have been sent again: their copies count where they lie. Of many letters the
    newest LETTERS_MAX are examined."""
    found = 0
    for queue in queues:
        first = max(queue.min_offset, queue.max_offset - LETTERS_MAX)
        for begin in range(first, queue.max_offset, RESEND_MAX):
            offsets = range(begin, min(begin + RESEND_MAX, queue.max_offset))
            found += sum(one.again and not one.error for one in await calls.resent(group, offsets))
    return found


def _has_messages_of_users(topic: TopicDescription) -> bool:
    return topic.topic.startswith(DEAD_LETTER_PREFIX) or not topic.system


def _alone(pool: ConnectionPool, broker: str, topics: Sequence[TopicDescription]) -> Iterator[Remainder]:
    others = {one.topic for r in pool.routes.state.brokers if r.broker.name != broker for one in r.topics}
    for topic in topics:
        if not topic.system and topic.topic not in others:
            yield Remainder("topic", 1, topic.topic)
