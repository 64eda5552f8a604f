"""top: the rates of all brokers, topics and groups of a cluster, again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from trovemq.cli.columns import Column, Columns
from trovemq.cli.figures import bytes_rate_text, counted, rate_text
from trovemq.cli.session import Session, verb
from trovemq.cli.top_asking import Readings
from trovemq.cli.top_rates import BrokerRow, By, GroupRow, Rates, Sample, TopicRow, sample
from trovemq.cli.watching import parse_every
from trovemq_proto.time_text import format_time

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

ROWS_PIPED: Final = 20
"""Rows of topics and of groups where standard output is not a terminal; --json has all."""
ROWS_MIN: Final = 3

_Row = TypeVar("_Row", BrokerRow, TopicRow)

IntervalOption = Annotated[
    int,
    typer.Option(
        "--interval",
        parser=parse_every,
        metavar="T",
        help="Time between two readings: 500ms, 2s.",
        show_default="2s",
    ),
]
ByOption = Annotated[By, typer.Option("--by", help="Sort by new messages, delivered messages, lag or name.")]
OnceOption = Annotated[bool, typer.Option("--once", help="Two readings, one interval apart, and end.")]


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "top")(top)


async def top(
    session: Session, by: ByOption = By.IN, interval: IntervalOption = 2_000, once: OnceOption = False
) -> None:
    """Watch rates, lag and brokers' states. Of the whole cluster, until Ctrl-C."""
    seconds = interval / 1000
    loop = asyncio.get_running_loop()
    session.progress.off()
    async with session.client() as client:
        readings = Readings(session, client, seconds)
        begun, before = loop.time(), await readings.read()
        with _shown(session, live=not once) as show:
            while True:
                await asyncio.sleep(max(0.0, begun + seconds - loop.time()))
                now, after = loop.time(), await readings.read()
                show(sample(before, after, now - begun, by), readings.groups_left_out)
                if once:
                    session.note_unseen()
                    return
                begun, before = now, after


@contextmanager
def _shown(session: Session, *, live: bool) -> Iterator[Callable[[Sample, int], None]]:
    """Shows samples: objects; on a terminal a view that is replaced; else tables, one after the other."""
    output = session.output
    if output.objects or not (live and output.is_terminal):

        def write(found: Sample, left_out: int) -> None:
            output.item(_fields(found, left_out))
            if not output.objects:
                output.show(_view(found, left_out, ROWS_PIPED, ROWS_PIPED))
            output.flush()

        yield write
        return
    from rich.live import Live

    console = output.terminal_console()
    with Live(console=console, screen=True, auto_refresh=False) as view:

        def replace(found: Sample, left_out: int) -> None:
            view.update(_view(found, left_out, *_rows_that_fit(found, console.height)), refresh=True)

        yield replace


def _rows_that_fit(found: Sample, height: int) -> tuple[int, int]:
    """How many topics and groups: a third of the space is for groups, if they need it."""
    left = height - len(found.brokers) - 8  # a title line, three headings, empty lines, a note
    groups = min(len(found.groups), max(ROWS_MIN, left // 3))
    return max(ROWS_MIN, left - groups), groups


def _view(found: Sample, left_out: int, topics_max: int, groups_max: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    from trovemq.cli.render import table

    topics, groups = found.topics[:topics_max], found.groups[:groups_max]
    now = format_time(int(time.time() * 1000))
    title = f"{now}: rates a second, over {found.seconds:.1f} s"
    parts: list[RenderableType] = [
        Text(title, style="dim"),
        table(_BROKERS.titles, map(_BROKERS.row, found.brokers), _BROKERS.numbers),
    ]
    if topics:
        parts += [Text(""), table(_TOPICS.titles, map(_TOPICS.row, topics), _TOPICS.numbers)]
    if groups:
        parts += [Text(""), table(_GROUPS.titles, map(_GROUPS.row, groups), _GROUPS.numbers)]
    for text in _notes(found, left_out, len(topics), len(groups)):
        parts.append(Text(text, style="dim"))
    return Group(*parts, Text(""))


def _notes(found: Sample, left_out: int, topics: int, groups: int) -> Iterator[str]:
    if found.missing:
        yield f"Topics and groups are without {', '.join(found.missing)}."
    hidden = [
        counted(count, noun)
        for count, noun in ((len(found.topics) - topics, "topic"), (len(found.groups) - groups, "group"))
        if count > 0
    ]
    if hidden:
        yield f"Not shown: {' and '.join(hidden)}; --json has all."
    if left_out:
        yield f"Above the limit of this verb: {counted(left_out, 'group')}; see trovemq group lag --all."


def _fields(found: Sample, left_out: int) -> dict[str, object]:
    """The object of one sample."""
    return {
        "time": int(time.time() * 1000),
        "seconds": round(found.seconds, 3),
        "brokers": [_BROKERS.fields(row) for row in found.brokers],
        "topics": [_TOPICS.fields(row) for row in found.topics],
        "groups": [_GROUPS.fields(row) for row in found.groups],
        "complete": not found.missing and not left_out,
        "missing": list(found.missing),
        "groupsLeftOut": left_out,
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


def _rates(rates: Rates) -> dict[str, object]:
    return {
        "messagesIn": _rounded(rates.messages_in),
        "messagesOut": _rounded(rates.messages_out),
        "bytesIn": _rounded(rates.bytes_in),
        "bytesOut": _rounded(rates.bytes_out),
        "lag": rates.lag,
    }


def _rate_columns(_kind: type[_Row]) -> Sequence[Column[_Row]]:
    return (
        Column("**", None, lambda row: _rates(row.rates)),
        Column(None, "in", lambda row: rate_text(row.rates.messages_in), number=True),
        Column(None, "out", lambda row: rate_text(row.rates.messages_out), number=True),
        Column(None, "bytes in", lambda row: bytes_rate_text(row.rates.bytes_in), number=True),
        Column(None, "bytes out", lambda row: bytes_rate_text(row.rates.bytes_out), number=True),
        Column(None, "lag", lambda row: row.rates.lag, number=True),
    )


def _lag_text(row: GroupRow) -> object:
    return f"≈{row.lag:,}" if row.estimated else row.lag


_BROKERS: Final[Columns[BrokerRow]] = Columns(
    Column("broker", "broker", lambda row: row.name),
    Column("state", "state", lambda row: row.state),
    *_rate_columns(BrokerRow),
    Column("note", "note", lambda row: row.note, escaped=True),
)
_TOPICS: Final[Columns[TopicRow]] = Columns(
    Column("topic", "topic", lambda row: row.name, escaped=True),
    Column("brokers", "brokers", lambda row: row.brokers, number=True),
    *_rate_columns(TopicRow),
)
_GROUPS: Final[Columns[GroupRow]] = Columns(
    Column("group", "group", lambda row: row.name, escaped=True),
    Column("topic", "topic", lambda row: row.topic, escaped=True),
    Column("consumed", "consumed", lambda row: _rounded(row.consumed), lambda r: rate_text(r.consumed), True),
    Column("inFlight", "in flight", lambda row: row.in_flight, number=True),
    Column("lag", "lag", lambda row: row.lag, _lag_text, number=True),
    Column("lagMillis", "seconds", lambda row: row.lag_ms, lambda r: f"{r.lag_ms / 1000:,.1f}", number=True),
    Column("estimated", None, lambda row: row.estimated),
)
