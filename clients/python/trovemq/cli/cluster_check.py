"""The judgement of `trovemq cluster check` on a replica group, by the answers of its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from trovemq.cli.doctor_evidence import Finding
from trovemq.models.replica import ReplicaGroup, ReplicaNode
from trovemq_proto import errors

LAG_MS_MAX: Final = 10_000
CLOCKS_MS_MAX: Final = 500
"""Between two nodes: timers are early or late by it after a failover."""
ETCD_VERSION_MIN: Final = (3, 5)
ILLEGAL: Final = errors.COORDINATION_ILLEGAL.symbol
RECOVER: Final = "if it is lost for ever: trovemq cluster recover NODE"


def findings(group: ReplicaGroup) -> list[Finding]:
    """The faults of the group, and notes."""
    checks = (_leader, _copies, _lags, _problems, _keys, _clocks, _etcd)
    return [one for check in checks for one in check(group)]


def _leader(group: ReplicaGroup) -> Iterator[Finding]:
    if group.leader is None:
        to_do = "start the nodes of the in-sync set; then trovemq cluster status"
        yield Finding("leader", group.group, "no node leads", to_do)
    elif group.coordination == "etcd" and group.lease_left_ms is None:
        what = f"{group.leader} leads without a lease: no other node would take over"
        yield Finding("leader", group.group, what, f"look at etcd; {RECOVER}")


def _copies(group: ReplicaGroup) -> Iterator[Finding]:
    voters = [one.node for one in group.nodes if one.is_voter]
    missing = [one for one in voters if one not in group.in_sync]
    needed = min(group.in_sync_min, max(1, len(voters)))
    if (count := len(group.in_sync)) < needed:
        what = f"{count} of {needed} copies are in sync: no message is acknowledged"
        yield Finding("copies", group.group, what, f"start {', '.join(missing) or 'more nodes'}")
    elif missing:
        what = f"{', '.join(missing)} is not in sync"
        yield Finding("copies", group.group, what, "start it, or trovemq cluster replace NODE")
    for one in group.nodes:
        if not one.is_voter and one.is_joining:
            what = f"{one.node} joins: its copy counts once it has all of the log"
            yield Finding(
                "copies", group.group, what, "wait: trovemq cluster status shows its lag", note=True
            )
        elif not one.is_voter:
            what = f"{one.node} is a learner: its copy does not count"
            to_do = f"if it is to vote: trovemq cluster add {one.node}, with its addresses"
            yield Finding("copies", group.group, what, to_do, note=True)
    if len(voters) == 2 and group.in_sync_min > 1:
        what = "of two voters each is needed: with one away no message is acknowledged"
        yield Finding("copies", group.group, what, "add a third node", note=True)


def _lags(group: ReplicaGroup) -> Iterator[Finding]:
    for one in group.nodes:
        if one.lag_ms is not None and one.lag_ms > LAG_MS_MAX:
            what = f"has heard from no leader for {one.lag_ms / 1000:.0f} s"
            if one.lag_bytes is not None:
                what = f"lacks {one.lag_bytes} bytes, and has lagged for {one.lag_ms / 1000:.0f} s"
            yield Finding("lag", _at(group, one), what, "look at its disk, its network and its log")


def _problems(group: ReplicaGroup) -> Iterator[Finding]:
    for one in group.nodes:
        if not one.is_reachable:
            what = one.problem if one.address in one.problem else f"{one.problem}, at {one.address}"
            yield Finding("nodes", _at(group, one), what, "start it, or trovemq cluster replace NODE")
        elif one.problem and one.role != "leader":
            yield Finding("nodes", _at(group, one), one.problem, "see docs/errors.md, by the error's name")
        elif one.problem:
            yield Finding("nodes", _at(group, one), one.problem, "see trovemq cluster status", note=True)


def _keys(group: ReplicaGroup) -> Iterator[Finding]:
    keys = {one.node: one.sealing_key_id for one in group.nodes if one.is_reachable}
    if len(set(keys.values())) > 1:
        common = Counter(keys.values()).most_common(1)[0][0]
        other = ", ".join(sorted(node for node, key in keys.items() if key != common))
        what = f"{other} has another sealing key than the others: it could not open the users as the leader"
        yield Finding("keys", group.group, what, "give all nodes the same sealing key")


def _clocks(group: ReplicaGroup) -> Iterator[Finding]:
    ahead = {one.node: one.clock_ahead_ms for one in group.nodes if one.clock_ahead_ms is not None}
    if not ahead:
        return
    first, last = min(ahead, key=lambda node: ahead[node]), max(ahead, key=lambda node: ahead[node])
    if (apart := ahead[last] - ahead[first]) > CLOCKS_MS_MAX:
        what = f"the clocks of {first} and {last} are {apart} ms apart"
        yield Finding("clocks", group.group, what, "set the clocks by NTP")


def _etcd(group: ReplicaGroup) -> Iterator[Finding]:
    if group.coordination != "etcd":
        return
    for one in group.nodes:
        if one.etcd_problem.startswith(ILLEGAL):
            yield Finding("etcd", _at(group, one), one.etcd_problem, f"see docs/errors.md; {RECOVER}")
        elif one.is_reachable and one.etcd_problem:
            what = f"etcd does not answer: {one.etcd_problem}"
            yield Finding("etcd", _at(group, one), what, f"start etcd: no failover meanwhile; {RECOVER}")
    if any(one.failover_paused for one in group.nodes):
        what = "the failover is paused: no other node leads if the leader is lost"
        to_do = f"when the work is done: trovemq cluster pause-failover {group.group} --for 0"
        yield Finding("etcd", group.group, what, to_do, note=True)
    members = max((one.etcd_members for one in group.nodes), default=0)
    if members == 1:
        what = "etcd has one member: its machine is needed for each failover"
        yield Finding("etcd", group.group, what, "run three members for production", note=True)
    elif members and members % 2 == 0:
        what = f"etcd has {members} members: it survives no more losses than with {members - 1}"
        yield Finding("etcd", group.group, what, "run three or five members")
    for version in sorted({one.etcd_version for one in group.nodes if one.etcd_version}):
        if _version(version) < ETCD_VERSION_MIN:
            what = f"etcd is version {version}, which has known faults of leases"
            yield Finding("etcd", group.group, what, "use etcd 3.5 or later", note=True)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


def _at(group: ReplicaGroup, node: ReplicaNode) -> str:
    return f"{group.group} {node.node}"
