"""audit list|tail: prints the brokers' audit records."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption
from trovemq.cli.columns import Column, Columns
from trovemq.cli.session import Session, verb
from trovemq.cli.tailing import (
    Following,
    Printing,
    first_offsets,
    follow_queues,
    in_store_order,
)
from trovemq.cli.times import Moment, parse_moment
from trovemq_proto import errors
from trovemq_proto.audit import AUDIT_TOPIC, KINDS, AuditRecord, decode_audit
from trovemq_proto.errors import TroveError
from trovemq_proto.time_text import format_time

if TYPE_CHECKING:
    from trovemq import Client, QueueOffsets
    from trovemq_proto.records import Message

app = typer.Typer(help="Audit records: list, tail.", no_args_is_help=True)

SHOWN_MAX: Final = 100_000
A_DAY_AGO: Final = Moment("1d")

UserOption = Annotated[
    str | None,
    typer.Option("--user", metavar="USER", help="Of this user only.", show_default=False),
]
KindOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kind", metavar="KIND", help=f"Only these: {', '.join(KINDS)} (repeatable).", show_default=False
    ),
]
SinceOption = Annotated[
    Moment,
    typer.Option(
        "--since",
        parser=parse_moment,
        metavar="TIME",
        help="From this time on: 1h, yesterday, ISO 8601.",
    ),
]


class Wanted:
    """Chooses the records to print. A record that retention has stored twice is printed once."""

    def __init__(self, user: str | None, kinds: Sequence[str] | None) -> None:
        unknown = sorted(set(kinds or ()) - set(KINDS))
        if unknown:
            raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(KINDS)}")
        self._user = user
        self._kinds = set(kinds or KINDS)
        self._seen: set[str] = set()

    def record(self, message: Message, since: int = 0) -> AuditRecord | None:
        """The message's record; None if it is not to be printed."""
        found = decode_audit(message.body)
        if found is None or found.time < since or found.id in self._seen or found.kind not in self._kinds:
            return None
        if self._user is not None and found.user != self._user:
            return None
        self._seen.add(found.id)
        return found


class AuditPrinting(Printing):
    """Prints records to standard output."""

    def __init__(self, session: Session, wanted: Wanted) -> None:
        super().__init__(session, None)
        self._wanted = wanted

    def one(self, message: Message) -> None:
        record = self._wanted.record(message)
        if record is None:
            return
        from rich.text import Text

        self._session.output.item(_RECORDS.fields(record))
        self._session.output.show(Text("  ".join(map(str, _RECORDS.row(record)))))


@verb(app, "list")
async def list_(
    session: Session,
    user: UserOption = None,
    kinds: KindOption = None,
    since: SinceOption = A_DAY_AGO,
    count: Annotated[
        int, typer.Option("--max", metavar="N", min=1, max=SHOWN_MAX, help="The last N of them.")
    ] = 1_000,
    broker: EveryBrokerOption = None,
) -> None:
    """Print who did, read or was refused what. The oldest first."""
    wanted = Wanted(user, kinds)
    found: deque[AuditRecord] = deque(maxlen=count)
    async with session.client() as client:
        places = await _places(session, client, broker)
        following = Following(client, AUDIT_TOPIC, None)
        (since_ms,) = await session.times(client, AUDIT_TOPIC, since, broker=broker)
        firsts = await first_offsets(session, client, AUDIT_TOPIC, places, since_ms, False)
        async for message in in_store_order(following, places, firsts):
            record = wanted.record(message, since_ms)
            if record is not None:
                found.append(record)
                session.progress.at(len(found), text="reading")
    records = sorted(found, key=lambda record: record.time)
    session.show_list(records, _RECORDS)


@verb(app, "tail")
async def tail(
    session: Session, user: UserOption = None, kinds: KindOption = None, broker: EveryBrokerOption = None
) -> None:
    """Print audit records as they are written, until Ctrl-C."""
    session.progress.off()
    printing = AuditPrinting(session, Wanted(user, kinds))
    async with session.client() as client:
        places = await _places(session, client, broker)
        await follow_queues(Following(client, AUDIT_TOPIC, None, broker=broker), places, printing)


async def _places(session: Session, client: Client, broker: str | None) -> list[QueueOffsets]:
    try:
        return await session.call(client.queue_offsets(AUDIT_TOPIC, broker=broker))
    except TroveError as error:
        if error.spec is not errors.TOPIC_NOT_FOUND:
            raise
        text = "there are no audit records: brokers with authentication write them"
        raise TroveError(errors.TOPIC_NOT_FOUND, text, topic=AUDIT_TOPIC) from None


_RECORDS: Final[Columns[AuditRecord]] = Columns(
    Column("time", "when", lambda record: record.time, lambda record: format_time(record.time)),
    Column("kind", "kind", lambda record: record.kind),
    Column("phase", None, lambda record: record.phase),
    Column("user", "by", lambda record: record.user, lambda record: record.user or "-"),
    Column("source", "from", lambda record: record.source, lambda record: record.source or "-"),
    Column("method", "call", lambda record: record.method, lambda record: record.method.rpartition("/")[2]),
    Column("resources", "about", lambda record: record.resources, lambda record: record.resources or "-"),
    Column("outcome", "end", lambda record: record.outcome, lambda record: record.outcome or record.phase),
    Column("count", "count", lambda record: record.count, number=True),
    Column("id", None, lambda record: record.id),
    Column("act", None, lambda record: record.act),
)
