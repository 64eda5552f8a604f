"""The frames between the nodes of a replica group as protobuf messages, for both ends of a stream.

Each bound is checked before protobuf makes objects of the bytes, or right after, before anything is made of
its fields:

    bound                     limit
    bytes of a frame          FRAME_SIZE_MAX without Data; with Data the transport's limit of a message
    fields of a frame         PARTS_MAX
    epochs                    4,096, rising (trovemq_store.replica.epochs)
    copies of an in-sync set  7, all different
    a name, a store id        NAME_SIZE_MAX bytes, not empty
    an offset, a version      below 2 ** 63
    an epoch                  below 2 ** 31
    data                      1 MiB, or one record

Whatever is beyond is REPLICA_FRAME_ILLEGAL.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from trovemq_broker.replication.frames import (
    FRAME_BYTES_MAX,
    NODES_MAX,
    Data,
    Epoch,
    FollowerFrame,
    Heartbeat,
    Hello,
    Identity,
    InSyncSet,
    LeaderFrame,
    Node,
    Offset,
    Progress,
    Welcome,
)
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import MembersChange
from trovemq_broker.server.wire.replica_data import data_bytes, split_data
from trovemq_broker.server.wire.replica_members import (
    LIST_PARTS_MAX,
    LIST_SIZE_MAX,
    members_of,
    members_to,
)
from trovemq_daemon.request_bounds import check_parts
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import replica_pb2
from trovemq_proto.v1 import replication_pb2 as pb
from trovemq_store.replica.epochs import ENTRIES_MAX, EPOCH_MAX, Epochs
from trovemq_store.replica.membership import Members

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ReplicationService"]
FOLLOW: Final = f"/{SERVICE.full_name}/Follow"
PROMISE: Final = f"/{SERVICE.full_name}/Promise"
READ_LOG: Final = f"/{SERVICE.full_name}/ReadLog"
READ_CONSUMERS: Final = f"/{SERVICE.full_name}/ReadConsumers"
GET_STATUS: Final = f"/{SERVICE.full_name}/GetStatus"
STORE_MEMBERS: Final = f"/{SERVICE.full_name}/StoreMembers"

NAME_SIZE_MAX: Final = 255
PARTS_MAX: Final = 64
NUMBER_MAX: Final = (1 << 63) - 1
_EPOCH: Final = Struct(">iq")
FRAME_SIZE_MAX: Final = ENTRIES_MAX * _EPOCH.size + 16 * NAME_SIZE_MAX + 1_024
LISTED_SIZE_MAX: Final = FRAME_SIZE_MAX + LIST_SIZE_MAX
"""Of a message with a list of members."""

Frame = TypeVar("Frame", bound=Message)


class PromiseAsked(NamedTuple):
    """An operator's promotion asks a node for its promise of that epoch."""

    cluster: str
    group: str
    epoch: Epoch


class RangeAsked(NamedTuple):
    """`node`, which has promised `epoch`, asks for records of the log from `offset` on."""

    cluster: str
    group: str
    epoch: Epoch
    offset: Offset
    size_max: int
    node: Node


class ConsumersAsked(NamedTuple):
    """`node`, which follows `epoch`, asks for the consumers' state, from a byte on. `known`: the CRC of the
    one that it has; 0: none."""

    cluster: str
    group: str
    epoch: Epoch
    node: Node
    known: int
    offset: int


class ConsumersPart(NamedTuple):
    """`size` and `crc`: of the whole. No size: the caller has it, or there is none."""

    size: int = 0
    crc: int = 0
    data: bytes = b""


class StatusAsked(NamedTuple):
    """By that node, of which a new one has no cluster."""

    cluster: str
    group: str
    node: Node


class LogRange(NamedTuple):
    """Whole records of one segment; `blank`: the zeros after them, up to the end of the segment."""

    offset: Offset
    data: bytes
    crc: int
    blank: int


# --- frames of a follower ---------------------------------------------------------------------------------
def follower_bytes(frame: FollowerFrame) -> bytes:
    if isinstance(frame, Progress):
        progress = pb.ReplicaProgress(
            epoch=frame.epoch,
            end=frame.end,
            flushed=frame.flushed,
            set_version=frame.set_version,
            echo_ms=frame.echo_ms,
        )
        return pb.FollowRequest(progress=progress).SerializeToString()
    hello = pb.ReplicaHello(
        cluster=frame.cluster,
        group=frame.group,
        identity=_identity_to(frame.identity),
        promised=frame.promised,
        epochs=_epochs_to(frame.epochs),
        begin=frame.begin,
        end=frame.end,
        commit=frame.commit,
        in_sync=_set_to(frame.in_sync),
        segment_size=frame.segment_size,
        learner=frame.learner,
        sealing_key_id=frame.sealing_key_id,
    )
    return pb.FollowRequest(hello=hello).SerializeToString()


def hello_of(data: bytes) -> Hello:
    """The first frame of a stream. TroveError REPLICA_FRAME_ILLEGAL."""
    frame = _parsed(pb.FollowRequest, data)
    if frame.WhichOneof("frame") != "hello":
        raise _illegal("a stream begins with a hello")
    hello = frame.hello
    return Hello(
        _name(hello.cluster),
        _name(hello.group),
        _identity_of(hello.identity),
        _epoch(hello.promised),
        _epochs_of(hello.epochs),
        _offset(hello.begin),
        _offset(hello.end),
        _offset(hello.commit),
        _set_of(hello.in_sync) if hello.HasField("in_sync") else None,
        _number(hello.segment_size),
        hello.learner,
        _name_or_none(hello.sealing_key_id),
    )


def progress_of(data: bytes) -> Progress:
    """A later frame of a follower. TroveError REPLICA_FRAME_ILLEGAL."""
    frame = _parsed(pb.FollowRequest, data)
    if frame.WhichOneof("frame") != "progress":
        raise _illegal("after its hello a follower sends its progress")
    one = frame.progress
    return Progress(
        _epoch(one.epoch),
        _offset(one.end),
        _offset(one.flushed),
        _number(one.set_version),
        _number(one.echo_ms),
    )


# --- frames of a leader -----------------------------------------------------------------------------------
def leader_bytes(frame: LeaderFrame) -> bytes:
    if isinstance(frame, Data):
        return data_bytes(frame)
    if isinstance(frame, Heartbeat):
        heartbeat = pb.ReplicaHeartbeat(
            epoch=frame.epoch,
            commit=frame.commit,
            end=frame.end,
            sent_ms=frame.sent_ms,
            in_sync=_set_to(frame.in_sync),
            begin=frame.begin,
        )
        return pb.FollowReply(heartbeat=heartbeat).SerializeToString()
    welcome = pb.ReplicaWelcome(
        epoch=frame.epoch,
        epochs=_epochs_to(frame.epochs),
        begin=frame.begin,
        end=frame.end,
        commit=frame.commit,
        cut_to=frame.cut_to,
        joins=frame.joins,
    )
    return pb.FollowReply(welcome=welcome).SerializeToString()


def leader_frame_of(data: bytes) -> LeaderFrame:
    """Data of the log is a view of the bytes. TroveError REPLICA_FRAME_ILLEGAL."""
    if (split := split_data(data)) is not None:
        return _data_of(*split)
    frame = _parsed(pb.FollowReply, data, has_data=True)
    match frame.WhichOneof("frame"):
        case "welcome":
            return _welcome_of(frame.welcome)
        case "data":
            return _data_of(frame.data, frame.data.data)
        case "heartbeat":
            one = frame.heartbeat
            return Heartbeat(
                _epoch(one.epoch),
                _offset(one.commit),
                _offset(one.end),
                _number(one.sent_ms),
                _set_of(one.in_sync),
                _offset(one.begin),
            )
    raise _illegal("it is neither a welcome nor data nor a heartbeat")


def _welcome_of(one: pb.ReplicaWelcome) -> Welcome:
    return Welcome(
        _epoch(one.epoch),
        _epochs_of(one.epochs),
        _offset(one.begin),
        _offset(one.end),
        _offset(one.commit),
        _offset(one.cut_to),
        one.joins,
    )


def _data_of(one: pb.ReplicaData, data: bytes | memoryview) -> Data:
    offset, blank = _checked_range(one, data)
    return Data(_epoch(one.epoch), offset, _offset(one.commit), data, one.crc, blank)


def _checked_range(one: pb.ReplicaData | pb.ReadLogReply, data: bytes | memoryview) -> tuple[Offset, int]:
    size = len(data)
    if not size or (size > FRAME_BYTES_MAX and int.from_bytes(data[:4]) != size):
        raise _illegal(f"{size} bytes of data")
    _offset(one.offset + size + one.blank)
    return _offset(one.offset), one.blank


# --- other calls ------------------------------------------------------------------------------------------
def promise_request(asked: PromiseAsked) -> bytes:
    return pb.ReplicaPromiseRequest(**asked._asdict()).SerializeToString()


def promise_asked(data: bytes) -> PromiseAsked:
    """TroveError REPLICA_FRAME_ILLEGAL."""
    one = _parsed(pb.ReplicaPromiseRequest, data)
    if not one.epoch:
        raise _illegal("a promise has an epoch")
    return PromiseAsked(_name(one.cluster), _name(one.group), _epoch(one.epoch))


def promised_bytes(promised: Promised) -> bytes:
    return pb.ReplicaPromise(
        identity=_identity_to(promised.identity),
        promised=promised.promised,
        epochs=_epochs_to(promised.epochs),
        end=promised.end,
        in_sync=_set_to(promised.in_sync),
        members=members_to(promised.listed),
    ).SerializeToString()


def promised_of(data: bytes) -> Promised:
    """TroveError REPLICA_FRAME_ILLEGAL."""
    one = _parsed_listed(pb.ReplicaPromise, data)
    return Promised(
        _identity_of(one.identity),
        _epoch(one.promised),
        _epochs_of(one.epochs),
        _offset(one.end),
        _set_of(one.in_sync) if one.HasField("in_sync") else None,
        _members_of(one.members),
    )


def range_request(asked: RangeAsked) -> bytes:
    return pb.ReadLogRequest(**asked._asdict()).SerializeToString()


def range_asked(data: bytes) -> RangeAsked:
    """TroveError REPLICA_FRAME_ILLEGAL."""
    one = _parsed(pb.ReadLogRequest, data)
    return RangeAsked(
        _name(one.cluster),
        _name(one.group),
        _epoch(one.epoch),
        _offset(one.offset),
        _number(one.size_max),
        _name(one.node),
    )


def range_bytes(found: LogRange) -> bytes:
    return pb.ReadLogReply(**found._asdict()).SerializeToString()


def range_of(data: bytes) -> LogRange:
    """TroveError REPLICA_FRAME_ILLEGAL."""
    one = _parsed(pb.ReadLogReply, data, has_data=True)
    data = one.data
    offset, blank = _checked_range(one, data)
    return LogRange(offset, data, one.crc, blank)


def consumers_request(asked: ConsumersAsked) -> bytes:
    return pb.ReadConsumersRequest(**asked._asdict()).SerializeToString()


def consumers_asked(data: bytes) -> ConsumersAsked:
    """TroveError REPLICA_FRAME_ILLEGAL."""
    one = _parsed(pb.ReadConsumersRequest, data)
    names = _name(one.cluster), _name(one.group), _epoch(one.epoch), _name(one.node)
    return ConsumersAsked(*names, one.known, _number(one.offset))


def consumers_bytes(part: ConsumersPart) -> bytes:
    return pb.ReadConsumersReply(**part._asdict()).SerializeToString()


def consumers_of(data: bytes) -> ConsumersPart:
    """TroveError REPLICA_FRAME_ILLEGAL."""
    one = _parsed(pb.ReadConsumersReply, data, has_data=True)
    return ConsumersPart(_number(one.size), one.crc, one.data)


def status_request(asked: StatusAsked) -> bytes:
    return pb.ReplicaStatusRequest(**asked._asdict()).SerializeToString()


def status_asked(data: bytes) -> StatusAsked:
    """TroveError REPLICA_FRAME_ILLEGAL."""
    one = _parsed(pb.ReplicaStatusRequest, data)
    return StatusAsked(_name_or_none(one.cluster), _name(one.group), _name(one.node))


def members_request(change: MembersChange) -> bytes:
    return replica_pb2.StoreMembersRequest(
        cluster_id=change.cluster,
        group=change.group,
        members=members_to(change.listed),
        epoch=change.epoch,
    ).SerializeToString()


def members_change(data: bytes) -> MembersChange:
    """TroveError REPLICA_FRAME_ILLEGAL."""
    one = _parsed_listed(replica_pb2.StoreMembersRequest, data)
    return MembersChange(_name(one.cluster_id), _name(one.group), _members_of(one.members), _epoch(one.epoch))


def stored_bytes(stored: Identity) -> bytes:
    """The log whose node has stored the list."""
    reply = replica_pb2.StoreMembersReply(store_id=stored.store_id, incarnation=stored.incarnation)
    return reply.SerializeToString()


def stored_of(node: Node, data: bytes) -> Identity:
    """TroveError REPLICA_FRAME_ILLEGAL."""
    one = _parsed(replica_pb2.StoreMembersReply, data)
    return Identity(node, _name(one.store_id), _number(one.incarnation))


# --- values -----------------------------------------------------------------------------------------------
def _parsed(
    kind: type[Frame],
    data: bytes,
    *,
    has_data: bool = False,
    parts_max: int = PARTS_MAX,
    size_max: int = FRAME_SIZE_MAX,
) -> Any:
    if len(data) > size_max and not has_data:
        raise _illegal(f"{len(data)} bytes")
    try:
        check_parts(data, kind.DESCRIPTOR, parts_max, always_fine=0)
        return kind.FromString(data)
    except DecodeError:
        raise _illegal(f"the bytes are not a {kind.DESCRIPTOR.name}") from None
    except TroveError as error:  # too many parts
        raise _illegal(error.message) from None


def _parsed_listed(kind: type[Frame], data: bytes) -> Any:
    return _parsed(kind, data, parts_max=PARTS_MAX + LIST_PARTS_MAX, size_max=LISTED_SIZE_MAX)


def _members_of(found: replica_pb2.ReplicaMemberList) -> Members:
    try:
        return members_of(found)
    except ValueError as error:
        raise _illegal(str(error)) from None


def _illegal(text: str) -> TroveError:
    return TroveError(errors.REPLICA_FRAME_ILLEGAL, text)


def _number(value: int) -> int:
    if value > NUMBER_MAX:
        raise _illegal(f"{value} is too large")
    return value


def _offset(value: int) -> Offset:
    return Offset(_number(value))


def _epoch(value: int) -> Epoch:
    if value > EPOCH_MAX:
        raise _illegal(f"epoch {value}")
    return value


def _name(text: str) -> str:
    if not text or len(text.encode()) > NAME_SIZE_MAX:
        raise _illegal(f"a name of {len(text)} characters")
    return text


def _name_or_none(text: str) -> str:
    return _name(text) if text else ""


def _identity_to(one: Identity) -> pb.ReplicaIdentity:
    return pb.ReplicaIdentity(node=one.node, store_id=one.store_id, incarnation=one.incarnation)


def _identity_of(one: pb.ReplicaIdentity) -> Identity:
    return Identity(_name(one.node), _name(one.store_id), _number(one.incarnation))


def _epochs_to(epochs: Epochs) -> bytes:
    return b"".join(_EPOCH.pack(*entry) for entry in epochs)


def _epochs_of(data: bytes) -> Epochs:
    if len(data) % _EPOCH.size or len(data) > ENTRIES_MAX * _EPOCH.size:
        raise _illegal(f"{len(data)} bytes of epochs")
    try:
        return Epochs.of(list(_EPOCH.iter_unpack(data)))
    except ValueError as error:
        raise _illegal(str(error)) from None


def _set_to(in_sync: InSyncSet | None) -> pb.ReplicaSet | None:
    if in_sync is None:
        return None
    copies = [_identity_to(one) for one in sorted(in_sync.copies)]
    return pb.ReplicaSet(epoch=in_sync.epoch, version=in_sync.version, copies=copies)


def _set_of(one: pb.ReplicaSet) -> InSyncSet:
    if not 0 < len(one.copies) <= NODES_MAX:
        raise _illegal(f"an in-sync set of {len(one.copies)} copies")
    copies = frozenset(_identity_of(copy) for copy in one.copies)
    if len(copies) != len(one.copies):
        raise _illegal("an in-sync set has a copy twice")
    return InSyncSet(_epoch(one.epoch), _number(one.version), copies)
