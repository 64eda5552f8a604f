"""consume: prints messages as a member of a group."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from trovemq.cli.arguments import TagsOption, TopicArgument
from trovemq.cli.completion import complete_group
from trovemq.cli.session import Session, verb
from trovemq.cli.times import Moment, parse_duration_ms, parse_moment, parse_time
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.message_objects import body_fields
from trovemq_proto.time_text import format_time

if TYPE_CHECKING:
    from rich.text import Text

    from trovemq import Client, ReceivedMessage, Subscription
    from trovemq.starts import Start

PREFETCH_MAX: Final = 256
HELD_MAX: Final = 10_000


def parse_start(text: str) -> Literal["earliest", "latest"] | Moment:
    """`earliest`, `latest`, or a time. Raises typer.BadParameter (usage)."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        _date(parse_time(text))
        return parse_moment(text)
    except (typer.BadParameter, OverflowError, ValueError, OSError):
        raise typer.BadParameter(f"--start {text!r} is neither earliest, latest nor a time") from None


def _date(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "consume", bodies=True)(consume)


async def consume(
    session: Session,
    topic: TopicArgument,
    group: Annotated[
        str,
        typer.Option(
            "--group",
            metavar="G",
            help="The consumer group to be a member of.",
            show_default=False,
            autocompletion=complete_group,
        ),
    ],
    acknowledge: Annotated[
        bool,
        typer.Option(
            "--ack/--no-ack",
            help="Printed is consumed; or: return each at the end, without counting an attempt.",
        ),
    ] = True,
    count: Annotated[
        int | None,
        typer.Option("--max", "-n", metavar="N", min=1, help="Stop after N messages.", show_default=False),
    ] = None,
    wait_ms: Annotated[
        int | None,
        typer.Option(
            "--wait",
            parser=parse_duration_ms,
            metavar="T",
            help="Stop when nothing came for this time: 500ms, 10s, 5m.",
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="earliest|latest|TIME",
            help="Where the group begins in a topic that it has never read; else as the broker is set.",
            show_default=False,
        ),
    ] = None,
    wait_for_topic: Annotated[
        bool, typer.Option("--wait-for-topic", help="A topic that does not exist yet is waited for.")
    ] = False,
    tags: TagsOption = None,
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            metavar="CONDITION",
            help="Only messages of an SQL-92 condition.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Receive a topic's messages as a member of a group. It ends with Ctrl-C, or as --max and --wait say."""
    begin = None if start is None else parse_start(start)
    if not acknowledge:
        count = min(count or HELD_MAX, HELD_MAX)
    prefetch = min(count or PREFETCH_MAX, PREFETCH_MAX)
    session.progress.off()
    held: list[ReceivedMessage] = []
    async with (
        session.client() as client,
        client.subscribe(
            topic,
            group,
            tags=tags,
            sql=sql,
            prefetch=prefetch,
            start=await _start(session, client, topic, begin, wait_for_topic=wait_for_topic),
            wait_for_topic=wait_for_topic,
        ) as messages,
    ):
        try:
            printed = 0
            while count is None or printed < count:
                message = await _next(messages, wait_ms)
                if message is None:
                    break
                if acknowledge:
                    async with message.process():
                        _print(session, message)
                else:
                    held.append(message)
                    _print(session, message)
                printed += 1
        finally:
            for message in held:
                message.settled = True
                message.settlement.return_message(message, 0, tried=False)
    if not acknowledge and printed == HELD_MAX:
        session.output.remark(f"--no-ack holds {HELD_MAX:,} messages at most")


async def _start(
    session: Session,
    client: Client,
    topic: str,
    begin: Literal["earliest", "latest"] | Moment | None,
    *,
    wait_for_topic: bool,
) -> Start | None:
    if not isinstance(begin, Moment):
        return begin
    try:
        (milliseconds,) = await session.times(client, topic, begin)
    except TroveError as error:
        if error.spec is errors.TOPIC_NOT_FOUND and wait_for_topic:
            return "earliest"  # no broker has its messages yet, nor a clock for them
        raise
    return _date(milliseconds)


async def _next(messages: Subscription, wait_ms: int | None) -> ReceivedMessage | None:
    """The next message; None if none arrived in time."""
    try:
        async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
            return await anext(messages)
    except (TimeoutError, StopAsyncIteration):
        return None


def _print(session: Session, message: ReceivedMessage) -> None:
    session.output.item(received_fields(message))
    if not session.output.objects:
        session.output.show(_line(message))
    session.output.flush()


def received_fields(message: ReceivedMessage) -> dict[str, object]:
    """The JSON object of a received message, with the names that the other verbs use."""
    fields: dict[str, object] = {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "messageId": message.message_id,
        "keys": " ".join(message.keys) or None,
        "tags": message.tags,
        "messageGroup": message.message_group,
        "attempt": message.attempt,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "properties": dict(sorted(message.properties.items())),
        **body_fields(message.body),
        "broker": message.broker,
    }
    if message.body_error:
        fields["bodyError"] = message.body_error
    return fields


def _line(message: ReceivedMessage) -> Text:
    from rich.text import Text

    from trovemq.cli.render import body_preview, printable

    place = f"{printable(message.topic)}/{message.queue_id}@{message.queue_offset}"
    tag = f" [{printable(message.tags)}]" if message.tags else ""
    again = f" (attempt {message.attempt})" if message.attempt > 1 else ""
    shown = f"({message.body_error})" if message.body_error else body_preview(message.body)
    return Text(f"{format_time(message.store_timestamp)} {place}{tag}{again} {shown}")
