"""SendMessage of the usual message: one that has nothing but body, id, tag, keys, born host and trace
context, for a topic that has accepted such a message.

Its checks are made together. With async flush the usual messages of one turn are stored and answered
together, too; with sync flush each is answered when it is synced.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from broker.server.rocketmq.messages import born_ms_of, is_usual, peer_host, usual_properties
from broker.server.rocketmq.parts import RocketmqParts
from broker.server.rocketmq.send_checks import are_usual
from broker.server.rocketmq.send_replies import reply_of_one
from broker.server.rocketmq.status import Malformed, client_id_of, reader
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_store.topics.topics import TopicConfig

TOPICS_KNOWN: Final = 16_384  # with a configuration that takes usual messages
_read: Final = reader(service_pb2.SendMessageRequest)


class Usual(NamedTuple):
    """A usual message. block: its encoded properties."""

    topic: str
    message_id: str
    block: bytes


class _Together:
    """The messages of one turn for one topic."""

    __slots__ = ("places", "queue_id", "records")

    def __init__(self, queue_id: QueueId) -> None:
        self.queue_id = queue_id
        self.places: list[tuple[int, str]] = []
        """The number of its call, and its id."""
        self.records: list[bytes] = []


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
        resource, system = message.topic, message.system_properties
        topic = resource.name
        config = self._known.get(topic)
        message_id, tag, keys = system.message_id, system.tag, tuple(system.keys)
        if (
            config is None
            or self._topics.get(topic) is not config
            or resource.resource_namespace
            or not 0 < len(message.body) <= self._body_size_max
            or not is_usual(system, message.user_properties)
            or not are_usual(message_id, tag, keys)
        ):
            return None
        return Usual(topic, message_id, usual_properties(message_id, tag, keys, system))

    def answer(self, calls: list[Any]) -> list[bytes | None]:
        """The replies to the usual calls of one turn, whose messages are appended; None for any other call,
        for which nothing was done. Of sends that come together, those are the first of their queue."""
        replies: list[bytes | None] = [None] * len(calls)
        for topic, together in self._gather(calls).items():
            try:
                result = self._parts.coalescer.append_now(topic, together.queue_id, together.records)
            except TroveError:
                continue  # nothing was written: each call gets its own error, or none
            if result is None:
                continue
            self._parts.traffic.appended(topic, result.record_count, result.bytes_written, result.positions)
            for index, (place, message_id) in enumerate(together.places):
                replies[place] = reply_of_one(message_id, result.queue_offset(index))
        return replies

    def _gather(self, calls: list[Any]) -> dict[str, _Together]:
        parts = self._parts
        found: dict[str, _Together] = {}
        if parts.appender.sync or parts.group_commit.full or not parts.appender.accepts:
            return found
        now_ms = parts.clock_ms()
        for place, call in enumerate(calls):
            request = _read(call.keep())
            if isinstance(request, Malformed) or len(request.messages) != 1:
                continue
            message = request.messages[0]
            usual = self.read(message)
            if usual is None:
                continue
            topic, message_id, block = usual
            try:
                client_id_of(call)
                together = found.get(topic)
                if together is None:
                    if not parts.appender.joins(topic):
                        continue
                    together = found[topic] = _Together(parts.coalescer.shared_queue(topic))
                record = parts.coalescer.encoded(
                    topic,
                    together.queue_id,
                    message.body,
                    block,
                    born_host=peer_host(call.peer()),
                    born_timestamp=born_ms_of(message.system_properties, now_ms),
                )
            except TroveError:
                continue  # begun by itself, the call gets the error
            together.records.append(record)
            together.places.append((place, message_id))
        return found
