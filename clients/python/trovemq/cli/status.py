"""cluster, stats, errors: the brokers, their counters, and the meaning of an error."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated

import typer

from trovemq.cli.arguments import EveryBrokerOption
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
        session.output.item(broker_fields(route))
    for lost in state.lost:
        session.output.item(lost_fields(lost))
    if session.output.objects:
        return
    from trovemq.cli.render import table

    columns = ("broker", "cluster", "address", "topics", "flush", "version", "state")
    rows = [
        (
            route.broker.name,
            route.broker.cluster,
            route.broker.address,
            len(route.topics),
            route.broker.flush_mode,
            route.broker.version,
            _state(route.broker),
        )
        for route in state.brokers
    ] + [
        (one.name, one.cluster, one.address, one.topics, "", "", f"lost {duration_text(one.lost_ms)} ago")
        for one in state.lost
    ]
    session.output.show(table(columns, rows, numbers=("topics",)))


def _state(broker: BrokerInfo) -> str:
    if broker.drained:
        return "drained"
    return "draining" if broker.draining else "serving"


def broker_fields(route: BrokerRoute) -> dict[str, object]:
    """The JSON object of a broker in the routes."""
    broker = route.broker
    return {
        "broker": broker.name,
        "cluster": broker.cluster,
        "address": broker.address,
        "flushMode": broker.flush_mode,
        "bodySizeMax": broker.body_size_max,
        "batchSizeMax": broker.batch_size_max,
        "draining": broker.draining,
        "state": _state(broker),
        "dataVersion": broker.data_version,
        "version": broker.version,
        "topics": sorted(topic.topic for topic in route.topics),
    }


def lost_fields(lost: LostBroker) -> dict[str, object]:
    """The JSON object of a broker that nameservers have lost."""
    return {
        "broker": lost.name,
        "cluster": lost.cluster,
        "address": lost.address,
        "state": "lost",
        "lostMs": lost.lost_ms,
        "topicCount": lost.topics,
        "topicsAlone": lost.topics_alone,
    }


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
    rows = errors.ERRORS if name is None else (find_error(name),)
    for row in rows:
        session.output.item(error_row_fields(row))
    if session.output.objects:
        return
    from trovemq.cli.render import card, table

    if name is not None:
        session.output.show(card(error_row_fields(rows[0])))
        return
    lines = [(row.symbol, str(row.code), "yes" if row.retriable else "no", row.meaning) for row in rows]
    session.output.show(table(("symbol", "code", "retriable", "meaning"), lines))


def find_error(name: str) -> ErrorSpec:
    """The row of a symbol (any case) or a code. Raises TroveError REQUEST_ILLEGAL with near symbols."""
    try:
        return errors.by_code(int(name)) if name.isascii() and name.isdigit() else errors.by_symbol(name)
    except KeyError:
        symbols = [row.symbol for row in errors.ERRORS]
        near = ", ".join(difflib.get_close_matches(name.upper(), symbols))
        hint = f"near: {near}" if near else "`trovemq errors` lists all"
        raise TroveError(errors.REQUEST_ILLEGAL, f"no error is called {name}; {hint}") from None


def error_row_fields(row: ErrorSpec) -> dict[str, object]:
    """The JSON object of a row of the table of errors."""
    return {
        "symbol": row.symbol,
        "code": row.code,
        "grpcStatus": row.grpc_status,
        "retriable": row.retriable,
        "meaning": row.meaning,
        "whatToDo": row.what_to_do,
    }
