"""Dead letters sent again, to the topic that they came from.

The copy is a new message: it has its own offsets, attempts from one on, no trace of retries, delays or
transactions. It keeps its born time and host, keys, tags, message group, user's properties, and its unique
key: look-ups by the id that the producer knows then show the whole life of the message, and a consumer that
had finished it after all recognises it by that id, as any redelivery.

The dead letter itself stays: the log is append-only. The copy carries the mark TROVEMQ_RESENT, the letter's
place in the log, so that copy and mark are one record.

Invariants
- A letter that cannot be sent has changed nothing.
- A letter is sent once, whatever is killed, while its copy can be looked up: it has a unique key, and the
  store has a key index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import PROPERTY_SHARDING_KEY, Message, decode_stored
from trovemq_proto.records.hashes import group_queue
from trovemq_proto.records.internal_properties import is_reserved
from trovemq_proto.records.layout import PROPERTY_KEY_SIZES, PROPERTY_RESENT
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE
from trovemq_store.engine.queues import topic_not_found
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.topics.names import DEAD_LETTER_PREFIX, check_group_name, is_system_topic

ORIGIN_TOPIC_PROPERTIES: Final = ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC")
_SENT_AGAIN: Final = {
    "KEYS",
    PROPERTY_KEY_SIZES,
    "TAGS",
    "UNIQ_KEY",
    "WAIT",
    "TRACE_CONTEXT",
    "CORRELATION_ID",
    "REPLY_TO_CLIENT",
    "TTL",
    "MSG_TYPE",
    "__BORNHOST",
    "BORN_TIMESTAMP",
    PROPERTY_SHARDING_KEY,
}
"""The reserved properties that are sent again; the user's own always are."""


@dataclass(frozen=True, slots=True)
class Resent:
    """Where a letter was sent; again: by an earlier call. It is durable when the log is, up to `end`."""

    topic: str
    offset_msg_id: str
    end: PhysicalOffset
    again: bool = False


class DeadLetters:
    """The dead-letter queues of one store. `found` is (topic, unique key) -> the visible messages of that
    key, newest first; nothing where they cannot be looked up."""

    def __init__(
        self,
        store: MessageStore,
        writer: RecordWriter,
        found: Callable[[str, str], Iterable[Message]],
    ) -> None:
        self._store = store
        self._writer = writer
        self._found = found
        self._not_visible: dict[PhysicalOffset, Resent] = {}  # by the letter's physical offset

    def check_group(self, group: str) -> None:
        """Raises TroveError GROUP_ILLEGAL; TOPIC_NOT_FOUND where the group has no dead letters."""
        check_group_name(group)
        if self._store.consume_queues.get(DEAD_LETTER_PREFIX + group, QueueId(0)) is None:
            raise topic_not_found(DEAD_LETTER_PREFIX + group)
        visible = self._store.visible_offset
        self._not_visible = {at: sent for at, sent in self._not_visible.items() if sent.end > visible}

    def resent(self, group: str, offset: QueueOffset) -> Resent | None:
        """Where the letter at that queue offset was sent; None if it was not. TroveError TOPIC_NOT_FOUND,
        OFFSET_OUT_OF_RANGE, MESSAGE_NOT_FOUND, RECORD_DAMAGED, PROPERTY_ILLEGAL (it lacks its origin)."""
        message = self._letter(group, offset)
        return self._resent(message, origin_topic(message))

    def resend(self, group: str, offset: QueueOffset, now_ms: EpochMs) -> Resent:
        """Appends the letter at that queue offset to its original topic, unless an earlier call did.

        Raises TroveError TOPIC_NOT_FOUND, TOPIC_ILLEGAL, TOPIC_CLOSED, PERMISSION_MISSING (the original's),
        OFFSET_OUT_OF_RANGE, MESSAGE_NOT_FOUND, RECORD_DAMAGED, PROPERTY_ILLEGAL (it lacks its origin), and
        the errors of MessageStore.append.
        """
        message = self._letter(group, offset)
        topic = origin_topic(message)
        if (sent := self._resent(message, topic)) is not None:
            return sent
        queue_id = self._queue_id(topic, message, offset)
        dropped = [name for name in message.properties if is_reserved(name) and name not in _SENT_AGAIN]
        changes = {**dict.fromkeys(dropped, None), PROPERTY_RESENT: str(message.physical_offset)}
        copied = NewRecord.copy_of(message, topic, queue_id).with_properties(changes)
        (appended,) = self._writer.append([replace(copied, reconsume_times=0)], now_ms)
        (offset_msg_id,) = appended.offset_msg_ids()
        sent = Resent(topic, offset_msg_id, appended.end)
        self._not_visible[message.physical_offset] = replace(sent, again=True)
        return sent

    def _resent(self, message: Message, topic: str) -> Resent | None:
        """Finds an earlier copy by its mark, which is written with the copy. No copy lies before its letter;
        it may have an earlier store time."""
        if (sent := self._not_visible.get(message.physical_offset)) is not None:
            return sent
        if not message.unique_key:
            return None
        mark = str(message.physical_offset)
        for copy in self._found(topic, message.unique_key):
            if copy.physical_offset < message.physical_offset:
                return None
            if copy.properties.get(PROPERTY_RESENT) == mark:
                return Resent(topic, copy.offset_msg_id, PhysicalOffset(copy.physical_offset + 1), again=True)
        return None

    def _letter(self, group: str, offset: QueueOffset) -> Message:
        topic = DEAD_LETTER_PREFIX + group
        queue = self._store.consume_queues.get(topic, QueueId(0))
        if queue is None:
            raise topic_not_found(topic)
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            raise TroveError(
                errors.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {topic} is not in [{low}, {high})",
                min_offset=low,
                max_offset=high,
            )
        physical_offset, size, _ = queue.unit(offset)
        record = None if size == BLANK_UNIT_SIZE else self._store.record_at(physical_offset)
        if record is None:
            raise TroveError(errors.MESSAGE_NOT_FOUND, f"offset {offset} of {topic} has no message any more")
        return decode_stored(record)

    def _queue_id(self, topic: str, message: Message, offset: QueueOffset) -> QueueId:
        """The queue for the copy. Of an ordered message: that of the original, or by the hash of the message
        group if the original is not found; of any other message: by the letter's offset."""
        config = self._store.topics.get(topic)
        if config is None:
            raise topic_not_found(topic)
        if is_system_topic(topic):
            raise TroveError(errors.TOPIC_ILLEGAL, f"topic {topic} is the broker's own", topic=topic)
        config.check_open()
        if not config.writable:
            raise TroveError(errors.PERMISSION_MISSING, f"topic {topic} takes no messages", topic=topic)
        count = max(config.write_queue_count, 1)
        message_group = message.properties.get(PROPERTY_SHARDING_KEY)
        if not message_group:
            return QueueId(offset % count)
        known = next(iter(self._found(topic, message.unique_key)), None) if message.unique_key else None
        if known is not None and known.queue_id < count:
            return known.queue_id
        return QueueId(group_queue(message_group, count))


def known_topic(message: Message) -> str:
    """The topic by which consumers know a message: of a copy in a topic of the broker the one that it came
    from, if it says so."""
    if is_system_topic(message.topic):
        for name in (*ORIGIN_TOPIC_PROPERTIES, "REAL_TOPIC"):
            if topic := message.properties.get(name):
                return topic
    return message.topic


def origin_topic(message: Message) -> str:
    """Where a dead letter came from. Raises TroveError PROPERTY_ILLEGAL where it does not say."""
    for name in ORIGIN_TOPIC_PROPERTIES:
        if topic := message.properties.get(name):
            return topic
    names = " and ".join(ORIGIN_TOPIC_PROPERTIES)
    raise TroveError(errors.PROPERTY_ILLEGAL, f"the message has no {names}: its origin is unknown")
