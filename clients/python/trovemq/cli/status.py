"""cluster, stats, errors: the brokers, their counters, and the meaning of an error."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption
from trovemq.cli.columns import Column, Columns
from trovemq.cli.session import Session, verb
from trovemq.cli.times import duration_text
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError

if TYPE_CHECKING:
    from trovemq import BrokerInfo, BrokerRoute, LostBroker


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command tree."""
    verb(app, "cluster")(cluster)
    verb(app, "stats")(stats)
    verb(app, "errors")(explain_errors)


async def cluster(session: Session) -> None:
    """List the brokers that the server knows. With the number of their topics."""
    async with session.client() as client:
        state = await session.call(client.admin.cluster())
    for route in state.brokers:
        session.output.item(_ROUTES.fields(route))
    for lost in state.lost:
        session.output.item(_LOST.fields(lost))
    session.show_table(_ROUTES, [*map(_ROUTES.row, state.brokers), *map(_LOST.row, state.lost)])


def _state(broker: BrokerInfo) -> str:
    if broker.drained:
        return "drained"
    return "draining" if broker.draining else "serving"


_ROUTES: Final[Columns[BrokerRoute]] = Columns(
    Column("broker", "broker", lambda route: route.broker.name),
    Column("cluster", "cluster", lambda route: route.broker.cluster),
    Column("address", "address", lambda route: route.broker.address),
    Column("flushMode", "flush", lambda route: route.broker.flush_mode),
    Column("bodySizeMax", None, lambda route: route.broker.body_size_max),
    Column("batchSizeMax", None, lambda route: route.broker.batch_size_max),
    Column("draining", None, lambda route: route.broker.draining),
    Column("state", "state", lambda route: _state(route.broker), place=6),
    Column("dataVersion", None, lambda route: route.broker.data_version),
    Column("version", "version", lambda route: route.broker.version),
    Column(
        "topics",
        "topics",
        lambda route: sorted(topic.topic for topic in route.topics),
        lambda route: len(route.topics),
        number=True,
        place=3,
    ),
)
_LOST: Final[Columns[LostBroker]] = Columns(
    Column("broker", "broker", lambda lost: lost.name),
    Column("cluster", "cluster", lambda lost: lost.cluster),
    Column("address", "address", lambda lost: lost.address),
    Column(
        "state", "state", lambda _: "lost", lambda lost: f"lost {duration_text(lost.lost_ms)} ago", place=6
    ),
    Column("lostMs", None, lambda lost: lost.lost_ms),
    Column("topicCount", "topics", lambda lost: lost.topics, number=True, place=3),
    Column("topicsAlone", None, lambda lost: lost.topics_alone),
    Column(None, "flush", lambda _: ""),
    Column(None, "version", lambda _: ""),
)
"""The same table; a broker that nameservers have lost."""


async def stats(session: Session, broker: EveryBrokerOption = None) -> None:
    """Show each broker's counters."""
    async with session.client() as client:
        found = await session.call(client.admin.statistics(broker=broker))
    for statistics in found:
        session.output.item({"broker": statistics.broker.name, "counters": dict(statistics.counters)})
    if session.output.objects:
        return
    from trovemq.cli.render import table

    rows = [
        (statistics.broker.name, name, value)
        for statistics in found
        for name, value in sorted(statistics.counters.items())
    ]
    session.output.show(table(("broker", "counter", "value"), rows, numbers=("value",)))


def complete_error(incomplete: str) -> list[str]:
    """Symbols of errors that begin so."""
    return [row.symbol for row in errors.ERRORS if row.symbol.startswith(incomplete)]


async def explain_errors(
    session: Session,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="A symbol or a code; else all.",
            show_default=False,
            autocompletion=complete_error,
        ),
    ] = None,
) -> None:
    """Explain an error. Its meaning, whether to try again, and the remedy."""
    if name is None:
        session.show_list(errors.ERRORS, _ERRORS)
        return
    fields = _ERRORS.fields(find_error(name))
    session.output.item(fields)
    if not session.output.objects:
        from trovemq.cli.render import card

        session.output.show(card(fields))


def find_error(name: str) -> ErrorSpec:
    """The row of a symbol (any case) or a code. Raises TroveError REQUEST_ILLEGAL with near symbols."""
    try:
        return errors.by_code(int(name)) if name.isascii() and name.isdigit() else errors.by_symbol(name)
    except KeyError:
        symbols = [row.symbol for row in errors.ERRORS]
        near = ", ".join(difflib.get_close_matches(name.upper(), symbols))
        hint = f"near: {near}" if near else "`trovemq errors` lists all"
        raise TroveError(errors.REQUEST_ILLEGAL, f"no error is called {name}; {hint}") from None


_ERRORS: Final[Columns[ErrorSpec]] = Columns(
    Column("symbol", "symbol", lambda row: row.symbol),
    Column("code", "code", lambda row: row.code, lambda row: str(row.code)),
    Column("grpcStatus", None, lambda row: row.grpc_status),
    Column("retriable", "retriable", lambda row: row.retriable, lambda row: "yes" if row.retriable else "no"),
    Column("meaning", "meaning", lambda row: row.meaning),
    Column("whatToDo", None, lambda row: row.what_to_do),
)
