"""The nodes of a group in one process, and the changes of its members: the list goes to each follower, which
stores it unless it has promised a higher epoch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.unit.replication.model_log import SEGMENT_SIZE, ModelLog
from trovemq_broker.replication.follower import Follower, ReplicaState
from trovemq_broker.replication.frames import Identity
from trovemq_broker.replication.leader import GroupSettings, Leader, LeaderAction
from trovemq_broker.replication.members import MemberChanges
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_store.replica.epochs import Epoch, Epochs
from trovemq_store.replica.membership import Member, Members


def member_of(node: str) -> Member:
    return Member(node, f"{node}:1", f"{node}:2")


def members_of(nodes: Iterable[str]) -> Members:
    """The first list of a group."""
    return Members.first(map(member_of, nodes))


@dataclass
class Node:
    name: str
    identity: Identity
    log: ModelLog = field(default_factory=ModelLog)
    state: ReplicaState = field(default_factory=lambda: ReplicaState(0, Epochs(), LOG_ORIGIN, None))
    members: Members | None = None
    """On disk; None: the node is new, or its disk is."""
    leader: Leader | None = None
    changes: MemberChanges | None = None
    lists: dict[Identity, int] = field(default_factory=dict)
    """Of a leader: the versions of the list that copies have stored."""
    follower: Follower | None = None
    up: bool = True
    paused_until: int = 0
    life: int = 0
    """Rises with each start: frames to a former life are dropped."""
    refused: int = 0
    configured: str | None = None
    """The leader that its own configuration names, which may be an older one; None: the newest."""
    due_ms: int = -1
    """The next tick that its leadership has asked for."""

    def begin_epoch(self, epoch: Epoch) -> None:
        self.state.epochs = self.state.epochs.begun(*epoch)


@dataclass
class Link:
    """A stream from a follower to its leader, each direction in order."""

    number: int
    follower: Node
    leader: Node
    lives: tuple[int, int]
    is_open: bool = True
    ready_at: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    is_ended_by_follower: bool = False
    """The follower has ended it; its last frames may still reach the leader."""


class MembersWorld:
    """`changes`: lists that were proposed, and that counted."""

    random: random.Random
    nodes: dict[str, Node]
    links: dict[int, Link]
    in_sync_min: int
    is_sync: bool
    changes: int
    now_ms: int

    def _lead(self, node: Node, actions: Iterable[LeaderAction]) -> None:
        raise NotImplementedError

    def _deliver(self, link: Link, to: Node, from_: Node, act: Callable[[], None]) -> None:
        raise NotImplementedError

    def _new_disk(self, node: Node) -> None:
        raise NotImplementedError

    def change_members(self) -> None:
        """A leader adds a node, makes it a voter, or removes one."""
        leading = [node for node in self.nodes.values() if node.up and node.leader and node.changes]
        if not leading:
            return
        leader = self.random.choice(leading)
        changes, core = leader.changes, leader.leader
        assert changes is not None
        assert core is not None
        node = self.nodes[self.random.choice(sorted(self.nodes))]
        try:
            member = changes.newest.member(node.name)
            if member is not None and not member.is_voter:
                changes.make_voter(node.name, node.identity.store_id)
            elif member is not None and len(changes.newest.places) > self.in_sync_min:
                changes.remove(node.name, [node.identity.store_id], core.in_sync.counted)
            elif node.identity.store_id in changes.newest.removed:
                if changes.counts:  # before, another leader may be chosen by the list that has the node
                    self._new_disk(node)
            else:
                changes.add(member_of(node.name))
        except ValueError:
            return
        self._store_members(leader, changes.newest)
        self._regroup(leader)

    def _store_members(self, node: Node, members: Members) -> None:
        assert node.members is None or node.members.version <= members.version, "a list went back"
        learners = {one.node for one in members.nodes if not one.is_voter}
        assert learners == {*members.joining}, "each was added to vote, whichever node leads by now"
        node.members = members
        node.lists[node.identity] = members.version

    def _regroup(self, node: Node) -> None:
        assert node.leader is not None
        self.changes += 1
        self._lead(node, node.leader.regroup(self._settings(node), self.now_ms))

    def _settings(self, node: Node) -> GroupSettings:
        assert node.changes is not None
        return GroupSettings(
            "c",
            "g",
            node.changes.voters,
            SEGMENT_SIZE,
            is_sync=self.is_sync,
            in_sync_min=self.in_sync_min,
            stores=node.changes.newest.stores,
            removed=frozenset(node.changes.newest.removed),
        )

    def _send_members(self, leader: Node) -> None:
        changes, core = leader.changes, leader.leader
        if core is None:
            return
        assert changes is not None
        self._confirm_members(leader)
        for link in [one for one in self.links.values() if one.leader is leader]:
            self._offer_members(link, changes.newest, core.epoch)

    def _offer_members(self, link: Link, members: Members, epoch: int) -> None:
        node, leader = link.follower, link.leader
        identity = node.identity

        def stored() -> None:
            if leader.leader is not None and leader.leader.epoch == epoch:
                leader.lists[identity] = max(members.version, leader.lists.get(identity, 0))
                self._confirm_members(leader)

        def offered() -> None:
            if node.state.promised > epoch or node.identity != identity:
                return
            if node.members is None or node.members.version < members.version:
                node.members = members
            if node.members == members:
                self._deliver(link, leader, node, stored)

        if leader.lists.get(identity, 0) < members.version:
            self._deliver(link, node, leader, offered)

    def _confirm_members(self, leader: Node) -> None:
        assert leader.changes is not None
        assert leader.leader is not None
        if leader.changes.confirm(leader.lists, leader.leader.in_sync.counted):
            self._regroup(leader)
