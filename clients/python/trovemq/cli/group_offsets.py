"""group offset commit|get|reset: the stored offsets of a consumer group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from trovemq.cli.arguments import (
    BrokerOption,
    EarliestOption,
    EveryBrokerOption,
    GroupArgument,
    LatestOption,
    QueueArgument,
    QueueOption,
    TopicArgument,
    parse_offset,
)
from trovemq.cli.columns import Column, Columns
from trovemq.cli.session import Session, verb
from trovemq.cli.times import Moment, parse_moment

if TYPE_CHECKING:
    from trovemq import OffsetReset

app = typer.Typer(help="A consumer group's offsets: commit, get, reset.", no_args_is_help=True)


@verb(app, "commit")
async def commit(
    session: Session,
    group: GroupArgument,
    topic: TopicArgument,
    queue: QueueArgument,
    offset: Annotated[
        int,
        typer.Argument(
            metavar="OFFSET", parser=parse_offset, help="The next one to consume.", show_default=False
        ),
    ],
    broker: BrokerOption = None,
) -> None:
    """Store a group's offset of one queue; durable when it returns."""
    async with session.client() as client:
        await session.call(client.admin.commit_offset(group, topic, queue, offset, broker=broker))
    show_offset(session, group, topic, queue, offset)


@verb(app, "get")
async def get(
    session: Session,
    group: GroupArgument,
    topic: TopicArgument,
    queue: QueueArgument,
    broker: BrokerOption = None,
) -> None:
    """Show a group's offset of one queue (null if it has none)."""
    async with session.client() as client:
        offset = await session.call(client.admin.get_offset(group, topic, queue, broker=broker))
    show_offset(session, group, topic, queue, offset)


def show_offset(session: Session, group: str, topic: str, queue: int, offset: int | None) -> None:
    """One group's offset of one queue."""
    answer: dict[str, object] = {"group": group, "topic": topic, "queueId": queue, "offset": offset}
    session.output.item(answer)
    if not session.output.objects:
        from trovemq.cli.render import card

        session.output.show(card(answer))


@verb(app, "reset")
async def reset(
    session: Session,
    group: GroupArgument,
    topic: TopicArgument,
    queue: QueueOption = None,
    to_time: Annotated[
        Moment | None,
        typer.Option(
            "--to-time",
            parser=parse_moment,
            metavar="T",
            help="To the first message at or after T: epoch ms, ISO 8601, or 1h, yesterday.",
            show_default=False,
        ),
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="O", parser=parse_offset, show_default=False)
    ] = None,
    to_earliest: EarliestOption = False,
    to_latest: LatestOption = False,
    broker: EveryBrokerOption = None,
) -> None:
    """Set a group's offsets of a topic. Of every queue (or of one), to exactly one of the targets."""
    if sum((to_time is not None, to_offset is not None, to_earliest, to_latest)) != 1:
        raise typer.BadParameter("give exactly one of --to-time, --to-offset, --to-earliest, --to-latest")
    async with session.client() as client:
        timestamp = None
        if to_time is not None:
            (timestamp,) = await session.times(client, topic, to_time, broker=broker)
        changes = await session.call(
            client.admin.reset_offset(
                group,
                topic,
                queue_id=queue,
                timestamp=timestamp,
                offset=to_offset,
                to_earliest=to_earliest,
                to_latest=to_latest,
                broker=broker,
            )
        )
    show_changes(session, group, topic, changes)


def show_changes(session: Session, group: str, topic: str, changes: Iterable[OffsetReset]) -> None:
    """The changes of a reset, queue by queue."""
    columns: Columns[OffsetReset] = Columns(
        Column("group", None, lambda _: group),
        Column("topic", None, lambda _: topic),
        Column("queueId", "queue", lambda change: change.queue_id, number=True),
        Column("offsetBefore", "before", lambda change: change.offset_before, number=True),
        Column("offset", "now", lambda change: change.offset, number=True),
    )
    session.show_list(changes, columns)
