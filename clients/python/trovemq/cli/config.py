"""config list|get|set: the settings of running brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption
from trovemq.cli.columns import Column, Columns
from trovemq.cli.session import Session, verb

if TYPE_CHECKING:
    from trovemq import SettingDescription

app = typer.Typer(help="Settings of running brokers: list, get, set.", no_args_is_help=True)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Our name or RocketMQ's.", show_default=False)
]
NOT_KEPT = "Valid until a restart. To keep it, write it into the broker's configuration, too."


@verb(app, "list")
async def list_(
    session: Session,
    live: Annotated[bool, typer.Option("--live", help="Only settings that need no restart.")] = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings whose value a restart would change.")
    ] = False,
    broker: EveryBrokerOption = None,
) -> None:
    """List the settings. Where their values come from, and which of them need no restart."""
    async with session.client() as client:
        found = await session.call(client.admin.brokers.settings(broker=broker))
    wanted = (
        one
        for one in found
        if not (live and one.needs_restart) and not (changed and one.value == one.started_with)
    )
    session.show_list(wanted, _SETTINGS)


@verb(app, "get")
async def get(session: Session, name: NameArgument, broker: EveryBrokerOption = None) -> None:
    """Show one setting."""
    async with session.client() as client:
        found = await session.call(client.admin.brokers.settings(name, broker=broker))
    if session.output.objects:
        session.show_list(found, _SETTINGS)
        return
    from trovemq.cli.render import card

    for one in found:
        session.output.show(
            card(
                {
                    "broker": one.broker,
                    one.name: one.value,
                    "source": one.source,
                    "after a restart": one.started_with,
                    "change": _change(one),
                    "form": one.form,
                    "what": one.what,
                }
            )
        )


@verb(app, "set")
async def set_(
    session: Session,
    name: NameArgument,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="As in a file: 64MiB, 5s, true.", show_default=False)
    ],
    broker: EveryBrokerOption = None,
) -> None:
    """Change a setting that needs no restart. At once, and until the next restart."""
    async with session.client() as client:
        changed = await session.call(client.admin.brokers.set_setting(name, value, broker=broker))
    session.show_list(changed, _SETTINGS)
    session.output.remark(NOT_KEPT)


def _change(one: SettingDescription) -> str:
    return "restart" if one.needs_restart else "live"


_SETTINGS: Final[Columns[SettingDescription]] = Columns(
    Column("setting", "setting", lambda one: one.name),
    Column("value", "value", lambda one: one.value),
    Column("source", "source", lambda one: one.source),
    Column("change", "change", _change),
    Column("startedWith", None, lambda one: one.started_with),
    Column("form", None, lambda one: one.form),
    Column("what", None, lambda one: one.what),
    Column("broker", "broker", lambda one: one.broker),
)
