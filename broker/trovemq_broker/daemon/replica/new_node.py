"""A node without a group: it founds one, or joins the one that lists it.

A group is founded without a command only where every node of `replica_nodes` answers and is new, too: a first
node that has lost its disk must not found a second one. Else `trovemq cluster init` founds a group of one.
"""

from __future__ import annotations

from trovemq_broker.daemon.replica.finding import Finding, known_members
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.daemon.replica.store_place import founded, joined
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.status import Role
from trovemq_daemon.logging import get_logger
from trovemq_store.replica.conversion import begin_group
from trovemq_store.replica.membership import Member


def step(node: OpenNode, settings: BrokerSettings, finding: Finding, no_founding: str = "") -> str:
    """Gives the node a place if one is to be had now; blocks. Returns why it has none; empty: it has one.
    `no_founding`: why it must not found a group; empty: it may."""
    named = known_members(settings, None)
    leading = next((one for one in finding.statuses.values() if one.cluster and one.leads), None)
    if leading is not None:
        return _join(node, settings, leading.cluster, finding)
    if not named:
        return "no group yet: name its nodes (replica_nodes), or found it: trovemq cluster init"
    if not node.is_empty:
        return "the store has messages and no group: found one with it (trovemq cluster init), or empty it"
    others = {one.node for one in named} - {settings.node_name}
    grouped = sorted(one.node for one in finding.statuses.values() if one.role is not Role.NEW)
    if grouped:
        return f"no node of the group leads; {', '.join(grouped)} are members of one"
    if refused_by := finding.refused_by:
        to_do = f"trovemq cluster add {settings.node_name}, or correct replica_nodes there"
        return f"this node is not known to {', '.join(refused_by)}: {to_do}"
    missing = sorted(others - set(finding.statuses))
    if missing:
        reasons = "".join(f"; {error.message}" for _, error in sorted(finding.failures.items()))
        return f"a new group waits for {', '.join(missing)}{reasons}"
    if not others:
        return "a group of one is founded by an operator: trovemq cluster init"
    if named[0].node != settings.node_name:
        return f"node {named[0].node} founds the group"
    if no_founding:
        return no_founding
    found(node, settings, named)
    return ""


def _join(node: OpenNode, settings: BrokerSettings, cluster: str, finding: Finding) -> str:
    leading = finding.leader(cluster, 0)
    assert leading is not None, "it was found"
    if leading.group != settings.name:
        return f"node {leading.node} is of group {leading.group}: correct replica_nodes or name"
    if settings.node_name not in {one.node for one in leading.members}:
        return f"node {settings.node_name} is not a member yet: trovemq cluster add {settings.node_name}"
    if not node.is_empty:
        return "the store has messages of no group: a node that joins needs an empty one"
    place = joined(
        settings,
        cluster,
        leading.in_sync_min,
        leading.listed,
        node.directory,
    )
    node.enter_group(place)
    get_logger().info("replica.joined", group=place.group, node=place.node, leader=leading.node)
    return ""


def found(node: OpenNode, settings: BrokerSettings, members: tuple[Member, ...]) -> None:
    """This node founds the group, with its log; blocks. The first epoch begins where the log begins: every
    record of it is of some epoch, so that a copy that ends before has a common point with it."""
    node.state.epochs = begin_group(node.file, node.log.begin, node.log.end)
    node.state.promised = node.file.promised_epoch
    place = founded(settings, members, node.directory)
    node.enter_group(place)
    get_logger().info("replica.founded", group=place.group, node=place.node, cluster=place.cluster)
