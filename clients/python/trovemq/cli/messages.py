"""send, pull, get: sends messages, and reads them by their place or id."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trovemq.cli.arguments import (
    BrokerOption,
    MessageArgument,
    QueueOption,
    SearchedTopicOption,
    TagsOption,
    TopicArgument,
    parse_offset,
    parse_queue,
)
from trovemq.cli.session import Session, verb
from trovemq.cli.times import Moment, parse_duration_ms, parse_moment_ahead
from trovemq.receipts import LATE_STATUSES
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.message_objects import message_fields

if TYPE_CHECKING:
    from trovemq import Client, FetchedBatch
    from trovemq_proto.records import Message

TABLE_ROWS_MAX: Final = 500
MESSAGE_BYTES_GUESS: Final = 4 << 10
PAGE_BYTES_MIN: Final = 64 << 10
PAGE_BYTES_MAX: Final = 4 << 20
BODY_READ_BYTES_MAX: Final = 256 << 20

BodyArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[BODY|-]", help="The body; - or nothing: standard input, byte for byte.", show_default=False
    ),
]
KeysOption = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="KEY", help="A key to find it by (repeatable).", show_default=False),
]
PropertiesOption = Annotated[
    list[str] | None,
    typer.Option("--property", metavar="K=V", help="A user property (repeatable).", show_default=False),
]

MessageGroupOption = Annotated[
    str | None,
    typer.Option(
        "--message-group",
        metavar="G",
        help="Messages of one group are delivered in order (FIFO topics).",
        show_default=False,
    ),
]
PriorityOption = Annotated[
    int | None,
    typer.Option(
        "--priority",
        metavar="0..9",
        help="9 is received first; none counts as 4 (topics of order = priority).",
        show_default=False,
    ),
]
DeliverAtOption = Annotated[
    Moment | None,
    typer.Option(
        "--deliver-at",
        parser=parse_moment_ahead,
        metavar="TIME",
        help="Not before then: epoch ms, ISO 8601, or 10m for in ten minutes (DELAY topics).",
        show_default=False,
    ),
]
DeliverAfterOption = Annotated[
    int | None,
    typer.Option(
        "--deliver-after",
        parser=parse_duration_ms,
        metavar="T",
        help="After this time: 500ms, 10s, 5m, 2h, 3d (DELAY topics).",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command tree."""
    verb(app, "send")(send)
    verb(app, "pull", bodies=True)(pull)
    verb(app, "get", bodies=True)(get)


async def send(
    session: Session,
    topic: TopicArgument,
    body: BodyArgument = None,
    keys: KeysOption = None,
    message_id: Annotated[
        str | None,
        typer.Option(
            "--message-id", metavar="ID", help="The message id; else one is made.", show_default=False
        ),
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="TAG", help="The message's tag.", show_default=False)
    ] = None,
    property_pairs: PropertiesOption = None,
    message_group: MessageGroupOption = None,
    priority: PriorityOption = None,
    deliver_at: DeliverAtOption = None,
    deliver_after: DeliverAfterOption = None,
    queue: QueueOption = None,
    broker: BrokerOption = None,
) -> None:
    """Send one message and wait until it is stored."""
    properties = parse_properties(property_pairs or [])
    extras = extra_arguments(message_group, deliver_at, deliver_after)
    content = read_body(body)
    async with session.client() as client:
        if deliver_at is not None:
            extras["deliver_at"] = _date(*await session.times(client, topic, deliver_at, broker=broker))
        receipt = await session.call(
            client.send(
                topic,
                content,
                keys=keys or [],
                tag=tag,
                properties=properties,
                message_id=message_id,
                queue_id=queue,
                broker=broker,
                priority=priority,
                **extras,
            )
        )
    if late := LATE_STATUSES.get(receipt.status):
        raise TroveError(late, message_id=receipt.message_id, offset_msg_id=receipt.offset_msg_id)
    answer: dict[str, object] = {
        "topic": receipt.topic,
        "queueId": _known(receipt.queue_id),
        "queueOffset": _known(receipt.queue_offset),
        "commitLogOffset": _known(receipt.physical_offset),
        "offsetMsgId": receipt.offset_msg_id or None,
        "messageId": receipt.message_id,
        "durability": receipt.durability,
        "copies": receipt.copies,
    }
    if receipt.duplicate:
        answer["duplicate"] = True
    if receipt.recall_handle:
        answer["recallHandle"] = receipt.recall_handle
    session.output.item(answer)
    if not session.output.objects:
        from trovemq.cli.render import card

        session.output.show(card(answer))


def _known(place: int) -> int | None:
    """None for -1: a delayed message gets its place when it is delivered."""
    return None if place < 0 else place


def extra_arguments(
    message_group: str | None, deliver_at: Moment | None, deliver_after: int | None
) -> dict[str, Any]:
    """The arguments of ordered and delayed messages (the delay in ms). Raises typer.BadParameter (usage)."""
    if deliver_at is not None and deliver_after is not None:
        raise typer.BadParameter("give --deliver-at or --deliver-after, not both")
    extras: dict[str, Any] = {}
    if message_group is not None:
        extras["message_group"] = message_group
    try:
        if deliver_at is not None:
            extras["deliver_at"] = _date(deliver_at.here())
        if deliver_after is not None:
            extras["deliver_after"] = timedelta(milliseconds=deliver_after)
    except OverflowError:
        raise typer.BadParameter("the delivery time is beyond the year 9999") from None
    return extras


def _date(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def parse_properties(pairs: list[str]) -> dict[str, str]:
    """`K=V` pairs as a mapping. Raises typer.BadParameter for one without =, and for a name given twice."""
    properties: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--property {pair!r} is not K=V")
        if name in properties:
            raise typer.BadParameter(f"--property {name} is given twice")
        properties[name] = value
    return properties


def read_body(argument: str | None) -> bytes:
    """The body's bytes: the argument as the shell gave it, or standard input.

    Raises TroveError MESSAGE_SIZE_EXCEEDED if that has more than 256 MiB.
    """
    if argument is not None and argument != "-":
        return os.fsencode(argument)
    if argument is None and sys.stdin.isatty():
        raise typer.BadParameter("give a BODY, or - to type it and end with Ctrl-D")
    body = sys.stdin.buffer.read(BODY_READ_BYTES_MAX + 1)
    if len(body) > BODY_READ_BYTES_MAX:
        text = f"standard input has more than {BODY_READ_BYTES_MAX:,} bytes; this command sends no more"
        raise TroveError(errors.MESSAGE_SIZE_EXCEEDED, text, size_max=BODY_READ_BYTES_MAX)
    return body


async def pull(
    session: Session,
    topic: TopicArgument,
    queue: Annotated[
        int,
        typer.Option(
            "--queue", metavar="Q", parser=parse_queue, help="The queue's number.", show_default=False
        ),
    ],
    offset: Annotated[
        int | None,
        typer.Option(
            "--offset",
            metavar="O",
            parser=parse_offset,
            help="First queue offset; else the queue's first.",
            show_default=False,
        ),
    ] = None,
    count: Annotated[int, typer.Option("--max", metavar="N", min=1, help="How many messages.")] = 32,
    tags: TagsOption = None,
    broker: BrokerOption = None,
) -> None:
    """Read messages of one queue from an offset on. At the end of the queue it stops and does not wait."""
    async with session.client() as client:
        start = offset if offset is not None else await first_offset(session, client, topic, queue, broker)
        batches = client.pull_batches(
            topic, queue_id=queue, offset=start, bytes_max=page_bytes(count), tags=tags, broker=broker
        )
        async with aclosing(_up_to(session, batches, count)) as messages:
            await _show_messages(session, messages)
        await session.note_lost(client, topic, broker)


def page_bytes(count: int) -> int:
    """How many bytes to fetch at a time for `count` messages of unknown size."""
    return min(max(count * MESSAGE_BYTES_GUESS, PAGE_BYTES_MIN), PAGE_BYTES_MAX)


async def first_offset(session: Session, client: Client, topic: str, queue: int, broker: str | None) -> int:
    """The queue's lowest offset."""
    offsets = await session.call(client.queue_offsets(topic, queue_ids=[queue], broker=broker))
    return offsets[0].min_offset


async def _up_to(
    session: Session, batches: AsyncGenerator[FetchedBatch], count: int
) -> AsyncGenerator[Message]:
    left = count
    damaged: list[int] = []
    async with aclosing(session.each(batches)) as pages:
        async for batch in pages:
            if batch.damaged_offsets:
                damaged += batch.damaged_offsets
                session.output.note(damagedOffsets=damaged)
                session.output.remark(f"damaged on disk and left out: offsets {list(batch.damaged_offsets)}")
            for message in batch.messages():
                yield message
                left -= 1
                if left == 0:
                    return


async def _show_messages(session: Session, messages: AsyncIterator[Message]) -> None:
    """Writes all messages to the answer: one object each, or tables with a limited number of rows."""
    from trovemq.cli.render import messages_table

    rows: list[Message] = []
    async for message in messages:
        if session.output.objects:
            session.output.item(message_fields(message.to_manifest()))
            continue
        rows.append(message)
        if len(rows) == TABLE_ROWS_MAX:
            session.output.show(messages_table(rows))
            rows.clear()
    if rows:
        session.output.show(messages_table(rows))


async def get(
    session: Session,
    identifier: MessageArgument,
    topic: SearchedTopicOption = None,
    broker: BrokerOption = None,
) -> None:
    """Get the message that an identifier names. Of a message id every message, newest first."""
    if len(identifier) == 1:
        messages = await _get_by_id(session, identifier[0], topic, broker)
    elif len(identifier) == 3 and topic is None:
        queue, offset = parse_queue(identifier[1]), parse_offset(identifier[2])
        async with session.client() as client:
            messages = [await session.call(client.get_at(identifier[0], queue, offset, broker=broker))]
            await session.note_lost(client, identifier[0], broker)
    else:
        raise typer.BadParameter("give one ID, or TOPIC QUEUE OFFSET")
    for message in messages:
        session.output.item(message_fields(message.to_manifest()), newline=len(messages) > 1)
    if not session.output.objects:
        from trovemq.cli.render import message_card

        for message in messages:
            session.output.show(message_card(message))


async def _get_by_id(
    session: Session, identifier: str, topic: str | None, broker: str | None
) -> list[Message]:
    async with session.client() as client:
        found = await session.call(client.get(identifier, topic=topic, broker=broker))
    session.output.note(kind=found.kind)
    session.output.remark(f"found by {found.kind}")
    if found.more:
        session.output.note(complete=False)
        session.output.remark("there are older ones: trovemq query TOPIC ID --type unique")
    if found.unreachable:
        session.output.note(complete=False, missing=sorted(found.unreachable))
        session.output.remark(f"perhaps not all: no answer from {', '.join(sorted(found.unreachable))}")
    session.note_unseen(broker)
    return list(found.messages)
