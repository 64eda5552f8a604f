"""The topics of an open store, described: a part of AdminService, and of a follower's reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trovemq_broker.admin.shared_topics import SharedTopics
from trovemq_broker.query.queue_sizes import QueueSizes
from trovemq_broker.server.core.read_core import ReadCore
from trovemq_broker.server.wire import admin_messages as wire
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.statuses import Context
from trovemq_broker.state.held_log import TopicHold
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.queues import queue_ids, queue_range, topic_not_found
from trovemq_store.engine.steps import Steps
from trovemq_store.topics.names import is_system_topic
from trovemq_store.topics.topic_options import option_texts
from trovemq_store.topics.topics import TopicConfig

TOPICS_STEP = 128


class TopicReads:
    """`cluster`: the topics of the cluster's configuration. `topic_hold`: returns the group that holds the
    messages of a topic."""

    def __init__(
        self, core: ReadCore, cluster: SharedTopics, topic_hold: Callable[[str], TopicHold | None]
    ) -> None:
        self._store = core.store
        self._broker = core.broker
        self._turns = core.turns
        self._cluster = cluster
        self._topic_hold = topic_hold
        self._sizes = QueueSizes()

    async def describe_topic(self, request: Request, _context: Context) -> Reply:
        """Also of a topic of the cluster's configuration that lies on other brokers alone, without queues."""
        command = wire.describe_of(request)
        topic = command.topic
        config = self._store.topics.get(topic)
        if config is None and not self._store.consume_queues.queues(topic):
            config = self._cluster.find(topic)
            if config is None:
                raise topic_not_found(topic)
            return wire.topic_reply(self._elsewhere(config))
        described = self._described(topic, config, with_queues=True)
        sizes = await self._turns.run_from_now(self._sizes_of(described)) if command.with_sizes else None
        return wire.topic_reply(described, sizes, self._topic_hold(topic))

    async def list_topics(self, request: Request, _context: Context) -> Reply:
        """All topics of this broker, and all others of which the store has queues. Where they are asked for,
        the cluster's topics that lie on other brokers alone, too, without a broker's name."""
        steps = self._list_steps(
            include_system=wire.lists_system_topics(request), elsewhere=wire.lists_topics_elsewhere(request)
        )
        return await self._turns.run(steps)

    def _list_steps(self, *, include_system: bool, elsewhere: bool) -> Steps[Reply]:
        names = {*self._store.topics.names(include_system=True), *self._store.consume_queues.topics()}
        yield
        topics = wire.TopicList()
        for number, name in enumerate(sorted(names), 1):
            if number % TOPICS_STEP == 0:
                yield
            config = self._store.topics.get(name)
            if config is None and not self._store.consume_queues.has_topic(name):
                continue  # it was deleted meanwhile
            if include_system or not is_system_topic(name):
                topics.add(self._described(name, config, with_queues=False))
        for number, name in enumerate(self._cluster.names() if elsewhere else (), 1):
            if number % TOPICS_STEP == 0:
                yield
            if name not in names and (there := self._cluster.find(name)) is not None:
                topics.add(replace(self._elsewhere(there), broker=""))
        return topics.reply

    def _elsewhere(self, config: TopicConfig) -> wire.DescribedTopic:
        """A topic of the cluster's configuration of which this broker has no queues."""
        return wire.DescribedTopic(
            topic=config.name,
            queue_count=config.queue_count,
            message_type=config.message_type,
            system=False,
            queues=(),
            broker=self._broker,
            options=option_texts(config.attributes),
            placement=self._cluster.placement(config.name),
        )

    def _described(self, topic: str, config: TopicConfig | None, *, with_queues: bool) -> wire.DescribedTopic:
        numbers = queue_ids(self._store, topic) if with_queues or config is None else []
        return wire.DescribedTopic(
            topic=topic,
            queue_count=config.queue_count if config is not None else len(numbers),
            message_type=config.message_type if config is not None else "UNSPECIFIED",
            system=is_system_topic(topic),
            queues=[self._queue(topic, number) for number in numbers] if with_queues else (),
            broker=self._broker,
            options=option_texts(config.attributes) if config is not None else {},
            placement=self._cluster.placement(topic),
        )

    def _sizes_of(self, described: wire.DescribedTopic) -> Steps[dict[QueueId, int]]:
        sizes = {}
        for described_queue in described.queues:
            queue_id = described_queue.queue_id
            queue = self._store.consume_queues.get(described.topic, queue_id)
            size = 0 if queue is None else (yield from self._sizes.size_of(queue))
            if size is not None:
                sizes[queue_id] = size
        return sizes

    def _queue(self, topic: str, queue_id: QueueId) -> wire.DescribedQueue:
        low, high = queue_range(self._store, topic, queue_id)
        return wire.DescribedQueue(
            queue_id, low, high, self._last_store_timestamp(topic, queue_id, low, high)
        )

    def _last_store_timestamp(self, topic: str, queue_id: QueueId, low: int, high: int) -> int:
        queue = self._store.consume_queues.get(topic, queue_id)
        if queue is None or high <= low:
            return 0
        last = PhysicalOffset(int(queue.units(QueueOffset(high - 1), 1)["physical_offset"][0]))
        return self._store.store_timestamp_at(last) or 0
