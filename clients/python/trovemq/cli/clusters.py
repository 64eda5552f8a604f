"""cluster: the brokers that a server knows. cluster local: a nameserver and brokers on this machine.
cluster config, config-owner: cluster_config.py. Replica groups: cluster_replicas.py,
cluster_failover.py."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trovemq.cli import cluster_config, cluster_failover, cluster_replicas
from trovemq.cli.cluster_balance import balance
from trovemq.cli.columns import Column, Columns
from trovemq.cli.daemons import daemon_module
from trovemq.cli.local.directory import BROKERS_MAX, NODES_MAX, check_ports, locked, members_of, nodes_of
from trovemq.cli.local.members import ROLES, Member, Plan, own_settings
from trovemq.cli.local.processes import Processes, ignored_variables
from trovemq.cli.local.supervisor import Supervisor
from trovemq.cli.session import Session, bare_verb, verb
from trovemq.cli.times import duration_text
from trovemq.cli.unwaiting import UnwaitingWriter
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.system_topics import user_topic_count

if TYPE_CHECKING:
    from trovemq import BrokerInfo, BrokerRoute, LostBroker

GROUPS_MAX: Final = 64

app = typer.Typer(help="List the brokers that the server knows. With the number of their topics.")
cluster_config.register(app)
cluster_replicas.register(app)
cluster_failover.register(app)


@bare_verb(app)
async def cluster(session: Session) -> None:
    """List the brokers that the server knows. With the number of their topics."""
    async with session.client() as client:
        state = await session.call(client.admin.cluster())
        session.note_unseen()
    for route in state.brokers:
        session.output.item(_ROUTES.fields(route))
    for lost in state.lost:
        session.output.item(_LOST.fields(lost))
    session.show_table(_ROUTES, [*map(_ROUTES.row, state.brokers), *map(_LOST.row, state.lost)])
    if not state.brokers and not state.lost:
        session.output.remark(_EMPTY)
    for route in state.brokers:
        if left_out := route.broker.topics_left_out:
            what = f"{left_out} more topics of {route.broker.name} are beyond a limit of the nameserver"
            session.output.remark(f"{what}, so no client finds them there: see trovemq doctor")


_EMPTY: Final = (
    "no broker is registered there: those that run register within 10 s of a nameserver's start; a new one"
    " names it by --nameserver"
)


def _state(broker: BrokerInfo) -> str:
    if broker.drained:
        return "drained"
    return "draining" if broker.draining else "serving"


_ROUTES: Final[Columns[BrokerRoute]] = Columns(
    Column("broker", "broker", lambda route: route.broker.name),
    Column("cluster", "cluster", lambda route: route.broker.cluster),
    Column("address", "address", lambda route: route.broker.address),
    Column("flushMode", "flush", lambda route: route.broker.flush_mode),
    Column("bodySizeMax", None, lambda route: route.broker.body_size_max),
    Column("batchSizeMax", None, lambda route: route.broker.batch_size_max),
    Column("draining", None, lambda route: route.broker.draining),
    Column("state", "state", lambda route: _state(route.broker), place=6),
    Column("dataVersion", None, lambda route: route.broker.data_version),
    Column("version", "version", lambda route: route.broker.version),
    Column("topicsLeftOut", None, lambda route: route.broker.topics_left_out),
    Column(
        "topics",
        "topics",
        lambda route: sorted(topic.topic for topic in route.topics),
        lambda route: user_topic_count(topic.topic for topic in route.topics),
        number=True,
        place=3,
    ),
)
_LOST: Final[Columns[LostBroker]] = Columns(
    Column("broker", "broker", lambda lost: lost.name),
    Column("cluster", "cluster", lambda lost: lost.cluster),
    Column("address", "address", lambda lost: lost.address),
    Column(
        "state", "state", lambda _: "lost", lambda lost: f"lost {duration_text(lost.lost_ms)} ago", place=6
    ),
    Column("lostMs", None, lambda lost: lost.lost_ms),
    Column("topicCount", "topics", lambda lost: lost.topics, number=True, place=3),
    Column("topicsAlone", None, lambda lost: lost.topics_alone),
    Column(None, "flush", lambda _: ""),
    Column(None, "version", lambda _: ""),
)
"""The same table; a broker that nameservers have lost."""


verb(app, "balance")(balance)


@verb(app, "local")
async def local(
    session: Session,
    directory: Annotated[
        Path,
        typer.Option(
            "--dir", metavar="DIR", help="Where stores, logs and ports are kept.", show_default=False
        ),
    ],
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            metavar="N",
            min=1,
            max=BROKERS_MAX,
            help="Brokers that run; else as many as DIR has, 1 in a new one.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            metavar="N",
            min=2,
            max=NODES_MAX,
            help="Replica groups instead of brokers, each with this many nodes.",
            show_default=False,
        ),
    ] = None,
    groups: Annotated[
        int | None,
        typer.Option(
            "--groups",
            metavar="N",
            min=1,
            max=GROUPS_MAX,
            help="Replica groups that run; else as many as DIR has, 1 in a new one.",
            show_default=False,
        ),
    ] = None,
    etcd: Annotated[
        bool, typer.Option("--etcd", help="Start etcd, too: the nodes choose another leader.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any setting of each broker; repeatable (trovemq server --help).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a nameserver and N brokers here. On free loopback ports, until Ctrl-C."""
    if groups is not None and nodes is None:
        raise typer.BadParameter("--groups needs --nodes")
    if etcd and nodes is None:
        raise typer.BadParameter("--etcd needs --nodes")
    if brokers is not None and nodes is not None:
        raise typer.BadParameter("--nodes has groups, not --brokers: give --groups")
    if own := own_settings(settings or []):
        raise typer.BadParameter(f"--set {', '.join(own)}: the command itself sets it for each broker")
    if etcd and shutil.which("etcd") is None:
        text = "etcd is not in PATH: install it (Debian and Ubuntu: the package etcd-server)"
        raise TroveError(errors.DAEMON_FAILED, text)
    daemons = [role.daemon for role in ROLES.values() if role.daemon]
    modules = {daemon: daemon_module(daemon, "trovemq cluster local") for daemon in daemons}
    directory = directory.absolute()
    session.progress.off()
    notes = _Notes(session.output.objects, UnwaitingWriter(sys.stderr.buffer))
    async with locked(directory, lambda: notes.say("waits for daemons of a command that was killed")) as held:
        if nodes is None:
            members, stopped = members_of(directory, brokers)
            more = f"; `--brokers {len(members) - 1 + len(stopped)}` starts all"
        else:
            (members, stopped), more = nodes_of(directory, nodes, groups, etcd=etcd), ""
        if stopped:
            notes.say(f"stopped: {', '.join(member.name for member in stopped)}{more}")
        if ignored := ignored_variables():
            notes.say(f"ignored, use --set: {', '.join(ignored)}")
        check_ports(members)
        plan = Plan(directory, members, settings or [])
        printing = _Printing(session, plan, notes)
        supervisor = Supervisor(plan.stages(), Processes(plan, modules, held), printing)
        session.exit_code = await _until_signals(supervisor)


async def _until_signals(supervisor: Supervisor) -> int:
    """Serves until a signal; the exit code."""
    loop, last = asyncio.get_running_loop(), 0

    def on_signal(number: int) -> None:
        nonlocal last
        last = number
        supervisor.on_signal()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    clean = await supervisor.run()
    return 128 + last if supervisor.at_once else int(not clean)


@dataclass(frozen=True, slots=True)
class _Notes:
    """Lines on standard error; with --json or YAML an object each. Nothing waits for their reader."""

    as_objects: bool
    writer: UnwaitingWriter

    def say(self, text: str, member: str | None = None) -> None:
        """One line."""
        line = json.dumps({"name": member, "message": text}) if self.as_objects else text
        with suppress(OSError):  # the reader has gone, or it does not read
            self.writer.write(f"{line}\n".encode())


class _Printing:
    """Rows of members on standard output."""

    def __init__(self, session: Session, plan: Plan, notes: _Notes) -> None:
        self._session = session
        self._plan = plan
        self._notes = notes
        self._writer = session.output.unwaiting()
        self._rows: dict[str, _Running] = {}
        self._is_ready = False

    def started(self, member: Member, pid: int) -> None:
        """An object at once; the table is printed when it is complete."""
        row = self._rows[member.name] = _Running(member, pid, self._plan.store(member))
        self._session.output.item(_MEMBERS.fields(row))
        self._flush()

    def all_ready(self) -> None:
        """The table, or the last object of the start."""
        self._is_ready = True
        self._session.show_table(_MEMBERS, map(_MEMBERS.row, self._rows.values()))
        self._session.output.item({"ready": True})
        self._flush()
        if not self._session.output.objects:
            if self._plan.of("etcd"):
                self._notes.say("A trial: this etcd has one member, and its machine is needed for failovers.")
            self._notes.say("Serving. Stop with Ctrl-C.")

    def serves_again(self, member: Member, pid: int) -> None:
        """Its row again. The cluster serves on where standard output is closed."""
        output = self._session.output
        self._rows[member.name] = _Running(member, pid, self._plan.store(member))
        self._session.show_list([self._rows[member.name]], _MEMBERS)
        try:
            self._flush()
        except (BrokenPipeError, TroveError) as error:
            if not self._is_ready:
                raise
            output.discard()
            self._notes.say(f"its new row could not be written: {error}", member.name)

    def _flush(self) -> None:
        """Raises BrokenPipeError; TroveError REQUEST_ILLEGAL where it cannot be written, or nothing reads."""
        output = self._session.output
        try:
            self._writer.write(output.take())
        except BrokenPipeError:
            raise
        except OSError as error:
            output.discard()
            text = f"standard output: {error.strerror or error}"
            raise TroveError(errors.REQUEST_ILLEGAL, text) from None

    def trouble(self, member: Member, text: str) -> None:
        """On standard error."""
        self._notes.say(text, member.name)

    def left_out(self, member: Member, text: str) -> None:
        """On standard error; the table does not have it."""
        self._rows.pop(member.name, None)
        self._notes.say(text, member.name)


@dataclass(frozen=True, slots=True)
class _Running:
    member: Member
    pid: int
    store: Path | None


_MEMBERS: Final[Columns[_Running]] = Columns(
    Column("role", "role", lambda row: row.member.role),
    Column("name", "name", lambda row: row.member.name),
    Column("group", None, lambda row: row.member.group),
    Column("pid", "pid", lambda row: row.pid, lambda row: str(row.pid), number=True),
    Column("address", "address", lambda row: row.member.address),
    Column("http", "http", lambda row: row.member.http),
    Column(
        "store", "store", lambda row: None if row.store is None else str(row.store), lambda row: row.store
    ),
)
