"""The repair of a node's log: it asks the other members, the leader first."""

from __future__ import annotations

from collections.abc import Callable

from trovemq_broker.daemon.replica.node_calls import NodeCalls
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.replica_streams.log_repair import LogRepair
from trovemq_broker.replication.frames import Node, Offset
from trovemq_broker.server.wire.replica_frames import LogRange, RangeAsked
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.membership import Member


def repair_of(node: OpenNode, calls: NodeCalls, leader: Callable[[], Node]) -> LogRepair:
    """`leader`: the node that leads; empty where it is not known."""

    def members() -> list[Member]:
        place = node.place_if_any
        if place is None:
            return []
        others = [one for one in place.members if one.node != place.node]
        return sorted(others, key=lambda one: (one.node != leader(), one.node))

    async def read(name: Node, offset: Offset, size_max: int) -> LogRange:
        member = next((one for one in members() if one.node == name), None)
        if member is None:
            raise TroveError(errors.NOT_A_MEMBER, f"node {name} was removed")
        place = node.place
        asked = RangeAsked(place.cluster, place.group, node.state.promised, offset, size_max, place.node)
        return await calls.read_log(member, asked)

    return LogRepair(lambda: node.store, lambda: [one.node for one in members()], read)
