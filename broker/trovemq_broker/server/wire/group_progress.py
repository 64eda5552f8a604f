"""The calls of RocketMQ's v2 Admin service about a group's progress: requests to commands, results to
replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trovemq_broker.groups.lag.filtered import QueueLag
from trovemq_broker.server.wire.resources import group_name, topic_to_read
from trovemq_broker.server.wire.rocketmq_messages import duration, timestamp_ms
from trovemq_broker.server.wire.statuses import OK_STATUS
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.rocketmq.v2 import admin_pb2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2


class ProgressQuery(NamedTuple):
    """topics: those that the request names; without any, all of the group are meant."""

    group: str
    topics: Sequence[str]


class OffsetReset(NamedTuple):
    """The group continues at the first message stored at or after that time."""

    group: str
    topic: str
    since_ms: EpochMs


class TimeSpan(NamedTuple):
    """Store times of a queue, epoch ms; 0 for a message that is not there. next_ms: of the group's next one.
    delay_ms: the age of that one."""

    topic: str
    queue_id: QueueId
    first_ms: int
    last_ms: int
    next_ms: int
    delay_ms: int


def progress_query(
    request: admin_pb2.DescribeGroupAccumulationRequest | admin_pb2.QueryTimeSpanRequest,
) -> ProgressQuery:
    """Raises TroveError GROUP_ILLEGAL, TOPIC_ILLEGAL."""
    return ProgressQuery(group_name(request.group), [topic_to_read(topic) for topic in request.topics])


class Accumulation(NamedTuple):
    """Numbers of messages. ready: those that match the group's filters and are not in flight. oldest_ms: the
    age of the oldest one."""

    in_flight: int
    ready: int
    total: int
    oldest_ms: int

    @classmethod
    def of(cls, lags: Iterable[QueueLag]) -> Accumulation:
        """The sums of the queues."""
        in_flight = ready = total = oldest_ms = 0
        for lag in lags:
            in_flight += lag.position.in_flight
            ready += max(0, lag.lag - lag.position.in_flight)
            total += lag.lag
            oldest_ms = max(oldest_ms, lag.lag_ms)
        return cls(in_flight, ready, total, oldest_ms)


def accumulation_reply(
    _request: object, accumulations: Iterable[tuple[str, Accumulation]]
) -> admin_pb2.DescribeGroupAccumulationResponse:
    """accumulations: the sums of each topic, because all of the reply is made in one step."""
    reply = admin_pb2.DescribeGroupAccumulationResponse(status=OK_STATUS)
    for topic, numbers in accumulations:
        _add(reply.topic_accumulation[topic], numbers)
        _add(reply.accumulation, numbers)
    return reply


def _add(total: admin_pb2.DescribeGroupAccumulationResponse.GroupAccumulation, numbers: Accumulation) -> None:
    total.inflight_messages += numbers.in_flight
    total.ready_messages += numbers.ready
    total.accumulation += numbers.total
    oldest_ms = total.deliver_delay_time.seconds * 1000 + total.deliver_delay_time.nanos // 1_000_000
    if numbers.oldest_ms > oldest_ms:
        total.deliver_delay_time.CopyFrom(duration(numbers.oldest_ms))


def time_span_reply(_request: object, spans: Iterable[TimeSpan]) -> admin_pb2.QueryTimeSpanResponse:
    """One entry for each queue."""
    return admin_pb2.QueryTimeSpanResponse(
        status=OK_STATUS,
        queue_time_span_list=[
            admin_pb2.QueryTimeSpanResponse.QueueTimeSpan(
                message_queue=v2.MessageQueue(topic=v2.Resource(name=span.topic), id=span.queue_id),
                min_timestamp=span.first_ms,
                max_timestamp=span.last_ms,
                consume_timestamp=span.next_ms,
                delay_time_ms=span.delay_ms,
            )
            for span in spans
        ],
    )


def offset_reset(request: admin_pb2.ResetGroupOffsetRequest) -> OffsetReset:
    """Raises TroveError REQUEST_ILLEGAL, GROUP_ILLEGAL, TOPIC_ILLEGAL."""
    if not request.HasField("reset_timestamp"):
        raise TroveError(errors.REQUEST_ILLEGAL, "reset_timestamp is missing", field="reset_timestamp")
    since_ms = timestamp_ms(request.reset_timestamp)
    return OffsetReset(group_name(request.group), topic_to_read(request.topic), since_ms)


def reset_reply(_request: object, _result: None) -> admin_pb2.ResetGroupOffsetResponse:
    """OK."""
    return admin_pb2.ResetGroupOffsetResponse(status=OK_STATUS)
