"""A group of three nodes that elects its leaders, copied at each step, so that all orders can be tried.

Beside the steps of small_world.py: time passes at a node (it reads, its promise is on disk), its
swap comes to etcd, the answer comes, or the answer is lost and the swap may still come; the lock vanishes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tests.unit.replication.model_etcd import ModelEtcd
from tests.unit.replication.one_node import A, B, C, etcd_of, is_here, state_of
from tests.unit.replication.small_world import CHANGING, SETTINGS, SmallNode, SmallWorld, Step
from trovemq_broker.coordination.coordinator import Put, Snapshot, Swapped
from trovemq_broker.replication import election_actions as actions
from trovemq_broker.replication import leader as leader_side
from trovemq_broker.replication.election import Campaign, Election, ElectionSettings
from trovemq_broker.replication.election_actions import ElectionAction, OwnLog, Swap
from trovemq_broker.replication.election_leadership import Leadership
from trovemq_broker.replication.election_lease import OwnLease
from trovemq_broker.replication.election_records import LOCK, NODES, STATE
from trovemq_broker.replication.frames import InSyncSet
from trovemq_broker.replication.leader import Leader

COORDINATED = replace(SETTINGS, is_coordinated=True)
TURN_MS = 3_000
"""Longer than all waits of an election."""


class ElectedSmallNode(SmallNode):
    """`swap`: is under way to etcd; `answer`: comes from there."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.now_ms = 0
        self.election: Election | None = None
        self.swap: Swap | None = None
        self.answer: Swapped | None = None
        self.wants = ""
        """The leader to be followed."""


class SmallElectionWorld(SmallWorld):
    """`unlocks`, `lost_answers`: how many of each may follow. `present`: nodes whose key is there."""

    node_type = ElectedSmallNode

    def __init__(
        self, *, sends: int, unlocks: int, lost_answers: int, waits: int = 0, present: str = "abc"
    ) -> None:
        self.unlocks, self.lost_answers = unlocks, lost_answers
        self.etcd = etcd_of()
        for one in (A, B, C):
            if one.node in present:
                is_here(self.etcd, one)
        self.late: list[Swap] = []
        self.led: tuple[tuple[int, str], ...] = ()
        super().__init__(sends=sends, promotions=0, waits=waits, losses=0)

    # --- the election of a node -------------------------------------------------------------------------
    def _promote(self, _reached: list[SmallNode]) -> None:
        """At the beginning: the first node is elected, and the others follow it."""
        self.promotions = 0
        for node in self.elected:
            node.state.in_sync = InSyncSet(64, 1, frozenset((A, B, C)))
            node.election = Election(ElectionSettings(), node.identity, 0, self._own(node), 0)
            self._elect(node, node.election.begin(0))
            if node is self.elected[0]:
                for step in (("turn", "a"), ("etcd", "a"), ("answer", "a")):
                    self.take(step)
                assert node.leader is not None

    @property
    def elected(self) -> list[ElectedSmallNode]:
        return [node for node in self.nodes.values() if isinstance(node, ElectedSmallNode)]

    def _own(self, node: SmallNode) -> OwnLog:
        state, log = node.state, node.log
        return OwnLog(
            end=log.end,
            flushed=log.flushed,
            commit=state.commit,
            last_epoch=state.epochs.last,
            in_sync=state.in_sync,
        )

    def _elect(self, node: ElectedSmallNode, wanted: Iterable[ElectionAction]) -> None:
        waiting = deque(wanted)
        while waiting:
            waiting.extend(self._elected(node, waiting.popleft()))

    def _elected(self, node: ElectedSmallNode, action: ElectionAction) -> list[ElectionAction]:
        one, now_ms, etcd = node.election, node.now_ms, self.etcd
        assert one is not None
        one.own_log(self._own(node))
        match action:
            case actions.Read():
                return one.read_done(etcd.read(0), now_ms)
            case actions.Grant(ttl_s):
                return one.lease_granted(etcd.grant(ttl_s, 0), now_ms, now_ms)
            case actions.KeepAlive(lease):
                return one.lease_kept(now_ms, etcd.keep_alive(lease, 0), now_ms)
            case actions.Swap(tag, _, changes):
                if all(change.key.startswith(NODES) for change in changes):
                    return one.swap_done(tag, Swapped(True, etcd.read(0)), now_ms)
                node.swap, node.answer = action, None
            case actions.Unfollow():
                self._close(node)
                node.wants = ""
            case actions.Promise(epoch):
                assert epoch > node.state.promised, "a promise is never taken back"
                assert node.follower is None, "a promise while the stream is open"
                node.state.promised = epoch
                return one.promised(epoch, now_ms)
            case actions.Follow(leader, _):
                self._close(node)
                node.wants = leader
            case actions.Lead(epoch, in_sync, _):
                self._begin(node, epoch, in_sync)
            case actions.StepDown():
                self._step_down(node)
            case actions.ConfirmSet(in_sync):
                node.state.in_sync = in_sync
                if node.leader is not None:
                    self._lead(node, node.leader.set_confirmed(in_sync, self.now_ms))
        return []

    def _begin(self, node: ElectedSmallNode, epoch: int, in_sync: InSyncSet) -> None:
        assert epoch not in dict(self.led), "an epoch is led twice"
        assert node.follower is None, "it leads while it follows"
        self.led = (*self.led, (epoch, node.identity.node))
        for end, record in self.acknowledged:
            assert node.log.data[end - len(record) : end] == record, f"{record!r} is missing"
        node.state.promised, node.state.in_sync = epoch, in_sync
        node.state.epochs = node.state.epochs.truncated(node.log.end).begun(epoch, node.log.end)
        node.log.data += b"epoch%5d" % epoch
        node.leader = Leader(
            COORDINATED,
            node.log,
            node.identity,
            node.state.epochs,
            in_sync,
            node.state.commit,
            self.now_ms,
        )
        self._lead(node, node.leader.begin())

    # --- steps ------------------------------------------------------------------------------------------
    def steps(self) -> Iterator[Step]:
        for step in super().steps():
            if step[0] != "dial" or self.nodes[step[1]].wants == step[2]:  # type: ignore[attr-defined]
                yield step
        for node in self.elected:
            name = node.identity.node
            yield "turn", name
            if node.swap is not None and node.answer is None:
                yield "etcd", name
            if node.answer is not None:
                yield "answer", name
            if node.swap is not None and self.lost_answers:
                yield "lose_answer", name
        for number in range(len(self.late)):
            yield "late", str(number)
        if self.unlocks and LOCK in self.etcd.values:
            yield ("unlock",)

    def take(self, step: Step) -> None:
        match step:
            case ("turn", name):
                node = self._node(name)
                node.now_ms += TURN_MS
                assert node.election is not None
                node.election.own_log(self._own(node))
                self._elect(node, node.election.tick(node.now_ms))
            case ("etcd", name):
                node = self._node(name)
                assert node.swap is not None
                node.answer = self._swap(node.swap)
            case ("answer", name):
                node = self._node(name)
                self._answer(node, node.answer)
            case ("lose_answer", name):
                self.lost_answers -= 1
                node = self._node(name)
                if node.answer is None and node.swap is not None:
                    self.late = [*self.late, node.swap]
                self._answer(node, None)
            case ("late", number):
                self._swap(self.late[int(number)])
                self.late = [one for at, one in enumerate(self.late) if at != int(number)]
            case ("unlock",):
                self.unlocks -= 1
                self.etcd.revoke(self.etcd.values[LOCK].lease, 0)
            case _:
                super().take(step)

    def _node(self, name: str) -> ElectedSmallNode:
        node = self.nodes[name]
        assert isinstance(node, ElectedSmallNode)
        return node

    def _swap(self, swap: Swap) -> Swapped:
        before = state_of(self.etcd)
        swapped = self.etcd.swap(swap.compares, swap.changes, 0)
        after = state_of(self.etcd)
        if after.epoch > before.epoch:
            assert after.leader in [one.node for one in before.in_sync], "elected outside of the set"
        assert len(after.in_sync) >= SETTINGS.in_sync_min, "a set below the minimum"
        self._check_copies()
        return swapped

    def _answer(self, node: ElectedSmallNode, answer: Swapped | None) -> None:
        swap, node.swap, node.answer = node.swap, None, None
        assert swap is not None
        assert node.election is not None
        node.election.own_log(self._own(node))
        self._elect(node, node.election.swap_done(swap.tag, answer, node.now_ms))

    def _check_copies(self) -> None:
        """Each copy that may be elected has all that is acknowledged."""
        for one in state_of(self.etcd).in_sync:
            for end, record in self.acknowledged:
                held = self.nodes[one.node].log.data[end - len(record) : end]
                assert held == record, f"{one.node} may be elected, and lacks {record!r}"

    def _lead(self, node: SmallNode, wanted: Iterable[leader_side.LeaderAction]) -> None:
        assert isinstance(node, ElectedSmallNode)
        others: list[leader_side.LeaderAction] = []
        given: list[ElectionAction] = []
        for action in wanted:
            assert node.election is not None
            match action:
                case leader_side.StoreSet(in_sync):
                    given += node.election.in_sync_wanted(in_sync, node.now_ms)
                case leader_side.StepDown(epoch):
                    given += node.election.promise_seen(epoch, node.now_ms)
                case _:
                    others.append(action)
        super()._lead(node, others)
        if node.leader is not None:
            self._check_copies()
        self._elect(node, given)

    # --- copies and keys --------------------------------------------------------------------------------
    def copied(self) -> SmallElectionWorld:
        found = super().copied()
        assert isinstance(found, SmallElectionWorld)
        return found

    def key(self) -> Any:
        """Revisions by their order, as far as they are compared; no times: TURN_MS is longer than all."""
        order = {revision: at for at, revision in enumerate(sorted(self._revisions()))}
        return (
            super().key(),
            self.unlocks,
            self.lost_answers,
            self._key_of_values(self.etcd.read(0), order),
            tuple(self._key_of_swap(one, order) for one in self.late),
            tuple(self._key_of_election(node, order) for node in self.elected),
        )

    def _revisions(self) -> set[int]:
        values = self.etcd.values
        found = {0, values[STATE].changed, *((values[LOCK].changed,) if LOCK in values else ())}
        swaps = [*self.late, *(node.swap for node in self.elected if node.swap is not None)]
        found |= {one.changed for swap in swaps for one in swap.compares}
        for node in self.elected:
            assert node.election is not None
            if (view := node.election.view) is not None:
                found |= {view.state_changed, view.lock_changed}
            if (campaign := node.election._campaign) is not None:
                found.add(campaign.state_changed)
            if node.answer is not None:
                found |= {one.changed for one in node.answer.snapshot.values.values()}
        return found

    @staticmethod
    def _key_of_values(snapshot: Snapshot, order: dict[int, int]) -> Any:
        values = snapshot.values
        lock = values.get(LOCK)
        held = None if lock is None else (lock.value, order[lock.changed])
        return values[STATE].value, order[values[STATE].changed], held

    @staticmethod
    def _key_of_swap(swap: Swap | None, order: dict[int, int]) -> Any:
        if swap is None:
            return None
        puts = tuple((one.key, one.value if isinstance(one, Put) else b"") for one in swap.changes)
        return tuple((one.key, order[one.changed]) for one in swap.compares), puts

    def _key_of_election(self, node: ElectedSmallNode, order: dict[int, int]) -> Any:
        one = node.election
        assert one is not None
        view, campaign, lead = one._view, one._campaign, one._lead
        seen = None if view is None else (view.state, order[view.state_changed], order[view.lock_changed])
        runs = None
        if campaign is not None:
            runs = campaign.promise, order[campaign.state_changed], campaign.is_promised
        answer = None
        if node.answer is not None:
            answer = node.answer.done, self._key_of_values(node.answer.snapshot, order)
        return (
            one._promised,
            one._higher,
            one._followed,
            one._dead,
            seen,
            runs,
            None if lead is None else (lead.epoch, lead.in_sync, lead._wanted),
            node.wants,
            self._key_of_swap(node.swap, order),
            answer,
            one._lease.id == (0 if view is None else view.lock_lease),
        )


CHANGING |= {SmallElectionWorld, ElectedSmallNode, ModelEtcd, Election, OwnLease, Leadership, Campaign}
