"""The leader: its first record, then the broker on the same store, beside the streams to the followers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Final

from trovemq_broker.cluster.view import GroupLeader
from trovemq_broker.daemon.config_wiring import monotonic_ms
from trovemq_broker.daemon.opening import wall_ms
from trovemq_broker.daemon.replica.elected import Elected
from trovemq_broker.daemon.replica.finding import Finding
from trovemq_broker.daemon.replica.follower_work import FollowerWork
from trovemq_broker.daemon.replica.gathering import Leadership
from trovemq_broker.daemon.replica.member_changes import GroupMembers
from trovemq_broker.daemon.replica.node_calls import NodeCalls
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.daemon.replica.repairing import repair_of
from trovemq_broker.daemon.replica.role import Ended, group_leader, illegal, not_leader
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replica_streams.leader_streams import LeaderStreams
from trovemq_broker.replica_streams.probes import refused
from trovemq_broker.replication.frames import Epoch, Identity, InSyncSet, Node, NowMs, Offset
from trovemq_broker.replication.kept_log import KeptLimits
from trovemq_broker.replication.leader import CopyState, GroupSettings
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import (
    CopyStatus,
    MembersChange,
    NodeStatus,
    Promoted,
    PromotionAsked,
    Role,
)
from trovemq_daemon.addresses import Address, parse_address
from trovemq_daemon.clocks import boot_ms
from trovemq_daemon.lifecycle import Stop
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.replica.membership import Member, Membership

EPOCH_TOPIC: Final = "rmq_sys_trovemq_epoch"


class LeaderRole:
    """`open()`, then a broker serves beside it until `ended`; `close()` before the store is closed."""

    def __init__(
        self,
        node: OpenNode,
        settings: BrokerSettings,
        calls: NodeCalls,
        leadership: Leadership,
        sealing_key_id: str = "",
        election: Elected | None = None,
    ) -> None:
        """`election`: by which the nodes choose their leader; None: an operator does."""
        self._election = election
        self.node: Final = node
        self._sealing_key_id = sealing_key_id
        self._settings = settings
        self._calls = calls
        self._leadership = leadership
        self.stop: Final = Stop()
        """Is requested when this role ends."""
        self.ended = Ended()
        self._failure: BaseException | None = None
        self._work = FollowerWork(settings, self._flushed, self._failed)
        self._is_over = False
        """Whether another node is to lead."""
        self._is_attached = False
        """Whether the broker's acknowledgements move the commit limit of the store."""
        self._streams: LeaderStreams | None = None
        self._running: asyncio.Task[None] | None = None
        self.is_serving = False
        self._first_commit = asyncio.Event()
        """Is set when the first record is committed."""
        self._members: GroupMembers | None = None
        self._changing: asyncio.Task[None] | None = None
        self._finding = Finding(settings, calls, lambda: node.place, self._found)
        self._finding.is_following = lambda: True
        self._asking: asyncio.Task[None] | None = None
        self._repairing: asyncio.Task[None] | None = None

    # --- its life -----------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Appends the first record of the epoch, and waits until it is committed, or until `stop`.
        TroveError; StorageError."""
        node, place = self.node, self.node.place
        listed = self._leadership.listed
        if listed.version > place.listed.version:
            await run_in_thread(partial(node.take_members, listed))
        if self._leadership.is_forced:
            await run_in_thread(node.be_alone)
        if (elected := self._leadership.in_sync) is not None:
            await run_in_thread(partial(node.store_set, elected))
            node.state.in_sync = elected
        place = node.place
        assert place.in_sync is not None, "only a copy of the set leads"
        await run_in_thread(node.cut_unfinished_run)
        await run_in_thread(partial(node.lead, self._leadership.epoch))
        self._append_first_record()
        members = GroupMembers(
            node,
            self._calls,
            lambda: self.streams,
            self._leadership.epoch,
            self._group(place),
            lambda: self._finding.statuses,
            self._election,
        )
        self._streams = streams = LeaderStreams(
            members.settings(),
            node.log,
            place.identity,
            node.state.epochs,
            place.in_sync,
            node.state.commit,
            store_set=node.store_set,
            clock_ms=monotonic_ms if self._election is None else boot_ms,
            refuses=self._refuses,
            committed=self._committed,
            stepped_down=self._promise_seen,
            election=self._election,
        )
        self._work.start(node.store)
        self._running = asyncio.create_task(streams.run(), name="replica-streams")
        self._running.add_done_callback(self._streams_ended)
        self._members = members
        self._changing = asyncio.create_task(members.run(), name="replica-members")
        self._changing.add_done_callback(self._streams_ended)
        self._asking = asyncio.create_task(self._finding.run(), name="replica-finding")
        self._asking.add_done_callback(self._streams_ended)
        repair = repair_of(node, self._calls, lambda: "")
        self._repairing = asyncio.create_task(repair.run(), name="replica-repair")
        self._repairing.add_done_callback(self._streams_ended)
        self._work.appended()
        streams.flushed()
        await self._until_open()

    async def _until_open(self) -> None:
        """The first record is committed, or the process stops. Raises the error that ended the role."""
        opened = asyncio.create_task(self._first_commit.wait())
        stopping = asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait((opened, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
            stopping.cancel()
            await asyncio.gather(opened, stopping, return_exceptions=True)
        await self._work.stop()
        if self._failure is not None:
            raise self._failure

    def _append_first_record(self) -> None:
        node, leadership = self.node, self._leadership
        body = {
            "format": 1,
            "kind": "epoch",
            "epoch": leadership.epoch,
            "node": node.place.node,
            "promised": leadership.promoted.promised,
        }
        if leadership.is_forced:
            body |= {"fenced": leadership.fenced, "acceptedLoss": leadership.accepted_loss}
        record = NewRecord(EPOCH_TOPIC, QueueId(0), json.dumps(body).encode())
        RecordWriter(node.store, lambda: None).append([record], wall_ms())
        get_logger().warning("replica.leads", **{name: str(value) for name, value in body.items()})

    def _group(self, place: Membership) -> GroupSettings:
        return GroupSettings(
            cluster=place.cluster,
            group=place.group,
            voters={},  # of the list of members: GroupMembers
            segment_size=self.node.store.settings.commit_log_file_size,
            is_sync=self.node.store.settings.flush_mode == "sync",
            lag_max_ms=self._settings.replica_lag_max_ms,
            sealing_key_id=self._sealing_key_id,
            kept=KeptLimits(self._settings.replica_retention_bytes_max, self._settings.replica_retention_ms),
            catch_up_bytes_per_s=self._settings.catch_up_bytes_per_s,
            is_coordinated=self._election is not None,
        )

    def attach(self) -> None:
        """The acknowledgements of the broker wait for the streams and move the visible end, from now on."""
        self._is_attached = True
        if (tables := self.node.store.tables) is not None:
            tables.follows = False

    def serves(self) -> None:
        """The broker serves now. Records that the start of its parts appended are to be committed, too."""
        self.is_serving = True
        self.streams.appended()

    def end(self, reason: str) -> None:
        """This node leads no more: nothing is acknowledged from now on."""
        self._is_over = True
        if self._streams is not None:
            self._streams.end(not_leader(f"this node leads no more: {reason}"))
        self.stop.request(reason)

    async def close(self) -> None:
        """The streams end. A leader that another one follows does not contest that after its end."""
        if self._is_over:
            await run_in_thread(self.node.lead_no_more)
        if self._streams is not None:
            self._streams.end(not_leader("this node stops, or leads no more"))
        begun = (self._running, self._changing, self._asking, self._repairing)
        tasks = [task for task in begun if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._work.stop()

    def _found(self) -> None:
        """The other nodes were asked. One whose followers all went to a later leader hears it only so."""
        epoch, cluster = self._leadership.epoch, self.node.place.cluster
        promised = [one.promised for one in self._finding.statuses.values() if one.cluster == cluster]
        if (later := max(promised, default=0)) > epoch and not self.stop.requested:
            get_logger().error("replica.stepped_down", epoch=epoch, promised=later)
            self._promise_seen(later)
            return
        if self.is_serving and not self._leadership.is_forced:
            return  # enough copies follow it
        by = self._finding.removed_by(self.node.place)
        if by is not None and not self.stop.requested:
            get_logger().error("replica.removed", node=self.node.place.node, list_of=by)
            self.end(f"node {by} has a list of the members without this node")

    def _promise_seen(self, epoch: Epoch) -> None:
        """Its followers may not count any more. With an election it leads a later epoch, or steps down."""
        if self._election is None:
            self.end(f"epoch {epoch} is promised")
            return
        self.streams.end(not_leader(f"this node leads no more: epoch {epoch} is promised"))
        self._election.promise_seen(epoch)

    def _flushed(self) -> None:
        if self._streams is not None:
            self._streams.flushed()

    def _failed(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.stop.request(str(error))

    def _streams_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def check_failure(self) -> None:
        """Raises the error that ended the streams."""
        if self._failure is not None:
            raise self._failure

    def _committed(self, commit: Offset) -> None:
        node = self.node
        node.state.commit = commit
        self._first_commit.set()
        if not self._is_attached:
            node.log.committed(commit)

    async def _refuses(self, node: Node) -> bool:
        member = self.node.place.member(node)
        return member is not None and await refused(parse_address(member.replication))

    # --- calls --------------------------------------------------------------------------------------------
    cannot_lead: Final = ""

    def cannot_take_over(self, node: Node) -> str:
        status = self._finding.statuses.get(node)
        return "" if status is None else status.cannot_lead

    @property
    def not_kept(self) -> frozenset[Node]:
        return frozenset() if self._streams is None else self._streams.not_kept

    @property
    def streams(self) -> LeaderStreams:
        """For the broker's acknowledgements."""
        assert self._streams is not None, "the role is open"
        return self._streams

    def leader(self) -> GroupLeader:
        """For clients, from the first commit on."""
        return group_leader(self.node.place, self.node.place.node, self._leadership.epoch)

    def tls_nodes(self) -> list[Address]:
        """The addresses of the other nodes for clients by TLS, as far as they have answered."""
        by_node = sorted(self._finding.statuses.items())
        return [parse_address(one.tls_address) for _, one in by_node if one.tls_address]

    def leading(self) -> LeaderStreams:
        if self._streams is None or self.stop.requested:
            raise not_leader("this node does not lead yet, or no more")
        return self._streams

    def status(self) -> NodeStatus:
        status, streams = self.node.status(), self._streams
        in_sync, problem = status.in_sync, ""
        copies: list[CopyState] = []
        if streams is not None:
            in_sync, problem = streams.leader.in_sync.newest, streams.problem
            copies = streams.copy_states()
        if not self.is_serving:
            problem = problem or self._missing()
        return replace(
            status,
            role=Role.LEADER if self.is_serving else Role.OPENING,
            epoch=self._leadership.epoch,
            leader=status.node,
            in_sync=in_sync,
            copies=tuple(
                CopyStatus(
                    node=one.identity.node,
                    end=one.end,
                    flushed=one.flushed,
                    lag_ms=one.lag_ms,
                    is_connected=one.is_connected,
                )
                for one in copies
            ),
            problem=problem,
        )

    def _missing(self) -> str:
        """Why the first record is not committed yet."""
        if self._streams is not None:
            core = self._streams.leader
            has, needed = len(core.in_sync.newest.copies), core.settings.in_sync_min
            if has < needed:
                return (
                    f"{has} of the {needed} copies that a commit needs is in sync: start the other nodes, or"
                    " take those that are lost out of the group: trovemq cluster replace NODE, or remove NODE"
                )
        return "the first record of the epoch is not committed yet: copies are missing"

    def refusal(self) -> TroveError:
        """While the first record is not committed."""
        return not_leader("this node leads, and waits for copies of its first record")

    # --- for the election -----------------------------------------------------------------------------------
    @property
    def leads(self) -> Epoch | None:
        return self._leadership.epoch

    reported_ms: Final = 0

    def answered_ms(self, now_ms: NowMs) -> NowMs | None:
        return None if self._streams is None else self._streams.leader.answered_by_all_ms(now_ms)

    async def unfollow(self) -> None:
        pass

    async def promise_own(self, epoch: Epoch) -> None:
        if self._streams is None or self.stop.requested:
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the node changes its role: try again")
        self._streams.end(not_leader(f"this node leads no more: it takes epoch {epoch}"))
        await run_in_thread(partial(self.node.promise, epoch))

    def lead(self, leadership: Leadership) -> None:
        """In a later epoch than this one."""
        if leadership.epoch != self._leadership.epoch:
            self.ended = Ended(leadership)
            self.end(f"it leads epoch {leadership.epoch} next")

    def step_down(self, reason: str) -> None:
        self.end(reason)

    def retarget(self) -> None:
        pass

    def confirm(self, in_sync: InSyncSet) -> None:
        self.node.state.in_sync = in_sync
        if self._streams is not None:
            self._streams.confirm(in_sync)

    def hold(self, target: Node | None) -> None:
        if self._streams is not None and target is not None:
            self._streams.hold(target)
        elif self._streams is not None:
            self._streams.release()

    async def promise(self, epoch: Epoch) -> Promised | None:
        """It steps down, whatever happens to the promotion: its acknowledgements may not count any more."""
        if epoch <= self.node.state.promised:
            text = f"epoch {self.node.state.promised} is promised, which is not below {epoch}"
            raise TroveError(errors.EPOCH_STALE, text)
        await run_in_thread(self.node.lead_no_more)
        self.end(f"epoch {epoch} is to be promised")
        return None

    async def init_group(self) -> None:
        raise illegal(f"node {self.node.place.node} has a group already")

    async def promote(self, asked: PromotionAsked) -> Promoted:
        raise illegal(f"node {self.node.place.node} leads already, in epoch {self._leadership.epoch}")

    async def store_members(self, change: MembersChange) -> Identity:
        if change.epoch > self._leadership.epoch:
            self.end(f"epoch {change.epoch} has begun")
        raise TroveError(
            errors.EPOCH_STALE, f"node {self.node.place.node} leads epoch {self._leadership.epoch}"
        )

    async def leave_group(self) -> None:
        """The store is a single broker's again, and the process stops: it exports its state to RocketMQ's
        files."""
        place = self.node.place
        if len(place.members) > 1:
            others = ", ".join(one.node for one in place.members if one.node != place.node)
            raise illegal(f"the group has other nodes: remove {others} first")
        self.ended = Ended(leaves=True)
        self.stop.request("trovemq cluster leave")

    async def add_node(self, member: Member) -> None:
        await self._open_members.add(member)

    async def remove_node(self, node: Node) -> None:
        await self._open_members.remove(node)

    @property
    def _open_members(self) -> GroupMembers:
        if self._members is None or self.stop.requested:
            raise not_leader("this node does not lead yet, or no more")
        return self._members
