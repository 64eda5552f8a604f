"""query, offset: find messages by key and by time. producer: shows its next number."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import (
    BeginOption,
    BrokerOption,
    EndOption,
    EveryBrokerOption,
    QueueArgument,
    TopicArgument,
)
from trovemq.cli.completion import complete_topic
from trovemq.cli.paging import paged
from trovemq.cli.session import Session, verb
from trovemq.cli.times import EARLIEST, LATEST, Moment, check_period, parse_moment
from trovemq_proto.errors import TroveError
from trovemq_proto.message_objects import message_fields

if TYPE_CHECKING:
    from trovemq import Client, DelayedMessage, QueryAnswer
    from trovemq_proto.records import Message

QUERY_MESSAGES_MAX_DEFAULT: Final = 64


class KeyType(StrEnum):
    """The kind of KEY: any key of a message (also its message id), only its message id, or its tag."""

    KEY = "key"
    MESSAGE_ID = "message-id"
    TAG = "tag"


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command tree."""
    verb(app, "query", bodies=True)(query)
    verb(app, "offset")(offset)
    verb(app, "producer")(producer)


@dataclass(slots=True)
class Coverage:
    """The coverage of the pages of one query."""

    complete: bool = False
    cursor: str = ""
    index_last_update_timestamp: int = 0
    index_last_update_physical_offset: int = 0
    unreachable: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def add(self, page: QueryAnswer) -> None:
        """Adds a page; the last page determines whether there is more."""
        self.complete = page.complete
        self.cursor = page.cursor or ""
        self.index_last_update_timestamp = page.index_last_update_timestamp
        self.index_last_update_physical_offset = page.index_last_update_physical_offset
        self.unreachable.update(page.unreachable)
        self.notes += [note for note in page.notes if note not in self.notes]

    def fields(self) -> dict[str, object]:
        """The object for standard error."""
        return {
            "complete": self.complete and not self.unreachable,
            "cursor": self.cursor or None,
            "indexLastUpdateTimestamp": self.index_last_update_timestamp,
            "indexLastUpdatePhyoffset": self.index_last_update_physical_offset,
            "missing": sorted(self.unreachable),
            "notes": self.notes,
        }


async def query(
    session: Session,
    topic: TopicArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", show_default=False)],
    key_type: Annotated[KeyType, typer.Option("--type", help="The kind of KEY.")] = KeyType.KEY,
    begin: BeginOption = EARLIEST,
    end: EndOption = LATEST,
    count: Annotated[
        int, typer.Option("--max", metavar="N", min=1, help="How many messages.")
    ] = QUERY_MESSAGES_MAX_DEFAULT,
    cursor: Annotated[
        str | None,
        typer.Option(
            "--cursor", metavar="CURSOR", help="Continue where an earlier answer ended.", show_default=False
        ),
    ] = None,
    broker: EveryBrokerOption = None,
) -> None:
    """Find messages by key, message id or tag. Newest first; those that wait for their delivery time too."""
    check_period(begin, end)
    coverage = Coverage()
    rows: list[Message] = []
    delayed: list[DelayedMessage] = []
    async with session.client() as client:
        begin_ms, end_ms = await session.times(client, topic, begin, end, broker=broker)
        question = _Question(topic, key, key_type.value.replace("-", "_"), begin_ms, end_ms, broker)

        def ask(messages_max: int, place: str | None) -> Awaitable[QueryAnswer]:
            return client.query(
                topic,
                key,
                type=question.type,
                begin=begin_ms,
                end=end_ms,
                max=messages_max,
                cursor=place,
                broker=broker,
            )

        async for message in paged(session, ask, count, cursor, coverage):
            session.output.item(message_fields(message.to_manifest()))
            if not session.output.objects:
                rows.append(message)
        if key_type is not KeyType.TAG and cursor is None:
            delayed = await _delayed(session, client, question)
    session.output.note(**coverage.fields())
    session.note_unseen(broker)
    _show(session, rows, delayed, coverage)


async def _delayed(session: Session, client: Client, question: _Question) -> list[DelayedMessage]:
    """Writes the messages that are delivered later to the answer, soonest first."""
    try:
        found, complete = await session.call(
            client.admin.groups.find_delayed(question.topic, question.key, broker=question.broker)
        )
    except TroveError as error:
        # the query's answer is valid with some of the brokers
        session.output.note(pendingError=error.symbol)
        session.output.remark(f"messages that wait for their time are not shown: {error.message}")
        return []
    if not complete:
        session.output.note(pendingComplete=False)
        session.output.remark("more messages with this key may wait for their time")
    wanted = [one for one in found if _is_wanted(one, question)]
    for one in wanted:
        session.output.item(delayed_fields(one))
    return wanted


def _is_wanted(delayed: DelayedMessage, question: _Question) -> bool:
    message = delayed.message
    if question.type == "message_id" and message.message_id != question.key:
        return False
    return question.begin <= message.store_timestamp <= question.end


def delayed_fields(delayed: DelayedMessage) -> dict[str, object]:
    """The JSON object of a waiting message: its own topic, and where its record is until then."""
    return {
        **message_fields(delayed.message.to_manifest()),
        "topic": delayed.topic,
        "storedTopic": delayed.message.topic,
        "state": "PENDING",
        "deliveryTimestamp": delayed.delivery_timestamp,
        "recallHandle": delayed.recall_handle,
        "broker": delayed.broker,
    }


@dataclass(frozen=True, slots=True)
class _Question:
    topic: str
    key: str
    type: str
    begin: int
    end: int
    broker: str | None


def _show(session: Session, rows: list[Message], delayed: list[DelayedMessage], coverage: Coverage) -> None:
    if session.output.objects:
        return
    from trovemq.cli.render import delayed_table, messages_table

    if delayed:
        session.output.show(delayed_table(delayed))
    if rows:
        session.output.show(messages_table(rows))
    elif not delayed:
        session.output.remark("no message matches")
    tell_coverage(session, coverage.unreachable, coverage.notes, coverage.cursor)


def tell_coverage(session: Session, unreachable: Iterable[str], notes: Iterable[str], cursor: str) -> None:
    """Prints below the answer: missing brokers, notes, and how to continue."""
    for name in sorted(unreachable):
        session.output.remark(f"not complete: broker {name} did not answer")
    for note in notes:
        session.output.remark(note)
    if cursor:
        session.output.remark(f"there may be more: add --cursor {cursor}")


async def offset(
    session: Session,
    topic: TopicArgument,
    queue: QueueArgument,
    timestamp: Annotated[
        Moment,
        typer.Option(
            "--time",
            parser=parse_moment,
            metavar="T",
            help="Epoch ms, ISO 8601 (UTC without a zone), or 1h, yesterday.",
            show_default=False,
        ),
    ],
    upper: Annotated[
        bool,
        typer.Option(
            "--upper", help="The last offset stored at or before T, instead of the first at or after it."
        ),
    ] = False,
    broker: BrokerOption = None,
) -> None:
    """Find the queue offset of a point in time."""
    async with session.client() as client:
        (at_ms,) = await session.times(client, topic, timestamp, broker=broker)
        found = await session.call(client.search_offset(topic, queue, at_ms, upper=upper, broker=broker))
        await session.note_lost(client, topic, broker)
    answer = {"offset": found}
    session.output.item(answer)
    if not session.output.objects:
        from trovemq.cli.render import card

        session.output.show(card(answer))


async def producer(
    session: Session,
    producer_id: Annotated[
        str, typer.Argument(metavar="ID", help="The producer's id (producer_id).", show_default=False)
    ],
    topic: Annotated[
        str,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="The topic.",
            show_default=False,
            autocompletion=complete_topic,
        ),
    ],
    broker: EveryBrokerOption = None,
) -> None:
    """Show the number of a producer's next message. On each broker of a deduplicated topic."""
    async with session.client() as client:
        found = await session.call(client.admin.next_sequences(topic, producer_id, broker))
    for name, number in found.items():
        answer = {"broker": name, "nextSequence": number}
        session.output.item(answer)
        if not session.output.objects:
            from trovemq.cli.render import card

            session.output.show(card(answer))
