"""The election of a node, beside all of its roles: gives it its inputs, and carries out its actions.

Calls of etcd run beside each other, each in a task. Actions of this node (a promise, a change of the role)
are carried out one after the other; a promise waits for the role whose store is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from trovemq_broker.coordination.coordinator import Coordinator, Delete, LeaseId, Put, Revision
from trovemq_broker.daemon.replica.election_figures import ElectionFigures
from trovemq_broker.daemon.replica.election_group import ElectionGroup, own_log
from trovemq_broker.daemon.replica.gathering import Gathering, Leadership
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.daemon.replica.role import Role, illegal, not_leader
from trovemq_broker.replica_streams.probes import refused
from trovemq_broker.replication.election import Election
from trovemq_broker.replication.election_actions import (
    ConfirmSet,
    ElectionAction,
    Follow,
    Grant,
    Hold,
    KeepAlive,
    Lead,
    OwnLog,
    Promise,
    Read,
    Regroup,
    Release,
    Revoke,
    StepDown,
    Swap,
    Unfollow,
    Watch,
)
from trovemq_broker.replication.election_members import MemberChange
from trovemq_broker.replication.election_records import PAUSE
from trovemq_broker.replication.frames import Epoch, InSyncSet, Node, NowMs
from trovemq_broker.replication.members import MemberChanges
from trovemq_broker.replication.status import NodeStatus, Promoted, PromotionAsked
from trovemq_daemon.addresses import parse_address
from trovemq_daemon.clocks import boot_ms
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.membership import Members

PROBE_S: Final = 0.3
ROLE_S: Final = 0.02
"""Between two looks whether a role that has ended is replaced."""
RESIGN_S: Final = 1.0
MEMBERS_S: Final = 5.0


class Coordinated:
    """`run()` until it is cancelled. It is the Elected of the roles; `role_is()` reports each of these."""

    def __init__(self, coordinator: Coordinator, group: ElectionGroup, figures: ElectionFigures) -> None:
        self._coordinator = coordinator
        self._figures = figures
        figures.lease_left_s = lambda: self.lease_left_s
        self._group = group
        self._role: Role | None = None
        self._is_open = asyncio.Event()
        self._election: Election | None = None
        self._reported_ms: NowMs = 0
        """The last report to a leader, of any role."""
        self._told: Epoch = 0
        """The promise that the election knows."""
        self._actions: asyncio.Queue[ElectionAction] = asyncio.Queue()
        self._calls: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leading: Leadership | None = None
        """That this node has, or is to take."""
        self._leader: tuple[Node, Epoch] | None = None
        self._listed: Members | None = None
        self._regrouped = asyncio.Event()
        self._is_probing = False
        self._illegal = ""
        """Was logged last."""

    # --- its life -----------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Raises the error that ends it."""
        working = asyncio.create_task(self._work(), name="election-actions")
        try:
            node = await self._group.ready(lambda: self._role)
            self._told = node.state.promised
            own = self._own_log(node)
            self._election = election = self._group.election(node, own, boot_ms())
            self._give(election.begin)
            await asyncio.wait((working, self._failed), return_when=asyncio.FIRST_COMPLETED)
            for ended in (working, self._failed):
                if ended.done():
                    ended.result()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            tasks = [working, *self._calls, *([self._watch] if self._watch is not None else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._failed.cancel()

    async def resign(self) -> None:
        """This node stops: another one may lead at once. Its roles have ended."""
        if self._election is None or self._leading is None:
            return
        self._give(self._election.resign)
        await asyncio.sleep(0)
        if self._calls:
            await asyncio.wait(self._calls, timeout=RESIGN_S)

    def role_is(self, role: Role | None) -> None:
        """The role whose store is open; None between two of them."""
        self._role = role
        if role is None:
            self._is_open.clear()
            return
        self._is_open.set()
        if self._election is None:
            return
        if (led := role.leads) is not None and (self._leading is None or led != self._leading.epoch):
            role.step_down("another node leads by now")
        self._give(self._election.tick)

    # --- for the roles (Elected) ----------------------------------------------------------------------------
    @property
    def leader(self) -> tuple[Node, Epoch] | None:
        return self._leader

    @property
    def problem(self) -> str:
        return self._group.problem if self._election is None else self._election.problem

    @property
    def illegal(self) -> str:
        """COORDINATION_ILLEGAL with the reason; empty where the keys can be right."""
        return "" if self._election is None else self._election.illegal

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused the failover, as it was read last."""
        view = None if self._election is None else self._election.view
        return view is not None and view.is_paused

    @property
    def no_founding(self) -> str:
        return self._group.no_founding

    def lost(self, node: Node) -> None:
        if self._leader is not None and self._leader[0] == node and not self._is_probing:
            self._is_probing = True
            self._begin(self._probe(*self._leader))

    def promise_seen(self, epoch: Epoch) -> None:
        if (election := self._election) is not None:
            self._give(lambda now: election.promise_seen(epoch, now))

    def in_sync_wanted(self, in_sync: InSyncSet) -> None:
        if (election := self._election) is not None:
            self._give(lambda now: election.in_sync_wanted(in_sync, now))

    @property
    def listed(self) -> Members | None:
        return self._listed

    async def change_members(self, change: MemberChange) -> Members:
        if (election := self._election) is None:
            raise not_leader("this node does not lead")
        made: list[Members] = []

        def noted(changes: MemberChanges) -> Members:
            made.append(change(changes))
            return made[-1]

        self._regrouped.clear()
        try:
            self._give(lambda now: election.change_members(noted, now))
            async with asyncio.timeout(MEMBERS_S):
                while self._listed != made[-1]:
                    await self._regrouped.wait()
                    self._regrouped.clear()
        except ValueError as error:
            raise illegal(str(error)) from None
        except TimeoutError:
            text = f"etcd did not take version {made[-1].version} of the members in {MEMBERS_S:.0f} s"
            raise TroveError(errors.COORDINATION_UNAVAILABLE, text) from None
        return made[-1]

    @property
    def is_absent(self) -> bool:
        """Whether etcd has nothing of this node's group: it may be founded again there."""
        return self._group.is_absent

    async def promote(
        self, asked: PromotionAsked, node: OpenNode, gathering: Gathering, statuses: Mapping[Node, NodeStatus]
    ) -> Promoted:
        return await self._group.promote(asked, node, gathering, statuses)

    def held(self) -> None:
        if (election := self._election) is not None:
            self._give(election.held)

    def switch_over(self, target: Node) -> None:
        """TroveError NOT_LEADER: this node does not lead."""
        if (election := self._election) is None or self._leading is None:
            raise not_leader("this node does not lead")
        try:
            self._give(lambda now: election.switch_over(target, now))
        except ValueError as error:  # it has stepped down just now
            raise not_leader(str(error)) from None

    async def pause(self, seconds: int) -> None:
        """No other leader is chosen for `seconds`; 0 ends a pause. TroveError COORDINATION_UNAVAILABLE."""
        former = (await self._coordinator.read()).values.get(PAUSE)
        if seconds:
            lease = await self._coordinator.grant(seconds)
            await self._coordinator.swap([], [Put(PAUSE, b"{}", lease.id)])
        elif former is not None:
            await self._coordinator.swap([], [Delete(PAUSE)])
        if former is not None and former.lease:
            await self._coordinator.revoke(former.lease)
        get_logger().warning("replica.failover_paused", seconds=seconds)

    def may_append(self) -> bool:
        return self._election is not None and self._election.may_deliver(boot_ms())

    def may_deliver_in_order(self) -> bool:
        return self._election is not None and self._election.may_deliver_in_order(boot_ms())

    @property
    def lease_left_s(self) -> float:
        """Of this leader's right, in seconds; 0: it has none."""
        if self._election is None or self._leading is None:
            return 0.0
        return max(0, self._election.lease_until_ms - boot_ms()) / 1_000

    # --- inputs -------------------------------------------------------------------------------------------
    def _give(self, call: Callable[[NowMs], list[ElectionAction]]) -> None:
        """An input, after the present state of this node's log and promise. ValueError: it is refused. Any
        other error ends run(), also where only the event loop's timer would see it."""
        try:
            self._give_now(call)
        except ValueError:
            raise
        except Exception as error:
            self._fail(error)
            raise

    def _give_now(self, call: Callable[[NowMs], list[ElectionAction]]) -> None:
        election, now = self._election, boot_ms()
        assert election is not None, "the group is known"
        for action in self._told_now(election, now):  # also where the input is refused
            self._take(action)
        for action in call(now):
            self._take(action)
        if election.illegal != self._illegal:
            self._illegal = election.illegal
            get_logger().error("replica.coordination", message=self._illegal or "etcd's keys can be right")
        self._set_timer(election)

    def _told_now(self, election: Election, now: NowMs) -> list[ElectionAction]:
        role = self._role
        if role is None:
            return []
        self._reported_ms = max(self._reported_ms, role.reported_ms)
        election.own_log(self._own_log(role.node))
        actions: list[ElectionAction] = []
        if (promised := role.node.state.promised) > self._told:
            self._told = promised
            actions += election.promised(promised, now)
        if (answered := role.answered_ms(now)) is not None:
            actions += election.streams_answered(answered, now)
        return actions

    def _own_log(self, node: OpenNode) -> OwnLog:
        cannot_lead = "" if self._role is None else self._role.cannot_lead
        return own_log(node, self._reported_ms, cannot_lead)

    def _set_timer(self, election: Election) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due_ms = max(0, election.next_tick_ms - boot_ms())
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(due_ms / 1_000, lambda: self._give(election.tick))

    async def _probe(self, node: Node, epoch: Epoch) -> None:
        """Whether the leader's process has ended: both of its ports refuse connections."""
        try:
            dead = await self._refuses(node)
        finally:
            self._is_probing = False
        if (election := self._election) is not None and dead is not None:
            self._give(lambda now: election.leader_lost(node, epoch, now, dead=dead))

    async def _refuses(self, node: Node) -> bool | None:
        """None: the node is not known."""
        role = self._role
        member = None if role is None or role.node.place_if_any is None else role.node.place.member(node)
        if member is None:
            return None
        addresses = (parse_address(member.replication), parse_address(member.address))
        try:
            async with asyncio.timeout(PROBE_S):
                return all(await asyncio.gather(*(refused(one) for one in addresses)))
        except (OSError, TimeoutError):
            return False

    # --- actions ------------------------------------------------------------------------------------------
    def _take(self, action: ElectionAction) -> None:
        """Begins a call of etcd at once; actions of this node wait for those before them."""
        match action:
            case Read():
                self._begin(self._read())
            case Swap():
                self._begin(self._swap(action))
            case Grant(ttl_s):
                self._begin(self._grant(ttl_s))
            case KeepAlive(lease):
                self._begin(self._keep_alive(lease))
            case Revoke(lease):
                self._begin(self._revoke(lease))
            case Watch(after):
                if self._watch is not None:
                    self._watch.cancel()
                self._watch = asyncio.create_task(self._watched(after), name="election-watch")
                self._watch.add_done_callback(self._call_ended)
            case StepDown(reason):
                self._step_down(reason)
            case _:
                self._actions.put_nowait(action)

    def _begin(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(call, name="election-call")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(self._call_ended)

    def _call_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    async def _work(self) -> None:
        while True:
            await self._carry_out(await self._actions.get())

    async def _carry_out(self, action: ElectionAction) -> None:
        match action:
            case Unfollow():
                self._leader = None
                await (await self._open_role()).unfollow()
            case Promise(epoch):
                await self._promise(epoch)
            case Lead(epoch, in_sync, config):
                await self._lead(
                    Leadership(epoch, Promoted(epoch, (), (), 0), config.listed, in_sync=in_sync)
                )
            case Follow(node, epoch):
                self._leader = (node, epoch)
                self._count(epoch)
                if self._role is not None:
                    self._role.retarget()
            case ConfirmSet(in_sync):
                if self._role is not None:
                    self._role.confirm(in_sync)
            case Regroup(config):
                self._listed = config.listed
                self._regrouped.set()
            case Hold(target):
                if self._role is not None:
                    self._role.hold(target)
            case Release():
                if self._role is not None:
                    self._role.hold(None)
            case _:
                raise AssertionError(f"an action of this node: {action}")

    async def _lead(self, leadership: Leadership) -> None:
        """Unless the election has given that leadership up by now."""
        role = await self._open_role()
        if self._known.epoch == leadership.epoch:
            self._leading, self._leader = leadership, (self._group.me, leadership.epoch)
            self._count(leadership.epoch)
            role.lead(leadership)

    def _count(self, epoch: Epoch) -> None:
        view = None if self._election is None else self._election.view
        self._figures.led(epoch, "" if view is None else view.state.reason)

    async def _open_role(self) -> Role:
        await self._is_open.wait()
        assert self._role is not None, "it is open"
        return self._role

    async def _promise(self, epoch: Epoch) -> None:
        """In the next role, where this one has ended."""
        while True:
            role = await self._open_role()
            try:
                await role.promise_own(epoch)
            except TroveError as error:
                if error.spec is errors.SERVICE_NOT_AVAILABLE:
                    await asyncio.sleep(ROLE_S)
                    continue
                if error.spec is not errors.EPOCH_STALE:  # it has promised a higher one
                    raise
            if (election := self._election) is not None:
                self._give(election.tick)
            return

    def _step_down(self, reason: str) -> None:
        if self._leading is None:
            return
        get_logger().warning("replica.steps_down", epoch=self._leading.epoch, reason=reason)
        self._leading, self._leader = None, None
        if self._role is not None:
            self._role.step_down(reason)

    # --- calls of etcd ------------------------------------------------------------------------------------
    async def _read(self) -> None:
        election = self._known
        try:
            found = await self._coordinator.read()
        except TroveError as error:
            self._coordinator_failed("read", error)
        else:
            self._give(lambda now: election.read_done(found, now))

    async def _swap(self, swap: Swap) -> None:
        election = self._known
        try:
            swapped = await self._coordinator.swap(swap.compares, swap.changes)
        except TroveError as error:
            get_logger().warning("etcd.failed", call="swap", message=str(error))
            self._give(lambda now: election.swap_done(swap.tag, None, now))
        else:
            self._give(lambda now: election.swap_done(swap.tag, swapped, now))

    async def _grant(self, ttl_s: int) -> None:
        election, sent_ms = self._known, boot_ms()
        try:
            lease = await self._coordinator.grant(ttl_s)
        except TroveError as error:
            self._coordinator_failed("grant", error)
        else:
            self._give(lambda now: election.lease_granted(lease, sent_ms, now))

    async def _keep_alive(self, lease: LeaseId) -> None:
        election, sent_ms = self._known, boot_ms()
        try:
            ttl_s = await self._coordinator.keep_alive(lease)
        except TroveError as error:
            self._coordinator_failed("keep_alive", error)
        else:
            self._give(lambda now: election.lease_kept(sent_ms, ttl_s, now))

    async def _revoke(self, lease: LeaseId) -> None:
        try:
            await self._coordinator.revoke(lease)
        except TroveError as error:  # it ends all the same, later
            get_logger().warning("etcd.failed", call="revoke", message=str(error))

    async def _watched(self, after: Revision) -> None:
        election = self._known
        try:
            async with aclosing(self._coordinator.watch(after)) as hints:
                async for revision in hints:
                    self._give(partial(election.watched, revision))
        except TroveError as error:
            get_logger().info("etcd.watch_ended", message=str(error))
        self._give(election.watch_ended)

    @property
    def _known(self) -> Election:
        assert self._election is not None, "it has asked for that call"
        return self._election

    def _coordinator_failed(self, call: str, error: TroveError) -> None:
        election = self._known
        get_logger().warning("etcd.failed", call=call, message=str(error))
        illegal = error.message if error.spec is errors.COORDINATION_ILLEGAL else ""
        self._give(lambda now: election.coordinator_failed(call, now, illegal=illegal))
