"""ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: requests to commands, results to replies."""

from __future__ import annotations

from typing import NamedTuple

from trovemq_broker.server.wire.resources import group_name, topic_to_read
from trovemq_broker.server.wire.rocketmq_messages import duration_ms
from trovemq_broker.server.wire.statuses import OK_STATUS, status_of
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import service_pb2


class InvisibleChange(NamedTuple):
    """The message is to be visible again after that time. suspend: the attempt does not count."""

    group: str
    topic: str
    handle: str
    invisible_ms: int
    suspend: bool


class InvisibleResult(NamedTuple):
    """handle: the one to use from now on. error: why nothing has changed; the client tries again."""

    handle: str
    error: TroveError | None = None


class DeadLetter(NamedTuple):
    """The message is to become a dead letter."""

    group: str
    topic: str
    handle: str


def invisible_change(request: service_pb2.ChangeInvisibleDurationRequest) -> InvisibleChange:
    """Raises TroveError GROUP_ILLEGAL, TOPIC_ILLEGAL."""
    group, topic = group_name(request.group), topic_to_read(request.topic)
    invisible_ms = duration_ms(request.invisible_duration)
    return InvisibleChange(group, topic, request.receipt_handle, invisible_ms, request.suspend)


def invisible_reply(_request: object, result: InvisibleResult) -> service_pb2.ChangeInvisibleDurationResponse:
    """The handle, and OK or the error."""
    status = OK_STATUS if result.error is None else status_of(result.error)
    return service_pb2.ChangeInvisibleDurationResponse(status=status, receipt_handle=result.handle)


def dead_letter(request: service_pb2.ForwardMessageToDeadLetterQueueRequest) -> DeadLetter:
    """Raises TroveError GROUP_ILLEGAL, TOPIC_ILLEGAL."""
    group, topic = group_name(request.group), topic_to_read(request.topic)
    return DeadLetter(group, topic, request.receipt_handle)


def dead_letter_reply(_request: object, _result: None) -> service_pb2.ForwardMessageToDeadLetterQueueResponse:
    """OK."""
    return service_pb2.ForwardMessageToDeadLetterQueueResponse(status=OK_STATUS)
