"""broker drain|remove: takes a broker out of service, for a restart that no client notices, or for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.broker_removal import drained, remove
from trovemq.cli.session import Session, verb
from trovemq.cli.times import parse_duration_ms
from trovemq.cli.topic_spread import fifo_topics_on, spread_command

if TYPE_CHECKING:
    from trovemq import BrokerRoute

TOPICS_NAMED_MAX: Final = 8

app = typer.Typer(help="Brokers: drain, remove.", no_args_is_help=True)
verb(app, "remove")(remove)

GraceOption = Annotated[
    int,
    typer.Option(
        "--grace",
        metavar="TIME",
        parser=parse_duration_ms,
        help="How long new messages are still stored, while clients learn of the drain.",
    ),
]
WithinOption = Annotated[
    int,
    typer.Option(
        "--within",
        metavar="TIME",
        parser=parse_duration_ms,
        help="With --stop: how long it waits for open atomic transactions.",
    ),
]


@verb(app, "drain")
async def drain(
    session: Session,
    broker: Annotated[
        str | None,
        typer.Argument(metavar="[BROKER]", help="Needed if there are several brokers.", show_default=False),
    ] = None,
    grace: GraceOption = "10s",  # type: ignore[assignment]  # parsed by the option
    stop: Annotated[bool, typer.Option("--stop", help="Then stop the broker.")] = False,
    within: WithinOption = "30s",  # type: ignore[assignment]
    undo: Annotated[bool, typer.Option("--undo", help="Take new messages again.")] = False,
) -> None:
    """Have new messages sent to other brokers. Waits until this one takes none; reads continue."""
    if undo and stop:
        raise typer.BadParameter("give --stop or --undo, not both")
    async with session.client() as client:
        if undo:
            status = await session.call(client.admin.brokers.undrain(broker))
        else:
            known = client.admin.brokers.awaited(broker, within_s=session.wait_s) if broker else None
            routes = (await session.call(known or client.admin.cluster())).brokers
            stop_wait_max_ms = within if stop else None
            begun = client.admin.brokers.drain(broker, grace_ms=grace, stop_wait_max_ms=stop_wait_max_ms)
            status = await drained(session, client, await session.call(begun))
            _tell_fifo_topics(session, fifo_topics_on(routes, status.broker), status.broker, routes)
    state = "stopped" if stop else status.state
    session.output.item({"broker": status.broker, "state": state})
    if not session.output.objects:
        from trovemq.cli.render import card

        session.output.show(card({"broker": status.broker, "state": state}))


def _tell_fifo_topics(
    session: Session, topics: Sequence[str], broker: str, routes: Sequence[BrokerRoute]
) -> None:
    """FIFO topics that lie on a drained broker stay there, and their senders wait for it."""
    if not topics:
        return
    session.output.note(fifoTopics=list(topics))
    others = [route.broker.name for route in routes if not route.broker.draining]
    others = [name for name in others if name != broker] or ["BROKER"]
    session.output.remark(f"FIFO topics lie on {broker}, and their senders wait for it; each is moved so:")
    for topic in topics[:TOPICS_NAMED_MAX]:
        session.output.remark(f"  {spread_command(topic, others)}")
    if len(topics) > TOPICS_NAMED_MAX:
        session.output.remark(f"  … and {len(topics) - TOPICS_NAMED_MAX:,} more: trovemq cluster balance")
