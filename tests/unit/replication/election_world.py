"""The clients, the faults and the end of a walk of a group that elects its leaders (elected_group.py)."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from functools import partial
from typing import Final

from tests.unit.replication.elected_group import ElectedGroup
from tests.unit.replication.etcd_world import ElectedNode
from tests.unit.replication.members_world import Node
from tests.unit.replication.model_etcd import Backup
from trovemq_broker.coordination.coordinator import Delete, Put
from trovemq_broker.replication.election import Election
from trovemq_broker.replication.election_actions import ElectionAction
from trovemq_broker.replication.election_members import recovered
from trovemq_broker.replication.election_records import (
    CONFIG,
    PAUSE,
    STATE,
    SWITCH,
    GroupConfig,
    GroupState,
    SwitchWanted,
    from_bytes,
    to_bytes,
)
from trovemq_broker.replication.frames import Identity
from trovemq_broker.replication.members import MemberChanges
from trovemq_broker.replication.promotion import EPOCH_STEP, Promised, longest
from trovemq_proto.errors import TroveError
from trovemq_store.replica.membership import Member, Members

SERVES_MS: Final = 15_000


class ElectionWorld(ElectedGroup):
    """A fault each; healed() and settle() end them."""

    # --- clients and faults ----------------------------------------------------------------------------
    def send(self) -> None:
        """A producer's append to each node that leads by its own clock."""
        for node in self.elected:
            election = node.election
            if not node.up or node.leader is None or election is None or node.holds_for:
                continue
            if election.may_deliver(node.clock(self.now_ms)):
                self.append_at(node)

    def kill(self, name: str, *, power_cut: bool = False) -> None:
        node = self.nodes[name]
        if not node.up:
            return
        assert isinstance(node, ElectedNode)
        followers = [
            one.follower for one in self.links.values() if one.leader is node and not one.is_ended_by_follower
        ]
        node.election, node.follows = None, None
        node.was_killed = not power_cut
        life = node.life + 1
        self.note(name, "is killed", power_cut)
        super().kill(name, power_cut=power_cut)
        for one in followers:
            assert isinstance(one, ElectedNode)
            if one.follows is None or one.follows[0] != name or self._is_cut(one, node):
                continue
            self.at(self.random.choice((1, 20)), partial(self._refused, one, one.follows, node, life))

    def _refused(self, node: ElectedNode, leader: tuple[str, int], dead: ElectedNode, life: int) -> None:
        """The stream was reset; does the machine refuse another one?"""
        is_dead = dead.was_killed and dead.life == life
        self._input(node, lambda one, now: one.leader_lost(*leader, now, dead=is_dead))

    def kill_as_allowed(self, name: str, *, power_cut: bool) -> None:
        """With async flush a killed copy counts no more: as a lost one."""
        if self.is_sync:
            self.kill(name, power_cut=power_cut)
        elif self.nodes[name].up and self._may_lose and len(self.lost - {name}) + 1 <= self.in_sync_min - 1:
            self.lost.add(name)
            self.kill(name, power_cut=power_cut)

    def stop(self, name: str) -> None:
        """As SIGTERM: nothing is lost, and the node is the same copy after it."""
        node = self.nodes[name]
        assert isinstance(node, ElectedNode)
        if not node.up or node.election is None or node.paused_until > self.now_ms:
            return
        self._input(node, Election.resign)
        node.log.flushed = node.log.end
        self.stopped += 1
        self.kill(name)
        self._begin_again(node)

    def start(self, name: str) -> None:
        node = self.nodes[name]
        if not node.up:
            super().start(name)
            assert isinstance(node, ElectedNode)
            self._begin_election(node)

    def _begin_again(self, node: ElectedNode) -> None:
        """A start after a clean stop."""
        node.up, node.paused_until, node.life = True, 0, node.life + 1
        node.state = dataclasses.replace(node.state)
        self._every(node)
        self._begin_election(node)

    def lose_disk(self, name: str) -> bool:
        return self._may_lose and self.nodes[name].identity in self.state.in_sync and super().lose_disk(name)

    @property
    def _may_lose(self) -> bool:
        """After a recovery the set may have fewer copies than its minimum, until others have come into it."""
        return len(self.state.in_sync) >= self.in_sync_min

    def _new_disk(self, node: Node) -> None:
        super()._new_disk(node)
        node.members = None

    def healed(self) -> None:
        """A lost disk counts as whole again once its node is in the set."""
        copies = self.state.in_sync
        lost = [(name, self.nodes[name]) for name in self.lost]
        self.lost = {name for name, node in lost if not node.up or node.identity not in copies}

    def jump(self, name: str, by_ms: int) -> None:
        """Its clock goes forward."""
        node = self.nodes[name]
        assert isinstance(node, ElectedNode)
        node.jumps.append((self.now_ms, by_ms))

    def switch(self, name: str) -> None:
        """An operator's wish, at etcd or at the leader."""
        if not self.etcd.has_quorum:
            return
        if self.random.random() < 0.5:
            self.etcd.swap((), (Put(SWITCH, to_bytes(SwitchWanted(target=name))),), self.now_ms)
            return
        for node in self.elected:
            if node.leader is not None:
                self._input(node, lambda one, now: one.switch_over(name, now) if one.epoch else [])

    def break_leases(self) -> None:
        if not self.broke_leases:
            return
        if self.random.random() < 0.5:
            self.etcd.revoke_early()
        else:
            self.etcd.deposed_until_ms = self.now_ms + self.random.choice((1_000, 5_000))

    def change_members(self) -> None:
        leading = [node for node in self.elected if node.leader is not None and node.election is not None]
        if not leading:
            return
        leader = self.random.choice(leading)
        other = self.nodes[self.random.choice(sorted(self.nodes))]
        core, config, identity = leader.leader, leader.config, other.identity
        assert core is not None
        assert config is not None
        if identity.store_id in config.listed.removed:
            if config == from_bytes(CONFIG, self.etcd.values[CONFIG].value, GroupConfig):
                self._new_disk(other)
            return
        learners = {one.node for one in config.listed.nodes if not one.is_voter}
        assert learners == {*config.listed.joining}, "each was added to vote, whichever node leads by now"
        member = config.member(other.name)
        counted = core.in_sync.counted

        if member is not None and member.is_voter and len(config.listed.places) <= self.in_sync_min:
            return

        def change(changes: MemberChanges) -> Members:
            if member is None:
                return changes.add(Member(other.name, f"{other.name}:1", f"{other.name}:2"))
            if not member.is_voter:
                return changes.make_voter(other.name, identity.store_id)
            return changes.remove(other.name, [identity.store_id], counted)

        def give(election: Election, now_ms: int) -> list[ElectionAction]:
            try:
                return election.change_members(change, now_ms)
            except ValueError:
                return []

        self._input(leader, give)

    # --- a restored etcd ----------------------------------------------------------------------------------
    def restore(self, backup: Backup) -> bool:
        """Where each node that the backup would elect knows that it is older, on its disk."""
        old = from_bytes(STATE, backup.values[STATE].value, GroupState)
        for identity in old.in_sync:
            node = self.nodes[identity.node]
            stored = node.state.in_sync
            knows = stored is not None and stored.version > old.version
            if node.identity == identity and not knows:
                return False
        self.restores += 1
        self.is_restored = self.etcd.has_quorum = True
        self.etcd.restore(backup)
        for node in self.elected:
            if node.is_watching:
                node.is_watching = False
                self.at(self._delay(), partial(self._input, node, Election.watch_ended))
        self.note("restored", backup.revision)
        return True

    def recover(self) -> None:
        """An operator stops all nodes, and starts those that were up, and as many of the others as have to
        promise: one of those with the longest log leads."""
        up = [node for node in self.elected if node.up]
        for node in up:
            node.paused_until = 0
            node.log.flushed = node.log.end
            self.kill(node.name)
        configs = [node.config for node in self.elected if node.config is not None]
        config = max(configs, key=lambda one: one.listed.version)
        highest = max(node.state.promised for node in self.elected)
        epoch = (highest // EPOCH_STEP + 1) * EPOCH_STEP
        version = 1 + max(one.state.in_sync.version for one in self.elected if one.state.in_sync is not None)
        copies = self._longest(config, epoch, {node.name for node in up})
        leader = self.nodes[self.random.choice(sorted(copies)).node]
        state = recovered(config, leader.identity, epoch, version, copies, "recovered")
        self.etcd.has_quorum = True
        self.etcd.restore(Backup(1, {}))
        self.restores += 1
        self.etcd.changed = lambda _before: None
        self.etcd.swap((), (Put(CONFIG, to_bytes(config)), Put(STATE, to_bytes(state))), self.now_ms)
        self.etcd.changed = self._etcd_changed
        self.is_restored = False
        self.note("recovered", state.leader)
        started = [node for node in self.elected if node.up]
        for node in [*up, *started]:
            self._begin_again(node)
        self._check_copies()

    def _longest(self, config: GroupConfig, epoch: int, stopped: set[str]) -> frozenset[Identity]:
        """By the promises of as many voters as are enough. All but the `stopped` ones were killed before, and
        start: that syncs their logs, and with async flush it is a later incarnation."""
        listed = config.listed
        voters = [self.nodes[name] for name in sorted(listed.places)]
        self.random.shuffle(voters)
        answers: list[Promised] = []
        for node in voters:
            if node.name not in stopped:
                super().start(node.name)
            node.state.promised = epoch
            answers.append(
                Promised(node.identity, epoch, node.state.epochs, node.log.end, node.state.in_sync, listed)
            )
            with suppress(TroveError):
                return longest(
                    answers,
                    epoch,
                    voters=listed.places,
                    in_sync_min=config.in_sync_needed,
                    stores=listed.stores,
                )
        raise AssertionError("all voters together are enough")

    # --- the end ------------------------------------------------------------------------------------------
    def settle(self) -> Node | None:
        """All faults end; one leader serves within SERVES_MS, and all nodes come to have its log."""
        self.cut_off.clear()
        self.cut_from_etcd.clear()
        self.slow.clear()
        self.odds, self.etcd.has_quorum, self.etcd.deposed_until_ms = 0.0, True, -1
        if PAUSE in self.etcd.values:
            self.etcd.swap((), (Delete(PAUSE),), self.now_ms)
        for node in self.elected:
            node.paused_until = 0
            self.start(node.name)
        until_ms = self.now_ms + SERVES_MS
        while (last := self._serving()) is None and self.now_ms < until_ms:
            self.run(self.now_ms + 100)
        assert last is not None, "no leader serves in time"
        self.send()
        self.run(self.now_ms + 15_000)
        last = self._serving()
        assert last is not None, "the leader serves no more"
        assert last.leader is not None
        assert last.config is not None
        self._check_nothing_is_missing(last)
        for one in last.config.listed.nodes:
            other = self.nodes[one.node]
            low = max(other.log.begin, last.log.begin)
            mine = other.log.data[low - other.log.begin :]
            assert mine == last.log.data[low - last.log.begin :], f"{other.name} has another log"
        assert last.leader.commit == last.log.end
        return last

    def _serving(self) -> ElectedNode | None:
        for node in self.elected:
            if node.leader is None or not node.leader.is_open or node.election is None:
                continue
            if node.election.may_deliver_in_order(node.clock(self.now_ms)):
                return node
        return None
