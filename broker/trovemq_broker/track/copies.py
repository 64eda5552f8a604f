"""Finds all records of one message, and the role of each.

A message's copies have its unique key (UNIQ_KEY), wherever they lie:

| role        | lies in                                   | known by                                  |
|-------------|-------------------------------------------|-------------------------------------------|
| MESSAGE     | a topic of users                          | none of the following                     |
| COMMITTED   | a topic of users                          | the transaction type commit               |
| DELIVERED   | a topic of users                          | REAL_TOPIC, which it has from the wait    |
| DELAYED     | rmq_sys_wheel_timer, SCHEDULE_TOPIC_XXXX  | its real topic may be a retry topic       |
| RECALL      | rmq_sys_wheel_timer                       | TIMER_DEL_UNIQKEY                         |
| HALF        | RMQ_SYS_TRANS_HALF_TOPIC                  |                                           |
| GIVEN_UP    | TRANS_CHECK_MAX_TIME_TOPIC                |                                           |
| RETRY       | %RETRY%group, %RETRY%group_topic, …+topic |                                           |
| DEAD_LETTER | %DLQ%group                                |                                           |
| CARRIED     | rmq_sys_trovemq_carried                   | made by retention; no group reads it      |

Producers may send several messages under one key. Each copy belongs to one of them: to the one that it points
to, else to the newest one of its topic before it in the log.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from trovemq_broker.groups.delivery.reappends import CARRIED_TOPIC
from trovemq_broker.query.get_message import IdentifierKind, get_message_at, message_steps
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.timers.wheel_records import DELETED_UNIQUE_KEY, ROLL_TIMES, WHEEL_TOPIC, waiting_of
from trovemq_broker.transactions.records import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    PROPERTY_CHECK_TIMES,
    PROPERTY_PREPARED_QUEUE_OFFSET,
    PROPERTY_PRODUCER_GROUP,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import PROPERTY_SHARDING_KEY, Message, decode_stored
from trovemq_proto.records.layout import (
    PROPERTY_DEAD_TOPIC,
    PROPERTY_REAL_TOPIC,
    SCHEDULE_TOPIC,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_MASK,
)
from trovemq_proto.records.priorities import PRIORITY_DEFAULT, priority_of
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids
from trovemq_store.topics.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

COPIES_MAX: Final = 256
MESSAGES_MAX: Final = 32
"""The most messages of one key: for each of them all events are read and every group gets a status."""
RETRY_TOPIC_PROPERTY: Final = "RETRY_TOPIC"


class CopyRole(StrEnum):
    MESSAGE = "message"
    COMMITTED = "committed"
    DELIVERED = "delivered"
    DELAYED = "delayed"
    RECALL = "recall"
    HALF = "half"
    GIVEN_UP = "given-up"
    RETRY = "retry"
    DEAD_LETTER = "dead-letter"
    CARRIED = "carried"


CONSUMABLE: Final = frozenset({CopyRole.MESSAGE, CopyRole.COMMITTED, CopyRole.DELIVERED})
"""The kinds that groups receive as the message itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One record. `real_topic`: the topic of the message, if the record names it; `group`: the group of a
    retry or dead letter; `deliver_ms`: the delivery time of a delayed message; `is_moved`: it is a later copy
    of the same record."""

    role: CopyRole
    topic: str
    queue_id: QueueId
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size: int
    offset_msg_id: str
    unique_key: str
    keys: str
    tag: str
    born_ms: EpochMs
    born_host: str
    store_ms: EpochMs
    store_host: str
    reconsume_times: int
    prepared_offset: int
    real_topic: str
    group: str = ""
    producer_group: str = ""
    message_group: str = ""
    priority: int = PRIORITY_DEFAULT
    deliver_ms: EpochMs = EpochMs(0)
    is_moved: bool = False
    properties: Mapping[str, str] = field(repr=False)


@dataclass(slots=True)
class TrackedMessage:
    """One message that a producer sent, and its copies, in log order."""

    number: int
    topic: str
    copies: list[Copy] = field(default_factory=list)

    def newest(self, *roles: CopyRole) -> Copy | None:
        return next((copy for copy in reversed(self.copies) if copy.role in roles), None)

    @property
    def consumable(self) -> Copy | None:
        """The record that groups receive, if there is one."""
        return self.newest(*CONSUMABLE)


@dataclass(frozen=True, slots=True)
class TrackedMessages:
    messages: list[TrackedMessage]
    complete: bool
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Location:
    topic: str
    queue_id: QueueId
    queue_offset: QueueOffset


def find_messages(
    store: MessageStore, identifier: str | Location, topic: str = ""
) -> Generator[None, None, TrackedMessages]:
    """The messages of an offsetMsgId, a unique key or a queue offset; yields between two pages of work.

    `topic` narrows a unique key to the messages of one topic. Raises TroveError
    MESSAGE_ID_ILLEGAL, MESSAGE_NOT_FOUND, RECORD_DAMAGED, INDEX_DISABLED, LIMIT_EXCEEDED, TOPIC_NOT_FOUND,
    QUEUE_NOT_FOUND, OFFSET_OUT_OF_RANGE.
    """
    if topic:
        queue_ids(store, topic)
    place: int | None = None
    named: list[Copy] = []
    key = identifier if isinstance(identifier, str) else ""
    if isinstance(identifier, Location):
        found = get_message_at(store, identifier.topic, identifier.queue_id, identifier.queue_offset)
    else:
        found = yield from message_steps(store, identifier)
    if found.kind is not IdentifierKind.UNIQUE_KEY:
        named = _copies(found.records, found.queue_offsets)
        key, place = named[0].unique_key, named[0].physical_offset
    yield
    copies, complete, notes = yield from _with_key(store, key)
    known = {copy.physical_offset for copy in copies}
    copies = [*(copy for copy in named if copy.physical_offset not in known), *copies]
    yield
    messages = messages_of(copies)
    yield
    if place is not None:
        messages = [
            tracked for tracked in messages if any(copy.physical_offset == place for copy in tracked.copies)
        ]
    if topic:
        messages = [tracked for tracked in messages if tracked.topic == topic]
    if not messages:
        raise TroveError(errors.MESSAGE_NOT_FOUND, f"no message of topic {topic[:200]} has this identifier")
    if len(messages) > MESSAGES_MAX:
        complete = False
        notes.append(f"older messages are left out: the newest {MESSAGES_MAX} of {len(messages)} are shown")
    return TrackedMessages(messages[-MESSAGES_MAX:], complete, notes)


def _with_key(store: MessageStore, key: str) -> Generator[None, None, tuple[list[Copy], bool, list[str]]]:
    """The records with the unique key: the newest COPIES_MAX of them."""
    if not key:
        return [], True, ["the message has no unique key: copies of it cannot be found"]
    if store.key_index is None:
        return [], False, ["the key index is disabled: copies of the message cannot be found"]
    copies: list[Copy] = []
    notes: list[str] = []
    complete = False
    query = KeyQuery("", key, KeyType.UNIQUE)
    for page in query_pages(store, query, messages_max=COPIES_MAX + 1):
        copies += _copies(page.records, page.queue_offsets)
        notes += page.notes
        complete = page.complete
        yield
    if len(copies) > COPIES_MAX or not complete:
        complete = False
        notes.append(f"older copies are left out: the newest {min(len(copies), COPIES_MAX)} are shown")
    return copies[:COPIES_MAX], complete, notes


def _copies(records: Sequence[memoryview], queue_offsets: Sequence[QueueOffset]) -> list[Copy]:
    return [copy_of(*pair) for pair in zip(map(decode_stored, records), queue_offsets, strict=True)]


def copy_of(message: Message, queue_offset: QueueOffset) -> Copy:
    """The record's role, and its fields."""
    properties = message.properties
    role = _role(message)
    waiting = waiting_of(properties) if role is CopyRole.DELAYED else None
    return Copy(
        role=role,
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=queue_offset,
        physical_offset=message.physical_offset,
        size=message.store_size,
        offset_msg_id=message.offset_msg_id,
        unique_key=message.unique_key or "",
        keys=" ".join(message.keys),
        tag=message.tags or "",
        born_ms=message.born_timestamp,
        born_host=message.born_host,
        store_ms=message.store_timestamp,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_transaction_offset,
        real_topic=_real_topic(role, message),
        group=message.topic.removeprefix(DEAD_LETTER_PREFIX) if role is CopyRole.DEAD_LETTER else "",
        producer_group=properties.get(PROPERTY_PRODUCER_GROUP, ""),
        message_group=properties.get(PROPERTY_SHARDING_KEY, ""),
        priority=priority_of(properties),
        deliver_ms=waiting.deliver_ms if waiting is not None else EpochMs(0),
        is_moved=_is_moved(role, properties),
        properties=properties,
    )


def _role(message: Message) -> CopyRole:
    topic, properties = message.topic, message.properties
    if topic == WHEEL_TOPIC and DELETED_UNIQUE_KEY in properties:
        return CopyRole.RECALL
    if topic in _ROLE_OF_TOPIC:
        return _ROLE_OF_TOPIC[topic]
    if topic.startswith(RETRY_PREFIX):
        return CopyRole.RETRY
    if topic.startswith(DEAD_LETTER_PREFIX):
        return CopyRole.DEAD_LETTER
    if message.sys_flag & SYS_FLAG_TRANSACTION_MASK == SYS_FLAG_TRANSACTION_COMMIT:
        return CopyRole.COMMITTED
    return CopyRole.DELIVERED if PROPERTY_REAL_TOPIC in properties else CopyRole.MESSAGE


_ROLE_OF_TOPIC: Final = {
    WHEEL_TOPIC: CopyRole.DELAYED,
    SCHEDULE_TOPIC: CopyRole.DELAYED,
    HALF_TOPIC: CopyRole.HALF,
    GIVEN_UP_TOPIC: CopyRole.GIVEN_UP,
    CARRIED_TOPIC: CopyRole.CARRIED,
}


def _real_topic(role: CopyRole, message: Message) -> str:
    """The topic that the record names as its message's; "" if it names none."""
    if role in CONSUMABLE:
        return message.topic
    properties = message.properties
    if role in (CopyRole.RETRY, CopyRole.DEAD_LETTER):
        return properties.get(PROPERTY_DEAD_TOPIC) or properties.get(RETRY_TOPIC_PROPERTY, "")
    return properties.get(PROPERTY_REAL_TOPIC, "")


def _is_moved(role: CopyRole, properties: Mapping[str, str]) -> bool:
    if role is CopyRole.HALF:
        return PROPERTY_CHECK_TIMES in properties or PROPERTY_PREPARED_QUEUE_OFFSET in properties
    return role is CopyRole.CARRIED or (role is CopyRole.DELAYED and ROLL_TIMES in properties)


# --- the copies of each message -----------------------------------------------------------------------
_BEGINS_A_LIFE: Final = frozenset({CopyRole.MESSAGE, CopyRole.HALF, CopyRole.DELAYED})


def messages_of(copies: Iterable[Copy]) -> list[TrackedMessage]:
    """Assigns the copies to their messages, which are numbered from 1 in log order."""
    messages: list[TrackedMessage] = []
    for copy in sorted(copies, key=lambda copy: copy.physical_offset):
        retry = copy.role is CopyRole.RETRY or copy.real_topic.startswith(RETRY_PREFIX)
        begins = copy.role in _BEGINS_A_LIFE and not copy.is_moved and not retry
        tracked = None if begins else _message_of(copy, messages, retry=retry)
        if tracked is None:
            tracked = TrackedMessage(len(messages) + 1, _topic_alone(copy, retry=retry))
            messages.append(tracked)
        group = _retry_group(_retry_name(copy), tracked.topic) if retry else copy.group
        tracked.copies.append(replace(copy, group=group))
    return messages


def _message_of(copy: Copy, messages: Sequence[TrackedMessage], *, retry: bool) -> TrackedMessage | None:
    """The newest message before the copy that may be its original."""
    for tracked in reversed(messages):
        if copy.role is CopyRole.COMMITTED and tracked.topic == copy.topic and copy.prepared_offset:
            if any(copy.prepared_offset == one.physical_offset for one in tracked.copies):
                return tracked
        elif retry:
            if _retry_group(_retry_name(copy), tracked.topic) and copy.real_topic in (
                "",
                tracked.topic,
                _retry_name(copy),
            ):
                return tracked
        elif copy.role is CopyRole.CARRIED or tracked.topic == copy.real_topic:
            return tracked
    return None


def _retry_name(copy: Copy) -> str:
    """The retry topic in which the copy lies, or will lie after its wait."""
    return copy.topic if copy.role is CopyRole.RETRY else copy.real_topic


def _topic_alone(copy: Copy, *, retry: bool) -> str:
    """The topic of a message that has only this copy left."""
    if retry and copy.role is CopyRole.DELAYED:
        return copy.properties.get(RETRY_TOPIC_PROPERTY, "")
    return copy.real_topic


def _retry_group(name: str, topic: str) -> str:
    """The group whose retries of the topic are in the retry topic `name`; "" if it is none of that topic."""
    rest = name.removeprefix(RETRY_PREFIX)
    if not topic:
        return rest
    for between in "_+":
        if rest.endswith(between + topic) and len(rest) > len(topic) + 1:
            return rest[: -len(topic) - 1]
    return rest
