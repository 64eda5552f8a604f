"""A leadership, as the coordinator sees it: its lock, the in-sync set, the members, a planned switch-over.

Invariants
- A set is written only with this epoch, over the state that was read last, and by the list of members that
  was read last. It is confirmed when a reading has it, however late its own answer comes.
- A set that is written has `in_sync_min` copies, or as many as the one before.
- Ordered groups get deliveries while the coordinator cannot have ended this node's lease, or while each copy
  that counts answered a heartbeat lately: none of them was elected meanwhile.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from trovemq_broker.coordination.coordinator import Change, Compare, Delete, Put, Revision
from trovemq_broker.replication.election_actions import (
    ConfirmSet,
    ElectionAction,
    Hold,
    OwnLog,
    Regroup,
    Release,
)
from trovemq_broker.replication.election_lease import OwnLease
from trovemq_broker.replication.election_members import MemberChange, members_changed
from trovemq_broker.replication.election_records import (
    CONFIG,
    LOCK,
    STATE,
    SWITCH,
    GroupConfig,
    LeaderLock,
    SwitchWanted,
    to_bytes,
)
from trovemq_broker.replication.election_switch import SwitchOver
from trovemq_broker.replication.election_view import View
from trovemq_broker.replication.frames import Epoch, Identity, InSyncSet, Node, NowMs, Offset

FLOOR_MS: Final = 10_000
"""Interval at which the commit is written into the state, if nothing else is."""


class WantedSwap(NamedTuple):
    """`resigns`: once it may be done, this node leads no more."""

    compares: tuple[Compare, ...]
    changes: tuple[Change, ...]
    resigns: bool = False


class Leadership:
    """`ordered_ms`: the rights of all leaders before have ended then."""

    def __init__(self, me: Identity, view: View, ordered_ms: NowMs, now_ms: NowMs) -> None:
        self._me: Final = me
        self.epoch: Final[Epoch] = view.state.epoch
        self.in_sync: InSyncSet = view.state.set
        """Confirmed."""
        self.config = view.config
        self.ordered_ms: Final = ordered_ms
        self.stream_until_ms: NowMs = now_ms
        """The stream lease."""
        self.lock_lease = view.lock_lease
        self.switch: SwitchOver | None = None
        self.problem = ""
        self._wanted: InSyncSet | None = None
        self._change: MemberChange | None = None
        self._floor_ms: NowMs = now_ms + FLOOR_MS
        self._switch_answered: Revision = 0
        """The key `switch` of that revision is to be deleted: it was refused, or abandoned."""

    def is_deposed(self, view: View) -> bool:
        return (view.state.epoch, view.state.leader) != (self.epoch, self._me.node)

    # --- inputs -----------------------------------------------------------------------------------------
    def saw(self, view: View, now_ms: NowMs) -> list[ElectionAction]:
        """A reading in which this node still leads."""
        actions: list[ElectionAction] = []
        self.lock_lease = view.lock_lease if view.has_lock(self._me) else 0
        if view.state.version > self.in_sync.version:
            self.in_sync = view.state.set
            actions.append(ConfirmSet(self.in_sync))
        if view.config != self.config:
            self.config = view.config
            actions.append(Regroup(self.config))
        if view.switch is not None and view.switch_changed != self._switch_answered and self.switch is None:
            actions += self.begin_switch(view.switch.target, view.switch_changed, now_ms)
        return actions

    def heard(self, until_ms: NowMs) -> None:
        """Each copy that counts has answered: the stream lease."""
        self.stream_until_ms = max(self.stream_until_ms, until_ms)

    def want(self, in_sync: InSyncSet) -> None:
        """The state machine of the leader proposes that set. It counts both until one is confirmed."""
        if in_sync.epoch == self.epoch:
            self._wanted = in_sync

    def change_members(self, change: MemberChange, view: View) -> None:
        """ValueError: refused, or another change is under way."""
        if self._change is not None:
            raise ValueError("another change of the members is under way")
        members_changed(view.config, view.state, change)
        self._change = change

    def begin_switch(self, target: Node, key: Revision, now_ms: NowMs) -> list[ElectionAction]:
        """`key`: the revision of the key `switch`; 0 without one."""
        if target == self._me.node or target not in self.in_sync.nodes:
            self.problem = f"node {target} cannot take over: it leads already, or is not in sync"
            self._switch_answered = key
            return []
        self.switch = SwitchOver(target, now_ms, key)
        return [Hold(target)]

    def tick(self, now_ms: NowMs) -> list[ElectionAction]:
        """A hold that takes too long is abandoned. One whose lock may be deleted already is not."""
        switch = self.switch
        if switch is None or not switch.is_over(now_ms):
            return []
        self.switch, self._switch_answered = None, switch.key
        self.problem = f"node {switch.target} did not take over within the time of a hold"
        return [Release()]

    # --- the next swap ------------------------------------------------------------------------------------
    def swap(self, view: View, own: OwnLog, lease: OwnLease, now_ms: NowMs) -> WantedSwap | None:
        """The next write, if one is due. `own`: this node's log."""
        state, config = Compare(STATE, view.state_changed), Compare(CONFIG, view.config_changed)
        lock = Compare(LOCK, view.lock_changed)
        if self.lock_lease != lease.id or not view.has_lock(self._me):
            # the lease was lost; no other node was elected since, or the state's revision had moved
            return WantedSwap((lock, state), (self._lock(lease),)) if lease.holds(now_ms) else None
        if (switch := self.switch) is not None and switch.is_ready:
            resigned = SwitchWanted(target=switch.target, by=self._me.node, resigned=self.epoch)
            changes = (Delete(LOCK), Put(SWITCH, to_bytes(resigned)))
            return WantedSwap((lock, state), changes, resigns=True)
        if view.switch_changed and view.switch_changed == self._switch_answered:
            return WantedSwap((Compare(SWITCH, view.switch_changed),), (Delete(SWITCH),))
        if (wanted := self._next_set(view)) is not None:
            later = view.state.with_set(wanted, self._floor(own))
            self._floor_ms = now_ms + FLOOR_MS
            return WantedSwap((state, config), (Put(STATE, to_bytes(later)),))
        if (changed := self._next_config(view)) is not None:
            return WantedSwap((state, config), (Put(CONFIG, to_bytes(changed)),))
        if now_ms >= self._floor_ms and (floor := self._floor(own)) > view.state.commit_floor:
            self._floor_ms = now_ms + FLOOR_MS
            later = view.state.with_set(view.state.set, floor)
            return WantedSwap((state, config), (Put(STATE, to_bytes(later)),))
        return None

    def _lock(self, lease: OwnLease) -> Put:
        value = LeaderLock(epoch=self.epoch, node=self._me.node, store_id=self._me.store_id)
        return Put(LOCK, to_bytes(value), lease.id)

    @staticmethod
    def _floor(own: OwnLog) -> Offset:
        return own.commit

    def _next_set(self, view: View) -> InSyncSet | None:
        wanted, state = self._wanted, view.state
        if wanted is None or wanted.version <= state.version:
            self._wanted = None
            return None
        voters = view.config.listed.places
        if not all(one.node in voters for one in wanted.copies):
            return None  # a member was removed meanwhile: the leader proposes another one
        needed = min(view.config.in_sync_needed, len(state.in_sync))
        assert len(wanted.copies) >= needed, "the set never shrinks below its minimum"
        return wanted

    def _next_config(self, view: View) -> GroupConfig | None:
        change, self._change = self._change, None
        if change is None:
            return None
        try:
            return members_changed(view.config, view.state, change)
        except ValueError as error:
            self.problem = f"the change of the members was refused: {error}"
            return None
