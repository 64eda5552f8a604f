"""topic create|list|describe|alter|spread|delete."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption, ExistOkOption, TopicArgument, YesOption
from trovemq.cli.columns import MERGED, Column, Columns
from trovemq.cli.completion import complete_topic
from trovemq.cli.figures import counted
from trovemq.cli.session import Session, verb
from trovemq.cli.topic_spread import spread
from trovemq_proto.time_text import format_time

if TYPE_CHECKING:
    from trovemq import TopicDescription, TopicQueue

app = typer.Typer(help="Topics: create, list, describe, alter, spread, delete.", no_args_is_help=True)


class MessageType(StrEnum):
    """RocketMQ's message types of a topic."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    PRIORITY = "PRIORITY"
    MIXED = "MIXED"
    UNSPECIFIED = "UNSPECIFIED"


NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", show_default=False, autocompletion=complete_topic)
]
TypeOption = Annotated[
    MessageType | None,
    typer.Option("--type", case_sensitive=False, help="The topic's message type.", show_default=False),
]


DeduplicateOption = Annotated[
    str | None,
    typer.Option(
        "--deduplicate",
        metavar="TIME",
        help="Store no message whose id was stored so recently, for example 1h (off: store all).",
        show_default=False,
    ),
]
SizesOption = Annotated[
    bool, typer.Option("--sizes", help="Also the bytes of the log that each queue's messages take.")
]
BrokersOption = Annotated[
    str | None,
    typer.Option("--brokers", metavar="A,B", help="On these brokers only.", show_default=False),
]
OrderOption = Annotated[
    str | None,
    typer.Option(
        "--order", metavar="log|priority", help="Receive by priority (0-9, 9 first).", show_default=False
    ),
]
RetentionOption = Annotated[
    str | None,
    typer.Option(
        "--retention",
        metavar="time|until_acknowledged",
        help="Keep messages until every group has acknowledged them.",
        show_default=False,
    ),
]
RetentionAgeOption = Annotated[
    str | None,
    typer.Option(
        "--retention-age-max",
        metavar="TIME",
        help="Of until_acknowledged: older messages go all the same.",
        show_default=False,
    ),
]
IndexedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--indexed-property",
        metavar="NAME",
        help="A property that `search` finds by an index; may be given several times (off: none).",
        show_default=False,
    ),
]
AcknowledgeOption = Annotated[
    str | None,
    typer.Option(
        "--acknowledge",
        metavar="group|leader|replicated",
        help="In a replica group: who has a message when it is acknowledged.",
        show_default=False,
    ),
]
WritesOption = Annotated[
    str | None,
    typer.Option(
        "--writes",
        metavar="open|closed",
        help="Closed: senders wait. `topic spread` closes a FIFO topic, and opens it.",
        show_default=False,
    ),
]


def _options(**given: str | list[str] | None) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else ",".join(value) for name, value in given.items() if value
    }


@verb(app, "create")
async def create(
    session: Session,
    name: NameArgument,
    queues: Annotated[
        int, typer.Option("--queues", metavar="N", min=1, max=1024, help="How many queues.")
    ] = 8,
    message_type: TypeOption = MessageType.NORMAL,
    deduplicate: DeduplicateOption = None,
    order: OrderOption = None,
    retention: RetentionOption = None,
    retention_age_max: RetentionAgeOption = None,
    indexed_property: IndexedOption = None,
    acknowledge: AcknowledgeOption = None,
    exist_ok: ExistOkOption = False,
    broker: EveryBrokerOption = None,
    brokers: BrokersOption = None,
) -> None:
    """Create a topic. Through a nameserver on every broker, unless --broker or --brokers names some."""
    message_type = message_type or MessageType.NORMAL
    names = None if brokers is None else [name.strip() for name in brokers.split(",") if name.strip()]
    if names is not None and (broker is not None or not names):
        raise typer.BadParameter("give --broker NAME or --brokers A,B")
    async with session.client() as client:
        made = await session.call(
            client.admin.create_topic(
                name,
                queue_count=queues,
                message_type=message_type.value,
                broker=broker,
                options=_options(
                    deduplicate=deduplicate,
                    order=order,
                    retention=retention,
                    retention_age_max=retention_age_max,
                    indexed_properties=indexed_property,
                    acknowledge=acknowledge,
                ),
                exist_ok=exist_ok,
                brokers=names,
            )
        )
    if not exist_ok:
        session.tell_existing(made.existing)
    show_topics(session, (place for topic in made for place in _places(topic)))
    for topic in made:
        if len(topic.placement) > 1:  # the table has the broker that answered
            session.output.remark(placement_text(topic))


@verb(app, "adopt")
async def adopt(
    session: Session,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", show_default=False, autocompletion=complete_topic),
    ] = None,
) -> None:
    """Take topics of single brokers into the shared configuration."""
    async with session.client() as client:
        adopted = await session.call(client.admin.adopt_topics(names or ()))
    show_topics(session, adopted)
    if not adopted:
        session.output.remark("every topic is in the cluster's configuration")


@verb(app, "alter")
async def alter(
    session: Session,
    name: NameArgument,
    queues: Annotated[
        int | None,
        typer.Option(
            "--queues", metavar="N", min=1, max=1024, help="More queues than now.", show_default=False
        ),
    ] = None,
    message_type: TypeOption = None,
    deduplicate: DeduplicateOption = None,
    order: OrderOption = None,
    retention: RetentionOption = None,
    retention_age_max: RetentionAgeOption = None,
    indexed_property: IndexedOption = None,
    acknowledge: AcknowledgeOption = None,
    writes: WritesOption = None,
    broker: EveryBrokerOption = None,
) -> None:
    """Give a topic more queues, another message type or other options."""
    options = _options(
        deduplicate=deduplicate,
        order=order,
        retention=retention,
        retention_age_max=retention_age_max,
        indexed_properties=indexed_property,
        acknowledge=acknowledge,
        writes=writes,
    )
    if queues is None and message_type is None and not options:
        raise typer.BadParameter("nothing to alter: give --queues, --type or an option of the topic")
    async with session.client() as client:
        altered = await session.call(
            client.admin.alter_topic(
                name,
                queue_count=queues,
                message_type=None if message_type is None else message_type.value,
                broker=broker,
                options=options,
            )
        )
    show_topics(session, altered)


@verb(app, "list")
async def list_(
    session: Session,
    system: Annotated[bool, typer.Option("--system", help="System topics too.")] = False,
    broker: EveryBrokerOption = None,
) -> None:
    """List the topics of every broker."""
    async with session.client() as client:
        topics = await session.call(client.admin.list_topics(include_system=system, broker=broker))
    session.note_unseen(broker)
    show_topics(session, topics)


@verb(app, "describe")
async def describe(
    session: Session, name: NameArgument, broker: EveryBrokerOption = None, sizes: SizesOption = False
) -> None:
    """Show a topic with its queues' offsets. And how much of the log it keeps until it is acknowledged."""
    async with session.client() as client:
        descriptions = await session.call(client.admin.describe_topic(name, broker=broker, with_sizes=sizes))
    session.note_unseen(broker)
    queues = queue_columns(sizes=sizes)
    for topic in descriptions:
        shown = [queues.fields((topic, queue)) for queue in topic.queues]
        placed = {"placement": dict(sorted(topic.placement.items()))} if topic.placement else {}
        session.output.item({**TOPICS.fields(topic), **placed, "hold": hold_fields(topic), "queues": shown})
    rows = (queues.row((topic, queue)) for topic in descriptions for queue in topic.queues)
    session.show_table(queues, rows)
    if not session.output.objects:
        for text in dict.fromkeys(placement_text(topic) for topic in descriptions if topic.placement):
            session.output.show(text)
    for topic in descriptions:
        if topic.options.get("retention") == "until_acknowledged":
            session.output.show(hold_text(topic))
        if topic.options.get("writes") == "closed":
            session.output.show(f"{topic.topic} is closed on {topic.broker}: its senders wait")


verb(app, "spread")(spread)


@verb(app, "delete")
async def delete(
    session: Session,
    name: TopicArgument,
    yes: YesOption = False,
    broker: EveryBrokerOption = None,
) -> None:
    """Delete a topic and every message in it."""
    session.confirm(f"Delete topic {name} and all its messages?", yes=yes)
    async with session.client() as client:
        deletions = await session.call(client.admin.delete_topic(name, broker=broker))
    for broker_name, physical_offset in deletions.items():
        session.output.item({"topic": name, "physicalOffset": physical_offset, "broker": broker_name})
        session.output.remark(f"deleted on {broker_name}")


def options_text(topic: TopicDescription) -> str:
    """`deduplicate 1h, order priority`; a dash for none."""
    return ", ".join(f"{name} {value}" for name, value in topic.options.items()) or "-"


def _places(topic: TopicDescription) -> list[TopicDescription]:
    """A topic that was made: as the broker says that answered, or, if it does not lie there, each place."""
    if not topic.placement or topic.broker in topic.placement:
        return [topic]
    return [replace(topic, broker=name, queue_count=count) for name, count in topic.placement.items()]


def placement_text(topic: TopicDescription) -> str:
    """`orders lies on broker-a (8 queues), broker-b (8 queues)`."""
    placed = (f"{broker} ({counted(queues, 'queue')})" for broker, queues in sorted(topic.placement.items()))
    return f"{topic.topic} lies on {', '.join(placed)}"


def _shared_fields(topic: TopicDescription) -> dict[str, object]:
    """Where the cluster's configuration has the topic."""
    placement = {"placement": dict(sorted(topic.placement.items()))} if topic.placement else {}
    return {**placement, **({"pending": list(topic.pending)} if topic.pending else {})}


def hold_fields(topic: TopicDescription) -> dict[str, object] | None:
    """The JSON object of the log that the topic keeps until it is acknowledged; None if it keeps none."""
    hold = topic.hold
    if hold is None:
        return None
    return {
        "bytes": hold.bytes,
        "group": hold.group,
        "queueId": hold.queue_id,
        "queueOffset": hold.queue_offset,
        "until": hold.until,
    }


def hold_text(topic: TopicDescription) -> str:
    """The hold in words."""
    hold = topic.hold
    if hold is None:
        return (
            f"{topic.topic} keeps nothing of the log on {topic.broker}: all of it is acknowledged, or too old"
        )
    whose = f"group {hold.group} has not acknowledged" if hold.group else "no group has read"
    text = (
        f"{topic.topic} keeps {hold.bytes:,} bytes of the log on {topic.broker}: "
        f"{whose} queue {hold.queue_id} from offset {hold.queue_offset} on"
    )
    return f"{text}; its age lets that go at {format_time(hold.until)}" if hold.until else text


def show_topics(session: Session, topics: Iterable[TopicDescription]) -> None:
    """One object, or one line of a table, for each topic and broker."""
    session.show_list(sorted(topics, key=lambda topic: (topic.topic, topic.broker)), TOPICS)


TOPICS: Final[Columns[TopicDescription]] = Columns(
    Column("topic", "topic", lambda topic: topic.topic),
    Column("queueCount", "queues", lambda topic: topic.queue_count, number=True),
    Column("messageType", "type", lambda topic: topic.message_type),
    Column("system", None, lambda topic: topic.system),
    Column("options", "options", lambda topic: dict(topic.options), options_text),
    Column("broker", "broker", lambda topic: topic.broker),
    Column(MERGED, None, _shared_fields),
)
"""The object of a topic does not have its queues."""


def queue_columns(*, sizes: bool) -> Columns[tuple[TopicDescription, TopicQueue]]:
    """The queues of topics, each with its topic. sizes: with their bytes."""
    columns: list[Column[tuple[TopicDescription, TopicQueue]]] = [
        Column(None, "topic", lambda one: one[0].topic),
        Column(None, "broker", lambda one: one[0].broker),
        Column("queueId", "queue", lambda one: one[1].queue_id, number=True),
        Column("minOffset", "min offset", lambda one: one[1].min_offset, number=True),
        Column("maxOffset", "max offset", lambda one: one[1].max_offset, number=True),
        Column(None, "messages", lambda one: one[1].max_offset - one[1].min_offset, number=True),
        Column(
            "lastStoreTimestamp",
            "last stored",
            lambda one: one[1].last_store_timestamp,
            lambda one: format_time(one[1].last_store_timestamp),
            place=7 if sizes else 6,
        ),
    ]
    if sizes:
        columns.append(Column("bytes", "bytes", lambda one: one[1].bytes, number=True))
    return Columns(*columns)
