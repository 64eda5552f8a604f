"""The calls of ReplicaService on one connection; they return values of the SDK."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import time

from trovemq.models.replica import CutMessage, CutRecords, Promotion
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import decode_message
from trovemq_proto.records.layout import RECORD_SIZE_MIN
from trovemq_proto.v1 import replica_pb2

from .connection import Connection

_SERVICE = "ReplicaService/"
PROMOTE_MS = 30_000
"""Of a promotion and a change of the members: other nodes answer within this time."""


@dataclass(frozen=True, slots=True)
class MemberAddress:
    """A member, as a node knows it."""

    node: str
    address: str
    replication: str
    is_voter: bool
    is_joining: bool = False


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The status of one node. `copies`: of a leader: end, lag in ms and connection of its followers.
    `clock_ahead_ms`: of its clock, before this machine's; None: it does not say its time."""

    group: str
    node: str
    cluster: str
    role: str
    epoch: int
    last_epoch: int
    leader: str
    end: int
    flushed: int
    commit: int
    in_sync: tuple[str, ...]
    in_sync_version: tuple[int, int]
    in_sync_min: int
    members_version: int
    members: tuple[MemberAddress, ...]
    copies: dict[str, tuple[int, int, bool]]
    lag_bytes: int
    lag_ms: int | None
    problem: str
    ack: str
    coordination: str = "manual"
    lease_left_ms: int = 0
    clock_ms: int = 0
    clock_ahead_ms: int | None = None
    sealing_key_id: str = ""
    etcd_members: int = 0
    etcd_version: str = ""
    etcd_problem: str = ""
    failover_paused: bool = False

    @property
    def leads(self) -> bool:
        return self.role in ("leader", "opening")


class ReplicaCalls:
    """ReplicaService of one node; every failure is a TroveError."""

    def __init__(self, connection: Connection) -> None:
        self._ask = connection.ask

    async def status(self) -> NodeAnswer:
        asked_ms = time() * 1_000
        answer = await self._status("GetReplica", replica_pb2.GetReplicaRequest())
        half_way_ms = (asked_ms + time() * 1_000) / 2
        ahead_ms = round(answer.clock_ms - half_way_ms) if answer.clock_ms else None
        return replace(answer, clock_ahead_ms=ahead_ms)

    async def init(self) -> NodeAnswer:
        return await self._status("InitGroup", replica_pb2.InitGroupRequest())

    async def leave(self) -> NodeAnswer:
        return await self._status("LeaveGroup", replica_pb2.LeaveGroupRequest())

    async def add(self, member: MemberAddress) -> NodeAnswer:
        made = replica_pb2.ReplicaMember(
            node=member.node, address=member.address, replication=member.replication, voter=member.is_voter
        )
        return await self._status("AddNode", replica_pb2.AddNodeRequest(member=made))

    async def remove(self, node: str) -> NodeAnswer:
        return await self._status("RemoveNode", replica_pb2.RemoveNodeRequest(node=node))

    async def promote(self, group: str, node: str, fenced: str, accept_loss: int, how: str = "") -> Promotion:
        """`how`: of replica.proto."""
        request = replica_pb2.PromoteRequest(fenced=fenced, accept_loss=accept_loss, how=how)
        decode = replica_pb2.PromoteReply.FromString
        found = await self._ask(_SERVICE + "Promote", request, decode, PROMOTE_MS)
        return Promotion(
            group=group,
            node=node,
            epoch=found.epoch,
            promised=tuple(found.promised),
            away=tuple(found.away),
            cut_bytes=found.cut_bytes,
        )

    async def switch_over(self, target: str) -> NodeAnswer:
        return await self._status("SwitchOver", replica_pb2.SwitchOverRequest(target=target))

    async def pause_failover(self, seconds: int) -> NodeAnswer:
        return await self._status("PauseFailover", replica_pb2.PauseFailoverRequest(seconds=seconds))

    async def cut_records(self) -> list[CutRecords]:
        request = replica_pb2.ListCutRecordsRequest()
        decode = replica_pb2.ListCutRecordsReply.FromString
        found = await self._ask(_SERVICE + "ListCutRecords", request, decode)
        return [
            CutRecords(
                node=found.node,
                path=one.path,
                epoch=one.epoch,
                offset=one.offset,
                end=one.end,
                records=one.records,
                dropped_bytes=found.dropped_bytes,
            )
            for one in found.files
        ]

    async def cut_part(self, path: str, offset: int) -> tuple[list[CutMessage], int]:
        """Messages of that file from `offset` on, and where to continue; none: there are no more."""
        request = replica_pb2.ReadCutRecordsRequest(path=path, offset=offset)
        decode = replica_pb2.ReadCutRecordsReply.FromString
        found = await self._ask(_SERVICE + "ReadCutRecords", request, decode)
        return list(_messages(found.data, found.offset)), found.next

    async def _status(
        self,
        method: str,
        request: replica_pb2.GetReplicaRequest
        | replica_pb2.InitGroupRequest
        | replica_pb2.LeaveGroupRequest
        | replica_pb2.AddNodeRequest
        | replica_pb2.RemoveNodeRequest
        | replica_pb2.SwitchOverRequest
        | replica_pb2.PauseFailoverRequest,
    ) -> NodeAnswer:
        decode = replica_pb2.ReplicaStatus.FromString
        timeout_ms = None if method == "GetReplica" else PROMOTE_MS
        return _answer(await self._ask(_SERVICE + method, request, decode, timeout_ms))


def _messages(data: bytes, offset: int) -> Iterator[CutMessage]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        record = data[at : at + size]
        if size < RECORD_SIZE_MIN or len(record) < size:
            raise TroveError(errors.RECORD_DAMAGED, f"the record at {offset + at} is damaged")
        yield CutMessage(offset=offset + at, message=decode_message(record))
        at += size


def _answer(found: replica_pb2.ReplicaStatus) -> NodeAnswer:
    return NodeAnswer(
        group=found.group,
        node=found.node,
        cluster=found.cluster_id,
        role=found.role,
        epoch=found.epoch,
        last_epoch=found.last_epoch,
        leader=found.leader,
        end=found.end,
        flushed=found.flushed,
        commit=found.commit,
        in_sync=tuple(found.in_sync),
        in_sync_version=(found.in_sync_epoch, found.in_sync_version),
        in_sync_min=found.in_sync_min,
        members_version=found.members.version,
        members=tuple(
            MemberAddress(
                one.node, one.address, one.replication, one.voter, one.node in found.members.joining
            )
            for one in found.members.nodes
        ),
        copies={one.node: (one.end, one.lag_ms, one.connected) for one in found.copies},
        lag_bytes=found.lag_bytes,
        lag_ms=found.lag_ms if found.HasField("lag_ms") else None,
        problem=found.problem,
        ack=found.ack,
        coordination=found.coordination or "manual",
        lease_left_ms=found.lease_left_ms,
        clock_ms=found.clock_ms,
        sealing_key_id=found.sealing_key_id,
        etcd_members=found.etcd.members,
        etcd_version=found.etcd.version,
        etcd_problem=found.etcd.problem,
        failover_paused=found.etcd.paused,
    )
