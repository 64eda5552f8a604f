"""group lag: of one group, or of all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption, OptionalGroupArgument, TopicOption
from trovemq.cli.group_answers import lag_fields
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


def _show_queues(session: Session, found: Sequence[QueueLag]) -> None:
    for queue in found:
        session.output.item(lag_fields(queue))
    if session.output.objects:
        return
    from trovemq.cli.render import table

    numbers = ("queue", "consumed to", "end", "in flight", "lag", "seconds")
    rows = [
        (
            queue.topic,
            queue.broker,
            queue.queue_id,
            queue.committed,
            queue.max_offset,
            queue.in_flight,
            f"≈{queue.lag:,}" if queue.estimated else queue.lag,
            f"{queue.lag_ms / 1000:,.1f}",
        )
        for queue in found
    ]
    session.output.show(table(("topic", "broker", *numbers), rows, numbers=numbers))
    total = sum(queue.lag for queue in found)
    oldest = max((queue.lag_ms for queue in found), default=0)
    messages = "message" if total == 1 else "messages"
    session.output.remark(f"behind by {total:,} {messages}, {oldest / 1000:,.1f} s")


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

    def fields(self) -> dict[str, object]:
        """The JSON object."""
        return {
            "group": self.group,
            "topic": self.topic,
            "queues": self.queues,
            "inFlight": self.in_flight,
            "lag": self.lag,
            "lagMillis": self.lag_ms,
            "estimated": self.estimated,
        }


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
    for row in rows:
        session.output.item(row.fields())
    if session.output.objects:
        return
    from trovemq.cli.render import table

    numbers = ("queues", "in flight", "lag", "seconds")
    shown = [
        (
            row.group,
            row.topic,
            row.queues,
            row.in_flight,
            f"≈{row.lag:,}" if row.estimated else row.lag,
            f"{row.lag_ms / 1000:,.1f}",
        )
        for row in rows
    ]
    session.output.show(table(("group", "topic", *numbers), shown, numbers=numbers))


def summed(group: str, queues: Iterable[QueueLag]) -> list[TopicLag]:
    """The lag topic by topic."""
    found: dict[str, TopicLag] = {}
    for queue in queues:
        found.setdefault(queue.topic, TopicLag(group, queue.topic)).add(queue)
    return [found[topic] for topic in sorted(found)]
