"""Resets of the offsets of a group, as both AdminService and GroupService have them."""

from __future__ import annotations

from typing import Final

from trovemq_broker.fetch.offsets import ResetTarget
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.v1 import admin_pb2, group_pb2

NO_OFFSET: Final = -1


def reset_target(request: admin_pb2.ResetOffsetRequest | group_pb2.ResetGroupRequest) -> ResetTarget:
    """The target of a reset. Raises TroveError REQUEST_ILLEGAL if there is none."""
    match request.WhichOneof("target"):
        case "timestamp":
            return ResetTarget(timestamp=EpochMs(request.timestamp))
        case "offset":
            return ResetTarget(offset=QueueOffset(request.offset))
        case "to_min" if request.to_min:
            return ResetTarget(to_min=True)
        case "to_max" if request.to_max:
            return ResetTarget(to_max=True)
        case _:
            raise TroveError(errors.REQUEST_ILLEGAL, "give a timestamp, an offset, to_min or to_max")


def reset_queue(request: admin_pb2.ResetOffsetRequest | group_pb2.ResetGroupRequest) -> QueueId | None:
    """The queue of a reset; None for all queues of the topic."""
    return QueueId(request.queue_id) if request.HasField("queue_id") else None


def offset_or_none(offset: QueueOffset | None) -> int:
    """The offset, or the number for none."""
    return NO_OFFSET if offset is None else offset
