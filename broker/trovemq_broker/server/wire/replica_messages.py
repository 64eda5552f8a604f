"""Reads the requests of ReplicaService and makes its replies. Nodes send each other the same status."""

from __future__ import annotations

from typing import Final

from trovemq_broker.replication.frames import Identity, InSyncSet, Node, Offset
from trovemq_broker.replication.status import (
    PROMOTIONS,
    UNCLEAN,
    CopyStatus,
    CutFiles,
    CutPart,
    NodeStatus,
    Promoted,
    PromotionAsked,
    Role,
)
from trovemq_broker.server.wire.replica_members import checked_text, member_of, members_of, members_to
from trovemq_daemon.addresses import parse_address
from trovemq_daemon.errors import SettingsError
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import replica_pb2 as pb
from trovemq_store.replica.membership import NO_PLACE, Member, Members

PAUSE_MAX_S: Final = 86_400
SERVICE: Final = pb.DESCRIPTOR.services_by_name["ReplicaService"]


# --- requests ---------------------------------------------------------------------------------------------
def added_member(request: pb.AddNodeRequest) -> Member:
    """TroveError REQUEST_ILLEGAL."""
    try:
        member = member_of(request.member)
        for address in (member.address, member.replication):
            parse_address(address)
        return member._replace(place=NO_PLACE, store_id="")
    except (ValueError, SettingsError) as error:
        raise TroveError(errors.REQUEST_ILLEGAL, str(error)) from None


def removed_node(request: pb.RemoveNodeRequest) -> Node:
    """TroveError REQUEST_ILLEGAL."""
    return _text("node", request.node)


def promotion_asked(request: pb.PromoteRequest) -> PromotionAsked:
    """TroveError REQUEST_ILLEGAL."""
    if request.accept_loss < 0:
        raise TroveError(errors.REQUEST_ILLEGAL, "accept_loss must be a number of bytes")
    if request.accept_loss and not request.fenced:
        raise TroveError(errors.REQUEST_ILLEGAL, "accept_loss needs fenced: how the other nodes were stopped")
    if request.how not in PROMOTIONS or (request.how == UNCLEAN and not request.fenced):
        known = ", ".join(PROMOTIONS[1:])
        raise TroveError(errors.REQUEST_ILLEGAL, f"how is one of {known}; unclean needs fenced", field="how")
    fenced = _text("fenced", request.fenced, may_be_empty=True)
    return PromotionAsked(fenced, request.accept_loss, request.how)


def switch_target(request: pb.SwitchOverRequest) -> Node:
    """Empty: any. TroveError REQUEST_ILLEGAL."""
    return _text("target", request.target, may_be_empty=True)


def pause_seconds(request: pb.PauseFailoverRequest) -> int:
    """TroveError REQUEST_ILLEGAL."""
    seconds: int = request.seconds
    if not 0 <= seconds <= PAUSE_MAX_S:
        raise TroveError(errors.REQUEST_ILLEGAL, f"seconds must be 0 to {PAUSE_MAX_S}")
    return seconds


def _text(what: str, text: str, *, may_be_empty: bool = False) -> str:
    try:
        return checked_text(what, text, may_be_empty=may_be_empty)
    except ValueError as error:
        raise TroveError(errors.REQUEST_ILLEGAL, str(error)) from None


def _members(found: pb.ReplicaMemberList) -> Members:
    try:
        return members_of(found)
    except ValueError as error:
        raise TroveError(errors.REQUEST_ILLEGAL, str(error)) from None


# --- replies ----------------------------------------------------------------------------------------------
def status_reply(status: NodeStatus) -> pb.ReplicaStatus:
    in_sync = status.in_sync
    return pb.ReplicaStatus(
        group=status.group,
        node=status.node,
        cluster_id=status.cluster,
        role=status.role.value,
        epoch=status.epoch,
        last_epoch=status.last_epoch,
        promised=status.promised,
        leader=status.leader,
        begin=status.begin,
        end=status.end,
        flushed=status.flushed,
        commit=status.commit,
        in_sync=[] if in_sync is None else in_sync.nodes,
        in_sync_epoch=0 if in_sync is None else in_sync.epoch,
        in_sync_version=0 if in_sync is None else in_sync.version,
        in_sync_min=status.in_sync_min,
        members=members_to(status.listed),
        copies=[
            pb.ReplicaCopy(
                node=one.node,
                end=one.end,
                flushed=one.flushed,
                lag_ms=one.lag_ms,
                connected=one.is_connected,
            )
            for one in status.copies
        ],
        problem=status.problem,
        lag_bytes=status.lag_bytes,
        lag_ms=status.lag_ms,
        ack=status.ack,
        store_id=status.store_id,
        incarnation=status.incarnation,
        coordination=status.coordination,
        lease_left_ms=status.lease_left_ms,
        cannot_lead=status.cannot_lead,
        clock_ms=status.clock_ms,
        sealing_key_id=status.sealing_key_id,
        etcd=pb.EtcdHealth(
            members=status.etcd_members,
            version=status.etcd_version,
            problem=status.etcd_problem,
            paused=status.failover_paused,
        ),
        tls_address=status.tls_address,
        checks_forwarded=status.checks_forwarded,
    )


def promoted_reply(promoted: Promoted) -> pb.PromoteReply:
    return pb.PromoteReply(
        epoch=promoted.epoch,
        promised=promoted.promised,
        away=promoted.away,
        cut_bytes=promoted.cut_bytes,
    )


def cut_files_reply(cut: CutFiles) -> pb.ListCutRecordsReply:
    reply = pb.ListCutRecordsReply(node=cut.node, dropped_bytes=cut.dropped_bytes)
    for one in cut.files:
        reply.files.add(
            path=one.path,
            epoch=one.epoch,
            offset=one.offset,
            kept_from=one.kept_from,
            end=one.end,
            records=one.records,
        )
    return reply


def cut_part_asked(request: pb.ReadCutRecordsRequest) -> tuple[str, Offset]:
    """The path of a file, and from where on. TroveError REQUEST_ILLEGAL."""
    if not 0 <= request.offset < 1 << 63:
        raise TroveError(errors.REQUEST_ILLEGAL, f"offset {request.offset} is none", field="offset")
    return _text("path", request.path), Offset(request.offset)


def cut_part_reply(part: CutPart) -> pb.ReadCutRecordsReply:
    return pb.ReadCutRecordsReply(data=part.data, offset=part.offset, next=part.next)


# --- from node to node ------------------------------------------------------------------------------------
def read_status(data: bytes) -> NodeStatus:
    """TroveError REQUEST_ILLEGAL, for the reply of a node that is no such node."""
    try:
        found = pb.ReplicaStatus.FromString(data)
        role = Role(found.role)
    except Exception as error:
        raise TroveError(errors.REQUEST_ILLEGAL, "the bytes are not a ReplicaStatus") from error
    copies = frozenset(Identity(node, "", 0) for node in found.in_sync)  # the ids stay at their node
    return NodeStatus(
        group=found.group,
        node=found.node,
        cluster=found.cluster_id,
        role=role,
        epoch=found.epoch,
        last_epoch=found.last_epoch,
        promised=found.promised,
        leader=found.leader,
        begin=found.begin,
        end=found.end,
        flushed=found.flushed,
        commit=found.commit,
        in_sync=InSyncSet(found.in_sync_epoch, found.in_sync_version, copies) if copies else None,
        in_sync_min=found.in_sync_min,
        listed=_members(found.members),
        copies=tuple(
            CopyStatus(
                node=one.node,
                end=Offset(one.end),
                flushed=Offset(one.flushed),
                lag_ms=one.lag_ms,
                is_connected=one.connected,
            )
            for one in found.copies
        ),
        problem=found.problem,
        lag_bytes=found.lag_bytes,
        lag_ms=found.lag_ms if found.HasField("lag_ms") else None,
        ack=found.ack,
        store_id=found.store_id,
        incarnation=found.incarnation,
        coordination=found.coordination,
        lease_left_ms=found.lease_left_ms,
        cannot_lead=found.cannot_lead,
        clock_ms=found.clock_ms,
        sealing_key_id=found.sealing_key_id,
        etcd_members=found.etcd.members,
        etcd_version=found.etcd.version,
        etcd_problem=found.etcd.problem,
        failover_paused=found.etcd.paused,
        tls_address=found.tls_address,
        checks_forwarded=found.checks_forwarded,
    )
