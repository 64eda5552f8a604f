"""cluster check, watch, replace, recover, elect: groups in trouble, and machines that are replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import typer

from trovemq.cli.arguments import YesOption
from trovemq.cli.cluster_check import findings
from trovemq.cli.cluster_replicas import (
    PROMOTIONS,
    GroupOption,
    NodeArgument,
    show_groups,
)
from trovemq.cli.session import Session, verb
from trovemq.cli.times import parse_duration_ms
from trovemq.models.replica import ReplicaGroup
from trovemq_proto.errors import TroveError

EVERY_MS: Final = 500
UNFENCED: Final = "an operator's trovemq cluster elect"
FencedOption = Annotated[
    str | None,
    typer.Option(
        "--fenced",
        metavar="HOW",
        help="How the nodes that do not answer were stopped for good.",
        show_default=False,
    ),
]
LossOption = Annotated[
    int, typer.Option("--accept-loss", metavar="BYTES", min=0, help="Bytes of the log that may be lost.")
]


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command tree."""
    for name, function in (
        ("check", check),
        ("watch", watch),
        ("replace", replace),
        ("recover", recover),
        ("elect", elect),
    ):
        verb(app, name)(function)


async def check(session: Session, group: GroupOption = None) -> None:
    """Say whether replica groups are healthy. Exit code 1 if one is not.

    Copies, lag, leases, etcd, sealing keys and clocks. A line for each finding, with its remedy.
    """
    async with session.client() as client:
        groups = [
            one for one in await session.call(client.admin.replicas.groups()) if group in (None, one.group)
        ]
    found = [one for each in groups for one in findings(each)]
    problems = sum(not one.note for one in found)
    session.exit_code = 1 if problems or not groups else 0
    for one in found:
        kind = "note" if one.note else "problem"
        session.output.item(
            {"kind": kind, "check": one.check, "where": one.where, "what": one.what, "toDo": one.to_do}
        )
        if not session.output.objects:
            session.output.remark(f"{kind} ({one.check}) {one.where}: {one.what} → {one.to_do}")
    session.output.note(groups=len(groups), problems=problems, notes=len(found) - problems)
    text = "no replica group answers: name a node by --server" if not groups else f"{problems} problems"
    session.output.remark(f"groups: {len(groups)}, {text}")


async def watch(
    session: Session,
    group: GroupOption = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", metavar="S", min=0.0, help="End after that; else by Ctrl-C.", show_default=False
        ),
    ] = None,
    every: Annotated[
        int, typer.Option("--every", metavar="T", parser=parse_duration_ms, help="How often nodes are asked.")
    ] = "500ms",  # type: ignore[assignment]  # parsed by the option
) -> None:
    """Print each change of leader, epoch and in-sync set."""
    ends = None if seconds is None else time.monotonic() + seconds
    known: dict[str, GroupState] = {}
    said: str | None = None
    async with session.client() as client:
        while True:
            groups: list[ReplicaGroup] = []
            try:
                groups, said = await client.admin.replicas.groups(), ""
            except TroveError as error:
                if said is None:  # the first answer; a later failure passes
                    raise
                if error.message != said:
                    session.output.remark(error.message)
                said = error.message
            for state in changed(known, [one for one in groups if group in (None, one.group)]):
                session.output.item(_object(state))
                if not session.output.objects:
                    session.output.show(_line(state))
            session.output.flush()
            if ends is not None and time.monotonic() >= ends:
                return
            await asyncio.sleep(every / 1000)


async def replace(
    session: Session,
    node: NodeArgument,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", metavar="HOST:PORT", help="Of the new machine; else as before.", show_default=False
        ),
    ] = None,
    replication: Annotated[
        str | None,
        typer.Option(
            "--replication", metavar="HOST:PORT", help="Of its streams; else as before.", show_default=False
        ),
    ] = None,
    group: GroupOption = None,
    yes: YesOption = False,
) -> None:
    """Give a node's name to a new, empty machine. The former one is stopped, and must not start again."""
    session.confirm(f"Remove node {node} from its group, and add a new machine of that name?", yes=yes)
    async with session.client() as client:
        found = await session.call(
            client.admin.replicas.replace(node, address=address, replication=replication, group=group)
        )
    show_groups(session, [found])
    session.output.remark(f"start {node} with an empty store: it counts once it has all of the log")


async def recover(
    session: Session,
    node: NodeArgument,
    group: GroupOption = None,
    fenced: FencedOption = None,
    accept_loss: LossOption = 0,
    yes: YesOption = False,
) -> None:
    """Write a group's keys in an etcd that has none of them.

    The old etcd is lost for ever, or the group had no etcd. All nodes that run were started with the new one.
    """
    if accept_loss and fenced is None:
        raise typer.BadParameter("--accept-loss needs --fenced HOW")
    text = "its group" if fenced is None else "its group although acknowledged messages may be lost"
    session.confirm(f"Found {text} again, in the etcd of node {node}?", yes=yes)
    async with session.client() as client:
        made = await session.call(
            client.admin.replicas.recover(node, group=group, fenced=fenced, accept_loss=accept_loss)
        )
    session.show_list([made], PROMOTIONS)


async def elect(
    session: Session,
    node: NodeArgument,
    accept_loss: LossOption = 0,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Needed: messages that only lost copies had are lost.")
    ] = False,
    group: GroupOption = None,
    fenced: FencedOption = None,
    yes: YesOption = False,
) -> None:
    """Let a copy lead that is not in sync: no other comes back."""
    if not unclean:
        raise typer.BadParameter("a copy in sync is elected without a command; another one needs --unclean")
    session.confirm(f"Elect node {node}, and lose up to {accept_loss:,} bytes of the log?", yes=yes)
    async with session.client() as client:
        made = await session.call(
            client.admin.replicas.elect_unclean(
                node, fenced=fenced or UNFENCED, accept_loss=accept_loss, group=group
            )
        )
    session.show_list([made], PROMOTIONS)
    session.output.remark("it serves once enough copies are in sync, see trovemq cluster status")
    session.output.remark("records that nodes cut when they come back are kept: trovemq cluster cut-records")


class GroupState(NamedTuple):
    """The fields that watch compares."""

    group: str
    leader: str | None
    epoch: int
    in_sync: tuple[str, ...]


def changed(known: dict[str, GroupState], groups: Sequence[ReplicaGroup]) -> Iterator[GroupState]:
    """The states that differ from those of `known`, which has them afterwards. An epoch that is lower is of
    nodes that have not heard of the last one: no change."""
    for one in groups:
        state = GroupState(one.group, one.leader, one.epoch, one.in_sync)
        before = known.get(one.group)
        if before is None or (state != before and state.epoch >= before.epoch):
            known[one.group] = state
            yield state


def _object(state: GroupState) -> Mapping[str, object]:
    now_ms = time.time_ns() // 1_000_000
    return {"time": now_ms, **state._asdict(), "in_sync": list(state.in_sync)}


def _line(state: GroupState) -> str:
    at = time.strftime("%H:%M:%S")
    in_sync = ", ".join(state.in_sync) or "-"
    return f"{at} {state.group}: leader {state.leader or '-'}, epoch {state.epoch}, in sync {in_sync}"
