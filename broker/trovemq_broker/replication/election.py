"""The election of a group's leader, as one node sees it: by compare-and-swap at a coordinator (etcd).

    begin(), tick(), and an input for each answer -> actions, in order (election_actions.py)

A campaign: the stream to the leader ends, the new epoch is promised on disk, then one swap puts `lock` and
`state`. It compares `state`, `lock` and `config`, so that of all campaigns and changes of the in-sync set
that began from one state, one is done. A campaign without an answer keeps its promise, and reads until it
knows. docs/internals/failover.md has the rules, and why they are safe.

Invariants
- The swap of a campaign is sent after its promise is on disk, and the promise after the stream has ended.
- This node leads an epoch once, and only while it has promised no later one.
- At most one swap and one reading are under way.
- Without the lease no campaign begins. A lease that is lost costs the rights of delivery, not the epoch.
- A reading that is older than this node's knowledge when it asked changes nothing (election_view.went_back).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from trovemq_broker.coordination.coordinator import (
    Change,
    Compare,
    Delete,
    Lease,
    Put,
    Revision,
    Snapshot,
    Swapped,
)
from trovemq_broker.replication.election_actions import (
    ElectionAction,
    Follow,
    Lead,
    OwnLog,
    Promise,
    Read,
    Revoke,
    StepDown,
    Swap,
    Unfollow,
    Watch,
)
from trovemq_broker.replication.election_leadership import Leadership
from trovemq_broker.replication.election_lease import RETRY_MS, OwnLease
from trovemq_broker.replication.election_members import MemberChange
from trovemq_broker.replication.election_records import (
    CONFIG,
    LOCK,
    NODES,
    STATE,
    SWITCH,
    LeaderLock,
    NodeRecord,
    election_state,
    to_bytes,
)
from trovemq_broker.replication.election_switch import TARGET_ALONE_MS
from trovemq_broker.replication.election_view import (
    Known,
    View,
    counted_end,
    not_electable,
    rank,
    set_of_winner,
    viewed,
    went_back,
)
from trovemq_broker.replication.frames import Epoch, Identity, InSyncSet, Node, NowMs
from trovemq_broker.replication.promotion import EPOCH_STEP, epoch_of_leader, epoch_to_promise
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

POLL_MS: Final = 1_000
"""Interval at which the coordinator is read although no change was reported."""
RANK_MS: Final = 150
AGAIN_MS: Final = 50
"""Delay of the next swap after one that was not done."""
NODE_RECORD_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionSettings:
    """`ttl_s`: of the node's lease. The rest is for the node's record at the coordinator."""

    ttl_s: int = 3
    priority: int = 100
    address: str = ""
    replication: str = ""
    version: str = ""


class ElectionRole(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(slots=True, eq=False)
class Campaign:
    """`promise`: is made first; it is below the epochs of all candidates that began from one state, so that
    those who lose follow the winner at once. `epoch`: is led; it has this node's place in its last digits.
    `state_changed`: the revision of the state that it replaces. `is_handed`: the leader before holds no
    rights any more: its process has ended, or it has resigned. `is_alone`: nor does any other node, because
    the group never had one."""

    promise: Epoch
    epoch: Epoch
    state_changed: Revision
    reason: str
    is_handed: bool
    is_alone: bool
    is_promised: bool = False


class _Sent(NamedTuple):
    """A call that is under way. `known`: its answer may not be older."""

    known: Known
    sent_ms: NowMs
    tag: int = 0
    resigns: bool = False


class Election:
    """`promised`: this node's promise, on disk. All times are of one clock, which never steps back and does
    not stop while the machine sleeps."""

    def __init__(
        self, settings: ElectionSettings, me: Identity, promised: Epoch, own: OwnLog, now_ms: NowMs
    ) -> None:
        self._settings: Final = settings
        self._me: Final = me
        self._promised = promised
        self._own = own
        self._lease = OwnLease(settings.ttl_s, now_ms)
        self._now_ms = now_ms
        self._view: View | None = None
        self._view_ms: NowMs = now_ms
        """When the call was sent whose answer it is."""
        self._read: _Sent | None = None
        self._read_due_ms: NowMs = now_ms
        self._swap: _Sent | None = None
        self._tags = 0
        self._fresh_ms: NowMs = now_ms
        """No swap goes by a reading that was asked for before."""
        self._retry_ms: NowMs = now_ms
        """After a swap that was not done, or without an answer, the next one waits until then."""
        self._is_watching = False
        self._watch_ms: NowMs = now_ms
        self._record_ms: NowMs = now_ms
        self._illegal = ""
        self._unable = ""
        self._followed: tuple[Node, Epoch] | None = None
        self._former_ms: NowMs = now_ms
        """The last report to a leader other than the followed one; of a former run of this process, too."""
        self._dead: tuple[Node, Epoch] | None = None
        """A leader whose process has ended."""
        self._higher: Epoch = 0
        """The highest promise that was seen elsewhere."""
        self._opening: tuple[Revision, Revision, bool] | None = None
        self._opening_ms: NowMs = now_ms
        """Since then no other node leads, as far as it is known."""
        self._campaign: Campaign | None = None
        self._lead: Leadership | None = None
        self._is_resigned = False

    # --- for the caller ---------------------------------------------------------------------------------
    @property
    def role(self) -> ElectionRole:
        if self._lead is not None:
            return ElectionRole.LEADER
        return ElectionRole.FOLLOWER if self._campaign is None else ElectionRole.CANDIDATE

    @property
    def epoch(self) -> Epoch:
        """That it leads; 0 for none."""
        return 0 if self._lead is None else self._lead.epoch

    @property
    def problem(self) -> str:
        """For readiness and operators; empty if there is none."""
        lead = "" if self._lead is None else self._lead.problem
        return self.illegal or lead or self._unable

    @property
    def illegal(self) -> str:
        """Why the coordinator's values cannot be right; empty where they can. A leader stays one until its
        lease ends: beyond it another node may lead by an older state, which does not know this node's."""
        return self._illegal and f"{errors.COORDINATION_ILLEGAL.symbol}: {self._illegal}"

    @property
    def lease_until_ms(self) -> NowMs:
        """Of the node's lease; the right of a leader is may_deliver()."""
        return self._lease.until_ms

    @property
    def view(self) -> View | None:
        """The last reading."""
        return self._view

    def may_deliver(self, now_ms: NowMs) -> bool:
        """Whether this node leads for certain: it may append, deliver, and acknowledge for itself. To be
        asked each time: a process that was stopped has lost the right while it slept."""
        lead = self._lead
        if lead is None or (self._swap is not None and self._swap.resigns):
            return False  # the target of a planned switch-over may lead already
        by_lock = lead.lock_lease == self._lease.id and self._lease.holds(now_ms)
        return by_lock or now_ms < lead.stream_until_ms

    def may_deliver_in_order(self, now_ms: NowMs) -> bool:
        """The same for groups whose messages may be held by one consumer only."""
        return self._lead is not None and now_ms >= self._lead.ordered_ms and self.may_deliver(now_ms)

    @property
    def next_tick_ms(self) -> NowMs:
        """tick() is due then."""
        due = [self._read_due_ms, self._lease.due_ms, self._record_ms, self._watch_ms, self._retry_ms]
        if self._view is not None and self._opening is not None:
            due.append(self._opening_due_ms(self._view))
        if self._lead is not None and self._lead.switch is not None:
            due.append(self._lead.switch.ends_ms)
        if self._illegal:
            due.append(self._lease.until_ms)
        # a call that is due already waits for an answer
        return min((one for one in due if one > self._now_ms), default=self._now_ms + POLL_MS)

    # --- inputs -----------------------------------------------------------------------------------------
    def begin(self, now_ms: NowMs) -> list[ElectionAction]:
        """The first of all."""
        return self._next(now_ms)

    def tick(self, now_ms: NowMs) -> list[ElectionAction]:
        return self._next(now_ms)

    def own_log(self, own: OwnLog) -> None:
        """How far this node's log is; before each tick() and promised()."""
        self._own = own

    def read_done(self, snapshot: Snapshot, now_ms: NowMs) -> list[ElectionAction]:
        sent, self._read = self._read, None
        assert sent is not None, "an answer follows a Read"
        self._take(snapshot, sent)
        return self._next(now_ms)

    def swap_done(self, tag: int, swapped: Swapped | None, now_ms: NowMs) -> list[ElectionAction]:
        """None: no answer, so that it may be done, now or later."""
        sent = self._swap
        if sent is None or sent.tag != tag:
            return self._next(now_ms)
        self._swap = None
        if swapped is None:
            self._fresh_ms, self._retry_ms = now_ms, now_ms + RETRY_MS
            self._read_due_ms = min(self._read_due_ms, now_ms)
        else:
            self._take(swapped.snapshot, sent)
            if not swapped.done:
                self._retry_ms = now_ms + AGAIN_MS
                self._lease.ask(now_ms)  # a swap under a lease that is gone is not done, either
        actions: list[ElectionAction] = []
        if sent.resigns and self._lead is not None and (swapped is None or swapped.done):
            actions = self._step_down("the lock was given up for a planned switch-over")
        return actions + self._next(now_ms)

    def coordinator_failed(self, call: str, now_ms: NowMs, *, illegal: str = "") -> list[ElectionAction]:
        """No answer to a `read`, a `grant` or a `keep_alive`. `illegal`: the answer that cannot be right."""
        self._illegal = illegal or self._illegal
        if call == "read":
            self._read, self._read_due_ms = None, now_ms + RETRY_MS
        else:
            self._lease.failed(now_ms)
        return self._next(now_ms)

    def lease_granted(self, lease: Lease, sent_ms: NowMs, now_ms: NowMs) -> list[ElectionAction]:
        """`sent_ms`: when the call was sent."""
        self._lease.granted(lease, sent_ms)
        return self._next(now_ms)

    def lease_kept(self, sent_ms: NowMs, ttl_s: int, now_ms: NowMs) -> list[ElectionAction]:
        """`sent_ms`: when the call was sent. `ttl_s`: 0: the lease is gone."""
        if self._illegal and ttl_s > 0:
            self._lease.failed(now_ms)  # another coordinator's word about a lease is worth nothing
        else:
            self._lease.kept(sent_ms, ttl_s, now_ms)
        return self._next(now_ms)

    def watched(self, revision: Revision, now_ms: NowMs) -> list[ElectionAction]:
        """Something has changed."""
        if self._view is None or revision > self._view.revision:
            self._read_due_ms = min(self._read_due_ms, now_ms)
        return self._next(now_ms)

    def watch_ended(self, now_ms: NowMs) -> list[ElectionAction]:
        self._is_watching, self._watch_ms = False, now_ms + RETRY_MS
        self._read_due_ms = min(self._read_due_ms, now_ms)
        return self._next(now_ms)

    def promised(self, epoch: Epoch, now_ms: NowMs) -> list[ElectionAction]:
        """A promise of this node is on disk: of this campaign, or to a leader that it follows."""
        self._promised = max(self._promised, epoch)
        if (campaign := self._campaign) is not None and campaign.promise == epoch:
            campaign.is_promised = True
        elif campaign is not None and campaign.promise < epoch:
            self._campaign, self._followed = None, None  # it may not lead below a promise
        return self._next(now_ms)

    def promise_seen(self, epoch: Epoch, now_ms: NowMs) -> list[ElectionAction]:
        """Another node has promised that epoch. A leader below it takes a later one, or steps down."""
        self._higher = max(self._higher, epoch)
        actions: list[ElectionAction] = []
        if self._lead is not None and epoch > self._lead.epoch:
            actions = self._step_down(f"epoch {epoch} is promised by another node")
            self._read_due_ms = min(self._read_due_ms, now_ms)
        return actions + self._next(now_ms)

    def leader_lost(self, node: Node, epoch: Epoch, now_ms: NowMs, *, dead: bool) -> list[ElectionAction]:
        """The stream to the leader of that epoch has ended. `dead`: and its machine refuses connections, so
        that its process has ended."""
        if dead:
            self._dead = (node, epoch)
        self._read_due_ms = min(self._read_due_ms, now_ms)
        return self._next(now_ms)

    def in_sync_wanted(self, in_sync: InSyncSet, now_ms: NowMs) -> list[ElectionAction]:
        """The leader's state machine proposes that set; ConfirmSet is the answer."""
        if self._lead is not None:
            self._lead.want(in_sync)
        return self._next(now_ms)

    def streams_answered(self, sent_ms: NowMs, now_ms: NowMs) -> list[ElectionAction]:
        """Each copy that counts has answered a heartbeat that was sent then."""
        if self._lead is not None:
            self._lead.heard(self._lease.right_until(sent_ms))
        return self._next(now_ms)

    def held(self, now_ms: NowMs) -> list[ElectionAction]:
        """The target of a Hold has all that this node has; nothing is appended meanwhile."""
        if self._lead is not None and self._lead.switch is not None:
            self._lead.switch.is_ready = not self._lead.switch.is_over(now_ms)
        return self._next(now_ms)

    def switch_over(self, target: Node, now_ms: NowMs) -> list[ElectionAction]:
        """The leader is to be followed by that node, as planned. ValueError: this node does not lead."""
        if self._lead is None:
            raise ValueError(f"node {self._me.node} does not lead")
        actions = [] if self._lead.switch is not None else self._lead.begin_switch(target, 0, now_ms)
        return actions + self._next(now_ms)

    def resign(self, now_ms: NowMs) -> list[ElectionAction]:
        """The process ends: no lease, no lock, no campaign any more."""
        self._is_resigned = True
        actions: list[ElectionAction] = []
        if self._lead is not None:
            actions = self._step_down("this node stops")
        self._campaign = None
        self._lease.end()
        if self._lease.id:
            actions.append(Revoke(self._lease.id))
        return actions + self._next(now_ms)

    def change_members(self, change: MemberChange, now_ms: NowMs) -> list[ElectionAction]:
        """One change of the members (election_members.py); Regroup says that it is done. ValueError: it is
        refused, or this node does not lead."""
        if self._lead is None or self._view is None:
            raise ValueError(f"node {self._me.node} does not lead")
        self._lead.change_members(change, self._view)
        return self._next(now_ms)

    # --- the next actions ---------------------------------------------------------------------------------
    def _next(self, now_ms: NowMs) -> list[ElectionAction]:
        """All that is due now."""
        self._now_ms = now_ms
        actions: list[ElectionAction] = [*self._lease.next(now_ms)]
        view = self._view
        if self._lead is not None:
            actions += self._leading(self._lead, view, now_ms)
        if self._lead is None and view is not None and not self._illegal:
            actions += self._following(view, now_ms)
        if view is not None and not self._is_watching and now_ms >= self._watch_ms:
            self._is_watching = True
            actions.append(Watch(view.revision))
        if view is not None and self._may_swap:
            actions += self._node_record(view, now_ms)
        if self._read is None and now_ms >= self._read_due_ms:
            self._read, self._read_due_ms = _Sent(self._known, now_ms), now_ms + POLL_MS
            actions.append(Read())
        return actions

    def _take(self, snapshot: Snapshot, sent: _Sent) -> None:
        """An answer of the coordinator."""
        try:
            view = viewed(snapshot)
        except TroveError as error:
            self._illegal = error.message
            return
        self._illegal = went_back(view, sent.known)
        if self._illegal or view is None:
            return
        if self._view is None or view.revision >= self._view.revision:
            self._view, self._view_ms = view, sent.sent_ms

    @property
    def _known(self) -> Known:
        own, view = self._own, self._view
        in_sync = own.in_sync or InSyncSet(0, 0, frozenset())
        epoch, version = max(own.last_epoch, in_sync.epoch), in_sync.version
        if view is None:
            return Known(0, epoch, version)
        return Known(view.revision, max(epoch, view.state.epoch), max(version, view.state.version))

    @property
    def _is_fresh(self) -> bool:
        """Whether the reading has the outcome of all swaps, as far as they are done."""
        return self._swap is None and not self._illegal and self._view_ms >= self._fresh_ms

    @property
    def _may_swap(self) -> bool:
        return self._is_fresh and self._now_ms >= self._retry_ms

    def _swapped(
        self,
        compares: tuple[Compare, ...],
        changes: tuple[Change, ...],
        now_ms: NowMs,
        *,
        resigns: bool = False,
    ) -> list[ElectionAction]:
        self._tags += 1
        self._swap = _Sent(self._known, now_ms, self._tags, resigns)
        return [Swap(self._tags, compares, changes)]

    def _node_record(self, view: View, now_ms: NowMs) -> list[ElectionAction]:
        node, lease, own = self._me.node, self._lease, self._own
        if self._is_resigned or now_ms < self._record_ms or not lease.holds(now_ms):
            return []
        self._record_ms = now_ms + NODE_RECORD_MS
        record = NodeRecord(
            node=node,
            store_id=self._me.store_id,
            incarnation=self._me.incarnation,
            address=self._settings.address,
            replication=self._settings.replication,
            version=self._settings.version,
            held=counted_end(own, is_sync=view.config.is_sync),
            last_epoch=own.last_epoch,
            priority=self._settings.priority,
        )
        if view.nodes.get(node) == record and view.node_leases.get(node) == lease.id:
            return []
        return self._swapped((), (Put(f"{NODES}{node}", to_bytes(record), lease.id),), now_ms)

    # --- as the leader ------------------------------------------------------------------------------------
    def _leading(self, lead: Leadership, view: View | None, now_ms: NowMs) -> list[ElectionAction]:
        assert view is not None, "it was elected by a reading"
        if self._illegal:
            is_over = not self._lease.holds(now_ms)
            return self._step_down(self.illegal) if is_over else []
        if lead.is_deposed(view):
            return self._step_down(f"{view.state.leader} leads epoch {view.state.epoch}")
        actions = lead.saw(view, now_ms)
        if self._swap is not None and self._swap.resigns:
            if lead.switch is not None and lead.switch.is_over(now_ms):
                return actions + self._step_down("the lock may be given up for a planned switch-over")
        else:
            actions += lead.tick(now_ms)
        if self._may_swap and (wanted := lead.swap(view, self._own, self._lease, now_ms)) is not None:
            actions += self._swapped(wanted.compares, wanted.changes, now_ms, resigns=wanted.resigns)
        return actions

    def _step_down(self, reason: str) -> list[ElectionAction]:
        self._lead, self._opening = None, None
        return [StepDown(reason)]

    # --- as a follower or a candidate ---------------------------------------------------------------------
    def _following(self, view: View, now_ms: NowMs) -> list[ElectionAction]:
        if self._campaign is not None:
            return self._campaigning(self._campaign, view, now_ms)
        actions = [] if self._is_resigned else self._follow(view)
        self._unable = not_electable(view, self._me, self._own)
        if view.has_lock(self._me) and (self._unable or self._is_resigned):
            if self._may_swap:
                # of a former run, or given up
                actions += self._swapped((Compare(LOCK, view.lock_changed),), (Delete(LOCK),), now_ms)
            return actions
        if not self._is_open(view):
            self._opening = None
            return actions
        opening = (view.state_changed, view.lock_changed, self._dead_leader(view) != "")
        if opening != self._opening:
            self._opening, self._opening_ms = opening, now_ms
        if self._unable or self._is_resigned or (view.is_paused and not self._is_expected(view)):
            return actions
        due_ms = self._opening_due_ms(view)
        if now_ms < due_ms or not self._may_swap or not self._lease.holds(now_ms):
            return actions
        if self._view_ms < due_ms:
            self._read_due_ms = min(self._read_due_ms, now_ms)  # another one may lead meanwhile
            return actions
        return self._begin_campaign(view)

    def _follow(self, view: View) -> list[ElectionAction]:
        leader = (view.state.leader, view.state.epoch)
        if leader[0] == self._me.node or leader == self._followed or leader[1] < self._own.last_epoch:
            return []
        self._former_ms = max(self._former_ms, self._own.reported_ms)
        self._followed = leader
        return [Follow(*leader)]

    def _dead_leader(self, view: View) -> Node:
        """The leader, if its process has ended; else empty."""
        leader = (view.state.leader, view.state.epoch)
        return leader[0] if leader == self._dead else ""

    def _is_open(self, view: View) -> bool:
        """Whether no other node leads, as far as it is known. For safety it does not matter."""
        return view.lock is None or view.lock.node in (self._me.node, self._dead_leader(view))

    def _named(self, view: View) -> Node:
        """The node for which the leader has resigned; empty where it has not, or the node is not in sync."""
        switch, state = view.switch, view.state
        if view.lock is not None or switch is None or switch.resigned != state.epoch:
            return ""
        return switch.target if any(one.node == switch.target for one in state.in_sync) else ""

    def _is_expected(self, view: View) -> bool:
        """Whether its leadership is no failover."""
        return self._me.node in (view.state.leader, self._named(view))

    def _opening_due_ms(self, view: View) -> NowMs:
        """When this node campaigns, after the others that should lead before it."""
        named = self._named(view)
        if view.has_lock(self._me) or named == self._me.node:
            return self._opening_ms
        dead = self._dead_leader(view)
        wait_ms = RANK_MS * rank(view, self._me, self._own, self._settings.priority, dead)
        if named:
            wait_ms += TARGET_ALONE_MS
        return self._opening_ms + wait_ms

    def _begin_campaign(self, view: View) -> list[ElectionAction]:
        highest = max(self._promised, view.state.epoch, self._higher)
        places = view.config.listed.places
        promise = highest // EPOCH_STEP * EPOCH_STEP + EPOCH_STEP
        epoch = epoch_of_leader(epoch_to_promise(highest, self._me.node, places), self._me.node, places)
        reason = "the lock was absent"
        if self._named(view) == self._me.node:
            reason = "a planned switch-over"
        elif self._dead_leader(view):
            reason = "the leader's process has ended"
        is_handed = self._is_expected(view) or self._dead_leader(view) != ""
        listed = view.config.listed
        is_alone = len(listed.nodes) == 1 and not listed.removed
        self._campaign = Campaign(promise, epoch, view.state_changed, reason, is_handed, is_alone)
        return [Unfollow(), Promise(promise)]

    def _campaigning(self, campaign: Campaign, view: View, now_ms: NowMs) -> list[ElectionAction]:
        if not campaign.is_promised or not self._is_fresh:
            return []
        assert self._promised == campaign.promise, "a later promise ends a campaign"
        state = view.state
        if (state.epoch, state.leader) == (campaign.epoch, self._me.node):
            return self._won(campaign, view, now_ms)
        is_able = not not_electable(view, self._me, self._own)
        is_lost = view.state_changed != campaign.state_changed or not self._is_open(view) or not is_able
        if is_lost or not self._lease.holds(now_ms):
            self._campaign, self._followed = None, None  # the promise stays
            return self._following(view, now_ms)
        if not self._may_swap:
            return []
        copies = set_of_winner(view, self._me, self._dead_leader(view))
        later = election_state(state, campaign.epoch, self._me.node, copies, campaign.reason)
        lock = LeaderLock(epoch=campaign.epoch, node=self._me.node, store_id=self._me.store_id)
        compares = (
            Compare(LOCK, view.lock_changed),
            Compare(STATE, view.state_changed),
            Compare(CONFIG, view.config_changed),
        )
        changes: tuple[Change, ...] = (
            Put(LOCK, to_bytes(lock), self._lease.id),
            Put(STATE, to_bytes(later)),
        )
        if view.switch is not None:
            changes = (*changes, Delete(SWITCH))
        return self._swapped(compares, changes, now_ms)

    def _won(self, campaign: Campaign, view: View, now_ms: NowMs) -> list[ElectionAction]:
        """Also by an answer that came late: no other node was elected since, and this one followed none."""
        last_ms = max(self._former_ms, 0 if campaign.is_handed else self._own.reported_ms)
        ordered_ms = now_ms if campaign.is_alone else max(now_ms, last_ms + self._settings.ttl_s * 1_000)
        self._campaign, self._followed, self._opening = None, None, None
        self._promised = campaign.epoch
        lead = self._lead = Leadership(self._me, view, ordered_ms, now_ms)
        actions: list[ElectionAction] = [Lead(lead.epoch, lead.in_sync, lead.config)]
        return actions + self._leading(lead, view, now_ms)
