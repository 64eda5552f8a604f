"""A consumer group's progress for RocketMQ's v2 Admin service: pending messages, times, resets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from trovemq_broker.fetch.offsets import ResetTarget
from trovemq_broker.filters.filter import Filter, parse_filter
from trovemq_broker.groups.lag.filtered import GroupLags, QueueLag
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.rocketmq.client_settings import duration
from trovemq_broker.server.wire.resources import group_name, topic_to_read
from trovemq_broker.server.wire.rocketmq_messages import timestamp_ms
from trovemq_broker.server.wire.statuses import OK_STATUS, Context
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.rocketmq.v2 import admin_pb2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_store.engine.queues import find_queue, queue_ids, queue_range

TOPICS_MAX: Final = 1_024  # of one answer


class GroupViews:
    """The methods are those of admin.proto; every refusal is a TroveError."""

    def __init__(self, parts: BrokerCore) -> None:
        self._parts = parts
        self._lags = GroupLags(parts.store, parts.delivery.progress, self._filters, parts.timers.pending_of)

    async def describe_accumulation(
        self, request: admin_pb2.DescribeGroupAccumulationRequest, _context: Context
    ) -> admin_pb2.DescribeGroupAccumulationResponse:
        """`ready_messages`: those that match the group's filters and are not in flight."""
        group = group_name(request.group)
        reply = admin_pb2.DescribeGroupAccumulationResponse(status=OK_STATUS)
        for topic in self._topics(group, request.topics):
            lags = await self._parts.turns.run(self._lags.steps(group, [topic], self._parts.clock_ms()))
            _add(reply.topic_accumulation[topic], lags)
            _add(reply.accumulation, lags)
        return reply

    async def query_time_span(
        self, request: admin_pb2.QueryTimeSpanRequest, _context: Context
    ) -> admin_pb2.QueryTimeSpanResponse:
        """For each queue the store times of its first message, of its last one and of the group's next one,
        epoch ms."""
        group = group_name(request.group)
        now_ms = self._parts.clock_ms()
        reply = admin_pb2.QueryTimeSpanResponse(status=OK_STATUS)
        for topic in self._topics(group, request.topics):
            for queue_id, committed in self._committed(group, topic):
                reply.queue_time_span_list.append(self._time_span(topic, queue_id, committed, now_ms))
        return reply

    async def reset_offset(
        self, request: admin_pb2.ResetGroupOffsetRequest, _context: Context
    ) -> admin_pb2.ResetGroupOffsetResponse:
        """The group continues at the first message stored at or after the time, in every queue of the
        topic."""
        if not request.HasField("reset_timestamp"):
            raise TroveError(errors.REQUEST_ILLEGAL, "reset_timestamp is missing", field="reset_timestamp")
        target = ResetTarget(timestamp=timestamp_ms(request.reset_timestamp))
        await self._parts.offsets.reset(group_name(request.group), topic_to_read(request.topic), None, target)
        return admin_pb2.ResetGroupOffsetResponse(status=OK_STATUS)

    def committed(self, group: str) -> Iterator[tuple[str, QueueId, QueueOffset]]:
        """(topic, queue id, committed offset) of every queue that the group has read."""
        for topic in self._topics(group, ()):
            for queue_id, offset in self._committed(group, topic):
                if offset is not None:
                    yield topic, queue_id, offset

    # --- helpers ------------------------------------------------------------------------------------
    def _topics(self, group: str, asked: Sequence[v2.Resource]) -> list[str]:
        """The requested topics, or all topics of which the group has a position or a subscription."""
        if asked:
            names = [topic_to_read(topic) for topic in asked]
        else:
            known = {topic for owner, topic in self._parts.delivery.pairs() if owner == group}
            known.update(topic for owner, topic in self._parts.store.offsets.pairs() if owner == group)
            known.update(topic for _, topic in self._parts.registry.subscriptions(group=group))
            names = sorted(topic for topic in known if self._exists(topic))
        if len(names) > TOPICS_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{len(names)} topics, the limit is {TOPICS_MAX}")
        return names

    def _exists(self, topic: str) -> bool:
        return topic in self._parts.store.topics or bool(self._parts.store.consume_queues.queues(topic))

    def _committed(self, group: str, topic: str) -> list[tuple[QueueId, QueueOffset | None]]:
        """The committed offset of every queue, sorted; None for a queue that the group has never read."""
        rows = self._parts.delivery.progress(group, topic, self._parts.clock_ms())
        progress = {entry.queue_id: entry.committed for entry in rows}
        offsets = self._parts.store.offsets
        return [
            (queue_id, progress.get(queue_id, offsets.get(group, topic, queue_id)))
            for queue_id in queue_ids(self._parts.store, topic)
        ]

    def _filters(self, group: str, topic: str) -> list[Filter]:
        subscription = self._parts.registry.subscription(group, topic)
        if subscription is None:
            return []
        try:
            return [parse_filter(subscription.kind, subscription.expression)]
        except TroveError:
            return []  # the filter cannot be parsed: the client has the error, and gets nothing

    def _time_span(
        self, topic: str, queue_id: QueueId, committed: int | None, now_ms: EpochMs
    ) -> admin_pb2.QueryTimeSpanResponse.QueueTimeSpan:
        low, high = queue_range(self._parts.store, topic, queue_id)
        at = low if committed is None else max(low, committed)
        consume_ms = self._time_at(topic, queue_id, at) if low <= at < high else 0
        return admin_pb2.QueryTimeSpanResponse.QueueTimeSpan(
            message_queue=v2.MessageQueue(topic=v2.Resource(name=topic), id=queue_id),
            min_timestamp=self._time_at(topic, queue_id, low) if low < high else 0,
            max_timestamp=self._time_at(topic, queue_id, high - 1) if low < high else 0,
            consume_timestamp=consume_ms,
            delay_time_ms=max(0, now_ms - consume_ms) if consume_ms else 0,
        )

    def _time_at(self, topic: str, queue_id: QueueId, offset: int) -> int:
        queue = find_queue(self._parts.store, topic, queue_id)
        assert queue is not None, "a queue with a range is there"
        return self._parts.store.store_timestamp_at(queue.unit(QueueOffset(offset))[0]) or 0


def _add(
    total: admin_pb2.DescribeGroupAccumulationResponse.GroupAccumulation, lags: Sequence[QueueLag]
) -> None:
    for lag in lags:
        total.inflight_messages += lag.position.in_flight
        total.ready_messages += max(0, lag.lag - lag.position.in_flight)
        total.accumulation += lag.lag
        oldest_ms = total.deliver_delay_time.seconds * 1000 + total.deliver_delay_time.nanos // 1_000_000
        if lag.lag_ms > oldest_ms:
            total.deliver_delay_time.CopyFrom(duration(lag.lag_ms))
