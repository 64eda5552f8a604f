"""The members of a local cluster: a role for each kind of daemon, as data.

A further kind of daemon is a further row of ROLES: members start in the order of the roles, those of one role
together, and stop in the opposite order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trovemq._common.loopback_ports import LOOPBACK

NEW_STORE: Final[Mapping[str, int]] = {
    "commit_log_file_size": 64 << 20,
    "index_slot_count": 500_000,
    "index_item_count": 2_000_000,
}
"""Sizes of a new store's files, for many stores on one disk: it starts with 140 MB, and the first
key takes 42 MB. A store that exists keeps its sizes: a broker reads them from its files."""
ROCKETMQ_NAMES: Final[Mapping[str, str]] = {
    "mappedFileSizeCommitLog": "commit_log_file_size",
    "maxHashSlotNum": "index_slot_count",
    "maxIndexNum": "index_item_count",
}
"""Other names of these settings."""
OWN_SETTINGS: Final = frozenset(
    {
        "listen", "listenPort", "http", "http_tls", "store", "storePathRootDir", "name", "brokerName",
        "nameserver", "namesrvAddr", "config_owner", "coordination", "node_name", "replica_nodes",
        "replication_listen", "replication_advertise", "etcd_endpoints",
    }
)  # fmt: skip
"""Settings of a broker that the command itself gives, with RocketMQ's names; /readyz is asked without TLS."""


@dataclass(frozen=True, slots=True)
class Member:
    """One daemon of the cluster.

    Attributes:
        role: The name of its role.
        name: Unique in the cluster; the name of its folder.
        group: The broker's name; None for other roles.
        port: Of gRPC.
        http_port: Of /readyz and /metrics; of etcd's /health.
        replication_port: Of the streams of a replica group's node, or of etcd's other members; None for
            others.
    """

    role: str
    name: str
    group: str | None
    port: int
    http_port: int
    replication_port: int | None = None

    @property
    def address(self) -> str:
        """HOST:PORT of gRPC."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def http(self) -> str:
        """HOST:PORT of /readyz and /metrics."""
        return f"{LOOPBACK}:{self.http_port}"

    @property
    def replication(self) -> str:
        """HOST:PORT of its streams."""
        return f"{LOOPBACK}:{self.replication_port}"

    @property
    def ports(self) -> tuple[int, ...]:
        """All."""
        more = () if self.replication_port is None else (self.replication_port,)
        return self.port, self.http_port, *more


@dataclass(frozen=True, slots=True)
class Plan:
    """The members that run, in a directory. settings: NAME=VALUE for each broker."""

    directory: Path
    members: Sequence[Member]
    settings: Sequence[str] = ()

    def of(self, role: str) -> list[Member]:
        """The members of a role."""
        return [member for member in self.members if member.role == role]

    def stages(self) -> list[list[Member]]:
        """The members, by role in the order of their start."""
        return [found for role in ROLES if (found := self.of(role))]

    def log(self, member: Member) -> Path:
        """The file with the daemon's output."""
        return self.directory / member.name / "log"

    def store(self, member: Member) -> Path | None:
        """The store; None for a daemon without one."""
        return self.directory / member.name / "store" if ROLES[member.role].has_store else None

    def arguments(self, member: Member) -> list[str]:
        """The daemon's command line for its next start."""
        role = ROLES[member.role]
        common = [] if role.program else ["--listen", member.address, "--http", member.http]
        return common + role.arguments(self, member)


@dataclass(frozen=True, slots=True)
class Role:
    """A kind of daemon.

    Attributes:
        daemon: Its entry point in the group `trovemq.daemons`; empty for another program.
        arguments: Its command line, without the addresses of a daemon of ours.
        program: In PATH; empty for a daemon of ours.
    """

    daemon: str
    has_store: bool
    arguments: Callable[[Plan, Member], list[str]]
    program: str = ""


def own_settings(settings: Sequence[str]) -> list[str]:
    """Names among NAME=VALUE that the command itself gives."""
    given = {assignment.partition("=")[0].strip() for assignment in settings}
    return sorted(given & OWN_SETTINGS)


def _nothing_more(plan: Plan, member: Member) -> list[str]:
    return []


def _broker_arguments(plan: Plan, member: Member) -> list[str]:
    nameservers = ",".join(one.address for one in plan.of("nameserver"))
    store = plan.store(member)
    arguments = ["--store", str(store), "--name", str(member.group), "--nameserver", nameservers]
    is_new = store is None or not any((store / "commitlog").glob("*"))
    given = [assignment.partition("=")[0].strip() for assignment in plan.settings]
    chosen = {ROCKETMQ_NAMES.get(name, name) for name in given}
    defaults: dict[str, object] = dict(NEW_STORE) if is_new else {}
    if member.replication_port is not None:  # all nodes of a group seal users' secrets with one key
        defaults["sealing_key_file"] = plan.directory / f"{member.group}.sealing-key"
    for assignment in (
        *_config_owner(plan, member),
        *_replica_group(plan, member),
        *(f"{name}={value}" for name, value in defaults.items() if name not in chosen),
        *plan.settings,
    ):
        arguments += ["--set", assignment]
    return arguments


def _config_owner(plan: Plan, member: Member) -> list[str]:
    """The first broker owns the configuration of all. Its port is in cluster.json before any of them starts;
    with the address the others need no route to it. Replica groups have their own: a leader changes."""
    first = plan.of("broker")[0]
    if member is first or first.replication_port is not None:
        return []
    return [f"config_owner={first.group}@{first.address}"]


def _replica_group(plan: Plan, member: Member) -> list[str]:
    """The settings of a node. The first node of a new group leads it."""
    if member.replication_port is None:
        return []
    nodes = [one for one in plan.of("broker") if one.group == member.group]
    named = ",".join(f"{one.name}@{one.address}/{one.replication}" for one in nodes)
    endpoints = ",".join(one.address for one in plan.of("etcd"))
    return [
        *(["coordination=etcd", f"etcd_endpoints={endpoints}"] if endpoints else ["coordination=manual"]),
        f"node_name={member.name}",
        f"replication_listen={member.replication}",
        f"replica_nodes={named}",
    ]


def _etcd_arguments(plan: Plan, member: Member) -> list[str]:
    """One member of etcd, which is the whole of it."""
    client, peer = f"http://{member.address}", f"http://{member.replication}"
    return [
        f"--name={member.name}",
        f"--data-dir={plan.store(member)}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={member.name}={peer}",
        f"--listen-metrics-urls=http://{member.http}",
        "--auto-compaction-retention=1",
        "--logger=zap",
        "--log-level=warn",
    ]


ROLES: Final[Mapping[str, Role]] = {
    "etcd": Role("", has_store=True, arguments=_etcd_arguments, program="etcd"),
    "nameserver": Role("nameserver", has_store=False, arguments=_nothing_more),
    "broker": Role("server", has_store=True, arguments=_broker_arguments),
}
