"""The follower: its store is open with the commit limit, and follows the leader that the other nodes name.

A node without a group waits in this role, too, and a former leader that may lead again gathers promises here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from trovemq_broker.cluster.config_calls import Endpoint
from trovemq_broker.cluster.view import GroupLeader
from trovemq_broker.daemon.config_wiring import monotonic_ms
from trovemq_broker.daemon.opening import wall_ms
from trovemq_broker.daemon.replica import new_node
from trovemq_broker.daemon.replica.consumers_copy import copy_of
from trovemq_broker.daemon.replica.elected import Elected
from trovemq_broker.daemon.replica.finding import Finding
from trovemq_broker.daemon.replica.follower_reads import FollowerReads
from trovemq_broker.daemon.replica.follower_work import FollowerWork
from trovemq_broker.daemon.replica.gathering import (
    Gathering,
    Leadership,
    may_lead_alone,
    removed,
)
from trovemq_broker.daemon.replica.node_calls import NodeCalls
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.daemon.replica.repairing import repair_of
from trovemq_broker.daemon.replica.role import Ended, group_leader, illegal, not_leader
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.produce.replica_acks import Grown
from trovemq_broker.replica_streams.engine_store import EngineStore
from trovemq_broker.replica_streams.follower_stream import FollowerStream
from trovemq_broker.replica_streams.leader_streams import LeaderStreams
from trovemq_broker.replication.frames import Epoch, Heartbeat, Identity, InSyncSet, Node, NowMs, Offset
from trovemq_broker.replication.promotion import Promised, epoch_of_leader, epoch_to_promise
from trovemq_broker.replication.read_lag import ReaderLag, ReadLag
from trovemq_broker.replication.status import MembersChange, NodeStatus, Promoted, PromotionAsked, Role
from trovemq_broker.server.wire.replica_frames import PromiseAsked
from trovemq_daemon.clocks import boot_ms
from trovemq_daemon.lifecycle import Stop
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread, until_done
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.replica.membership import Member

RETRY_LEADING_S: Final = 0.5
RETRY_LEADING_MAX_S: Final = 30.0
OTHER_LEADS_S: Final = 2.0
"""Maximum wait of a former leader for the node to lead that gathers promises when it comes back."""


class QuickRetries:
    """Of the pauses before an elected leader is dialled again: it may be opening its store. Its first commit
    waits for this, so they stay short."""

    registration_retry_min_ms = 20
    registration_retry_max_ms = 50


class FollowerRole:
    """`run()` on an open node; see role.Role for the calls."""

    def __init__(
        self,
        node: OpenNode,
        settings: BrokerSettings,
        calls: NodeCalls,
        reads: FollowerReads | None = None,
        sealing_key_id: str = "",
        election: Elected | None = None,
    ) -> None:
        """`reads`: where clients may read from this node. `election`: by which the nodes choose their leader;
        None: an operator does."""
        self.node: Final = node
        self._sealing_key_id = sealing_key_id
        self._election = election
        self._settings = settings
        self._calls = calls
        self._ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._reads = reads
        self._read_lag = ReadLag()
        grown = reads.grown if reads is not None else _nothing
        self._work = FollowerWork(settings, self._flushed, self._failed, grown, self._trim_to)
        self._available = grown
        self._finding = Finding(settings, calls, lambda: node.place_if_any, self._found)
        self._finding.is_following = lambda: self._stream is not None and self._stream.is_following
        self._stream: FollowerStream | None = None
        self._following: asyncio.Task[TroveError] | None = None
        self._changing = asyncio.Lock()
        """Held while the promise, the place or the following changes."""
        self._problem = "" if node.place_if_any is not None else "the other nodes were not asked yet"
        self._leads_at_s = 0.0
        self._attempts = 0
        self._waited_for: Epoch = 0
        self._is_over = False
        self._reported_ms: NowMs = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_reopened: Callable[[MessageStore], None] = lambda _store: None
        """Called with the store after it was opened again."""
        self.users_failure: Callable[[], TroveError | None] = lambda: None
        """Why the users cannot be opened; None: they can."""

    # --- its life -----------------------------------------------------------------------------------------
    async def run(self, stop: Stop) -> Ended:
        """Until this node leads, or the process stops. Raises the error that ends it."""
        self._work.start(self.node.store)
        self._open_reads()
        finding = asyncio.create_task(self._finding.run(), name="replica-finding")
        stopping = asyncio.create_task(stop.wait())
        repair = repair_of(self.node, self._calls, self._leader_name)
        copy = copy_of(self.node, self._calls, self._followed)
        beside = [
            asyncio.create_task(repair.run(), name="replica-repair"),
            asyncio.create_task(copy.run(), name="replica-consumers"),
        ]
        for task in beside:
            task.add_done_callback(self._work_ended)
        try:
            await asyncio.wait((stopping, self._ended, finding), return_when=asyncio.FIRST_COMPLETED)
            if finding.done():
                finding.result()
            return self._ended.result() if self._ended.done() else Ended()
        finally:
            stopping.cancel()
            finding.cancel()
            for task in (*beside, *self._tasks):
                task.cancel()
            await asyncio.gather(stopping, finding, *beside, *self._tasks, return_exceptions=True)
            self._is_over = True
            async with self._changing:  # a call's change has ended, and no other begins
                await self._stop_following()
                await self._close_store()

    @property
    def problem(self) -> str:
        """For readiness: empty while the leader is followed."""
        if self._stream is None:
            return self._problem or "no leader is followed yet"
        return self._stream.problem and (self._problem or self._stream.problem)

    @property
    def _has_ended(self) -> bool:
        """Whether the store may be another role's now."""
        return self._is_over or self._ended.done()

    def _check_open(self) -> None:
        if self._has_ended:
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the node changes its role: try again")

    def _end(self, ended: Ended) -> None:
        if not self._ended.done():
            self._ended.set_result(ended)

    def _failed(self, error: BaseException) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    def _flushed(self) -> None:
        if self._stream is not None:
            self._stream.flushed()

    def _trim_to(self) -> Offset:
        follower = None if self._stream is None else self._stream.follower
        return LOG_ORIGIN if follower is None else follower.trim_to

    # --- after each round of questions ----------------------------------------------------------------------
    def _found(self) -> None:
        """The other nodes were asked. Begins the next step in a task, one at a time."""
        if not self._changing.locked() and not self._tasks:
            self._begin_step()

    def _begin_step(self) -> None:
        task = asyncio.create_task(self._step(), name="replica-step")
        self._tasks.add(task)
        task.add_done_callback(self._stepped)

    def _stepped(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._work_ended(task)

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def _step(self) -> None:
        async with self._changing:
            if self._has_ended:
                return
            node = self.node
            if node.place_if_any is None:
                no_founding = "" if self._election is None else self._election.no_founding
                work = partial(new_node.step, node, self._settings, self._finding, no_founding)
                self._problem = await run_in_thread(work)
                if self._problem:
                    return
                self._open_reads()
            await self._learn_members()
            if self._finding.removed_by(node.place) is not None:
                await self._stop_following()
                self._problem = removed(node.place).message
                return
            if self._election is not None:
                self._problem = self._election.problem
            elif self._finding.leader(node.place.cluster, node.state.promised) is None:
                await self._lead_again()
            else:
                self._problem = ""
                if node.place.leads:
                    await run_in_thread(node.lead_no_more)
            if not self._ended.done():
                self._follow()

    async def _learn_members(self) -> None:
        """A later list of members than this node's, of a leader of its group."""
        node = self.node
        later = self._finding.later_members(node.place, node.state.promised)
        if later is not None:
            await run_in_thread(partial(node.take_members, later))

    async def _lead_again(self) -> None:
        """A former leader whose successor is not known leads again, in a new epoch, with the promises that an
        operator's promotion needs; without them where no other node can have been chosen."""
        node, place = self.node, self.node.place
        loop = asyncio.get_running_loop()
        if not place.leads or place.node not in place.voters or loop.time() < self._leads_at_s:
            return
        if self.cannot_lead:
            self._problem = f"this node led, and cannot lead again: {self.cannot_lead}"
            return
        statuses = [
            one for one in self._finding.statuses.values() if one.cluster in (place.cluster, "")
        ]  # a new node has no set, either
        promised = max((one.promised for one in statuses), default=0)
        if promised > max(node.state.promised, self._waited_for):  # an operator promotes another node
            self._waited_for, self._leads_at_s = promised, loop.time() + OTHER_LEADS_S
            return
        if may_lead_alone(place, statuses):
            highest = max(node.state.promised, promised)
            epoch = epoch_to_promise(highest, place.node, place.listed.places)
            await run_in_thread(partial(node.promise, epoch))
            epoch = epoch_of_leader(epoch, place.node, place.listed.places)
            promoted = Promoted(epoch, (place.node,), (), 0)
            self._end(Ended(Leadership(epoch, promoted, place.listed)))
            return
        self._attempts += 1
        self._leads_at_s = loop.time() + min(RETRY_LEADING_MAX_S, RETRY_LEADING_S * 2**self._attempts)
        try:
            self._end(Ended(await self._gather(PromotionAsked())))
        except TroveError as error:
            self._problem = f"this node led, and cannot lead again: {error.message}"

    # --- following ----------------------------------------------------------------------------------------
    def _follow(self) -> None:
        if self._following is not None:
            return
        if self._election is not None and self._leader() is None:
            return  # none is known, or this node campaigns
        node, place = self.node, self.node.place
        self._stream = FollowerStream(
            place.cluster,
            place.group,
            place.identity,
            node.log,
            node.state,
            node.store.settings.commit_log_file_size,
            self._engine_store(),
            target=self._target,
            credentials=self._calls.credentials,
            clock_ms=monotonic_ms if self._election is None else boot_ms,
            retries=self._settings if self._election is None else QuickRetries(),
            jitter=random.random,
            learner=self._settings.replica_role == "learner",
            heard=self._heard,
            sealing_key_id=self._sealing_key_id,
            lost=None if self._election is None else self._election.lost,
            is_sync=node.store.settings.flush_mode == "sync",
        )
        self._following = asyncio.create_task(self._stream.run(), name="replica-follow")
        self._following.add_done_callback(self._following_ended)

    def _engine_store(self) -> EngineStore:
        node = self.node
        return EngineStore(
            node.log,
            node.file,
            node.state,
            store_set=node.store_set,
            wall_ms=wall_ms,
            closing=self._close_store,
            reopen=node.reopen,
            opened=self._reopened,
            appended=self._work.appended,
            available=self._available,
        )

    async def _close_store(self) -> None:
        """Nothing uses the store afterwards."""
        if self._reads is not None:
            await self._reads.close()
        await self._work.stop()

    def _target(self) -> Endpoint | str:
        """Where the leader's streams are, or why that is not known."""
        place = self.node.place
        if self._election is None:
            return self._finding.target(place.cluster, self.node.state.promised)
        leader = self._election.leader
        if leader is None or leader[0] == place.node:
            return self._election.problem or "no node of the group leads"
        member = place.member(leader[0])
        return f"node {leader[0]} is not a known member" if member is None else self._calls.listener(member)

    def _leader(self) -> tuple[Node, Epoch] | None:
        """Who leads, as far as it is known, and in which epoch."""
        place = self.node.place_if_any
        if place is None:
            return None
        if self._election is not None:
            leader = self._election.leader
            return None if leader is None or leader[0] == place.node else leader
        found = self._finding.leader(place.cluster, self.node.state.promised)
        return None if found is None else (found.node, found.epoch)

    def _followed(self) -> tuple[Node, Epoch] | None:
        """Whose frames come now, and of which epoch; None: of none."""
        stream = self._stream
        follower = stream.follower if stream is not None and stream.is_following else None
        leader = self._leader_name()
        return (leader, follower.epoch) if follower is not None and leader else None

    def _leader_name(self) -> Node:
        """Empty where none is known."""
        leader = self._leader()
        return "" if leader is None else leader[0]

    async def _reopened(self, store: MessageStore) -> None:
        self._work.start(store)
        self._open_reads()
        self.on_reopened(store)

    # --- reads --------------------------------------------------------------------------------------------
    def _open_reads(self) -> None:
        if self._reads is not None and self.node.place_if_any is not None:
            self._reads.open(self.node.store, self._reader_lag)

    def _reader_lag(self) -> ReaderLag:
        return self._read_lag.lag(self.node.store.visible_offset, boot_ms())

    def _heard(self, heartbeat: Heartbeat | None) -> None:
        if heartbeat is None:
            self._read_lag.new_stream()
        else:
            visible = self.node.store.visible_offset
            self._read_lag.heard(heartbeat.commit, heartbeat.sent_ms, visible, boot_ms())

    def _following_ended(self, task: asyncio.Task[TroveError]) -> None:
        if task.cancelled():
            return
        error = task.exception() or task.result()
        if isinstance(error, TroveError) and error.spec is not errors.STORE_DIVERGED:
            get_logger().error("replica.following_ended", message=str(error))
            return  # it stays as it is, with its problem, until an operator has looked
        self._failed(error)

    async def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            try:
                await until_done(self._following)
            finally:
                self._following = None
        self._reported_ms = self.reported_ms
        self._stream = None

    # --- for the election -----------------------------------------------------------------------------------
    leads: Final = None  # as of Role

    @property
    def reported_ms(self) -> NowMs:
        return self._reported_ms if self._stream is None else self._stream.reported_ms

    def answered_ms(self, now_ms: NowMs) -> NowMs | None:
        return None

    async def unfollow(self) -> None:
        async with self._changing:
            if not self._has_ended:
                await self._stop_following()

    async def promise_own(self, epoch: Epoch) -> None:
        async with self._changing:
            self._check_open()
            await self._promise(epoch)

    def lead(self, leadership: Leadership) -> None:
        self._end(Ended(leadership))

    def step_down(self, reason: str) -> None:
        pass

    def retarget(self) -> None:
        if self._stream is not None:
            self._stream.retarget()
        else:
            self._begin_step()

    def confirm(self, in_sync: InSyncSet) -> None:
        pass

    def hold(self, target: Node | None) -> None:
        pass

    # --- calls --------------------------------------------------------------------------------------------
    @property
    def not_kept(self) -> frozenset[Node]:
        return frozenset()

    @property
    def cannot_lead(self) -> str:
        """A leader opens the users before it serves, and ends where it cannot."""
        if (failure := self.users_failure()) is None:
            return ""
        to_do = "give it the sealing_key_file of the other nodes"
        if failure.spec is errors.AUTHENTICATION_DISABLED:
            to_do = "switch authentication_enable on, with the sealing_key_file of the other nodes"
        return (
            f"node {self._settings.node_name} cannot open the users, so it cannot lead: {failure.message};"
            f" {to_do}, and start it again"
        )

    def cannot_take_over(self, _node: Node) -> str:
        return ""

    def status(self) -> NodeStatus:
        status, stream = self.node.status(), self._stream
        if status.role is Role.NEW:
            return replace(status, problem=self._problem)
        follower = stream.follower if stream is not None and stream.is_following else None
        return replace(
            status,
            epoch=0 if follower is None else follower.epoch,
            leader=self._leader_name(),
            problem="; ".join(filter(None, (self.problem, self.cannot_lead))),
            cannot_lead=self.cannot_lead,
            lag_bytes=0 if stream is None else stream.lag_bytes,
            lag_ms=self._reader_lag().ms,
        )

    def refusal(self) -> TroveError:
        """NOT_LEADER, with the leader's address where it is known."""
        place = self.node.place_if_any
        leader = self._leader()
        if place is None or leader is None:
            return not_leader("this node does not lead its replica group, and no leader is known")
        member = place.member(leader[0])
        address = "" if member is None else member.address
        return not_leader("this node follows", leader[0], address, leader[1])

    def leader(self) -> GroupLeader | None:
        """For clients: the node that takes messages; None if none is known."""
        place = self.node.place_if_any
        if place is None:
            return None
        if self._election is not None:
            elected = self._leader()
            return None if elected is None else group_leader(place, *elected)
        leader = self._finding.leader(place.cluster, self.node.state.promised)
        if leader is None or leader.role is not Role.LEADER:
            return None
        return group_leader(place, leader.node, leader.epoch)

    def leader_status(self) -> NodeStatus | None:
        """The leader's last status; None where it did not answer, or none is known."""
        return self._finding.statuses.get(self._leader_name())

    def leading(self) -> LeaderStreams:
        raise self.refusal()

    async def promise(self, epoch: Epoch) -> Promised | None:
        """None: this role has ended, and the next one answers."""
        async with self._changing:
            if self._has_ended:
                return None
            if epoch >= self.node.state.promised:
                await run_in_thread(self.node.lead_no_more)  # another node is to lead
            return await self._promise(epoch)

    async def _promise(self, epoch: Epoch) -> Promised:
        """No frame of a lower epoch is appended from the call on, and all earlier ones are on disk when it
        returns."""
        node, place = self.node, self.node.place
        if epoch < node.state.promised:
            text = f"epoch {node.state.promised} is promised, which is higher than {epoch}"
            raise TroveError(errors.EPOCH_STALE, text)
        await self._stop_following()
        self._problem = f"it has promised epoch {epoch}, and waits for its leader"
        try:
            await run_in_thread(partial(node.promise, epoch))
            await self._work.stop()  # it syncs all
        finally:
            self._work.start(node.store)
        if node.log.flushed < node.log.end:
            raise TroveError(errors.STORE_FAILED, "the log could not be synced")
        get_logger().warning("replica.promised", epoch=epoch, end=node.log.end)
        return Promised(
            place.identity, epoch, node.state.epochs, node.log.flushed, node.state.in_sync, place.listed
        )

    async def _gather(self, asked: PromotionAsked) -> Leadership:
        """With the lock held. TroveError."""
        return await self._gathering().run(asked, self._finding.statuses)

    def _gathering(self) -> Gathering:
        own = replace(self.status(), coordination=self._settings.coordination)
        return Gathering(self.node.place, own, self._calls, self._promised)

    async def _promised(self, asked: PromiseAsked) -> Promised:
        return await self._promise(asked.epoch)

    async def promote(self, asked: PromotionAsked) -> Promoted:
        async with self._changing:
            self._check_open()
            if (failure := self.users_failure()) is not None:
                raise TroveError(failure.spec, self.cannot_lead)
            await self._finding.ask()
            await self._learn_members()
            if self._election is not None:
                gathering, statuses = self._gathering(), self._finding.statuses
                return await self._election.promote(asked, self.node, gathering, statuses)
            if asked.how:
                raise illegal("an operator chooses the leader of this group: trovemq cluster promote NODE")
            found = await self._gather(asked)
            self._end(Ended(found))
            return found.promoted

    async def init_group(self) -> None:
        async with self._changing:
            self._check_open()
            if self.node.place_if_any is not None:
                raise illegal(f"node {self._settings.node_name} has a group already")
            if self._election is not None and self._election.no_founding:
                raise illegal(self._election.no_founding)
            grouped = [one.node for one in self._finding.statuses.values() if one.role is not Role.NEW]
            if grouped := grouped + self._finding.refused_by:
                raise illegal(f"{', '.join(grouped)} have a group already: trovemq cluster add")
            me = self._own_member()
            await run_in_thread(partial(new_node.found, self.node, self._settings, (me,)))

    def _own_member(self) -> Member:
        settings = self._settings
        address = settings.advertised(settings.listen_address)
        streams = settings.replication_advertised(settings.replication_address)
        named = {one.node: one for one in settings.named_nodes}
        if (mine := named.get(settings.node_name)) is not None:
            address, streams = mine.address, mine.replication
        return Member(settings.node_name, str(address), str(streams))

    async def store_members(self, change: MembersChange) -> Identity:
        async with self._changing:
            self._check_open()
            node, place = self.node, self.node.place
            if (change.cluster, change.group) != (place.cluster, place.group):
                raise TroveError(errors.GROUP_MISMATCH, f"group {change.group} of cluster {change.cluster}")
            if change.epoch < node.state.promised:
                raise TroveError(errors.EPOCH_STALE, f"epoch {node.state.promised} is promised")
            try:
                await run_in_thread(partial(node.take_members, change.listed))
            except ValueError as error:
                raise illegal(str(error)) from None
            return place.identity

    async def leave_group(self) -> None:
        raise self.refusal()

    async def add_node(self, member: Member) -> None:
        raise self.refusal()

    async def remove_node(self, node: str) -> None:
        raise self.refusal()


def _nothing(_queues: Grown) -> None:
    """No consumer waits for messages here."""
