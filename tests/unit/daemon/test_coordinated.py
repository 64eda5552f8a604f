"""The election beside a node's roles: the group in etcd, and the order of the node's actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.daemon.memory_coordinator import MemoryCoordinator
from tests.unit.rpc.memory_rpc import run
from trovemq_broker.coordination.coordinator import Change, Compare, Put, Swapped
from trovemq_broker.daemon.replica import coordinated
from trovemq_broker.daemon.replica.coordinated import Coordinated
from trovemq_broker.daemon.replica.election_figures import ElectionFigures
from trovemq_broker.daemon.replica.election_group import FORGET_TRIES, ElectionGroup
from trovemq_broker.daemon.replica.gathering import Leadership
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.election import Election
from trovemq_broker.replication.election_actions import ElectionAction
from trovemq_broker.replication.election_records import (
    CONFIG,
    LOCK,
    STATE,
    GroupConfig,
    GroupState,
    from_bytes,
)
from trovemq_broker.replication.follower import ReplicaState
from trovemq_broker.replication.frames import Epoch, Identity, InSyncSet
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_store.replica.conversion import FIRST_EPOCH
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.membership import Member, Members, Membership

A = Identity("a", "store-a", 1)
B = Identity("b", "store-b", 1)
LISTED = Members.first(
    [Member(one, f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}") for one, port in (("a", 1), ("b", 3))]
)
SETTINGS = BrokerSettings(
    coordination="etcd",
    name="g",
    node_name="a",
    replication_listen="127.0.0.1:2",
    etcd_endpoints=("127.0.0.1:2379",),
)


class FakeRole:
    """A role whose store is open. `done`: the calls of the election."""

    def __init__(self, place: Membership | None, *, leads: Epoch | None = None) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.leads = leads
        self.reported_ms = 0
        self.cannot_lead = ""
        self.has_ended = False
        offset = PhysicalOffset(100)
        self.node: Any = SimpleNamespace(
            place_if_any=place,
            place=place,
            state=ReplicaState(0, Epochs(), offset, None if place is None else place.in_sync),
            log=SimpleNamespace(begin=PhysicalOffset(0), end=offset, flushed=offset),
            store=SimpleNamespace(settings=SimpleNamespace(commit_log_file_size=1 << 20)),
        )

    def answered_ms(self, now_ms: int) -> int | None:
        return None if self.leads is None else now_ms

    async def unfollow(self) -> None:
        self.done.append(("unfollow",))

    async def promise_own(self, epoch: Epoch) -> None:
        if self.has_ended:
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the node changes its role: try again")
        self.done.append(("promise", epoch))
        self.node.state.promised = epoch

    def lead(self, leadership: Leadership) -> None:
        self.done.append(("lead", leadership.epoch))

    def step_down(self, reason: str) -> None:
        self.done.append(("step down",))

    def retarget(self) -> None:
        self.done.append(("retarget",))

    def confirm(self, in_sync: InSyncSet) -> None:
        self.done.append(("confirm", in_sync.nodes))

    @property
    def steps(self) -> list[str]:
        return [one[0] for one in self.done]


def place(me: Identity = A, *, founds: bool = False, cluster: str = "id") -> Membership:
    first = InSyncSet(FIRST_EPOCH, 1, frozenset({me}))
    return Membership(
        cluster=cluster,
        group="g",
        node=me.node,
        store_id=me.store_id,
        directory=7,
        in_sync_min=2,
        listed=LISTED,
        in_sync=first if founds else None,
        leads=founds,
    )


class Here:
    """A node beside a coordinator; virtual time."""

    def __init__(self, coordinator: MemoryCoordinator, me: str = "a") -> None:
        self.coordinator = coordinator
        settings = SETTINGS.__class__(**{**SETTINGS.__dict__, "node_name": me})
        self.group = ElectionGroup(settings, coordinator, "0.1.0")
        self.figures = ElectionFigures("g")
        self.election = Coordinated(coordinator, self.group, self.figures)
        self.task = asyncio.create_task(self.election.run())

    def takes(self, role: FakeRole | None) -> FakeRole | None:
        given: Any = role
        self.election.role_is(given)
        return role

    async def until(self, found: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not found():
                if self.task.done():
                    self.task.result()
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def in_time(
    program: Callable[[MemoryCoordinator], Coroutine[Any, Any, None]], patch: pytest.MonkeyPatch
) -> None:
    async def main(loop: MemoryLoop) -> None:
        patch.setattr(coordinated, "boot_ms", lambda: int(loop.time() * 1_000) + 1_000_000)
        await program(MemoryCoordinator())

    run(main)


def test_a_founder_writes_the_group_once_and_leads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(coordinator: MemoryCoordinator) -> None:
        here = Here(coordinator)
        assert here.election.no_founding == "etcd was not asked yet"
        role = FakeRole(None)
        here.takes(role)
        await here.until(lambda: here.election.no_founding == "")
        assert here.election.problem == "the node has no group yet"
        role.node.place_if_any = role.node.place = place(founds=True)
        role.node.state.in_sync = role.node.place.in_sync
        await here.until(lambda: "lead" in role.steps)
        config = from_bytes(CONFIG, coordinator.values[CONFIG].value, GroupConfig)
        assert (config.cluster, config.group, config.listed) == ("id", "g", LISTED)
        state = from_bytes(STATE, coordinator.values[STATE].value, GroupState)
        assert (state.leader, state.in_sync, coordinator.values[STATE].created) == ("a", (A,), 2)
        assert role.done == [("unfollow",), ("promise", state.epoch), ("lead", state.epoch)]
        assert here.election.leader == ("a", state.epoch)
        assert here.election.may_append()
        assert here.figures.lease_left_s() > 0
        await here.end()

    in_time(program, monkeypatch)


def test_a_node_of_a_group_that_etcd_does_not_know_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(coordinator: MemoryCoordinator) -> None:
        here = Here(coordinator)
        led = place(founds=True)
        later = InSyncSet(74, 5, frozenset({A}))
        role = FakeRole(led)
        role.node.place = role.node.place_if_any = led.with_set(later)
        here.takes(role)
        await here.until(lambda: "etcd has nothing of the group" in here.election.problem)
        assert (coordinator.values, role.done) == ({}, [])
        await here.end()

    in_time(program, monkeypatch)


def test_a_node_of_another_group_of_the_same_name_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(coordinator: MemoryCoordinator) -> None:
        first = Here(coordinator)
        founder = FakeRole(place(founds=True))
        first.takes(founder)
        await first.until(lambda: "lead" in founder.steps)
        other = Here(coordinator, "b")
        role = FakeRole(place(B, founds=True, cluster="another"))
        other.takes(role)
        await other.until(lambda: "etcd has another group g (id)" in other.election.problem)
        assert role.done == []
        new = Here(coordinator, "b")
        new.takes(FakeRole(None))
        await new.until(lambda: "etcd has this group already" in new.election.no_founding)
        for one in (first, other, new):
            await one.end()

    in_time(program, monkeypatch)


def test_a_promise_waits_for_the_role_that_comes_after_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def program(coordinator: MemoryCoordinator) -> None:
        here = Here(coordinator)
        ended = FakeRole(place(founds=True))
        ended.has_ended = True
        here.takes(ended)
        await here.until(lambda: "unfollow" in ended.steps)
        here.takes(None)
        await asyncio.sleep(0.5)
        role = FakeRole(place(founds=True))
        here.takes(role)
        await here.until(lambda: "lead" in role.steps)
        assert ended.steps == ["unfollow"]
        assert role.steps == ["promise", "lead"]
        await here.end()

    in_time(program, monkeypatch)


def test_a_leader_whose_lock_is_gone_steps_down_and_its_late_role_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def program(coordinator: MemoryCoordinator) -> None:
        here = Here(coordinator)
        follower = FakeRole(place(founds=True))
        here.takes(follower)
        await here.until(lambda: "lead" in follower.steps)
        (_, epoch) = follower.done[-1]
        here.takes(None)
        state = from_bytes(STATE, coordinator.values[STATE].value, GroupState)
        later = GroupState(epoch=epoch + 64, leader="b", version=state.version + 1, in_sync=(B,))
        await write(coordinator, later)
        await here.until(lambda: not here.election.may_append())
        late = FakeRole(place(founds=True), leads=epoch)
        here.takes(late)
        assert late.steps == ["step down"]
        await here.end()

    in_time(program, monkeypatch)


def test_a_follower_reads_etcd_after_it_refused_a_change_of_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reading that was due at that moment was begun, and never sent."""

    async def program(coordinator: MemoryCoordinator) -> None:
        first = Here(coordinator)
        founder = FakeRole(place(founds=True))
        first.takes(founder)
        await first.until(lambda: "lead" in founder.steps)
        follower = Here(coordinator, "b")
        role = FakeRole(place(B))
        follower.takes(role)
        await follower.until(lambda: "retarget" in role.steps)
        await first.end()

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(coordinated, "boot_ms", lambda: int(loop.time() * 1_000) + 1_001_500)
        role.node.state.promised = 1 << 16
        with pytest.raises(TroveError, match="REPLICA_STATE_ILLEGAL"):
            await follower.election.change_members(lambda changes: changes.remove("c", [], ()))
        state = from_bytes(STATE, coordinator.values[STATE].value, GroupState)
        later = GroupState(epoch=2 << 16, leader="a", version=state.version + 1, in_sync=(A,))
        await write(coordinator, later)
        await follower.until(lambda: follower.election.leader == ("a", 2 << 16))
        await follower.end()

    in_time(program, monkeypatch)


def test_an_election_that_fails_in_its_timer_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop logged it, no tick came any more, and the node stayed as it was."""

    async def program(coordinator: MemoryCoordinator) -> None:
        here = Here(coordinator)
        role = FakeRole(place(founds=True))
        here.takes(role)
        await here.until(lambda: "lead" in role.steps)

        def fails(_election: Election, _now_ms: int) -> list[ElectionAction]:
            raise AssertionError("a rule is broken")

        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        monkeypatch.setattr(Election, "tick", fails)
        with pytest.raises(AssertionError, match="a rule is broken"):
            await asyncio.wait_for(here.task, 30)

    in_time(program, monkeypatch)


async def write(coordinator: MemoryCoordinator, state: GroupState) -> None:
    from trovemq_broker.coordination.coordinator import Delete, Put
    from trovemq_broker.replication.election_records import to_bytes

    await coordinator.swap([], [Put(STATE, to_bytes(state)), Delete(LOCK)])


def test_without_etcd_the_election_waits_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(coordinator: MemoryCoordinator) -> None:
        coordinator.is_away = True
        here = Here(coordinator)
        role = FakeRole(place(founds=True))
        here.takes(role)
        await here.until(lambda: here.election.problem == "no answer")
        assert role.done == []
        coordinator.is_away = False
        await here.until(lambda: "lead" in role.steps)
        await here.end()

    in_time(program, monkeypatch)


def test_values_of_etcd_that_cannot_be_right_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(coordinator: MemoryCoordinator) -> None:
        here = Here(coordinator)
        role = FakeRole(place(founds=True))
        here.takes(role)
        await here.until(lambda: "lead" in role.steps)
        assert (here.election.illegal, here.election.is_paused) == ("", False)
        await here.election.pause(60)
        await here.until(lambda: here.election.is_paused)
        await coordinator.swap([], [Put(STATE, b"{}")])
        await here.until(lambda: here.election.illegal != "")
        assert here.election.illegal.startswith("COORDINATION_ILLEGAL: the value of state")
        await here.end()

    in_time(program, monkeypatch)


def test_a_leader_that_stops_gives_its_lease_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(coordinator: MemoryCoordinator) -> None:
        here = Here(coordinator)
        role = FakeRole(place(founds=True))
        here.takes(role)
        await here.until(lambda: "lead" in role.steps)
        here.takes(None)
        await here.election.resign()
        assert LOCK not in coordinator.values
        assert not here.election.may_append()
        await here.end()

    in_time(program, monkeypatch)


class ChangedBefore(MemoryCoordinator):
    """Another write of the group's state comes before each of the next `changes` swaps."""

    changes = 0

    async def swap(self, compares: Sequence[Compare], changes: Sequence[Change]) -> Swapped:
        if self.changes:
            self.changes -= 1
            await super().swap((), [Put(STATE, b"{}")])
        return await super().swap(compares, changes)


@pytest.mark.asyncio
async def test_the_keys_of_a_group_that_was_left_stayed_in_etcd() -> None:
    """The last write of its election came between the reading and the swap, which was then not done."""
    etcd = ChangedBefore()
    group = ElectionGroup(SETTINGS, etcd, "0.1.0")
    keys = [Put(CONFIG, b"{}"), Put(STATE, b"{}")]
    await etcd.swap((), keys)
    etcd.changes = FORGET_TRIES - 1
    await group.forget()
    assert etcd.values == {}
    await etcd.swap((), keys)
    etcd.changes = FORGET_TRIES
    with pytest.raises(TroveError, match="delete them by hand"):
        await group.forget()
