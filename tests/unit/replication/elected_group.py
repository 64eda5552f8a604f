"""A replica group that elects its leaders at the model of etcd, in one process and in virtual time, by seed.

The nodes, their disks and streams are those of group_world.py; the election of each is the shipped one. Each
step is checked: the writes at etcd, who leads, which copies have all that is committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from tests.unit.replication.etcd_world import ElectedNode, EtcdWorld
from tests.unit.replication.group_world import DIAL_MS, TICK_MS
from tests.unit.replication.members_world import Link, Node
from tests.unit.replication.model_etcd import ModelEtcd
from tests.unit.replication.model_log import SEGMENT_SIZE
from trovemq_broker.coordination.coordinator import KeyValue, Put
from trovemq_broker.replication import election_actions as actions
from trovemq_broker.replication import follower as follower_side
from trovemq_broker.replication import leader as leader_side
from trovemq_broker.replication.election import Election, ElectionSettings
from trovemq_broker.replication.election_actions import ElectionAction, OwnLog
from trovemq_broker.replication.election_members import (
    founded,
)
from trovemq_broker.replication.election_records import (
    CONFIG,
    STATE,
    GroupConfig,
    GroupState,
    from_bytes,
    to_bytes,
)
from trovemq_broker.replication.frames import FollowerFrame, InSyncSet, Progress
from trovemq_broker.replication.leader import GroupSettings, Leader
from trovemq_broker.replication.promotion import EPOCH_STEP
from trovemq_store.replica.membership import Member, Members

WAIT_MS: Final = 3_500
"""Maximum wait of a new leader for the rights of the one before, by a clock that drifts."""


class ElectedGroup(EtcdWorld):
    """`odds`: of a lost or late request, answer and hint. `broke_leases`: etcd ended leases early: ordered
    rights may overlap."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int,
        in_sync_min: int,
        is_sync: bool = True,
        spares: int = 0,
        odds: float = 0.0,
    ) -> None:
        self.cut_from_etcd = set()
        self.odds, self.restores, self.broke_leases = odds, 0, False
        self.is_restored = False
        self.trace = hashlib.blake2b(digest_size=16)
        self.etcd = ModelEtcd()
        self.elections = self.deliveries = self.stopped = 0
        super().__init__(seed, nodes=nodes, in_sync_min=in_sync_min, is_sync=is_sync, spares=spares)

    def promote(self, without: str = "") -> bool:
        """At the beginning: the group's values are written, with all copies in sync."""
        assert not without
        names = [name for name, node in self.nodes.items() if node.members is not None]
        first = Members.first(Member(name, f"{name}:1", f"{name}:2") for name in names)
        config = GroupConfig(
            cluster="c",
            group="g",
            in_sync_min=self.in_sync_min,
            is_sync=self.is_sync,
            segment_size=SEGMENT_SIZE,
            listed=first,
        )
        copies = tuple(self.nodes[name].identity for name in names)
        state = replace(founded(config, copies[0], 0, 1), in_sync=copies)
        self.etcd.swap((), (Put(CONFIG, to_bytes(config)), Put(STATE, to_bytes(state))), 0)
        self.etcd.changed = self._etcd_changed
        for node in self.elected:
            node.rate = 1 + self.random.choice((-5e-4, 0, 5e-4))
            self._begin_election(node)
        self._expire()
        return True

    @property
    def elected(self) -> list[ElectedNode]:
        return [node for node in self.nodes.values() if isinstance(node, ElectedNode)]

    def note(self, *what: object) -> None:
        """Into the trace."""
        self.trace.update(repr((self.now_ms, *what)).encode())

    # --- the election of a node -------------------------------------------------------------------------
    def _begin_election(self, node: ElectedNode) -> None:
        node.follows, node.holds_for, node.is_watching, node.was_killed = None, "", False, False
        node.answered_ms, node.reported_ms = -1, node.clock(self.now_ms)
        now_ms = node.clock(self.now_ms)
        election = Election(
            ElectionSettings(), node.identity, node.state.promised, self._log_of(node), now_ms
        )
        node.election = election
        self._elect(node, election.begin(now_ms))

    def _log_of(self, node: ElectedNode) -> OwnLog:
        return OwnLog(
            end=node.log.end,
            flushed=node.log.flushed,
            commit=node.state.commit,
            last_epoch=node.state.epochs.last,
            in_sync=node.state.in_sync,
            reported_ms=node.reported_ms,
        )

    def _elect(self, node: ElectedNode, wanted: list[ElectionAction]) -> None:
        for action in wanted:
            match action:
                case actions.Watch():
                    node.is_watching = True
                case actions.Unfollow():
                    self._leave(node)
                case actions.Promise(epoch):
                    self._promise(node, epoch)
                case actions.Lead(epoch, in_sync, config):
                    self._lead_soon(node, epoch, in_sync, config)
                case actions.Follow(leader, epoch):
                    self._leave(node)
                    node.follows = (leader, epoch)
                    self._dial(node)
                case actions.StepDown(reason):
                    self.note(node.name, "steps down", reason)
                    self._step_down(node)
                case actions.ConfirmSet(in_sync):
                    self._confirmed(node, in_sync)
                case actions.Regroup(config):
                    node.config = config
                    if node.leader is not None:
                        self.changes += 1
                        self._lead(node, node.leader.regroup(self._settings(node), self.now_ms))
                case actions.Hold(target):
                    node.holds_for = target
                case actions.Release():
                    node.holds_for = ""
                case _:
                    self._check_call(node, action)
                    self._call(node, action)
        self._tick_election_when_due(node)

    def _tick_election_when_due(self, node: ElectedNode) -> None:
        election = node.election
        if election is None:
            return
        due_ms = election.next_tick_ms
        wait_ms = max(1, due_ms - node.clock(self.now_ms) + 1)
        if due_ms == node.due_election_ms or wait_ms > TICK_MS:
            return
        node.due_election_ms = due_ms

        def tick() -> None:
            if node.election is election and node.paused_until <= self.now_ms:
                self._input(node, Election.tick)

        self.at(wait_ms, tick)

    def _check_call(self, node: ElectedNode, action: ElectionAction) -> None:
        """A campaign's swap is sent after its promise is on disk, by a copy that follows no node."""
        if not isinstance(action, actions.Swap):
            return
        for change in action.changes:
            if isinstance(change, Put) and change.key == STATE and node.leader is None:
                state = from_bytes(STATE, change.value, GroupState)
                if node.election is not None and node.election.epoch != state.epoch:
                    promise = state.epoch // EPOCH_STEP * EPOCH_STEP
                    assert node.state.promised >= promise, "a campaign before its promise is on disk"
                    assert node.follower is None, "a campaign while the stream to the leader is open"

    def _promise(self, node: ElectedNode, epoch: int) -> None:
        life = node.life
        assert epoch > node.state.promised, "a promise is never taken back"
        assert node.follower is None, "a promise of a campaign while the stream is open"

        def stored() -> None:
            if node.life == life and node.up:
                node.state.promised = epoch
                self._input(node, lambda one, now: one.promised(epoch, now))

        self.at(self.random.choice((1, 3, 30)), stored)

    def _lead_soon(self, node: ElectedNode, epoch: int, in_sync: InSyncSet, config: GroupConfig) -> None:
        """The node changes its role; the election may change its mind meanwhile."""
        promise = epoch // EPOCH_STEP * EPOCH_STEP
        assert node.state.promised == promise, "it leads another epoch than it has promised"
        assert node.follower is None, "it leads while it follows"
        assert epoch not in self.leaders, "an epoch is led twice"
        self.leaders[epoch] = node.name
        node.config, node.holds_for, node.state.in_sync = config, "", in_sync
        election = node.election
        self.elections += 1
        self.note(node.name, "leads", epoch)

        def begin() -> None:
            if node.election is election and election is not None and election.epoch == epoch:
                assert node.state.promised == promise, "a leader has promised a later epoch"
                self._begin_leadership(node, epoch)

        if self.random.random() < 0.5:
            begin()
        else:
            self.at(self.random.choice((1, 20)), begin)

    def _confirmed(self, node: ElectedNode, in_sync: InSyncSet) -> None:
        node.state.in_sync = in_sync
        if node.leader is not None:
            self._lead(node, node.leader.set_confirmed(in_sync, self.now_ms))

    # --- the other state machines -----------------------------------------------------------------------
    def _tick(self, node: Node) -> None:
        assert isinstance(node, ElectedNode)
        self._input(node, Election.tick)
        if node.leader is not None:
            self._lead(node, node.leader.tick(self.now_ms))
        elif node.follower is not None and (link := self._link_of(node)) is not None:
            self._follow(link, node.follower.tick(self.now_ms))
        elif self.random.random() < TICK_MS / DIAL_MS:
            self._dial(node)
        self._sync_later(node)

    def _dial(self, node: Node) -> None:
        assert isinstance(node, ElectedNode)
        if node.follows is None or node.follower is not None or node.leader is not None:
            return
        name, epoch = node.follows
        target = self.nodes[name]
        assert isinstance(target, ElectedNode)
        if not target.up and target.was_killed and not self._is_cut(node, target):
            self._input(node, lambda one, now: one.leader_lost(name, epoch, now, dead=True))
            return
        node.configured = name
        super()._dial(node)

    def _leave(self, node: ElectedNode) -> None:
        """The follower ends its stream; frames that it has sent may still arrive."""
        link = self._link_of(node)
        node.follower, node.follows = None, None
        if link is not None:
            link.is_ended_by_follower = True
            self.at(self.random.choice((1, 50, 2_000)), lambda: self._close(link))

    def _close(self, link: Link, *, is_dead: bool = False) -> None:
        node, is_lost = link.follower, link.is_open and not link.is_ended_by_follower
        super()._close(link, is_dead=is_dead)
        if is_lost and isinstance(node, ElectedNode) and node.follows is not None:
            name, epoch = node.follows
            self._input(node, lambda one, now: one.leader_lost(name, epoch, now, dead=False))

    def _to_leader(self, link: Link, frame: FollowerFrame) -> None:
        node = link.follower
        if isinstance(node, ElectedNode) and isinstance(frame, Progress):
            node.reported_ms = node.clock(self.now_ms)
        super()._to_leader(link, frame)

    def _follow(self, link: Link, wanted: Iterable[follower_side.FollowerAction]) -> None:
        node, before = link.follower, link.follower.state.promised
        super()._follow(link, wanted)
        if isinstance(node, ElectedNode) and (epoch := node.state.promised) > before:
            self._input(node, lambda one, now: one.promised(epoch, now))

    def _lead(self, node: Node, wanted: Iterable[leader_side.LeaderAction]) -> None:
        super()._lead(node, wanted)
        assert isinstance(node, ElectedNode)
        leader = node.leader
        if leader is None:
            return
        sent_ms = leader.answered_by_all_ms(self.now_ms)
        if sent_ms is not None and sent_ms > node.answered_ms:
            node.answered_ms = sent_ms
            sent = node.clock(sent_ms)
            self._input(node, lambda one, now: one.streams_answered(sent, now))
        if node.holds_for and node.leader is leader:
            copies = {one.identity.node: one for one in leader.copies(self.now_ms)}
            target = copies.get(node.holds_for)
            if target is not None and target.is_connected and target.flushed == node.log.end:
                self._input(node, Election.held)

    def _store_set(self, node: Node, leader: Leader, in_sync: InSyncSet) -> None:
        assert isinstance(node, ElectedNode)
        self._input(node, lambda one, now: one.in_sync_wanted(in_sync, now))

    def _deposed(self, node: Node, epoch: int) -> None:
        assert isinstance(node, ElectedNode)
        self._input(node, lambda one, now: one.promise_seen(epoch, now))
        assert node.leader is None, "a leader that met a later promise leads on"

    def _step_down(self, node: Node) -> None:
        if isinstance(node, ElectedNode):
            node.holds_for, node.answered_ms = "", -1
        super()._step_down(node)

    def _settings(self, node: Node) -> GroupSettings:
        assert isinstance(node, ElectedNode)
        assert node.config is not None
        listed = node.config.listed
        return GroupSettings(
            "c",
            "g",
            {one.node: one.is_voter for one in listed.nodes},
            SEGMENT_SIZE,
            is_sync=self.is_sync,
            in_sync_min=node.config.in_sync_needed,
            stores=listed.stores,
            removed=frozenset(listed.removed),
            is_coordinated=True,
        )

    # --- checks -----------------------------------------------------------------------------------------
    def _etcd_changed(self, before: dict[str, KeyValue]) -> None:
        self._hint(self.etcd.revision)
        former, state = before[STATE], self.etcd.values[STATE]
        if former.changed == state.changed:
            return
        old, new = from_bytes(STATE, former.value, GroupState), self.state
        self.note("state", new.epoch, new.leader, new.version, new.in_sync)
        config = from_bytes(CONFIG, self.etcd.values[CONFIG].value, GroupConfig)
        needed = min(config.in_sync_needed, len(old.in_sync))
        assert len(new.in_sync) >= needed, "a set below its minimum"
        assert new.epoch >= old.epoch, "the epoch went back"
        assert new.commit_floor >= old.commit_floor, "the floor went back"
        assert new.version >= old.version, "the version went back"
        assert new.version > old.version or new.in_sync == old.in_sync
        assert {one.node for one in new.in_sync} <= config.listed.places.keys(), "a copy of no voter"
        if new.epoch > old.epoch:
            winner = next(one for one in new.in_sync if one.node == new.leader)
            is_alone = [one[:2] for one in old.in_sync] == [winner[:2]]
            assert winner in old.in_sync or is_alone, "a node outside of the set was elected"
        else:
            assert new.leader == old.leader, "two leaders of one epoch"
        self._check_copies()

    @property
    def state(self) -> GroupState:
        return from_bytes(STATE, self.etcd.values[STATE].value, GroupState)

    def _check_copies(self) -> None:
        """Whatever is written, or under way: each copy that may be elected has all that is committed."""
        if self.is_restored:
            return
        for identity in self.state.in_sync:
            node = self.nodes[identity.node]
            if node.identity != identity or node.name in self.lost:
                continue
            reached = node.log.flushed if self.is_sync else node.log.end
            assert reached >= len(self.committed), f"{node.name} may be elected, and lacks a committed record"

    def _check_commit(self, node: Node) -> None:
        known = len(self.committed)
        super()._check_commit(node)
        if len(self.committed) > known:
            self._check_copies()

    def _check_nothing_is_missing(self, node: Node) -> None:
        super()._check_nothing_is_missing(node)
        log, committed = node.log, self.committed
        begin = min(log.begin, len(committed))
        mine = log.data[: len(committed) - begin]
        assert mine == committed[begin:], f"{node.name} leads, and lacks a committed record"

    def deliver(self) -> None:
        """Each node that may, delivers a message of an ordered group: one at most. A clock that jumps without
        a sleep of the machine ends a new leader's wait early: such a node does not count for that time."""
        names = []
        for node in self.elected:
            if not node.up or node.paused_until > self.now_ms or node.election is None:
                continue
            if any(self.now_ms - when < WAIT_MS for when, _ in node.jumps):
                continue
            if node.election.may_deliver_in_order(node.clock(self.now_ms)):
                names.append(node.name)
        self.deliveries += len(names)
        assert len(names) <= 1 or self.broke_leases, f"{names} deliver one ordered group at a time"
