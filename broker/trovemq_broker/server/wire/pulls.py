"""PullMessage, UpdateOffset, GetOffset and QueryOffset: requests to commands, results to replies. The
elements of a PullMessage stream are serialised."""

from __future__ import annotations

from typing import Final, NamedTuple

from trovemq_broker.filters.filter import Filter
from trovemq_broker.server.wire.filters import read_filter
from trovemq_broker.server.wire.resources import group_name, topic_to_read
from trovemq_broker.server.wire.rocketmq_messages import Record, duration_ms, message_of, timestamp_ms
from trovemq_broker.server.wire.statuses import OK_STATUS
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

PULL_COUNT_DEFAULT: Final = 32
PULL_COUNT_MAX: Final = 1_024

PULL_OK: Final = service_pb2.PullMessageResponse(status=OK_STATUS).SerializeToString()
"""The first element of a stream with messages."""
PULL_NOTHING: Final = service_pb2.PullMessageResponse(
    status=v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no message came within the polling time")
).SerializeToString()
"""The first element of a stream without messages."""


class Pull(NamedTuple):
    """At most `count_max` messages from the offset on. polling_ms: how long to wait for the first."""

    topic: str
    queue_id: QueueId
    group: str
    filter: Filter
    offset: QueueOffset
    count_max: int
    polling_ms: int


class OffsetUpdate(NamedTuple):
    """The group's next message."""

    group: str
    topic: str
    queue_id: QueueId
    offset: QueueOffset


class OffsetQuery(NamedTuple):
    """The group's next message in a queue is asked for."""

    group: str
    topic: str
    queue_id: QueueId


class QueueEnd(NamedTuple):
    """The earliest offset of a queue, or the latest; with a time, that of the first message from then on."""

    topic: str
    queue_id: QueueId
    latest: bool
    since_ms: EpochMs | None


def pull(request: object) -> Pull:
    """Raises TroveError TOPIC_ILLEGAL, GROUP_ILLEGAL, FILTER_ILLEGAL."""
    assert isinstance(request, service_pb2.PullMessageRequest), "the method's reader made it"
    queue = request.message_queue
    return Pull(
        topic_to_read(queue.topic),
        QueueId(queue.id),
        group_name(request.group),
        read_filter(request.filter_expression),
        QueueOffset(request.offset),
        min(max(request.batch_size, 0) or PULL_COUNT_DEFAULT, PULL_COUNT_MAX),
        duration_ms(request.long_polling_timeout),
    )


def pulled(record: Record, topic: str, queue_id: QueueId, queue_offset: QueueOffset) -> bytes:
    """The element with a message."""
    message = message_of(record, topic, queue_id, queue_offset)
    return service_pb2.PullMessageResponse(message=message).SerializeToString()


def pulled_to(next_offset: QueueOffset) -> bytes:
    """The last element: the next pull begins there."""
    return service_pb2.PullMessageResponse(next_offset=next_offset).SerializeToString()


def offset_update(request: service_pb2.UpdateOffsetRequest) -> OffsetUpdate:
    """Raises TroveError TOPIC_ILLEGAL, GROUP_ILLEGAL."""
    queue = request.message_queue
    topic, group = topic_to_read(queue.topic), group_name(request.group)
    return OffsetUpdate(group, topic, QueueId(queue.id), QueueOffset(request.offset))


def update_reply(_request: object, _result: None) -> service_pb2.UpdateOffsetResponse:
    """OK."""
    return service_pb2.UpdateOffsetResponse(status=OK_STATUS)


def offset_query(request: service_pb2.GetOffsetRequest) -> OffsetQuery:
    """Raises TroveError TOPIC_ILLEGAL, GROUP_ILLEGAL."""
    queue = request.message_queue
    topic, group = topic_to_read(queue.topic), group_name(request.group)
    return OffsetQuery(group, topic, QueueId(queue.id))


def offset_reply(_request: object, offset: QueueOffset) -> service_pb2.GetOffsetResponse:
    """OK, and the offset."""
    return service_pb2.GetOffsetResponse(status=OK_STATUS, offset=offset)


def queue_end(request: service_pb2.QueryOffsetRequest) -> QueueEnd:
    """Raises TroveError TOPIC_ILLEGAL, REQUEST_ILLEGAL."""
    topic, queue_id = topic_to_read(request.message_queue.topic), QueueId(request.message_queue.id)
    policy = request.query_offset_policy
    if policy in (v2.BEGINNING, v2.END):
        return QueueEnd(topic, queue_id, policy == v2.END, None)
    if policy != v2.TIMESTAMP:
        raise TroveError(errors.REQUEST_ILLEGAL, f"policy {policy} is unknown")
    if not request.HasField("timestamp"):
        raise TroveError(errors.REQUEST_ILLEGAL, "the policy TIMESTAMP needs a timestamp")
    return QueueEnd(topic, queue_id, False, timestamp_ms(request.timestamp))


def end_reply(_request: object, offset: QueueOffset) -> service_pb2.QueryOffsetResponse:
    """OK, and the offset."""
    return service_pb2.QueryOffsetResponse(status=OK_STATUS, offset=offset)
