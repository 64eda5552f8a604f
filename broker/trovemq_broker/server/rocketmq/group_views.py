"""A consumer group's progress for RocketMQ's v2 Admin service: pending messages, times, resets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from trovemq_broker.fetch.offsets import ResetTarget
from trovemq_broker.filters.filter import Filter, parse_filter
from trovemq_broker.groups.lag.filtered import GroupLags
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.wire.conversion import converted
from trovemq_broker.server.wire.group_progress import (
    Accumulation,
    OffsetReset,
    ProgressQuery,
    TimeSpan,
    accumulation_reply,
    offset_reset,
    progress_query,
    reset_reply,
    time_span_reply,
)
from trovemq_broker.server.wire.statuses import Context
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.engine.queues import find_queue, queue_ids, queue_range

TOPICS_MAX: Final = 1_024  # of one answer


class GroupViews:
    """The methods are those of admin.proto; every refusal is a TroveError."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._lags = GroupLags(core.store, core.delivery.progress, self._filters, core.timers.pending_of)

    @converted(progress_query, accumulation_reply)
    async def describe_accumulation(
        self, query: ProgressQuery, _context: Context
    ) -> list[tuple[str, Accumulation]]:
        """The sums of each topic."""
        group, turns = query.group, self._core.turns
        return [
            (
                topic,
                Accumulation.of(await turns.run(self._lags.steps(group, [topic], self._core.clock_ms()))),
            )
            for topic in self._topics(group, query.topics)
        ]

    @converted(progress_query, time_span_reply)
    async def query_time_span(self, query: ProgressQuery, _context: Context) -> list[TimeSpan]:
        """For each queue the store times of its first message, of its last one and of the group's next
        one."""
        group, now_ms = query.group, self._core.clock_ms()
        return [
            self._time_span(topic, queue_id, committed, now_ms)
            for topic in self._topics(group, query.topics)
            for queue_id, committed in self._committed(group, topic)
        ]

    @converted(offset_reset, reset_reply)
    async def reset_offset(self, reset: OffsetReset, _context: Context) -> None:
        """In every queue of the topic."""
        target = ResetTarget(timestamp=reset.since_ms)
        await self._core.offsets.reset(reset.group, reset.topic, None, target)

    def committed(self, group: str) -> Iterator[tuple[str, QueueId, QueueOffset]]:
        """(topic, queue id, committed offset) of every queue that the group has read."""
        for topic in self._topics(group, ()):
            for queue_id, offset in self._committed(group, topic):
                if offset is not None:
                    yield topic, queue_id, offset

    # --- helpers ------------------------------------------------------------------------------------
    def _topics(self, group: str, asked: Sequence[str]) -> list[str]:
        """The requested topics, or all topics of which the group has a position or a subscription."""
        if asked:
            names = list(asked)
        else:
            known = {topic for owner, topic in self._core.delivery.pairs() if owner == group}
            known.update(topic for owner, topic in self._core.store.offsets.pairs() if owner == group)
            known.update(topic for _, topic in self._core.registry.subscriptions(group=group))
            names = sorted(topic for topic in known if self._exists(topic))
        if len(names) > TOPICS_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{len(names)} topics, the limit is {TOPICS_MAX}")
        return names

    def _exists(self, topic: str) -> bool:
        return topic in self._core.store.topics or bool(self._core.store.consume_queues.queues(topic))

    def _committed(self, group: str, topic: str) -> list[tuple[QueueId, QueueOffset | None]]:
        """The committed offset of every queue, sorted; None for a queue that the group has never read."""
        rows = self._core.delivery.progress(group, topic, self._core.clock_ms())
        progress = {entry.queue_id: entry.committed for entry in rows}
        offsets = self._core.store.offsets
        return [
            (queue_id, progress.get(queue_id, offsets.get(group, topic, queue_id)))
            for queue_id in queue_ids(self._core.store, topic)
        ]

    def _filters(self, group: str, topic: str) -> list[Filter]:
        subscription = self._core.registry.subscription(group, topic)
        if subscription is None:
            return []
        try:
            return [parse_filter(subscription.kind, subscription.expression)]
        except TroveError:
            return []  # the filter cannot be parsed: the client has the error, and gets nothing

    def _time_span(self, topic: str, queue_id: QueueId, committed: int | None, now_ms: EpochMs) -> TimeSpan:
        low, high = queue_range(self._core.store, topic, queue_id)
        at = low if committed is None else max(low, committed)
        next_ms = self._time_at(topic, queue_id, at) if low <= at < high else 0
        return TimeSpan(
            topic,
            queue_id,
            first_ms=self._time_at(topic, queue_id, low) if low < high else 0,
            last_ms=self._time_at(topic, queue_id, high - 1) if low < high else 0,
            next_ms=next_ms,
            delay_ms=max(0, now_ms - next_ms) if next_ms else 0,
        )

    def _time_at(self, topic: str, queue_id: QueueId, offset: int) -> int:
        queue = find_queue(self._core.store, topic, queue_id)
        assert queue is not None, "a queue with a range is there"
        return self._core.store.store_timestamp_at(queue.unit(QueueOffset(offset))[0]) or 0
