"""The topics of this broker: `config/topics.json` in RocketMQ's form.

    {"dataVersion": {"counter": n, "stateVersion": 0, "timestamp": ms},
     "topicConfigTable": {"T": {"attributes": {"message.type": "NORMAL"}, "order": false, "perm": 6,
                                "readQueueNums": 8, "topicFilterType": "SINGLE_TAG", "topicName": "T",
                                "topicSysFlag": 0, "writeQueueNums": 8}}}

Invariants
- A change is on disk before its call returns; a change that cannot be saved is not made.
- A change costs the same however many topics there are: see topics_file.py.
- `data_version` grows with every change; the other invariants are those of config_table.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypedDict, Unpack

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.config_table import Change, Changed, ConfigTable, read_table
from trovemq_store.topics.creators import NOBODY, Creator
from trovemq_store.topics.lax_json import JsonObject, integer_member, object_member
from trovemq_store.topics.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_topic_name, is_system_topic
from trovemq_store.topics.topic_options import TopicOptions, check_together, options_of, with_options
from trovemq_store.topics.topics_file import TOPICS_PATH, TopicsFile

QUEUE_COUNT_DEFAULT: Final = 8
QUEUE_COUNT_MAX: Final = 1024
TOPIC_COUNT_MAX: Final = 65_536

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4
PERM_PRIORITY: Final = 8

NO_OPTIONS: Final[Mapping[str, str]] = {}
NO_OPTIONS_SET: Final = TopicOptions()

MESSAGE_TYPE_ATTRIBUTE: Final = "message.type"
MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED", "UNSPECIFIED")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic. Queues 0 .. queue_count-1 may be read, 0 .. write_queue_count-1 written."""

    name: str
    queue_count: int = QUEUE_COUNT_DEFAULT
    write_queue_count: int = QUEUE_COUNT_DEFAULT
    perm: int = PERM_READ | PERM_WRITE
    message_type: str = "NORMAL"
    order: bool = False
    topic_sys_flag: int = 0
    attributes: dict[str, str] = field(default_factory=dict)
    options: TopicOptions = NO_OPTIONS_SET
    """The decoded form of `attributes`."""

    @property
    def readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    def check_open(self) -> None:
        """TroveError TOPIC_CLOSED while the topic takes no new messages for a time."""
        if self.options.closed:
            what = f"topic {self.name} takes no new messages while its queues move, or it is deleted"
            raise TroveError(errors.TOPIC_CLOSED, what, topic=self.name)

    @property
    def system(self) -> bool:
        return is_system_topic(self.name)

    @property
    def by_priority(self) -> bool:
        """Whether groups receive its queues by the messages' priority (`order = priority`, or type
        PRIORITY)."""
        return self.options.by_priority or self.message_type == "PRIORITY"

    def with_message_type(self, message_type: str) -> TopicConfig:
        attributes = {**self.attributes, MESSAGE_TYPE_ATTRIBUTE: message_type}
        return replace(self, message_type=message_type, attributes=attributes)

    def with_options(self, changes: Mapping[str, str]) -> TopicConfig:
        """The topic with these options, by name (topic_options.py). TroveError TOPIC_OPTION_ILLEGAL."""
        attributes = with_options(self.attributes, self.message_type, changes)
        return replace(self, attributes=attributes, options=options_of(attributes))

    def to_json(self, base: Mapping[str, object]) -> JsonObject:
        """RocketMQ's object for the topic; members of `base` that we do not know stay."""
        known: JsonObject = {
            "attributes": self.attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.queue_count,
            "topicFilterType": base.get("topicFilterType", "SINGLE_TAG"),
            "topicName": self.name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_count,
        }
        return dict(sorted({**base, **known}.items()))

    @classmethod
    def from_json(cls, name: str, value: Mapping[str, object]) -> TopicConfig:
        """Missing members have RocketMQ's defaults (4.x wrote no attributes). Raises ValueError."""
        attributes = value.get("attributes") or {}
        if not isinstance(attributes, Mapping):
            raise ValueError(f"attributes of topic {name!r} are no object")
        texts = {str(key): str(text) for key, text in attributes.items()}
        return cls(
            name=name,
            queue_count=integer_member(value, "readQueueNums", 16),
            write_queue_count=integer_member(value, "writeQueueNums", 16),
            perm=integer_member(value, "perm", PERM_READ | PERM_WRITE),
            message_type=texts.get(MESSAGE_TYPE_ATTRIBUTE, "NORMAL"),
            order=bool(value.get("order", False)),
            topic_sys_flag=integer_member(value, "topicSysFlag", 0),
            attributes=texts,
            options=options_of(texts),
        )


class TopicAlteration(TypedDict, total=False):
    """The values of a topic that alter() changes; None leaves a value as it is."""

    queue_count: int | None
    message_type: str | None
    perm: int | None
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create."""

    name: str
    queue_count: int = QUEUE_COUNT_DEFAULT
    message_type: str = "NORMAL"
    options: Mapping[str, str] = field(default_factory=dict)
    creator: Creator = NOBODY


TopicChange = Change[TopicConfig]


class TopicTable(ConfigTable[TopicConfig]):
    """The topics by name. Changes are durable when they return."""

    NOUN = "topic"
    NOT_FOUND = errors.TOPIC_NOT_FOUND
    REMEDY = "delete those that no program uses (trovemq topic list, trovemq topic delete)"

    def __init__(self, file: TopicsFile, document: JsonObject, *, reserved: Collection[str] = ()) -> None:
        values, version = object_member(document, "topicConfigTable"), object_member(document, "dataVersion")
        self.reserved: Final = frozenset(reserved)
        """Further names that no user may create."""
        super().__init__(file, values, version, TopicConfig.from_json)
        self._topics_file = file

    @classmethod
    def load(cls, files: FileSystem, *, reserved: Collection[str] = ()) -> TopicTable:
        """Reads the table; empty if there is none. `reserved`: further names that no user may create
        (in RocketMQ those of the cluster and the broker). TroveError STORE_FAILED if it cannot be read."""
        file = TopicsFile(files)
        return read_table(TOPICS_PATH, lambda: cls(file, file.load(), reserved=reserved))

    def restore(self, values: JsonObject, version: JsonObject) -> None:
        super().restore(values, version)
        self._priority_topics = self._by_priority()

    def priority_topics(self) -> frozenset[str]:
        """The topics that are received by priority. May be called in any thread."""
        return self._priority_topics

    def _by_priority(self) -> frozenset[str]:
        return frozenset(name for name, config in self._configs.items() if config.by_priority)

    def options(self, name: str) -> TopicOptions:
        """The topic's options; the defaults if it is not in the table."""
        config = self._configs.get(name)
        return NO_OPTIONS_SET if config is None else config.options

    def create(
        self,
        name: str,
        queue_count: int = QUEUE_COUNT_DEFAULT,
        message_type: str = "NORMAL",
        *,
        options: Mapping[str, str] = NO_OPTIONS,
        creator: Creator = NOBODY,
        now_ms: EpochMs | None = None,
    ) -> TopicConfig:
        """Creates a topic of 1 to 1024 queues. TroveError TOPIC_ILLEGAL, TOPIC_EXISTS, REQUEST_ILLEGAL,
        MESSAGE_TYPE_UNSUPPORTED, TOPIC_OPTION_ILLEGAL, LIMIT_EXCEEDED, DISK_FULL, STORE_FAILED,
        SERVICE_NOT_AVAILABLE."""
        config = self._checked(NewTopic(name, queue_count, message_type, options, creator))
        self._carry_out(self._begin_put(None, config, now_ms))
        return config

    def begin_create_all(
        self, wanted: Sequence[NewTopic], *, now_ms: EpochMs | None = None
    ) -> tuple[TopicChange | None, list[TroveError | None]]:
        """Creates several topics in one change; None if there is nothing to create. The list has, for each
        wanted topic, the error with which create() would refuse it, or None. TroveError
        SERVICE_NOT_AVAILABLE."""
        made: dict[str, TopicConfig] = {}
        made_by: Counter[str] = Counter()
        refusals: list[TroveError | None] = []
        for one in wanted:
            try:
                if one.name in made:
                    raise _exists(one.name)
                made[one.name] = self._checked(one, len(made), made_by[one.creator.name])
                made_by[one.creator.name] += 1
                refusals.append(None)
            except TroveError as error:
                refusals.append(error)
        parts = [self._put(None, config) for config in made.values()]
        if not parts:
            return None, refusals
        return self._begin(parts[0].name, parts, now_ms, versions=len(parts)), refusals

    def _checked(self, wanted: NewTopic, added: int = 0, added_by_creator: int = 0) -> TopicConfig:
        check_topic_name(wanted.name)
        if wanted.name in self._configs:
            raise _exists(wanted.name)
        config = new_topic(wanted, self.reserved)
        self._check_count(added)
        self._check_creator(wanted.creator, added_by_creator)
        return config

    def ensure_internal(self, name: str, queue_count: int, *, now_ms: EpochMs | None = None) -> TopicConfig:
        """A topic of the broker's own (a retry, dead-letter or system topic), which is created if it is
        missing.

        Blocks while the file is written. TroveError LIMIT_EXCEEDED, DISK_FULL, STORE_FAILED,
        SERVICE_NOT_AVAILABLE.
        """
        self._carry_out(self.begin_internal(name, queue_count, now_ms=now_ms))
        return self.require(name)

    def begin_internal(
        self, name: str, queue_count: int, *, now_ms: EpochMs | None = None
    ) -> TopicChange | None:
        """ensure_internal() for callers that may not block: run() in another thread, then finish(). None
        if the topic exists. TroveError LIMIT_EXCEEDED, SERVICE_NOT_AVAILABLE."""
        assert self.is_system(name), f"{name} is not a topic of the broker's own"
        assert queue_count > 0, "a topic has queues"
        if name in self._configs:
            return None
        self._check_count()
        return self._begin_put(None, TopicConfig(name, queue_count, queue_count), now_ms)

    def alter(
        self, name: str, *, now_ms: EpochMs | None = None, **wanted: Unpack[TopicAlteration]
    ) -> TopicConfig:
        """Changes the given values; queues can only be added. TroveError TOPIC_NOT_FOUND, TOPIC_ILLEGAL,
        REQUEST_ILLEGAL, MESSAGE_TYPE_UNSUPPORTED, TOPIC_OPTION_ILLEGAL, DISK_FULL, STORE_FAILED,
        SERVICE_NOT_AVAILABLE."""
        self._carry_out(self.begin_alter(name, now_ms=now_ms, **wanted))
        return self.require(name)

    def begin_alter(
        self, name: str, *, now_ms: EpochMs | None = None, **wanted: Unpack[TopicAlteration]
    ) -> TopicChange | None:
        """Begins to change the given values; None if nothing is to be changed. TroveError TOPIC_NOT_FOUND,
        TOPIC_ILLEGAL, REQUEST_ILLEGAL, MESSAGE_TYPE_UNSUPPORTED, TOPIC_OPTION_ILLEGAL,
        SERVICE_NOT_AVAILABLE."""
        before = self.require(name)
        after = altered_topic(before, **wanted)
        return None if after == before else self._begin_put(before, after, now_ms)

    def check_deletable(self, name: str) -> None:
        """Raises the errors with which delete() would refuse the name: TOPIC_NOT_FOUND, TOPIC_ILLEGAL."""
        self.require(name)
        if self.is_system(name) and not name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            raise TroveError(errors.TOPIC_ILLEGAL, f"topic {name} is the broker's own", topic=name)

    def delete(self, name: str, *, now_ms: EpochMs | None = None) -> None:
        """Forgets the topic. TroveError TOPIC_NOT_FOUND; TOPIC_ILLEGAL for one that the broker needs."""
        self._carry_out(self.begin_delete(name, now_ms=now_ms))

    def begin_delete(
        self, name: str, *, now_ms: EpochMs | None = None, deleted_below: PhysicalOffset | None = None
    ) -> TopicChange:
        """Begins to delete the topic. It is gone from now on, so that nothing is sent to it; it is back if
        run() fails. deleted_below: its records below that are dead."""
        self.check_deletable(name)
        return self._begin_delete(self._configs[name], now_ms, deleted_below)

    def close_in_memory(self, name: str) -> None:
        """Refuses new messages with TOPIC_CLOSED until the topic is deleted or changed, or the store is
        opened again: of a topic that is to be deleted, and cannot be yet."""
        config = self._configs[name]
        self._place(name, replace(config, options=replace(config.options, writes="closed")))

    def write_file(self) -> None:
        """Writes all topics to topics.json, where RocketMQ reads them. May block. TroveError DISK_FULL,
        STORE_FAILED, UNKNOWN_ERROR; StorageError."""
        assert self._change is None, "one change at a time"
        self._topics_file.write_all(self._version)
        assert self._topics_file.journal.entry_count == 0, "topics.json has all changes"

    def is_system(self, name: str) -> bool:
        return name in self.reserved or is_system_topic(name)

    def _check_not_own(self, name: str) -> None:
        if self.is_system(name):
            raise _reserved(name)

    def _count_max(self) -> int:
        return TOPIC_COUNT_MAX

    def _finish_part(self, part: Changed[TopicConfig], *, saved: bool) -> None:
        super()._finish_part(part, saved=saved)
        config = self._configs.get(part.name)
        if config is not None and config.by_priority:
            self._priority_topics |= {part.name}
        elif part.name in self._priority_topics:
            self._priority_topics -= {part.name}


def new_topic(wanted: NewTopic, reserved: Collection[str] = ()) -> TopicConfig:
    """The topic as a user may create it. TroveError TOPIC_ILLEGAL, REQUEST_ILLEGAL,
    MESSAGE_TYPE_UNSUPPORTED, TOPIC_OPTION_ILLEGAL."""
    name, queue_count = wanted.name, wanted.queue_count
    check_topic_name(name)
    if name in reserved:
        raise _reserved(name)
    check_queue_count(name, queue_count)
    _check_message_type(wanted.message_type)
    config = TopicConfig(name, queue_count, queue_count, attributes=wanted.creator.attributes)
    return config.with_message_type(wanted.message_type).with_options(wanted.options)


def altered_topic(before: TopicConfig, **wanted: Unpack[TopicAlteration]) -> TopicConfig:
    """The topic with the given values; queues can only be added. TroveError TOPIC_ILLEGAL, REQUEST_ILLEGAL,
    MESSAGE_TYPE_UNSUPPORTED, TOPIC_OPTION_ILLEGAL."""
    name, after = before.name, before
    check_topic_name(name)
    if (queue_count := wanted.get("queue_count")) is not None:
        check_queue_count(name, queue_count, max(before.queue_count, before.write_queue_count))
        after = replace(after, queue_count=queue_count, write_queue_count=queue_count)
    if (message_type := wanted.get("message_type")) is not None:
        _check_message_type(message_type)
        after = after.with_message_type(message_type)
        check_together(after.options, message_type)
    if options := wanted.get("options"):
        after = after.with_options(options)
    if (perm := wanted.get("perm")) is not None:
        if not 0 <= perm <= PERM_READ | PERM_WRITE | PERM_INHERIT | PERM_PRIORITY:
            raise TroveError(errors.REQUEST_ILLEGAL, f"perm {perm} is not 0 to 15", field="perm")
        after = replace(after, perm=perm)
    return after


def _reserved(name: str) -> TroveError:
    return TroveError(errors.TOPIC_ILLEGAL, f"topic {name} is reserved for the broker itself", topic=name)


def _exists(name: str) -> TroveError:
    return TroveError(errors.TOPIC_EXISTS, f"topic {name} exists already", topic=name)


def check_queue_count(name: str, queue_count: int, queue_count_min: int = 1) -> None:
    """TroveError REQUEST_ILLEGAL."""
    if not queue_count_min <= queue_count <= QUEUE_COUNT_MAX:
        raise TroveError(
            errors.REQUEST_ILLEGAL,
            f"topic {name}: {queue_count} queues; it may have {queue_count_min} to {QUEUE_COUNT_MAX}",
            field="queue_count",
        )


def _check_message_type(message_type: str) -> None:
    if message_type not in MESSAGE_TYPES:
        raise TroveError(
            errors.MESSAGE_TYPE_UNSUPPORTED,
            f"message type {message_type[:40]!r} is not one of {', '.join(MESSAGE_TYPES)}",
            field="message_type",
        )
