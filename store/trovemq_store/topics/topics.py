"""The topics of this broker: `config/topics.json` in RocketMQ's shape.

    {"dataVersion": {"counter": n, "stateVersion": 0, "timestamp": ms},
     "topicConfigTable": {"T": {"attributes": {"message.type": "NORMAL"}, "order": false, "perm": 6,
                                "readQueueNums": 8, "topicFilterType": "SINGLE_TAG", "topicName": "T",
                                "topicSysFlag": 0, "writeQueueNums": 8}}}

Invariants
- A change is on disk before the call that makes it returns; a change that cannot be saved is not made.
- A change costs the same however many topics there are: see topics_file.py.
- `data_version` grows with every change.
- Members that we do not know are written back as they were read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.json_file import ADVICE
from trovemq_store.topics.lax_json import JsonObject, integer_member, object_member
from trovemq_store.topics.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_topic_name, is_system_topic
from trovemq_store.topics.topic_options import TopicOptions, check_together, options_of, with_options
from trovemq_store.topics.topics_file import TOPICS_PATH, TopicSaving, TopicsFile

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
    """What `attributes` say of them."""

    @property
    def readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    @property
    def system(self) -> bool:
        return is_system_topic(self.name)

    @property
    def by_priority(self) -> bool:
        """Groups receive its queues by the messages' priority (`order = priority`, or of type PRIORITY)."""
        return self.options.by_priority or self.message_type == "PRIORITY"

    def with_message_type(self, message_type: str) -> TopicConfig:
        attributes = {**self.attributes, MESSAGE_TYPE_ATTRIBUTE: message_type}
        return replace(self, message_type=message_type, attributes=attributes)

    def with_options(self, changes: Mapping[str, str]) -> TopicConfig:
        """Options by name (topic_options.py). TroveError TOPIC_OPTION_ILLEGAL."""
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


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that somebody wants."""

    name: str
    queue_count: int = QUEUE_COUNT_DEFAULT
    message_type: str = "NORMAL"
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChangedTopic:
    """`before` None: it is made; `after` None: it is deleted. `value`: RocketMQ's object for it."""

    name: str
    before: TopicConfig | None
    after: TopicConfig | None
    value: JsonObject | None


class TopicChange:
    """A change of the table that is ready to be saved: `run()` may block, and may run in another thread."""

    def __init__(self, saving: TopicSaving, parts: Sequence[ChangedTopic], version: JsonObject) -> None:
        self.saving = saving
        self.parts = parts
        self.version = version
        self.saved = False

    @property
    def name(self) -> str:
        """Of the only topic, or of the first one."""
        return self.parts[0].name

    @property
    def before(self) -> TopicConfig | None:
        return self.parts[0].before

    def run(self) -> None:
        """TroveError DISK_FULL, STORE_FAILED; then what is on disk is as it was."""
        fault_point("topics.before_save")
        self.saving.run()
        fault_point("topics.after_save")
        self.saved = True


class TopicTable:
    """The topics by name. Changes are durable when they return; used from one thread.

    begin_create(), begin_alter() and begin_delete() leave the saving to the caller: run() of what they
    return, wherever it may block, and finish() on the owner's thread, whatever became of run(). One change at
    a time: until finish() any other is refused with SERVICE_NOT_AVAILABLE.
    """

    def __init__(self, file: TopicsFile, document: JsonObject, *, reserved: Collection[str] = ()) -> None:
        self._file = file
        self._reserved = frozenset(reserved)
        self._values = object_member(document, "topicConfigTable")
        self._version = object_member(document, "dataVersion")
        self._configs = {
            name: TopicConfig.from_json(name, object_member(self._values, name)) for name in self._values
        }
        self._listeners: list[Callable[[], None]] = []
        self._change: TopicChange | None = None
        self._priority_topics = self._by_priority()

    @classmethod
    def load(cls, files: FileSystem, *, reserved: Collection[str] = ()) -> TopicTable:
        """Reads the table; empty where there is none. `reserved`: further names that no user may create
        (RocketMQ takes the cluster's and the broker's). TroveError STORE_FAILED where it cannot be read."""
        file = TopicsFile(files)
        try:
            return cls(file, file.load(), reserved=reserved)
        except ValueError as error:
            what = f"{TOPICS_PATH}: {error}: {ADVICE}"
            raise TroveError(errors.STORE_FAILED, what, file=TOPICS_PATH) from error

    @property
    def data_version(self) -> int:
        """RocketMQ's dataVersion.counter."""
        return integer_member(self._version, "counter", 0)

    def __len__(self) -> int:
        return len(self._configs)

    def __contains__(self, name: str) -> bool:
        return name in self._configs

    def get(self, name: str) -> TopicConfig | None:
        return self._configs.get(name)

    def priority_topics(self) -> frozenset[str]:
        """The topics that are received by priority. May be asked in another thread."""
        return self._priority_topics

    def _by_priority(self) -> frozenset[str]:
        return frozenset(name for name, config in self._configs.items() if config.by_priority)

    def require(self, name: str) -> TopicConfig:
        """TroveError TOPIC_NOT_FOUND where there is none."""
        config = self._configs.get(name)
        if config is None:
            raise TroveError(
                errors.TOPIC_NOT_FOUND, f"topic {name[:200]!r} does not exist here", topic=name[:200]
            )
        return config

    def options(self, name: str) -> TopicOptions:
        """What is set for the topic; the defaults where it is not in the table."""
        config = self._configs.get(name)
        return NO_OPTIONS_SET if config is None else config.options

    def names(self, include_system: bool = False) -> list[str]:
        """Sorted; without `include_system` only those that users made."""
        return sorted(name for name in self._configs if include_system or not self._is_system(name))

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        """`listener()` is called after every change."""
        self._listeners.append(listener)

    def create(
        self,
        name: str,
        queue_count: int = QUEUE_COUNT_DEFAULT,
        message_type: str = "NORMAL",
        *,
        options: Mapping[str, str] = NO_OPTIONS,
        now_ms: int | None = None,
    ) -> TopicConfig:
        """Makes a topic of 1 to 1024 queues. TroveError TOPIC_ILLEGAL, TOPIC_EXISTS, REQUEST_ILLEGAL,
        MESSAGE_TYPE_UNSUPPORTED, TOPIC_OPTION_ILLEGAL, LIMIT_EXCEEDED, DISK_FULL, STORE_FAILED,
        SERVICE_NOT_AVAILABLE."""
        change = self.begin_create(name, queue_count, message_type, options=options, now_ms=now_ms)
        self._carry_out(change)
        return self.require(name)

    def begin_create(
        self,
        name: str,
        queue_count: int = QUEUE_COUNT_DEFAULT,
        message_type: str = "NORMAL",
        *,
        options: Mapping[str, str] = NO_OPTIONS,
        now_ms: int | None = None,
    ) -> TopicChange:
        """The topic is there after finish(). Raises as create() but for what the file may raise."""
        config = self._checked(NewTopic(name, queue_count, message_type, options), len(self._configs))
        return self._begin_put(None, config, now_ms)

    def begin_create_all(
        self, wanted: Sequence[NewTopic], *, now_ms: int | None = None
    ) -> tuple[TopicChange | None, list[TroveError | None]]:
        """Several topics in one change, None where there is none to be made; and for each wanted one why it
        is refused, as begin_create() would. TroveError SERVICE_NOT_AVAILABLE."""
        made: dict[str, TopicConfig] = {}
        refusals: list[TroveError | None] = []
        for one in wanted:
            try:
                if one.name in made:
                    raise _exists(one.name)
                made[one.name] = self._checked(one, len(self._configs) + len(made))
                refusals.append(None)
            except TroveError as error:
                refusals.append(error)
        parts = [self._put(None, config) for config in made.values()]
        return self._begin(parts, now_ms) if parts else None, refusals

    def _checked(self, wanted: NewTopic, topic_count: int) -> TopicConfig:
        name, queue_count = wanted.name, wanted.queue_count
        check_topic_name(name)
        if name in self._configs:
            raise _exists(name)
        if name in self._reserved:
            raise TroveError(
                errors.TOPIC_ILLEGAL, f"topic {name} is reserved for the broker itself", topic=name
            )
        _check_queue_count(name, queue_count)
        _check_message_type(wanted.message_type)
        if topic_count >= TOPIC_COUNT_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"this broker has {TOPIC_COUNT_MAX} topics already")
        config = TopicConfig(name, queue_count, queue_count).with_message_type(wanted.message_type)
        return config.with_options(wanted.options)

    def ensure_internal(self, name: str, queue_count: int, *, now_ms: int | None = None) -> TopicConfig:
        """A topic of the broker's own (a retry, dead-letter or system topic), made where it is missing.

        Blocks while the file is written. TroveError LIMIT_EXCEEDED, DISK_FULL, STORE_FAILED,
        SERVICE_NOT_AVAILABLE.
        """
        self._carry_out(self.begin_internal(name, queue_count, now_ms=now_ms))
        return self.require(name)

    def begin_internal(self, name: str, queue_count: int, *, now_ms: int | None = None) -> TopicChange | None:
        """ensure_internal() for callers that may not block: run() in another thread, then finish(). None
        where the topic is there. TroveError LIMIT_EXCEEDED, SERVICE_NOT_AVAILABLE."""
        assert self._is_system(name), f"{name} is not a topic of the broker's own"
        if name in self._configs:
            return None
        if len(self._configs) >= TOPIC_COUNT_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"this broker has {TOPIC_COUNT_MAX} topics already")
        return self._begin_put(None, TopicConfig(name, queue_count, queue_count), now_ms)

    def alter(
        self,
        name: str,
        *,
        queue_count: int | None = None,
        message_type: str | None = None,
        perm: int | None = None,
        options: Mapping[str, str] = NO_OPTIONS,
        now_ms: int | None = None,
    ) -> TopicConfig:
        """Changes what is given; queues are only ever added. TroveError as create(), and TOPIC_NOT_FOUND."""
        self._carry_out(
            self.begin_alter(
                name,
                queue_count=queue_count,
                message_type=message_type,
                perm=perm,
                options=options,
                now_ms=now_ms,
            )
        )
        return self.require(name)

    def begin_alter(
        self,
        name: str,
        *,
        queue_count: int | None = None,
        message_type: str | None = None,
        perm: int | None = None,
        options: Mapping[str, str] = NO_OPTIONS,
        now_ms: int | None = None,
    ) -> TopicChange | None:
        """None where nothing is to be changed. Raises as alter() but for what the file may raise."""
        before = self.require(name)
        check_topic_name(name)
        after = before
        if queue_count is not None:
            _check_queue_count(
                name, queue_count, queue_count_min=max(before.queue_count, before.write_queue_count)
            )
            after = replace(after, queue_count=queue_count, write_queue_count=queue_count)
        if message_type is not None:
            _check_message_type(message_type)
            after = after.with_message_type(message_type)
            check_together(after.options, message_type)
        if options:
            after = after.with_options(options)
        if perm is not None:
            if not 0 <= perm <= PERM_READ | PERM_WRITE | PERM_INHERIT | PERM_PRIORITY:
                raise TroveError(errors.REQUEST_ILLEGAL, f"perm {perm} is not 0 to 15", field="perm")
            after = replace(after, perm=perm)
        return None if after == before else self._begin_put(before, after, now_ms)

    def check_deletable(self, name: str) -> None:
        """Raises what delete() would refuse the name with: TOPIC_NOT_FOUND, TOPIC_ILLEGAL."""
        self.require(name)
        if self._is_system(name) and not name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            raise TroveError(errors.TOPIC_ILLEGAL, f"topic {name} is the broker's own", topic=name)

    def delete(self, name: str, *, now_ms: int | None = None) -> None:
        """Forgets the topic. TroveError TOPIC_NOT_FOUND; TOPIC_ILLEGAL for one that the broker needs."""
        self._carry_out(self.begin_delete(name, now_ms=now_ms))

    def begin_delete(self, name: str, *, now_ms: int | None = None) -> TopicChange:
        """The topic is gone from here on, so that nothing is sent to it; it is back where run() fails."""
        self.check_deletable(name)
        change = self._begin([ChangedTopic(name, self._configs[name], None, None)], now_ms)
        del self._configs[name]
        return change

    def finish(self, change: TopicChange) -> None:
        """After run(): the table has the change where the file has it, else it is as it was."""
        assert change is self._change, "one change at a time"
        self._change = None
        for part in change.parts:
            config = part.after if change.saved else part.before
            if config is not None:
                self._configs[part.name] = config
            if change.saved and part.value is not None:
                self._values[part.name] = part.value
            elif change.saved:
                self._values.pop(part.name, None)
        if change.saved:
            self._version = change.version
            change.saving.finish()
        if any(
            one is not None and one.by_priority for part in change.parts for one in (part.before, part.after)
        ):
            self._priority_topics = self._by_priority()
        if change.saved and change.parts:
            self._notify()

    def write_file(self) -> None:
        """topics.json has everything, as RocketMQ reads it. May block. TroveError as run()."""
        assert self._change is None, "one change at a time"
        self._file.write_all(self._version)

    def _is_system(self, name: str) -> bool:
        return name in self._reserved or is_system_topic(name)

    def _begin_put(self, before: TopicConfig | None, after: TopicConfig, now_ms: int | None) -> TopicChange:
        return self._begin([self._put(before, after)], now_ms)

    def _put(self, before: TopicConfig | None, after: TopicConfig) -> ChangedTopic:
        value = after.to_json(object_member(self._values, after.name))
        return ChangedTopic(after.name, before, after, value)

    def _begin(self, parts: Sequence[ChangedTopic], now_ms: int | None) -> TopicChange:
        if self._change is not None:
            raise TroveError(
                errors.SERVICE_NOT_AVAILABLE, f"topic {self._change.name} is being changed; try again"
            )
        version = self._version_after(len(parts), now_ms)
        changes = {part.name: part.value for part in parts}
        self._change = TopicChange(self._file.begin_save(changes, version), parts, version)
        return self._change

    def _carry_out(self, change: TopicChange | None) -> None:
        if change is not None:
            try:
                change.run()
            finally:
                self.finish(change)

    def _version_after(self, change_count: int, now_ms: int | None) -> JsonObject:
        version = self._version
        return {
            "counter": integer_member(version, "counter", 0) + change_count,
            "stateVersion": integer_member(version, "stateVersion", 0),
            "timestamp": integer_member(version, "timestamp", 0) if now_ms is None else now_ms,
        }

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


def _exists(name: str) -> TroveError:
    return TroveError(errors.TOPIC_EXISTS, f"topic {name} exists already", topic=name)


def _check_queue_count(name: str, queue_count: int, *, queue_count_min: int = 1) -> None:
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
