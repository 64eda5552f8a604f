"""group lag: of one group, or of all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption, OptionalGroupArgument, TopicOption
from trovemq.cli.columns import Column, Columns
from trovemq.cli.session import Session
from trovemq.cli.watching import EVERY_MS_DEFAULT, EveryOption, WatchOption, watched
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq import Client, QueueLag

ASKED_AT_ONCE_MAX: Final = 16


async def lag(
    session: Session,
    group: OptionalGroupArgument = None,
    every_group: Annotated[bool, typer.Option("--all", help="Every group, a line a topic.")] = False,
    topic: TopicOption = None,
    watch: WatchOption = False,
    every_ms: EveryOption = EVERY_MS_DEFAULT,
    broker: EveryBrokerOption = None,
) -> None:
    """Show a group's lag, in messages and in seconds. Queue by queue; or that of every group."""
    if (group is None) != every_group:
        raise typer.BadParameter("give one GROUP, or --all")

    async def show(client: Client) -> None:
        if group is None:
            await _show_all(session, client, topic, broker)
        else:
            _show_queues(session, await session.call(client.admin.groups.lag(group, topic, broker=broker)))

    async with session.client() as client:
        await watched(session, lambda: show(client), every_ms if watch else None)
        session.note_unseen(broker)


def _show_queues(session: Session, found: Sequence[QueueLag]) -> None:
    session.show_list(found, _QUEUES)
    total = sum(queue.lag for queue in found)
    oldest = max((queue.lag_ms for queue in found), default=0)
    messages = "message" if total == 1 else "messages"
    session.output.remark(f"lag: {total:,} {messages}, {oldest / 1000:,.1f} s")


@dataclass(slots=True)
class TopicLag:
    """The lag of one group in one topic, over all queues and brokers."""

    group: str
    topic: str
    queues: int = 0
    in_flight: int = 0
    lag: int = 0
    lag_ms: int = 0
    estimated: bool = False

    def add(self, queue: QueueLag) -> None:
        """Adds one queue."""
        self.queues += 1
        self.in_flight += queue.in_flight
        self.lag += queue.lag
        self.lag_ms = max(self.lag_ms, queue.lag_ms)
        self.estimated |= queue.estimated


async def _show_all(session: Session, client: Client, topic: str | None, broker: str | None) -> None:
    groups = await session.call(client.admin.groups.list_all(broker=broker))
    names = sorted({group.group for group in groups})
    turns = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def lag_of(name: str) -> list[TopicLag]:
        async with turns:
            try:
                queues = await session.call(client.admin.groups.lag(name, topic, broker=broker))
            except TroveError as error:
                if error.spec in (errors.GROUP_NOT_FOUND, errors.TOPIC_NOT_FOUND):
                    return []  # deleted meanwhile, or without that topic
                raise
        return summed(name, queues)

    rows = [row for rows in await asyncio.gather(*map(lag_of, names)) for row in rows]
    session.show_list(rows, _TOPICS)


def summed(group: str, queues: Iterable[QueueLag]) -> list[TopicLag]:
    """The lag topic by topic."""
    found: dict[str, TopicLag] = {}
    for queue in queues:
        found.setdefault(queue.topic, TopicLag(group, queue.topic)).add(queue)
    return [found[topic] for topic in sorted(found)]


def _lag_text(one: QueueLag | TopicLag) -> object:
    return f"≈{one.lag:,}" if one.estimated else one.lag


def _seconds(one: QueueLag | TopicLag) -> str:
    return f"{one.lag_ms / 1000:,.1f}"


_QUEUES: Final[Columns[QueueLag]] = Columns(
    Column("topic", "topic", lambda queue: queue.topic),
    Column("queueId", "queue", lambda queue: queue.queue_id, number=True),
    Column("minOffset", None, lambda queue: queue.min_offset),
    Column("maxOffset", "end", lambda queue: queue.max_offset, number=True, place=4),
    Column("committed", "consumed to", lambda queue: queue.committed, number=True),
    Column("nextOffset", None, lambda queue: queue.next_offset),
    Column("inFlight", "in flight", lambda queue: queue.in_flight, number=True),
    Column("lag", "lag", lambda queue: queue.lag, _lag_text, number=True),
    Column("lagMillis", "seconds", lambda queue: queue.lag_ms, _seconds, number=True),
    Column("estimated", None, lambda queue: queue.estimated),
    Column("broker", "broker", lambda queue: queue.broker, place=1),
)
_TOPICS: Final[Columns[TopicLag]] = Columns(
    Column("group", "group", lambda row: row.group),
    Column("topic", "topic", lambda row: row.topic),
    Column("queues", "queues", lambda row: row.queues, number=True),
    Column("inFlight", "in flight", lambda row: row.in_flight, number=True),
    Column("lag", "lag", lambda row: row.lag, _lag_text, number=True),
    Column("lagMillis", "seconds", lambda row: row.lag_ms, _seconds, number=True),
    Column("estimated", None, lambda row: row.estimated),
)
