"""quota set|list: limits of users, addresses and clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli.arguments import EveryBrokerOption
from trovemq.cli.columns import Column, Columns
from trovemq.cli.session import Session, verb
from trovemq.cli.sizes import parse_size

if TYPE_CHECKING:
    from trovemq import Quota, QuotaDescription

app = typer.Typer(help="Quotas: set, list.", no_args_is_help=True)

SubjectArgument = Annotated[
    str,
    typer.Argument(
        metavar="SUBJECT",
        help="User:alice, 'User:*' (each user), Address:10.0.0.7, 'Address:*', Client:ID or 'Client:*'.",
        show_default=False,
    ),
]


@verb(app, "set")
async def set_(
    session: Session,
    subject: SubjectArgument,
    requests: Annotated[
        int, typer.Option("--requests", metavar="N", min=0, help="A second: calls, and messages of streams.")
    ] = 0,
    bytes_in: Annotated[
        str, typer.Option("--bytes-in", metavar="SIZE", help="A second, of requests: 10MiB.")
    ] = "0",
    bytes_out: Annotated[
        str, typer.Option("--bytes-out", metavar="SIZE", help="A second, of replies: 10MiB.")
    ] = "0",
    calls: Annotated[
        int, typer.Option("--calls", metavar="N", min=0, help="Calls and streams that are open at once.")
    ] = 0,
    connections: Annotated[
        int, typer.Option("--connections", metavar="N", min=0, help="Connections with such calls.")
    ] = 0,
    topics: Annotated[
        int, typer.Option("--topics", metavar="N", min=0, help="Of a user: topics that the user made.")
    ] = 0,
    groups: Annotated[
        int, typer.Option("--groups", metavar="N", min=0, help="Of a user: groups that the user made.")
    ] = 0,
    query_ms: Annotated[
        int,
        typer.Option(
            "--query-ms", metavar="N", min=0, help="A second: time of the broker for queries, in ms."
        ),
    ] = 0,
    broker: EveryBrokerOption = None,
) -> None:
    """Limit how much may be taken. From the next request on; without a limit the quota is removed."""
    from trovemq import Quota

    quota = Quota(
        requests_per_s=requests,
        bytes_in_per_s=parse_size(bytes_in),
        bytes_out_per_s=parse_size(bytes_out),
        calls_max=calls,
        connections_max=connections,
        topics_max=topics,
        groups_max=groups,
        query_ms_per_s=query_ms,
    )
    async with session.client() as client:
        session.show_list(await session.call(client.admin.quotas.set(subject, quota, broker=broker)), _QUOTAS)


@verb(app, "list")
async def list_(session: Session, broker: EveryBrokerOption = None) -> None:
    """List the quotas of every broker. With the numbers of slowed and refused requests."""
    async with session.client() as client:
        session.show_list(await session.call(client.admin.quotas.list_all(broker=broker)), _QUOTAS)


def _limit(key: str, title: str, limit: Callable[[Quota], int]) -> Column[QuotaDescription]:
    """A limit of the quota; in the table a dash if there is none."""
    return Column(key, title, lambda one: limit(one.quota), lambda one: limit(one.quota) or None, number=True)


_QUOTAS: Final[Columns[QuotaDescription]] = Columns(
    Column("subject", "subject", lambda one: one.subject),
    _limit("requestsPerS", "requests/s", lambda quota: quota.requests_per_s),
    _limit("bytesInPerS", "bytes in/s", lambda quota: quota.bytes_in_per_s),
    _limit("bytesOutPerS", "bytes out/s", lambda quota: quota.bytes_out_per_s),
    _limit("callsMax", "calls", lambda quota: quota.calls_max),
    _limit("connectionsMax", "connections", lambda quota: quota.connections_max),
    _limit("topicsMax", "topics", lambda quota: quota.topics_max),
    _limit("groupsMax", "groups", lambda quota: quota.groups_max),
    _limit("queryMsPerS", "query ms/s", lambda quota: quota.query_ms_per_s),
    Column("openCalls", "open", lambda one: one.open_calls, number=True),
    Column("slowed", "slowed", lambda one: one.slowed, number=True),
    Column("refused", "refused", lambda one: one.refused, number=True),
    Column("broker", "broker", lambda one: one.broker),
)
