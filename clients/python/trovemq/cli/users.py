"""user create|list|rotate|enable|disable|delete: the users of brokers with authentication."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption, YesOption
from trovemq.cli.columns import Column, Columns
from trovemq.cli.session import Session, verb
from trovemq_proto.time_text import format_time

if TYPE_CHECKING:
    from trovemq import UserCredentials, UserDescription

app = typer.Typer(help="Users: create, list, rotate, enable, disable, delete.", no_args_is_help=True)

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="An access key.", show_default=False)]
SecretFileOption = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        metavar="FILE",
        help="A file that has the secret; otherwise one is made and shown once.",
        show_default=False,
    ),
]


@verb(app, "create")
async def create(
    session: Session,
    user: UserArgument,
    is_super: Annotated[bool, typer.Option("--super", help="May do everything, without rules.")] = False,
    secret_file: SecretFileOption = None,
    broker: EveryBrokerOption = None,
) -> None:
    """Make a user and show the secret. Once, as a credentials file has it."""
    secret = _secret_of(secret_file)
    async with session.client() as client:
        made = await session.call(
            client.admin.users.create(user, secret_key=secret, is_super=is_super, broker=broker)
        )
    _show_secret(session, made, is_new=not secret)


@verb(app, "rotate")
async def rotate(
    session: Session,
    user: UserArgument,
    secret_file: SecretFileOption = None,
    drop_old: Annotated[
        bool, typer.Option("--drop-old", help="No new secret: only the newest is valid from here on.")
    ] = False,
    broker: EveryBrokerOption = None,
) -> None:
    """Give a user a new secret. The one before stays valid until --drop-old or the next rotation."""
    if drop_old and secret_file is not None:
        raise typer.BadParameter("give --drop-old or --secret-file, not both")
    secret = _secret_of(secret_file)
    async with session.client() as client:
        if drop_old:
            session.show_list(
                await session.call(client.admin.users.drop_old_secret(user, broker=broker)), _USERS
            )
            return
        made = await session.call(client.admin.users.rotate(user, secret_key=secret, broker=broker))
    _show_secret(session, made, is_new=not secret)


@verb(app, "enable")
async def enable(session: Session, user: UserArgument, broker: EveryBrokerOption = None) -> None:
    """Take the user's calls again."""
    async with session.client() as client:
        session.show_list(await session.call(client.admin.users.enable(user, broker=broker)), _USERS)


@verb(app, "disable")
async def disable(session: Session, user: UserArgument, broker: EveryBrokerOption = None) -> None:
    """Take no more calls of the user, from now on."""
    async with session.client() as client:
        session.show_list(
            await session.call(client.admin.users.enable(user, enabled=False, broker=broker)), _USERS
        )


@verb(app, "delete")
async def delete(
    session: Session, user: UserArgument, yes: YesOption = False, broker: EveryBrokerOption = None
) -> None:
    """Forget a user and the user's rules."""
    session.confirm(f"Delete user {user} and the user's rules?", yes=yes)
    async with session.client() as client:
        brokers = await session.call(client.admin.users.delete(user, broker=broker))
    for name in brokers:
        session.output.item({"user": user, "deleted": True, "broker": name})
    if not session.output.objects:
        session.output.remark(f"user {user} is deleted on {', '.join(brokers)}")


@verb(app, "list")
async def list_(session: Session, broker: EveryBrokerOption = None) -> None:
    """List the users of every broker."""
    async with session.client() as client:
        session.show_list(await session.call(client.admin.users.list_all(broker=broker)), _USERS)


def _secret_of(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {type(error).__name__}") from None


def _show_secret(session: Session, made: UserCredentials, *, is_new: bool) -> None:
    """Shows the secret if it was made here; otherwise the caller has it in a file."""
    secret = {"secretKey": made.secret_key} if is_new else {}
    session.output.item({"user": made.access_key, **secret, "brokers": [user.broker for user in made.users]})
    if session.output.objects:
        return
    if not is_new:
        session.output.remark(f"user {made.access_key} has the secret of the file")
        return
    from rich.text import Text

    session.output.show(Text(f"access_key={made.access_key}\nsecret_key={made.secret_key}"))
    session.output.remark(
        "these two lines are a credentials file (TROVEMQ_CREDENTIALS); they are not shown again"
    )


_USERS: Final[Columns[UserDescription]] = Columns(
    Column("user", "user", lambda user: user.access_key),
    Column("kind", "kind", lambda user: user.kind),
    Column(
        "enabled", "state", lambda user: user.enabled, lambda user: "enabled" if user.enabled else "disabled"
    ),
    Column("created", "created", lambda user: user.created, lambda user: format_time(user.created)),
    Column(
        "secretsCreated",
        "secrets",
        lambda user: user.secrets_created,
        lambda user: len(user.secrets_created),
        number=True,
    ),
    Column("broker", "broker", lambda user: user.broker),
)
