"""acl allow|deny|delete|list|test: the rights of users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption
from trovemq.cli.columns import Column, Columns
from trovemq.cli.session import Session, verb
from trovemq.cli.users import UserArgument

if TYPE_CHECKING:
    from trovemq import AccessRule

app = typer.Typer(help="Rules of access: allow, deny, delete, list, test.", no_args_is_help=True)

ActionsArgument = Annotated[
    str,
    typer.Argument(
        metavar="ACTIONS",
        help="Pub, Sub, Create, Update, Delete, Get, List, Read, Command, Backup, Audit or All; with commas.",
        show_default=False,
    ),
]
ResourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        help="Topic:orders, 'Topic:orders*', 'Group:*', Namespace:eu, Cluster:NAME or '*'.",
        show_default=False,
    ),
]
SourcesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="NETWORK",
        help="Only from this address or network (repeatable).",
        show_default=False,
    ),
]


@verb(app, "allow")
async def allow(
    session: Session,
    user: UserArgument,
    actions: ActionsArgument,
    resource: ResourceArgument,
    sources: SourcesOption = None,
    broker: EveryBrokerOption = None,
) -> None:
    """Allow a user something, from the next call on."""
    await _add(session, True, user, actions, resource, sources, broker)


@verb(app, "deny")
async def deny(
    session: Session,
    user: UserArgument,
    actions: ActionsArgument,
    resource: ResourceArgument,
    sources: SourcesOption = None,
    broker: EveryBrokerOption = None,
) -> None:
    """Deny a user something: a matching deny wins over every allow."""
    await _add(session, False, user, actions, resource, sources, broker)


@verb(app, "delete")
async def delete(
    session: Session,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, show_default=False)],
    broker: EveryBrokerOption = None,
) -> None:
    """Delete a rule; each broker numbers its own."""
    async with session.client() as client:
        await session.call(client.admin.rules.delete(number, broker=broker))
    session.output.item({"rule": number, "deleted": True})
    if not session.output.objects:
        session.output.remark(f"rule {number} is deleted")


@verb(app, "list")
async def list_(
    session: Session,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Of this user only.")] = None,
    broker: EveryBrokerOption = None,
) -> None:
    """List the rules of every broker."""
    async with session.client() as client:
        session.show_list(await session.call(client.admin.rules.list_all(user or "", broker=broker)), _RULES)


@verb(app, "test")
async def check(
    session: Session,
    user: UserArgument,
    action: ActionsArgument,
    resource: Annotated[
        str,
        typer.Argument(metavar="RESOURCE", help="Topic:orders: a name, not a pattern.", show_default=False),
    ],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="ADDRESS", help="From there; else from here.", show_default=False),
    ] = None,
    broker: EveryBrokerOption = None,
) -> None:
    """Say whether a user may do something. And which rule decides; exit code 1 for a no."""
    async with session.client() as client:
        asked = client.admin.rules.test(user, action, resource, source=source or "", broker=broker)
        decisions = await session.call(asked)
    for one in decisions:
        rule = None if one.rule is None else one.rule.number
        session.output.item(
            {"allowed": one.allowed, "reason": one.reason, "rule": rule, "broker": one.broker}
        )
        if not session.output.objects:
            session.output.remark(f"{one.broker}: {'allowed' if one.allowed else 'denied'}: {one.reason}")
    if not all(one.allowed for one in decisions):
        session.exit_code = 1


async def _add(
    session: Session,
    allows: bool,
    user: str,
    actions: str,
    resource: str,
    sources: list[str] | None,
    broker: str | None,
) -> None:
    async with session.client() as client:
        make = client.admin.rules.allow if allows else client.admin.rules.deny
        made = make(user, actions, resource, sources=sources or (), broker=broker)
        session.show_list(await session.call(made), _RULES)


_RULES: Final[Columns[AccessRule]] = Columns(
    Column("rule", "rule", lambda rule: rule.number, number=True),
    Column("user", "user", lambda rule: rule.access_key),
    Column("decision", "decision", lambda rule: "allow" if rule.allow else "deny"),
    Column("actions", "actions", lambda rule: rule.actions),
    Column("resource", "resource", lambda rule: rule.resource),
    Column("sources", "from", lambda rule: rule.sources, lambda rule: " ".join(rule.sources) or "everywhere"),
    Column("broker", "broker", lambda rule: rule.broker),
)
