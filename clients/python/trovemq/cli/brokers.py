"""broker drain|remove: takes a broker out of service, for a restart that no client notices, or for good."""

from __future__ import annotations

from typing import Annotated

import typer

from trovemq.cli.broker_removal import drained, remove
from trovemq.cli.session import Session, verb
from trovemq.cli.times import parse_duration_ms

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
            stop_wait_max_ms = within if stop else None
            begun = client.admin.brokers.drain(broker, grace_ms=grace, stop_wait_max_ms=stop_wait_max_ms)
            status = await drained(session, client, await session.call(begun))
    state = "stopped" if stop else status.state
    session.output.item({"broker": status.broker, "state": state})
    if not session.output.objects:
        from trovemq.cli.render import card

        session.output.show(card({"broker": status.broker, "state": state}))
