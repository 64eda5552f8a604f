"""Finds the leader of a group, and later members, by the status of its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from trovemq_broker.cluster.config_calls import Endpoint
from trovemq_broker.daemon.replica.node_calls import NodeCalls, gathered
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.frames import Epoch, Node
from trovemq_broker.replication.status import NodeStatus
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.membership import Member, Members, Membership

SEARCH_S: Final = 0.5
FOLLOWING_S: Final = 2.0


def known_members(settings: BrokerSettings, place: Membership | None) -> tuple[Member, ...]:
    """The nodes of the group: by its state, else by the settings."""
    if place is not None:
        return place.members
    return tuple(Member(one.node, str(one.address), str(one.replication)) for one in settings.named_nodes)


def removes(status: NodeStatus, place: Membership) -> bool:
    """Whether the other node's list of members says that this one was removed."""
    if status.cluster != place.cluster or status.listed.has(place.node, place.store_id):
        return False
    is_named = status.leads and place.store_id in status.listed.removed
    return is_named or status.listed.version > place.listed.version


class Finding:
    """Asks the other nodes, again and again. `place`: returns this node's; `found` is called after each
    round."""

    def __init__(
        self,
        settings: BrokerSettings,
        calls: NodeCalls,
        place: Callable[[], Membership | None],
        found: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._place = place
        self._found = found
        self.statuses: Mapping[Node, NodeStatus] = {}
        """Of the other nodes that answered in the last round."""
        self.failures: Mapping[Node, TroveError] = {}
        self.is_following: Callable[[], bool] = lambda: False

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.ask()
            self._found()
            await asyncio.sleep(FOLLOWING_S if self.is_following() else SEARCH_S)

    async def ask(self) -> None:
        """One round."""
        place = self._place()
        cluster = "" if place is None else place.cluster
        others = [one for one in self._members() if one.node != self._settings.node_name]
        self.statuses, self.failures = await gathered(others, lambda one: self._calls.status(one, cluster))

    def _members(self) -> tuple[Member, ...]:
        return known_members(self._settings, self._place())

    @property
    def refused_by(self) -> list[Node]:
        """The nodes that do not know this one."""
        return sorted(node for node, error in self.failures.items() if error.spec is errors.NOT_A_MEMBER)

    def leader(self, cluster: str, promised: Epoch) -> NodeStatus | None:
        """The node that leads in the highest epoch, of that group and not below the promise."""
        leading = [one for one in self.statuses.values() if one.leads and one.cluster == cluster]
        best = max(leading, key=lambda one: one.epoch, default=None)
        return best if best is not None and best.epoch >= promised else None

    def later_members(self, place: Membership, promised: Epoch) -> Members | None:
        """The newest list of members that a leader of its group has, where it is later than the node's. One
        of a leader whose epoch is below the promise does not count: a node that gathers has not heard it."""
        lists = [
            one.listed
            for one in self.statuses.values()
            if one.leads and one.cluster == place.cluster and one.epoch >= promised
        ]
        newest = max(lists, key=lambda one: one.version, default=place.listed)
        return newest if newest.version > place.listed.version else None

    def removed_by(self, place: Membership) -> Node | None:
        """A node whose list of members says that this one was removed, this one itself among them; None: no
        node that answers. A list is later than this node's, or that of a leader which names its store: this
        node may have led meanwhile, cut off, and has a list with a higher version then."""
        if not place.listed.has(place.node, place.store_id):
            return place.node
        return next((one.node for one in self.statuses.values() if removes(one, place)), None)

    def target(self, cluster: str, promised: Epoch) -> Endpoint | str:
        """Where the leader's streams are, or why that is not known."""
        leader = self.leader(cluster, promised)
        if leader is None:
            away = "; ".join(f"{node}: {error.message}" for node, error in sorted(self.failures.items()))
            return f"no node of the group leads{': ' + away if away else ''}"
        member = next((one for one in self._members() if one.node == leader.node), None)
        if member is None:
            return f"node {leader.node}, which leads, is not a known member"
        return self._calls.listener(member)
