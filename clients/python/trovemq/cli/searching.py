"""search: finds messages by conditions."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import BeginOption, EndOption, EveryBrokerOption, TopicArgument
from trovemq.cli.columns import Column, Columns
from trovemq.cli.paging import paged
from trovemq.cli.queries import tell_coverage
from trovemq.cli.session import Session, verb
from trovemq.cli.times import EARLIEST, LATEST, check_period
from trovemq_proto.message_objects import message_fields

if TYPE_CHECKING:
    from trovemq import SearchAnswer, SearchPart
    from trovemq_proto.records import Message

SEARCH_MESSAGES_MAX_DEFAULT: Final = 64


def _condition(option: str, metavar: str, what: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(
        option, metavar=metavar, help=what + " (repeatable).", show_default=False
    )
    return found


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "search", bodies=True)(search)


async def search(
    session: Session,
    topic: TopicArgument,
    key: Annotated[list[str] | None, _condition("--key", "KEY", "One of its keys")] = None,
    key_prefix: Annotated[
        list[str] | None, _condition("--key-prefix", "TEXT", "The beginning of one of its keys")
    ] = None,
    message_id: Annotated[list[str] | None, _condition("--message-id", "ID", "Its id")] = None,
    id_prefix: Annotated[
        list[str] | None, _condition("--message-id-prefix", "TEXT", "The beginning of its id")
    ] = None,
    tag: Annotated[list[str] | None, _condition("--tag", "TAG", "Its tag")] = None,
    properties: Annotated[
        list[str] | None, _condition("--property", "NAME=VALUE", "A property that the topic has indexed")
    ] = None,
    match_any: Annotated[bool, typer.Option("--any", help="One condition met is enough; else all.")] = False,
    begin: BeginOption = EARLIEST,
    end: EndOption = LATEST,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="Instead of newest first.")] = False,
    count: Annotated[
        int, typer.Option("--max", metavar="N", min=1, help="How many messages.")
    ] = SEARCH_MESSAGES_MAX_DEFAULT,
    explain: Annotated[bool, typer.Option("--explain", help="Only show how it would be served.")] = False,
    cursor: Annotated[
        str | None,
        typer.Option(
            "--cursor", metavar="CURSOR", help="Continue where an earlier answer ended.", show_default=False
        ),
    ] = None,
    broker: EveryBrokerOption = None,
) -> None:
    """Find messages by several conditions. Keys, beginnings of keys, ids, tags, properties; newest first."""
    from trovemq.models.search import combined

    check_period(begin, end)
    where = combined(
        None,
        key=key,
        key_prefix=key_prefix,
        message_id=message_id,
        message_id_prefix=id_prefix,
        tag=tag,
        properties=[_name_and_value(text) for text in properties or ()],
        match="any" if match_any else "all",
    )
    async with session.client() as client:
        begin_ms, end_ms = await session.times(client, topic, begin, end, broker=broker)

        def ask(
            messages_max: int, place: str | None, *, explain_only: bool = False
        ) -> Awaitable[SearchAnswer]:
            return client.search(
                topic,
                where,
                begin=begin_ms,
                end=end_ms,
                newest_first=not oldest_first,
                max=messages_max,
                cursor=place,
                explain_only=explain_only,
                broker=broker,
            )

        if explain:
            answer = await session.call(ask(count, None, explain_only=True))
            session.away.add("missing", answer.unreachable)
            _show_parts(session, answer.explain, answer.lag_bytes)
            return
        coverage = _Coverage()
        rows: list[Message] = []
        async for message in paged(session, ask, count, cursor, coverage):
            session.output.item(message_fields(message.to_manifest()))
            if not session.output.objects:
                rows.append(message)
    session.output.note(**coverage.fields())
    session.note_unseen(broker)
    _show(session, rows, coverage)


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


@dataclass(slots=True)
class _Coverage:
    """The coverage of the pages of one search."""

    complete: bool = False
    cursor: str = ""
    entries: int = 0
    scanned_bytes: int = 0
    lag_bytes: int = 0
    unreachable: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def add(self, page: SearchAnswer) -> None:
        """Adds a page; the last page determines whether there is more."""
        self.complete, self.cursor, self.lag_bytes = page.complete, page.cursor or "", page.lag_bytes
        self.entries += page.entries
        self.scanned_bytes += page.scanned_bytes
        self.unreachable.update(page.unreachable)
        self.notes += [note for note in page.notes if note not in self.notes]

    def fields(self) -> dict[str, object]:
        """The object for standard error."""
        return {
            "complete": self.complete and not self.unreachable,
            "cursor": self.cursor or None,
            "entries": self.entries,
            "scannedBytes": self.scanned_bytes,
            "lagBytes": self.lag_bytes,
            "missing": sorted(self.unreachable),
            "notes": self.notes,
        }


def _show(session: Session, rows: list[Message], coverage: _Coverage) -> None:
    if session.output.objects:
        return
    from trovemq.cli.render import messages_table

    if rows:
        session.output.show(messages_table(rows))
    else:
        session.output.remark("no message matches")
    tell_coverage(session, coverage.unreachable, coverage.notes, coverage.cursor)


def _show_parts(session: Session, parts: tuple[SearchPart, ...], lag_bytes: int) -> None:
    """Shows how the search is served, part by part of the log, in the order of the answer."""
    session.show_list(parts, _PARTS)
    session.output.note(lagBytes=lag_bytes)


_PARTS: Final[Columns[SearchPart]] = Columns(
    Column("broker", "broker", lambda part: part.broker),
    Column("index", "served by", lambda part: part.index, escaped=True),
    Column("begin", "from offset", lambda part: part.begin, number=True),
    Column("end", "to offset", lambda part: part.end, number=True),
    Column(
        "entries",
        "entries",
        lambda part: part.entries,
        lambda part: f"{'at least ' if part.at_least else ''}{part.entries:,}",
        number=True,
        place=2,
    ),
    Column("atLeast", None, lambda part: part.at_least),
)
