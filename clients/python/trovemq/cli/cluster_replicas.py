"""cluster status, init, leave, add, remove, promote, cut-records: replica groups and their nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final

import typer

from trovemq.cli.arguments import YesOption
from trovemq.cli.columns import Column, Columns
from trovemq.cli.cut_messages import resend_cut
from trovemq.cli.session import Session, verb
from trovemq.models.replica import CutRecords, Promotion, ReplicaGroup, ReplicaNode

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.", show_default=False)]
PAUSE_MAX_S: Final = 86_400
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group", metavar="GROUP", help="Its replica group, if there are several.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command tree."""
    for name, function in (
        ("status", status),
        ("init", init),
        ("leave", leave),
        ("add", add),
        ("remove", remove),
        ("promote", promote),
        ("switch-over", switch_over),
        ("pause-failover", pause_failover),
        ("cut-records", cut_records),
    ):
        verb(app, name)(function)


async def status(session: Session) -> None:
    """Show each replica group. Its leader, epoch, in-sync set, and the lag of each node."""
    async with session.client() as client:
        groups = await session.call(client.admin.replicas.groups())
    show_groups(session, groups)
    if not groups:
        session.output.remark(
            "no broker that answers is a node of a replica group; nameservers know leaders only:"
            " without one, name a node by --server"
        )


async def init(session: Session) -> None:
    """Make a single broker a replica group of one. No data moves.

    The server is the node itself, started with coordination = manual.
    """
    async with session.client() as client:
        group = await session.call(client.admin.replicas.init())
    show_groups(session, [group])


async def leave(
    session: Session, node: NodeArgument, group: GroupOption = None, yes: YesOption = False
) -> None:
    """Make the last node a single broker again. It stops."""
    session.confirm(f"Stop node {node}, and make its store a single broker's?", yes=yes)
    async with session.client() as client:
        left = await session.call(client.admin.replicas.leave(node, group=group))
    show_groups(session, [left])
    session.output.remark(f"node {node} stops; start it again with coordination = none")


async def add(
    session: Session,
    node: NodeArgument,
    address: Annotated[
        str,
        typer.Option("--address", metavar="HOST:PORT", help="Of its gRPC services.", show_default=False),
    ],
    replication: Annotated[
        str,
        typer.Option("--replication", metavar="HOST:PORT", help="Of its streams.", show_default=False),
    ],
    group: GroupOption = None,
    learner: Annotated[bool, typer.Option("--learner", help="Its copy never counts.")] = False,
) -> None:
    """Add a node to a replica group. It counts once it has all of the log."""
    async with session.client() as client:
        found = await session.call(
            client.admin.replicas.add(
                node, address=address, replication=replication, group=group, is_voter=not learner
            )
        )
    show_groups(session, [found])


async def remove(
    session: Session, node: NodeArgument, group: GroupOption = None, yes: YesOption = False
) -> None:
    """Remove a node from its replica group. Stop it first; it must not start again with its store."""
    session.confirm(f"Remove node {node} from its group?", yes=yes)
    async with session.client() as client:
        found = await session.call(client.admin.replicas.remove(node, group=group))
    show_groups(session, [found])


async def promote(
    session: Session,
    node: NodeArgument,
    group: GroupOption = None,
    fenced: Annotated[
        str | None,
        typer.Option(
            "--fenced",
            metavar="HOW",
            help="How the nodes that do not answer were stopped for good. With it, fewer answers are enough.",
            show_default=False,
        ),
    ] = None,
    accept_loss: Annotated[
        int,
        typer.Option(
            "--accept-loss", metavar="BYTES", min=0, help="Bytes of the log that may be lost; needs --fenced."
        ),
    ] = 0,
    yes: YesOption = False,
) -> None:
    """Make a node the leader of its replica group. It needs the promises of enough other nodes."""
    if accept_loss and fenced is None:
        raise typer.BadParameter("--accept-loss needs --fenced HOW")
    if fenced is not None:
        session.confirm(f"Promote {node} although acknowledged messages may be lost?", yes=yes)
    async with session.client() as client:
        made = await session.call(
            client.admin.replicas.promote(node, group=group, fenced=fenced, accept_loss=accept_loss)
        )
    session.show_list([made], PROMOTIONS)


GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.", show_default=False)]


async def switch_over(
    session: Session,
    group: GroupArgument,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="NODE", help="Else the one with most of the log.", show_default=False),
    ] = None,
) -> None:
    """Let another node lead. In a group that chooses by etcd; no message is lost."""
    async with session.client() as client:
        found = await session.call(client.admin.replicas.switch_over(group, to=to))
    show_groups(session, [found])


async def pause_failover(
    session: Session,
    group: GroupArgument,
    seconds: Annotated[
        int,
        typer.Option("--for", metavar="SECONDS", min=0, max=PAUSE_MAX_S, help="How long; 0: no longer."),
    ] = 3_600,
) -> None:
    """Choose no other leader for a time. For work on the nodes of a group."""
    async with session.client() as client:
        found = await session.call(client.admin.replicas.pause_failover(group, seconds=seconds))
    show_groups(session, [found])


async def cut_records(
    session: Session,
    group: GroupOption = None,
    resend: Annotated[
        bool, typer.Option("--resend", help="Send the messages among them to their topics again, each once.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """List the records that nodes have cut, or send them again."""
    async with session.client() as client:
        found = await session.call(client.admin.replicas.cut_records(group))
        if not resend:
            session.show_list(found, _CUTS)
            return
        await resend_cut(session, client, found, group, yes=yes)


def show_groups(session: Session, groups: Sequence[ReplicaGroup]) -> None:
    for group in groups:
        session.output.item(_object(group))
    rows = [(group, node) for group in groups for node in group.nodes]
    session.show_table(_NODES, map(_NODES.row, rows))
    if not session.output.objects:
        for line in (*_coordinations(groups), *_problems(groups)):
            session.output.remark(line)


def _coordinations(groups: Sequence[ReplicaGroup]) -> Iterator[str]:
    for group in groups:
        if group.coordination != "manual":
            left = "" if group.lease_left_ms is None else f", lease of the leader {group.lease_left_ms} ms"
            yield f"{group.group}: coordination {group.coordination}, epoch {group.epoch}{left}"


def _problems(groups: Sequence[ReplicaGroup]) -> Iterator[str]:
    for group in groups:
        for node in group.nodes:
            if node.problem:
                yield f"{group.group} {node.node}: {node.problem}"


def _object(group: ReplicaGroup) -> Mapping[str, object]:
    """One object a group."""
    return {
        "group": group.group,
        "leader": group.leader,
        "epoch": group.epoch,
        "in_sync": list(group.in_sync),
        "in_sync_min": group.in_sync_min,
        "ack": group.ack,
        "coordination": group.coordination,
        "lease_left_ms": group.lease_left_ms,
        "nodes": [
            {
                "node": one.node,
                "role": one.role,
                "voter": one.is_voter,
                "joining": one.is_joining,
                "address": one.address,
                "reachable": one.is_reachable,
                "epoch": one.epoch,
                "end": one.end,
                "flushed": one.flushed,
                "lag_bytes": one.lag_bytes,
                "lag_ms": one.lag_ms,
                "problem": one.problem or None,
            }
            for one in group.nodes
        ],
    }


def _role_text(node: ReplicaNode) -> str:
    if node.is_voter or node.role == "new":
        return node.role
    return f"{node.role}, {'joining' if node.is_joining else 'learner'}"


_Row = tuple[ReplicaGroup, ReplicaNode]
_NODES: Final[Columns[_Row]] = Columns(
    Column(None, "group", lambda row: row[0].group),
    Column(None, "node", lambda row: row[1].node),
    Column(None, "role", lambda row: _role_text(row[1])),
    Column(None, "address", lambda row: row[1].address),
    Column(None, "epoch", lambda row: row[1].epoch or "-", number=True),
    Column(None, "in sync", lambda row: "yes" if row[1].node in row[0].in_sync else "no"),
    Column(None, "end", lambda row: "-" if row[1].end is None else row[1].end, number=True),
    Column(None, "lag bytes", lambda row: "-" if row[1].lag_bytes is None else row[1].lag_bytes, number=True),
    Column(None, "lag ms", lambda row: "-" if row[1].lag_ms is None else row[1].lag_ms, number=True),
)
PROMOTIONS: Final[Columns[Promotion]] = Columns(
    Column("group", "group", lambda one: one.group),
    Column("leader", "leader", lambda one: one.node),
    Column("epoch", "epoch", lambda one: one.epoch, number=True),
    Column("promised", "promised", lambda one: list(one.promised), lambda one: ", ".join(one.promised)),
    Column("away", "away", lambda one: list(one.away), lambda one: ", ".join(one.away) or "-"),
    Column("cut_bytes", "cut bytes", lambda one: one.cut_bytes, number=True),
)
_CUTS: Final[Columns[CutRecords]] = Columns(
    Column("node", "node", lambda one: one.node),
    Column("epoch", "epoch", lambda one: one.epoch, number=True),
    Column("offset", "offset", lambda one: one.offset, number=True),
    Column("end", "end", lambda one: one.end, number=True),
    Column("records", "records", lambda one: one.records, number=True),
    Column("path", "file in the store", lambda one: one.path),
    Column("dropped_bytes", None, lambda one: one.dropped_bytes),
)
