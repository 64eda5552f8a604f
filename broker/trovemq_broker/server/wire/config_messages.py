"""Reads the requests of ClusterConfigService as values of cluster_config, and makes its replies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trovemq_broker.cluster_config import protobuf
from trovemq_broker.cluster_config.entries import Generation, Position
from trovemq_broker.cluster_config.messages import Hello, Report, TablePart
from trovemq_broker.cluster_config.status import NodeStatus, Note, PromiseAsked, TakenOver
from trovemq_broker.cluster_config.take_over import CopyStatus
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import cluster_config_pb2 as pb

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ClusterConfigService"]


@dataclass(frozen=True, slots=True)
class ForwardedCall:
    """A client's call that a follower passes on. `caller`: the access key of its user; empty: none."""

    method: str
    request: bytes
    caller: str
    source: str


def first_of(request: pb.WatchConfigRequest) -> Hello:
    """The hello that opens a stream. TroveError REQUEST_ILLEGAL, STORE_NEWER."""
    if request.WhichOneof("message") != "hello":
        raise TroveError(errors.REQUEST_ILLEGAL, "the first message of a stream must be its hello")
    return protobuf.hello_of(request.hello)


def report_of(request: pb.WatchConfigRequest) -> Report:
    """A later message of a stream. TroveError REQUEST_ILLEGAL."""
    if request.WhichOneof("message") != "report":
        raise TroveError(errors.REQUEST_ILLEGAL, "after its hello a follower sends reports")
    return Report(protobuf.position_of(request.report.position))


def part_reply(part: TablePart | None) -> bytes:
    return protobuf.part_to(part).SerializeToString()


def forwarded(request: pb.ForwardChangeRequest) -> ForwardedCall:
    return ForwardedCall(request.method, request.request, request.caller, request.source)


def forwarded_reply(reply: bytes, position: Position) -> pb.ForwardChangeReply:
    return pb.ForwardChangeReply(reply=reply, position=protobuf.position_to(position))


def promise_of(request: pb.PromiseGenerationRequest) -> PromiseAsked:
    """TroveError REQUEST_ILLEGAL."""
    if not request.generation.number or not request.cluster or not request.owner:
        raise TroveError(errors.REQUEST_ILLEGAL, "a promise has a generation, a cluster and its next owner")
    generation = protobuf.generation_of(request.generation)
    return PromiseAsked(generation, request.cluster, request.owner, request.address)


def copy_reply(copy: CopyStatus) -> pb.ConfigCopy:
    return protobuf.copy_to(copy)


def fetched_generation(request: pb.FetchConfigRequest) -> Generation:
    """TroveError REQUEST_ILLEGAL."""
    return protobuf.generation_of(request.generation)


def status_reply(status: NodeStatus) -> pb.ConfigStatus:
    return pb.ConfigStatus(
        broker=status.copy.broker,
        state=status.state,
        problem=status.problem,
        head=protobuf.head_to(status.copy.head),
        promised=protobuf.generation_to(status.copy.promised),
        members=[
            pb.ConfigMember(broker=one.broker, version=one.version, live=one.live) for one in status.members
        ],
        unlisted=_names(status.unlisted),
        differing=_names(status.differing),
        withheld=_names(status.withheld),
        dropped=_names(status.dropped),
        failed=_names(status.failed),
    )


def take_over_of(request: pb.TakeOverConfigRequest) -> tuple[str, str]:
    """Cluster and source of a take-over."""
    return request.cluster, request.source


def removed_member(request: pb.RemoveMemberRequest) -> str:
    """TroveError REQUEST_ILLEGAL."""
    if not request.broker:
        raise TroveError(errors.REQUEST_ILLEGAL, "name the broker to remove", field="broker")
    return request.broker


def removed_reply(pending: Iterable[str] | None) -> pb.RemoveMemberReply:
    """None: it was no member."""
    return pb.RemoveMemberReply(removed=pending is not None, pending=pending or ())


def cleared_reply(count: int) -> pb.ClearDroppedReply:
    return pb.ClearDroppedReply(cleared=count)


def taken_over_reply(done: TakenOver) -> pb.TakeOverConfigReply:
    return pb.TakeOverConfigReply(
        head=protobuf.head_to(done.head),
        source=done.source,
        promised=done.promised,
        unreached=done.unreached,
        dropped=_names(done.dropped),
    )


def _names(notes: Iterable[Note]) -> list[pb.ConfigName]:
    return [pb.ConfigName(kind=one.key.kind, name=one.key.name, message=one.message) for one in notes]
