"""Finds one message by any identifier: offsetMsgId, unique key, or topic, queue and queue offset.

An offsetMsgId names a host and a place in the log. A store may move to another host, so the host is compared
with the record's STOREHOST, not with this broker's address. Unique keys of 4.x clients look like an
offsetMsgId: such a text is tried as an offsetMsgId, then as a unique key.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.lacking import lacking_note
from trovemq_broker.query.located import fields_of, queue_offset_of
from trovemq_broker.query.query_by_key import query_pages
from trovemq_proto import errors
from trovemq_proto.audit import AUDIT_TOPIC
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import decode_offset_msg_id, looks_like_offset_msg_id
from trovemq_proto.records.layout import (
    HOST_SIZE_IPV4,
    HOST_SIZE_IPV6,
    STORE_HOST_AT,
    SYS_FLAG_AT,
    SYS_FLAG_STORE_HOST_IPV6,
    born_shift,
)
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import find_queue
from trovemq_store.engine.steps import Steps, finished

ID_SIZE_MAX: Final = 255
_AUDIT_TOPIC: Final = AUDIT_TOPIC.encode()


class IdentifierKind(Enum):
    OFFSET_MSG_ID = "offsetMsgId"
    UNIQUE_KEY = "uniqueKey"
    QUEUE_LOCATION = "queueLocation"


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """One record, or all records with a unique key, newest first. complete is False if there are more."""

    kind: IdentifierKind
    records: list[memoryview]
    queue_offsets: list[QueueOffset]
    physical_offsets: list[PhysicalOffset]
    complete: bool = True


def get_message(store: MessageStore, identifier: str, topic: str = "") -> FoundMessages:
    """message_steps() in one go."""
    return finished(message_steps(store, identifier, topic))


def message_steps(store: MessageStore, identifier: str, topic: str = "") -> Steps[FoundMessages]:
    """The message of an offsetMsgId or unique key; `topic` narrows a unique key to one topic.

    Raises TroveError MESSAGE_ID_ILLEGAL, MESSAGE_NOT_FOUND, RECORD_DAMAGED, INDEX_DISABLED (it is not an
    offsetMsgId of a message here, and unique keys cannot be looked up), LIMIT_EXCEEDED.
    """
    _check_identifier(identifier)
    if looks_like_offset_msg_id(identifier):
        found = _by_offset_msg_id(store, identifier)
        if found is not None:
            return found
    return (yield from _by_unique_key(store, identifier, topic))


def get_message_at(
    store: MessageStore, topic: str, queue_id: QueueId, queue_offset: QueueOffset
) -> FoundMessages:
    """The message at a queue offset.

    Raises TroveError TOPIC_NOT_FOUND, QUEUE_NOT_FOUND, OFFSET_OUT_OF_RANGE (names the valid range),
    MESSAGE_NOT_FOUND, RECORD_DAMAGED.
    """
    queue = find_queue(store, topic, queue_id)
    low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
    if queue is None or not low <= queue_offset < high:
        raise TroveError(
            errors.OFFSET_OUT_OF_RANGE,
            f"queue offset {queue_offset} of {topic}-{queue_id} is not in [{low}, {high})",
            min_offset=low,
            max_offset=high,
        )
    physical_offset = queue.unit(queue_offset)[0]
    record = store.record_at(physical_offset)
    if record is None:
        raise TroveError(
            errors.MESSAGE_NOT_FOUND, f"offset {queue_offset} of {topic}-{queue_id} has no message any more"
        )
    return FoundMessages(IdentifierKind.QUEUE_LOCATION, [record], [queue_offset], [physical_offset])


def _check_identifier(identifier: str) -> None:
    if not identifier or len(identifier) > ID_SIZE_MAX or any(c <= " " for c in identifier):
        raise TroveError(
            errors.MESSAGE_ID_ILLEGAL,
            f"{identifier[:80]!r} is not an identifier: {len(identifier)} characters (1..{ID_SIZE_MAX}), "
            "or a space or control character",
        )


def _by_offset_msg_id(store: MessageStore, identifier: str) -> FoundMessages | None:
    store_host, physical_offset = decode_offset_msg_id(identifier)
    record = store.record_at(physical_offset)
    if record is None or _store_host(record) != store_host:
        return None
    fields = fields_of(record)
    if record[fields.topic_position : fields.topic_position + fields.topic_size] == _AUDIT_TOPIC:
        return None  # reading that topic needs a separate permission, which a look-up by id cannot check
    queue_offset = queue_offset_of(store.consume_queues, record, fields, physical_offset)
    return FoundMessages(
        IdentifierKind.OFFSET_MSG_ID, [record], [QueueOffset(queue_offset)], [physical_offset]
    )


def _store_host(record: memoryview) -> bytes:
    sys_flag = int.from_bytes(record[SYS_FLAG_AT : SYS_FLAG_AT + 4], signed=True)
    at = STORE_HOST_AT + born_shift(sys_flag)
    size = HOST_SIZE_IPV6 if sys_flag & SYS_FLAG_STORE_HOST_IPV6 else HOST_SIZE_IPV4
    return bytes(record[at : at + size])


def _by_unique_key(store: MessageStore, identifier: str, topic: str) -> Steps[FoundMessages]:
    found = FoundMessages(IdentifierKind.UNIQUE_KEY, [], [], [])
    complete = False
    byte_count = 0
    for page in query_pages(store, KeyQuery(topic, identifier, KeyType.UNIQUE)):
        complete = page.complete
        byte_count += sum(map(len, page.records))
        if found.records and byte_count > store.settings.query_page_bytes_max:
            complete = False
            break
        found.records.extend(page.records)
        found.queue_offsets.extend(page.queue_offsets)
        found.physical_offsets.extend(page.physical_offsets)
        yield
    if found.records:
        return FoundMessages(found.kind, found.records, found.queue_offsets, found.physical_offsets, complete)
    if not complete:
        raise TroveError(
            errors.LIMIT_EXCEEDED,
            f"{identifier} was not found within the work of one look-up: query by unique key, page by page",
        )
    lacks = lacking_note(store, topic, begin_ms=0)
    what = f"no visible message has the identifier {identifier}"
    raise TroveError(errors.MESSAGE_NOT_FOUND, f"{what}; {lacks}" if lacks else what)
