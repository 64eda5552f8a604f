"""stats: the brokers' counters, with their growth a second: words in the table, names in objects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic as now_s
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption
from trovemq.cli.columns import Column, Columns
from trovemq.cli.counter_words import counter_place, counter_words
from trovemq.cli.figures import UNKNOWN, bytes_rate_text, growth, humane_count, rate_text
from trovemq.cli.render import humane_size
from trovemq.cli.session import Session, verb
from trovemq.cli.times import duration_text
from trovemq_proto.time_text import format_time

if TYPE_CHECKING:
    from trovemq import BrokerStatistics

_GROWING: Final = """
    messages_in messages_out bytes_in bytes_out appends_refused one_way_refused flushes flush_timeouts
    replica_timeouts projection_failures segment_create_failures index_create_failures duplicates
    producer_missing producer_filled tree_records searches search_entries search_scanned_bytes damaged_ranges
    damaged_bytes scrubs scrubbed_bytes scrub_damages backups backup_bytes backup_failures
    retention_segments retention_bytes retention_forced_segments retention_carried_messages
    retention_dropped_messages retention_dropped_unacknowledged retention_failures redelivered_messages
    damaged_messages dead_letters records_not_copied dead_letter_failures events snapshot_failures
    timers_enqueued timers_dequeued timers_recalled timers_dropped timers_lost transactions_committed
    transactions_rolled_back transactions_given_up atomic_committed atomic_repeated atomic_rolled_back
    atomic_timed_out atomic_refused
"""
RATED: Final = frozenset(_GROWING.split())
"""Counters that only grow while the broker runs; the others are states of now."""
MOMENTS: Final = ("retention_early_newest_ms", "retention_early_until_ms")
"""Epoch ms; other names that end so are durations."""


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "stats")(stats)


@dataclass(frozen=True, slots=True)
class _Counters:
    """The counters of one broker; `rates`: their growth a second, None where a counter began again."""

    broker: str
    values: Mapping[str, int]
    seconds: float = 0.0
    rates: Mapping[str, float | None] = field(default_factory=dict)


async def stats(
    session: Session,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="S",
            min=0.0,
            max=600.0,
            help="How long rates are measured; 0: none.",
        ),
    ] = 1.0,
    every: Annotated[bool, typer.Option("--all", help="Figures that are 0, too.")] = False,
    broker: EveryBrokerOption = None,
) -> None:
    """Show each broker's figures and their growth a second. With --all also those that are 0."""
    async with session.client() as client:
        begun, before = now_s(), await session.call(client.admin.statistics(broker=broker))
        after, passed = before, 0.0
        if seconds:
            await asyncio.sleep(seconds)
            passed = now_s() - begun
            after = await session.call(client.admin.statistics(broker=broker))
    session.note_unseen(broker)
    found = list(_rated(before, after, passed))
    for one in found:
        session.output.item(_fields(one))
    rows = [row for one in found for row in _rows(one)]
    shown = [row for row in rows if every or row.value or row.rate]
    session.show_table(_ROWS, map(_ROWS.row, shown))
    if len(shown) < len(rows):
        session.output.remark(f"{len(rows) - len(shown):,} that are 0 are not shown: add --all")


def _rated(
    before: Sequence[BrokerStatistics], after: Sequence[BrokerStatistics], seconds: float
) -> Iterator[_Counters]:
    former = {one.broker.name: one.counters for one in before}
    for one in after:
        name, values = one.broker.name, dict(one.counters)
        if not seconds:
            yield _Counters(name, values)
            continue
        earlier = former.get(name, {})
        rates = {key: growth(earlier.get(key), values[key], seconds) for key in values if key in RATED}
        yield _Counters(name, values, seconds, rates)


def _fields(one: _Counters) -> dict[str, object]:
    """The object of a broker: all counters, whatever the table shows."""
    found: dict[str, object] = {"broker": one.broker, "counters": one.values}
    if one.seconds:
        rates = {name: None if rate is None else round(rate, 3) for name, rate in one.rates.items()}
        found |= {"seconds": round(one.seconds, 3), "perSecond": rates}
    return found


@dataclass(frozen=True, slots=True)
class _Row:
    broker: str
    name: str
    value: int
    rate: float | None
    is_rated: bool


def _rows(one: _Counters) -> Iterator[_Row]:
    for name in sorted(one.values, key=counter_place):
        yield _Row(one.broker, name, one.values[name], one.rates.get(name), name in one.rates)


def value_text(name: str, value: int) -> str:
    """A counter in the unit that its name has."""
    if name in MOMENTS:
        return format_time(value)
    if _is_bytes(name):
        return humane_size(value)
    if name.endswith("_ms"):
        return f"{value:,} ms" if value < 2_000 else duration_text(value)
    if name.endswith("_percent"):
        return f"{value} %"
    return f"{value:,}" if name.endswith("_offset") else humane_count(value)


def _is_bytes(name: str) -> bool:
    return name.endswith("_bytes") or name.startswith("bytes_")


def _rate(row: _Row) -> str:
    if not row.is_rated:
        return ""
    if row.rate is None:
        return UNKNOWN
    return bytes_rate_text(row.rate) if _is_bytes(row.name) else rate_text(row.rate)


_ROWS: Final[Columns[_Row]] = Columns(
    Column(None, "broker", lambda row: row.broker),
    Column(None, "figure", lambda row: counter_words(row.name)),
    Column(None, "value", lambda row: value_text(row.name, row.value), number=True),
    Column(None, "a second", _rate, number=True),
)
