"""The nodes' calls to the model of etcd, over a network that loses and delays requests and answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tests.unit.replication.group_world import HELD_MS, World
from tests.unit.replication.members_world import Node
from tests.unit.replication.model_etcd import ModelEtcd
from trovemq_broker.coordination.coordinator import Swapped
from trovemq_broker.replication import election_actions as actions
from trovemq_broker.replication.election import Election
from trovemq_broker.replication.election_actions import ElectionAction
from trovemq_broker.replication.election_records import GroupConfig
from trovemq_proto.errors import TroveError

CALL_MS: Final = 1_000
"""A call without an answer has failed then."""


@dataclass
class ElectedNode(Node):
    """`rate`, `jumps`: of its clock. `follows`: the leader and its epoch. `holds_for`: the
    target of a hold."""

    election: Election | None = None
    rate: float = 1.0
    jumps: list[tuple[int, int]] = field(default_factory=list)
    follows: tuple[str, int] | None = None
    reported_ms: int = 0
    holds_for: str = ""
    config: GroupConfig | None = None
    is_watching: bool = False
    answered_ms: int = -1
    due_election_ms: int = -1
    was_killed: bool = False
    """Its process has ended, and its machine refuses connections."""

    def clock(self, at_ms: int) -> int:
        """Never steps back; it jumps forward where the machine slept."""
        return int(at_ms * self.rate) + sum(jump for when, jump in self.jumps if when <= at_ms)


class EtcdWorld(World):
    """`cut_from_etcd`: (node, direction). `odds`: of a lost or late request, answer and hint."""

    node_type = ElectedNode
    etcd: ModelEtcd
    cut_from_etcd: set[tuple[str, str]]
    odds: float
    restores: int

    def _elect(self, node: ElectedNode, wanted: list[ElectionAction]) -> None:
        raise NotImplementedError

    def _log_of(self, node: ElectedNode) -> actions.OwnLog:
        raise NotImplementedError

    def _input(self, node: ElectedNode, give: Callable[[Election, int], list[ElectionAction]]) -> None:
        """An input of the election, by its node's clock; it waits while the process is stopped."""
        election = node.election
        if election is None or not node.up:
            return
        if node.paused_until > self.now_ms:
            self.at(HELD_MS, lambda: self._input(node, give) if node.election is election else None)
            return
        election.own_log(self._log_of(node))
        self._elect(node, give(election, node.clock(self.now_ms)))

    def _call(self, node: ElectedNode, action: ElectionAction) -> None:
        """A call, its answer, or its failure: one input each."""
        election, restores = node.election, self.restores
        sent_ms = node.clock(self.now_ms)
        is_answered = False

        def answer(give: Callable[[Election, int], list[ElectionAction]]) -> None:
            nonlocal is_answered
            if not is_answered and node.election is election:
                is_answered = True
                self._input(node, give)

        def execute() -> None:
            if self.restores != restores:
                return  # the connection ended with the server
            try:
                give = self._executed(action, sent_ms)
            except TroveError:
                return
            if (node.name, "from") not in self.cut_from_etcd and self.random.random() >= self.odds:
                self.at(self._delay(), lambda: answer(give))

        if (node.name, "to") not in self.cut_from_etcd and self.random.random() >= self.odds:
            self.at(self._delay(), execute)
        self.at(CALL_MS, lambda: answer(_failure(action)))

    def _delay(self) -> int:
        """Some calls are done long after their caller has given up."""
        if self.random.random() < self.odds / 2:
            return self.random.randrange(200, 6_000)
        return self.random.choice((0, 1, 1, 2, 5, 20))

    def _executed(
        self, action: ElectionAction, sent_ms: int
    ) -> Callable[[Election, int], list[ElectionAction]]:
        etcd, now_ms = self.etcd, self.now_ms
        match action:
            case actions.Read():
                snapshot = etcd.read(now_ms)
                return lambda one, now: one.read_done(snapshot, now)
            case actions.Swap(tag, compares, changes):
                swapped: Swapped = etcd.swap(compares, changes, now_ms)
                return lambda one, now: one.swap_done(tag, swapped, now)
            case actions.Grant(ttl_s):
                lease = etcd.grant(ttl_s, now_ms)
                return lambda one, now: one.lease_granted(lease, sent_ms, now)
            case actions.KeepAlive(lease_id):
                ttl_s = etcd.keep_alive(lease_id, now_ms)
                return lambda one, now: one.lease_kept(sent_ms, ttl_s, now)
            case actions.Revoke(lease_id):
                etcd.revoke(lease_id, now_ms)
                return lambda _one, _now: []
        raise AssertionError(f"{action} is not a call")

    def _hint(self, revision: int) -> None:
        """A change of the keys: hints come late, and watches end."""

        def heard(election: Election, now_ms: int) -> list[ElectionAction]:
            return election.watched(revision, now_ms)

        for node in self.nodes.values():
            assert isinstance(node, ElectedNode)
            if not node.is_watching or (node.name, "from") in self.cut_from_etcd:
                continue
            ends = self.random.random() < self.odds
            node.is_watching = not ends
            self.at(self._delay(), partial(self._input, node, Election.watch_ended if ends else heard))

    def _expire(self) -> None:
        self.etcd.expire(self.now_ms)
        self.at(100, self._expire)


def _failure(action: ElectionAction) -> Callable[[Election, int], list[ElectionAction]]:
    match action:
        case actions.Swap(tag, _, _):
            return lambda one, now: one.swap_done(tag, None, now)
        case actions.Revoke():
            return lambda _one, _now: []
    call = {actions.Read: "read", actions.Grant: "grant", actions.KeepAlive: "keep_alive"}[type(action)]
    return lambda one, now: one.coordinator_failed(call, now)
