"""One node's election at the model of etcd: each call is answered at once, unless a test takes it away."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec.structs import replace

from tests.unit.replication.model_etcd import ModelEtcd
from tests.unit.replication.model_log import SEGMENT_SIZE
from trovemq_broker.coordination.coordinator import Put
from trovemq_broker.replication import election_actions as actions
from trovemq_broker.replication.election import Election, ElectionSettings
from trovemq_broker.replication.election_actions import ElectionAction, OwnLog
from trovemq_broker.replication.election_members import founded
from trovemq_broker.replication.election_records import (
    CONFIG,
    LOCK,
    NODES,
    STATE,
    GroupConfig,
    GroupState,
    LeaderLock,
    NodeRecord,
    from_bytes,
    to_bytes,
)
from trovemq_broker.replication.frames import Identity, InSyncSet
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.replica.membership import Member, Members

Kind = TypeVar("Kind")


def identity(node: str, store: int = 0, incarnation: int = 0) -> Identity:
    return Identity(node, f"{node}-{store}", incarnation)


A, B, C = identity("a"), identity("b"), identity("c")


def config_of(names: Iterable[str], in_sync_min: int = 2, *, is_sync: bool = True) -> GroupConfig:
    members = Members.first(Member(name, f"{name}:1", f"{name}:2") for name in names)
    return GroupConfig(
        cluster="c",
        group="g",
        in_sync_min=in_sync_min,
        is_sync=is_sync,
        segment_size=SEGMENT_SIZE,
        listed=members,
    )


def etcd_of(
    names: str = "abc",
    in_sync: tuple[Identity, ...] = (A, B, C),
    *,
    in_sync_min: int = 2,
    is_sync: bool = True,
    commit_floor: int = 0,
) -> ModelEtcd:
    """A group whose leader, the first of the set, is gone."""
    config = config_of(names, in_sync_min, is_sync=is_sync)
    state = replace(founded(config, in_sync[0], 64, 1), in_sync=in_sync, commit_floor=commit_floor)
    etcd = ModelEtcd()
    etcd.swap((), (Put(CONFIG, to_bytes(config)), Put(STATE, to_bytes(state))), 0)
    return etcd


def state_of(etcd: ModelEtcd) -> GroupState:
    return from_bytes(STATE, etcd.values[STATE].value, GroupState)


def lock_as(etcd: ModelEtcd, holder: Identity, epoch: int, now_ms: int = 0) -> None:
    """Another node holds the lock; and is there."""
    lease = etcd.grant(1_000, now_ms)
    lock = LeaderLock(epoch=epoch, node=holder.node, store_id=holder.store_id)
    etcd.swap((), (Put(LOCK, to_bytes(lock), lease.id),), now_ms)
    is_here(etcd, holder, now_ms=now_ms)


def is_here(etcd: ModelEtcd, one: Identity, held: int = 0, now_ms: int = 0) -> None:
    record = NodeRecord(node=one.node, store_id=one.store_id, incarnation=one.incarnation, held=held)
    lease = etcd.grant(1_000, now_ms)
    etcd.swap((), (Put(f"{NODES}{one.node}", to_bytes(record), lease.id),), now_ms)


class OneNode:
    """`did`: all actions, in order. `lost`: kinds of calls that are done, and whose answers are lost.
    `away`: kinds of calls that are not done. `slow`: promises that wait for promise()."""

    def __init__(
        self,
        etcd: ModelEtcd,
        me: Identity = B,
        *,
        promised: int = 0,
        end: int = 100,
        last_epoch: int = 64,
        slow: bool = False,
        cannot_lead: str = "",
    ) -> None:
        self.etcd, self.me, self.now_ms = etcd, me, 0
        self.promised = promised
        self.did: list[ElectionAction] = []
        self.lost: set[type] = set()
        self.away: set[type] = set()
        self.slow = slow
        self.own = OwnLog(
            end=PhysicalOffset(end),
            flushed=PhysicalOffset(end),
            commit=PhysicalOffset(0),
            last_epoch=last_epoch,
            cannot_lead=cannot_lead,
        )
        self.election = Election(ElectionSettings(), me, promised, self.own, 0)
        self.run(self.election.begin(0))

    def run(self, wanted: list[ElectionAction]) -> None:
        waiting = deque(wanted)
        while waiting:
            action = waiting.popleft()
            self.did.append(action)
            waiting.extend(self._done(action))

    def after(self, time_ms: int, step_ms: int = 50) -> None:
        """Time passes; ticks come as they are due."""
        end_ms = self.now_ms + time_ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + step_ms)
            self.etcd.expire(self.now_ms)
            self.run(self.election.tick(self.now_ms))

    def promise(self) -> None:
        """The last one that was asked for is on disk."""
        self.promised = self.last(actions.Promise).epoch
        self.run(self.election.promised(self.promised, self.now_ms))

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [one for one in self.did if isinstance(one, kind)]

    def last(self, kind: type[Kind]) -> Kind:
        return self.all(kind)[-1]

    @property
    def leads(self) -> bool:
        return self.election.epoch > 0

    def _done(self, action: ElectionAction) -> list[ElectionAction]:
        one, now_ms = self.election, self.now_ms
        if isinstance(action, actions.Promise) and not self.slow:
            self.promised = action.epoch
            return one.promised(action.epoch, now_ms)
        if type(action) in self.away:
            return self._failed(action)
        try:
            found = self._answer(action)
        except TroveError:
            return self._failed(action)
        return self._failed(action) if type(action) in self.lost else found()

    def _answer(self, action: ElectionAction) -> Callable[[], list[ElectionAction]]:
        one, now_ms, etcd = self.election, self.now_ms, self.etcd
        match action:
            case actions.Read():
                snapshot = etcd.read(now_ms)
                return lambda: one.read_done(snapshot, now_ms)
            case actions.Swap(tag, compares, changes):
                swapped = etcd.swap(compares, changes, now_ms)
                return lambda: one.swap_done(tag, swapped, now_ms)
            case actions.Grant(ttl_s):
                lease = etcd.grant(ttl_s, now_ms)
                return lambda: one.lease_granted(lease, now_ms, now_ms)
            case actions.KeepAlive(lease_id):
                left_s = etcd.keep_alive(lease_id, now_ms)
                return lambda: one.lease_kept(now_ms, left_s, now_ms)
            case actions.Revoke(lease_id):
                etcd.revoke(lease_id, now_ms)
        return list

    def _failed(self, action: ElectionAction) -> list[ElectionAction]:
        calls = {actions.Read: "read", actions.Grant: "grant", actions.KeepAlive: "keep_alive"}
        if isinstance(action, actions.Swap):
            return self.election.swap_done(action.tag, None, self.now_ms)
        if (call := calls.get(type(action))) is not None:
            return self.election.coordinator_failed(call, self.now_ms)
        return []


def config_at(etcd: ModelEtcd) -> GroupConfig:
    return from_bytes(CONFIG, etcd.values[CONFIG].value, GroupConfig)


def leading(etcd: ModelEtcd | None = None, me: Identity = B) -> OneNode:
    node = OneNode(etcd or etcd_of(), me)
    node.after(500)
    assert node.leads
    return node


def wanted(node: OneNode, *copies: Identity) -> InSyncSet:
    """The leader's state machine proposes that set."""
    version = state_of(node.etcd).version + 1
    return InSyncSet(node.election.epoch, version, frozenset(copies))
