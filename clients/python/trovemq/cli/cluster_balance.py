"""cluster balance: where topics lie, by rate and size, and the commands that even that out."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.balance_plan import BalancePlan, PlacedTopic, distance, plan, weights_of
from trovemq.cli.columns import Column, Columns
from trovemq.cli.render import humane_size
from trovemq.cli.session import Session
from trovemq.cli.times import parse_duration_ms
from trovemq.cli.topic_spread import spread_command

if TYPE_CHECKING:
    from trovemq import Client, TopicDescription

ASKED_AT_ONCE_MAX: Final = 16
SHOWN_MAX: Final = 50
"""Topics in the table, those of the greatest load; --json has all."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A topic on one broker. `rate`: new messages a second."""

    topic: str
    broker: str
    queues: int
    rate: float
    size: int
    weight: float


@dataclass(frozen=True, slots=True)
class _BrokerLoad:
    """`before`, `after`: its share of all load, in percent; None of a drained broker."""

    broker: str
    state: str
    rate: float
    size: int
    before: float | None
    after: float | None


async def balance(
    session: Session,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Needed: this verb only prints commands, and moves nothing.")
    ] = False,
    fifo: Annotated[
        bool, typer.Option("--fifo", help="FIFO topics, too: each takes no messages while it is changed.")
    ] = False,
    watch: Annotated[
        int,
        typer.Option(
            "--watch", metavar="TIME", parser=parse_duration_ms, help="How long new messages are counted."
        ),
    ] = "5s",  # type: ignore[assignment]  # parsed by the option
) -> None:
    """Show where topics lie, by rate and size. And the commands that even that out; it changes nothing."""
    if not dry_run:
        raise typer.BadParameter("it only prints commands: give --dry-run, and run the commands it prints")
    async with session.client() as client:
        state = await session.call(client.admin.cluster())
        described = await _described(session, client, watch / 1000)
    drained = {route.broker.name for route in state.brokers if route.broker.draining}
    brokers = [route.broker.name for route in state.brokers]
    topics = _placed(described)
    found = plan(topics, brokers, drained, fifo=fifo)
    _show(session, brokers, drained, described, topics, found)


_Described = Sequence[tuple["TopicDescription", float]]
"""Topics on brokers, each with its new messages a second there."""


async def _described(session: Session, client: Client, watch_s: float) -> _Described:
    """Every topic of users on every broker, with its queues' sizes."""
    listed = await session.call(client.admin.list_topics())
    names = sorted({one.topic for one in listed})
    loop = asyncio.get_running_loop()
    began = loop.time()
    before = {(one.topic, one.broker): _end(one) for one in await _each(session, client, names, sizes=False)}
    await asyncio.sleep(max(0.0, began + watch_s - loop.time()))
    passed_s = loop.time() - began
    after = await _each(session, client, names, sizes=True)
    return [
        (one, (_end(one) - before.get((one.topic, one.broker), _end(one))) / passed_s if watch_s else 0.0)
        for one in after
    ]


async def _each(
    session: Session, client: Client, names: Sequence[str], *, sizes: bool
) -> list[TopicDescription]:
    slots = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def describe(name: str) -> list[TopicDescription]:
        async with slots:
            return list(await session.call(client.admin.describe_topic(name, with_sizes=sizes)))

    found = await asyncio.gather(*map(describe, names))
    return [one for descriptions in found for one in descriptions]


def _end(topic: TopicDescription) -> int:
    return sum(queue.max_offset for queue in topic.queues)


def _size(topic: TopicDescription) -> int:
    return sum(queue.bytes or 0 for queue in topic.queues)


def _placed(described: _Described) -> list[PlacedTopic]:
    """Each topic, as all of its brokers have it together."""
    by_name: dict[str, list[tuple[TopicDescription, float]]] = defaultdict(list)
    for one, rate in described:
        by_name[one.topic].append((one, rate))
    return [
        PlacedTopic(
            name,
            next(
                (one.placement for one, _ in found if one.placement),
                {one.broker: one.queue_count for one, _ in found},
            ),
            sum(rate for _, rate in found),
            sum(_size(one) for one, _ in found),
            any(one.message_type == "FIFO" for one, _ in found),
        )
        for name, found in sorted(by_name.items())
    ]


def _show(
    session: Session,
    brokers: Sequence[str],
    drained: set[str],
    described: _Described,
    topics: Sequence[PlacedTopic],
    found: BalancePlan,
) -> None:
    output, weights = session.output, weights_of(topics)
    parts = [
        _Part(one.topic, one.broker, one.queue_count, rate, _size(one), weights[one.topic])
        for one, rate in described
    ]
    parts.sort(key=lambda part: (-part.weight, part.topic, part.broker))
    loads = [_load_of(name, drained, parts, found) for name in brokers]
    for part in parts:
        output.item({"kind": "topic", **_PARTS.fields(part)})
    for load in loads:
        output.item({"kind": "broker", **_LOADS.fields(load)})
    commands = [spread_command(move.topic, move.brokers) for move in found.moves]
    for move, command in zip(found.moves, commands, strict=True):
        output.item({"kind": "move", "topic": move.topic, "brokers": list(move.brokers), "command": command})
    shown = {part.topic for part in parts[:SHOWN_MAX]}
    session.show_table(_PARTS, (_PARTS.row(part) for part in parts if part.topic in shown))
    session.show_table(_LOADS, map(_LOADS.row, loads))
    if not output.objects:
        for command in commands:
            output.text(command + "\n")
    if len(shown) < len(topics):
        output.remark(f"{len(topics) - len(shown):,} topics of less load are not shown: --json has them")
    if not commands:
        output.remark("the loads are even, or no topic that may be moved would even them out")
    elif not any(one.placement for one, _ in described):
        output.remark("topic spread needs an owner of the cluster's configuration: setting config_owner")
    total = sum(found.before.values()) or 1.0
    output.note(
        imbalance=round(100 * distance(found.before) / total, 1),
        imbalanceAfter=round(100 * distance(found.after) / total, 1),
    )


def _load_of(name: str, drained: set[str], parts: Sequence[_Part], found: BalancePlan) -> _BrokerLoad:
    own = [part for part in parts if part.broker == name]
    total = sum(found.before.values()), sum(found.after.values())
    before, after = found.before.get(name), found.after.get(name)
    return _BrokerLoad(
        name,
        "drained" if name in drained else "serving",
        sum(part.rate for part in own),
        sum(part.size for part in own),
        None if before is None else 100 * before / (total[0] or 1.0),
        None if after is None else 100 * after / (total[1] or 1.0),
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


_PARTS: Final[Columns[_Part]] = Columns(
    Column("topic", "topic", lambda part: part.topic),
    Column("broker", "broker", lambda part: part.broker),
    Column("queueCount", "queues", lambda part: part.queues, number=True),
    Column("rate", "messages/s", lambda p: round(p.rate, 2), lambda p: f"{p.rate:,.1f}", number=True),
    Column("bytes", "stored", lambda part: part.size, lambda part: humane_size(part.size), number=True),
)
_LOADS: Final[Columns[_BrokerLoad]] = Columns(
    Column("broker", "broker", lambda one: one.broker),
    Column("state", "state", lambda one: one.state),
    Column("rate", "messages/s", lambda p: round(p.rate, 2), lambda p: f"{p.rate:,.1f}", number=True),
    Column("bytes", "stored", lambda one: one.size, lambda one: humane_size(one.size), number=True),
    Column("load", "load", lambda p: _rounded(p.before), lambda p: _percent(p.before), number=True),
    Column("loadAfter", "after", lambda p: _rounded(p.after), lambda p: _percent(p.after), number=True),
)
"""Load: the share of all load, once stored messages of today have been removed."""
