"""SendMessage of the usual message: one that has nothing but body, id, tag, keys, born host and trace
context, for a topic that has accepted such a message.

Its checks are made together. With async flush the usual messages of one turn are stored and answered
together, too; with sync flush each is answered when it is synced.
"""

from __future__ import annotations

from typing import Any, Final

from trovemq_broker.server.core.parts import RocketmqParts
from trovemq_broker.server.wire.rocketmq_messages import (
    is_usual,
    peer_host,
    stored_born_ms,
    timestamp_ms,
    usual_properties,
)
from trovemq_broker.server.wire.send_checks import are_usual
from trovemq_broker.server.wire.send_replies import reply_of_one
from trovemq_broker.server.wire.statuses import Malformed, client_id_of, reader
from trovemq_broker.server.wire.usual_requests import Usual, read_usual
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import ANY_QUEUE, QueueId
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_store.topics.topics import TopicConfig

TOPICS_KNOWN: Final = 16_384  # with a configuration that takes usual messages
_read: Final = reader(service_pb2.SendMessageRequest)


class _Turn:
    """The usual messages of one turn, by queue."""

    def __init__(self) -> None:
        self.queue_ids: dict[str, QueueId] = {}
        """By topic; ANY_QUEUE for one that is deduplicated: its messages are appended by themselves."""
        self.records: dict[tuple[str, QueueId], list[bytes]] = {}
        self.places: dict[str, list[tuple[int, str]]] = {}
        """By topic, for each record: the number of its call, and its message id."""


class UsualSends:
    def __init__(self, parts: RocketmqParts) -> None:
        self._parts = parts
        self._body_size_max = parts.store.settings.body_size_max
        self._topics = parts.store.topics
        self._known: dict[str, TopicConfig] = {}
        """By the name in a request: the configuration with which a usual message was accepted."""

    def learn(self, topic: str, config: TopicConfig) -> None:
        """A message of a usual type was accepted; the request has the topic under this name."""
        if len(self._known) >= TOPICS_KNOWN:
            self._known.clear()
        self._known[topic] = config

    def read(self, message: v2.Message) -> Usual | None:
        """The message if it is usual: it passes all checks then, but that of the broker's state."""
        resource, system, body = message.topic, message.system_properties, message.body
        topic = resource.name
        if (
            not self._takes(topic, len(body))
            or resource.resource_namespace
            or not body
            or not is_usual(system, message.user_properties)
        ):
            return None
        message_id, tag, keys = system.message_id, system.tag, tuple(system.keys)
        if not are_usual(message_id, tag, keys):
            return None
        block = usual_properties(message_id, tag, keys, system)
        return Usual(topic, message_id, block, body, timestamp_ms(system.born_timestamp))

    def _takes(self, topic: str, body_size: int) -> bool:
        """Whether the topic takes usual messages with such a body."""
        config = self._known.get(topic)
        return config is not None and self._topics.get(topic) is config and body_size <= self._body_size_max

    def answer(self, calls: list[Any]) -> list[bytes | None]:
        """The replies to the usual calls of one turn, whose messages are appended; None for any other call,
        for which nothing was done. The messages of a topic keep their order."""
        replies: list[bytes | None] = [None] * len(calls)
        turn = self._gather(calls)
        if not turn.records:
            return replies
        try:
            results = self._parts.coalescer.append_now(turn.records)
        except TroveError:
            return replies  # nothing was written: each call gets its own error, or none
        for (topic, places), result in zip(turn.places.items(), results, strict=False):
            self._parts.traffic.appended(topic, result.record_count, result.bytes_written, result.positions)
            for index, (place, message_id) in enumerate(places):
                replies[place] = reply_of_one(message_id, result.queue_offset(index))
        return replies

    def _gather(self, calls: list[Any]) -> _Turn:
        parts, turn = self._parts, _Turn()
        if parts.appender.sync or parts.group_commit.full or not parts.appender.accepts:
            return turn
        now_ms = parts.clock_ms()
        others: set[str] = set()  # topics of messages that are stored after these: later ones come after them
        for place, call in enumerate(calls):
            usual = self._read_call(call, others)
            if usual is None:
                continue
            topic, message_id, block, body, born_ms = usual
            try:
                client_id_of(call)
                queue_id = turn.queue_ids.get(topic)
                if queue_id is None:
                    queue_id = turn.queue_ids[topic] = self._queue_for(topic)
                if queue_id == ANY_QUEUE:
                    continue  # so are all of the topic
                record = parts.coalescer.encoded(
                    topic,
                    queue_id,
                    body,
                    block,
                    born_host=peer_host(call.peer()),
                    born_timestamp=stored_born_ms(born_ms, now_ms),
                )
            except TroveError:
                others.add(topic)  # begun by itself, the call gets the error
                continue
            turn.records.setdefault((topic, queue_id), []).append(record)
            turn.places.setdefault(topic, []).append((place, message_id))
        return turn

    def _read_call(self, call: Any, others: set[str]) -> Usual | None:
        """The message of a usual call. Any other call begins by itself, later: its topic becomes one of
        `others`, so that later messages of this topic come after it."""
        data = call.keep()
        usual = read_usual(data)
        if usual is not None:
            topic = usual.topic
            if not self._takes(topic, len(usual.body)):
                usual = None
        else:
            call.parsed = request = _read(data)
            if isinstance(request, Malformed) or not request.messages:
                return None
            message = request.messages[0]
            topic = message.topic.name
            usual = self.read(message) if len(request.messages) == 1 else None
        if usual is None or topic in others:
            others.add(topic)
            return None
        return usual

    def _queue_for(self, topic: str) -> QueueId:
        """The queue of all this turn's messages of the topic. TroveError as Appender.topic_for_write."""
        parts = self._parts
        return parts.coalescer.shared_queue(topic) if parts.appender.joins(topic) else ANY_QUEUE
