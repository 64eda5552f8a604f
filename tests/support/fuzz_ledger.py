"""The messages that a fuzzed broker acknowledged, and whether they are there after a power cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tests.support.services_here import Outcome
from trovemq_broker.server.wire.frames import AppendFrame
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.fields import read_fields
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import message_pb2
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.topics.names import is_system_topic

NATIVE: Final = "trovemq.v1."
MESSAGING: Final = "trovemq.rocketmq.v2.MessagingService."
ADMIN: Final = "trovemq.rocketmq.v2.Admin."


class Acknowledged:
    """The acknowledged messages: the broker must have them after a power cut, and no message that was not
    sent."""

    def __init__(self) -> None:
        self._placed: list[tuple[str, int, tuple[bytes, ...]]] = []
        """(topic, physical offset of the first, stored bodies in their order)"""
        self._bodies: dict[bytes, str] = {}
        """Of messages whose place no reply names, with their topics."""
        self._attempted: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._bodies) + sum(len(bodies) for _, _, bodies in self._placed)

    @property
    def blocks(self) -> int:
        """Memory blocks of its content, its few large tables left out."""
        kept = {*map(id, self._attempted), *map(id, self._bodies)}
        for entry in self._placed:
            topic, physical_offset, bodies = entry
            kept.update((id(entry), id(topic), id(physical_offset), id(bodies), *map(id, bodies)))
        return len(kept)

    # --- from the outcomes of calls ---------------------------------------------------------------------
    def learn(self, name: str, outcome: Outcome, replies: Sequence[Any]) -> None:
        """`replies` are the outcome's, as messages."""
        if name == f"{NATIVE}MessageService.Append":
            self._appended(outcome.requests, replies)
        elif name == f"{NATIVE}MessageService.Send":
            self._sent(outcome.requests[0], replies)
        elif name == f"{MESSAGING}SendMessage":
            self._sent_to_rocketmq(outcome.requests[0], replies)
        elif name in (f"{NATIVE}ProducerService.SendDelayed", f"{NATIVE}ProducerService.PrepareHalf"):
            self._deferred(outcome.requests[0])
        elif name == f"{ADMIN}AdminSendMessage":
            self._sent_by_admin(outcome.requests[0], replies)
        elif name == f"{NATIVE}AdminService.DeleteTopic" and replies:
            self._deleted(outcome.requests[0].topic)

    def _appended(self, frames: Sequence[AppendFrame], replies: Sequence[message_pb2.AppendReply]) -> None:
        times = Counter(frame.frame_id for frame in frames)
        by_id = {frame.frame_id: frame for frame in frames if times[frame.frame_id] == 1}
        for frame in frames:
            self._attempted.update(_bodies_of(frame))
        for reply in replies:
            if reply.HasField("error"):
                continue
            if reply.frame_id in by_id:
                acknowledged = by_id[reply.frame_id]
                bodies = _bodies_of(acknowledged)
                assert len(bodies) == reply.record_count, "every record of a frame is acknowledged"
                self._placed.append((acknowledged.topic, reply.physical_offset, tuple(bodies)))

    def _sent(self, request: message_pb2.SendRequest, replies: Sequence[message_pb2.AppendReply]) -> None:
        bodies = [message.body for message in request.messages]
        self._attempted.update(bodies)
        if replies and not replies[0].HasField("error"):
            self._placed.append((request.topic, replies[0].physical_offset, tuple(bodies)))

    def _sent_to_rocketmq(self, request: Any, replies: Sequence[Any]) -> None:
        messages = getattr(request, "messages", ())  # none where the bytes were no request
        self._attempted.update(message.body for message in messages)
        for message, entry in zip(messages, replies[0].entries if replies else (), strict=False):
            if entry.status.code == v2.OK:
                self._bodies[message.body] = message.topic.name

    def _deferred(self, request: Any) -> None:
        """A delayed or half message: it lies in an internal topic, or in its own."""
        self._attempted.add(request.message.body)
        self._bodies[request.message.body] = request.topic

    def _sent_by_admin(self, request: Any, replies: Sequence[Any]) -> None:
        if hasattr(request, "body"):
            self._attempted.add(request.body)
            if replies and replies[0].status.code == v2.OK:
                self._bodies[request.body] = request.topic.name

    def _deleted(self, topic: str) -> None:
        self._placed = [entry for entry in self._placed if entry[0] != topic]
        self._bodies = {body: of for body, of in self._bodies.items() if of != topic}

    # --- against a store --------------------------------------------------------------------------------
    def check(self, store: MessageStore) -> None:
        for topic, first, bodies in self._placed:
            position = first
            for body in bodies:
                record = store.record_at(PhysicalOffset(position))
                assert record is not None, f"an acknowledged message at {position} of {topic!r} is lost"
                assert parts_of(record) == (topic, body), f"another message lies at {position} of {topic!r}"
                position += len(record)
        have = set()
        for topic, body in _living(store):
            have.add(body)
            assert is_system_topic(topic) or body in self._attempted, (
                f"nobody sent {body[:60]!r} to {topic!r}"
            )
        for body, topic in self._bodies.items():
            assert body in have, f"an acknowledged message of {topic!r} is lost: {body[:60]!r}"


def _bodies_of(frame: AppendFrame) -> list[bytes]:
    """Stored bodies of a frame's records; none of frames that are not a batch."""
    try:
        batch = RecordBatch.split(bytes(frame.records))
        return [bytes(body) for body in batch.stored_bodies()]
    except TroveError:
        return []


def parts_of(record: memoryview) -> tuple[str, bytes]:
    """Topic and body as they lie in the record."""
    fields = read_fields(record, 0, len(record))
    assert fields is not None, "the store gives records that are well formed"
    topic = record[fields.topic_position : fields.topic_position + fields.topic_size]
    body = record[fields.body_position : fields.body_position + fields.body_size]
    return str(topic, "utf-8", "replace"), bytes(body)


def _living(store: MessageStore) -> Iterator[tuple[str, bytes]]:
    for _, records, alive in store.scan(store.min_offset, store.visible_offset):
        for number in range(len(records)):
            if alive is None or alive[number]:
                yield parts_of(records.record(number))
