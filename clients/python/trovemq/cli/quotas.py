"""quota set|list: limits of users, addresses and clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trovemq.cli.arguments import EveryBrokerOption
from trovemq.cli.session import Session, verb
from trovemq.cli.sizes import parse_size

if TYPE_CHECKING:
    from trovemq import QuotaDescription

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
        _show(session, await session.call(client.admin.quotas.set(subject, quota, broker=broker)))


@verb(app, "list")
async def list_(session: Session, broker: EveryBrokerOption = None) -> None:
    """List the quotas of every broker. With the numbers of slowed and refused requests."""
    async with session.client() as client:
        _show(session, await session.call(client.admin.quotas.list_all(broker=broker)))


def _show(session: Session, quotas: list[QuotaDescription]) -> None:
    session.show_list(
        quotas,
        lambda one: {
            "subject": one.subject,
            "requestsPerS": one.quota.requests_per_s,
            "bytesInPerS": one.quota.bytes_in_per_s,
            "bytesOutPerS": one.quota.bytes_out_per_s,
            "callsMax": one.quota.calls_max,
            "connectionsMax": one.quota.connections_max,
            "topicsMax": one.quota.topics_max,
            "groupsMax": one.quota.groups_max,
            "queryMsPerS": one.quota.query_ms_per_s,
            "openCalls": one.open_calls,
            "slowed": one.slowed,
            "refused": one.refused,
            "broker": one.broker,
        },
        shown={
            "requests/s": lambda one: one.quota.requests_per_s or None,
            "bytes in/s": lambda one: one.quota.bytes_in_per_s or None,
            "bytes out/s": lambda one: one.quota.bytes_out_per_s or None,
            "calls": lambda one: one.quota.calls_max or None,
            "connections": lambda one: one.quota.connections_max or None,
            "topics": lambda one: one.quota.topics_max or None,
            "groups": lambda one: one.quota.groups_max or None,
            "query ms/s": lambda one: one.quota.query_ms_per_s or None,
            "open": lambda one: one.open_calls,
        },
        columns=(
            *("subject", "requests/s", "bytes in/s", "bytes out/s", "calls", "connections"),
            *("topics", "groups", "query ms/s"),
            *("open", "slowed", "refused", "broker"),
        ),
        numbers=(
            *("requests/s", "bytes in/s", "bytes out/s", "calls", "connections"),
            *("topics", "groups", "query ms/s"),
            *("open", "slowed", "refused"),
        ),
    )
