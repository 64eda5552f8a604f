"""The consumer groups of this broker: `config/subscriptionGroup.json` in RocketMQ's shape.

    {"dataVersion": {"counter": n, "stateVersion": 0, "timestamp": ms}, "forbiddenTable": {},
     "subscriptionGroupTable": {"G": {"attributes": {}, "brokerId": 0, "consumeBroadcastEnable": true,
        "consumeEnable": true, "consumeFromMinEnable": true, "consumeMessageOrderly": false,
        "consumeTimeoutMinute": 15, "groupName": "G", "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0, "notifyConsumerIdsChangedEnable": true, "retryMaxTimes": 16,
        "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1}}}

Invariants
- A change by a user is on disk before its call returns; a change that cannot be saved is not made. A group
  that its first use created exists at once, and is on disk with the next save: it has only defaults, and
  perhaps the order of its topics, so that after a crash the next use creates it again.
- The other invariants are those of config_table.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypedDict, Unpack

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.config_table import Change, Changed, ConfigTable, read_table
from trovemq_store.topics.creators import NOBODY, Creator
from trovemq_store.topics.json_file import JsonFile
from trovemq_store.topics.lax_json import JsonObject, integer_member, object_member, render
from trovemq_store.topics.names import check_user_group_name, is_system_group
from trovemq_store.topics.retry_policy import DEFAULT_RETRY_POLICY, RetryPolicy

__all__ = [
    "DEFAULT_RETRY_POLICY",
    "SUBSCRIPTION_GROUPS_PATH",
    "GroupChange",
    "RetryPolicy",
    "SubscriptionGroup",
    "SubscriptionGroups",
    "check_user_group_name",
]

SUBSCRIPTION_GROUPS_PATH: Final = "config/subscriptionGroup.json"

GROUP_COUNT_MAX: Final = 10_000
MADE_BY_USE_ATTRIBUTE: Final = "trovemq.made_by_use"
"""Of groups that their first use made; goes with the first alteration by a user."""
OWN_OFFSETS_ATTRIBUTE: Final = "trovemq.own_offsets"
"""Of groups whose consumers keep their positions themselves, as RocketMQ's remoting clients do; all others
have leases."""
QUEUE_LOCKS_ATTRIBUTE: Final = "trovemq.queue_locks"
"""Of groups with own offsets: which consumer reads which queue in order, as JSON
`{"client id": {"topic": [queue ids]}}`."""
RETRY_MAX_DEFAULT: Final = 16
RETRY_MAX_MAX: Final = 10_000

_TABLE: Final = "subscriptionGroupTable"
_NEW_GROUP: Final[Mapping[str, object]] = {
    "brokerId": 0,
    "consumeTimeoutMinute": 15,
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """One consumer group. `orderly`: its messages are delivered in the order of their message groups."""

    name: str
    orderly: bool = False
    retry_max: int = RETRY_MAX_DEFAULT
    retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY
    consume_enable: bool = True
    consume_from_min: bool = True
    broadcast_enable: bool = True
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def max_attempts(self) -> int:
        """Deliveries of one message before it becomes a dead letter."""
        return max(self.retry_max, 0) + 1

    @property
    def made_by_use(self) -> bool:
        """Whether the first use made it, and no user has altered it since."""
        return MADE_BY_USE_ATTRIBUTE in self.attributes

    @property
    def has_own_offsets(self) -> bool:
        """Whether its consumers keep their positions themselves; else messages are delivered under leases."""
        return OWN_OFFSETS_ATTRIBUTE in self.attributes

    @property
    def system(self) -> bool:
        return is_system_group(self.name)

    def check(self) -> None:
        """Raises TroveError GROUP_ILLEGAL, REQUEST_ILLEGAL unless a user may have such a group."""
        check_user_group_name(self.name)
        if not 0 <= self.retry_max <= RETRY_MAX_MAX:
            raise TroveError(
                errors.REQUEST_ILLEGAL,
                f"group {self.name}: {self.retry_max} retries; it may have 0 to {RETRY_MAX_MAX}",
                field="retry_max",
            )
        self.retry_policy.check()

    def to_json(self, base: Mapping[str, object]) -> JsonObject:
        """RocketMQ's object for the group; members of `base` that we do not know stay."""
        known: JsonObject = {
            "attributes": self.attributes,
            "consumeBroadcastEnable": self.broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min,
            "consumeMessageOrderly": self.orderly,
            "groupName": self.name,
            "groupRetryPolicy": self.retry_policy.to_json(object_member(base, "groupRetryPolicy")),
            "retryMaxTimes": self.retry_max,
        }
        return dict(sorted({**_NEW_GROUP, **base, **known}.items()))

    @classmethod
    def from_json(cls, name: str, value: Mapping[str, object]) -> SubscriptionGroup:
        """Missing members have RocketMQ's defaults (4.x wrote no attributes and no policy). ValueError."""
        attributes = object_member(value, "attributes")
        return cls(
            name=name,
            orderly=bool(value.get("consumeMessageOrderly", False)),
            retry_max=integer_member(value, "retryMaxTimes", RETRY_MAX_DEFAULT),
            retry_policy=RetryPolicy.from_json(object_member(value, "groupRetryPolicy")),
            consume_enable=bool(value.get("consumeEnable", True)),
            consume_from_min=bool(value.get("consumeFromMinEnable", True)),
            broadcast_enable=bool(value.get("consumeBroadcastEnable", True)),
            attributes={key: str(text) for key, text in attributes.items()},
        )


GroupChange = Change[SubscriptionGroup]


class GroupAlteration(TypedDict, total=False):
    """The values of a group that alter() changes; None leaves a value as it is."""

    orderly: bool | None
    retry_max: int | None
    retry_policy: RetryPolicy | None
    consume_enable: bool | None
    broadcast_enable: bool | None


class GroupsFile:
    """The file, which is written as a whole for each change."""

    def __init__(self, files: FileSystem) -> None:
        self._file = JsonFile(files, SUBSCRIPTION_GROUPS_PATH)
        self._document: JsonObject = {}
        self._changes: dict[str, JsonObject | None] = {}

    @property
    def fault(self) -> str:
        return self._file.fault

    def load(self) -> JsonObject:
        """TroveError STORE_FAILED."""
        self._document = self._file.load() or {}
        return self._document

    def begin_save(self, changes: Mapping[str, JsonObject | None], version: JsonObject) -> Callable[[], None]:
        """Returns the function that saves the changes, which may block and may run in another thread; a value
        of None deletes the group."""
        values = {**object_member(self._document, _TABLE), **changes}
        kept = {name: value for name, value in values.items() if value is not None}
        document = {"forbiddenTable": {}, **self._document, "dataVersion": version, _TABLE: kept}
        return partial(self._save, document)

    @property
    def crc(self) -> int | None:
        return self._file.crc

    @property
    def whole(self) -> bool:
        return not self._file.is_second_copy

    @property
    def is_second_copy(self) -> bool:
        return self._file.is_second_copy

    def put(self, name: str, value: JsonObject | None) -> None:
        """The next content has this entry; None: it has not."""
        self._changes[name] = value

    def capture(self, version: JsonObject) -> Callable[[], bytes]:
        """Returns the function that renders the present content; it may run in another thread."""
        values = {**object_member(self._document, _TABLE), **self._changes}
        kept = {name: value for name, value in values.items() if value is not None}
        document = {"forbiddenTable": {}, **self._document, "dataVersion": version, _TABLE: kept}
        self._document, self._changes = document, {}
        return partial(render, document)

    def write(self, content: bytes) -> None:
        """Replaces the file. TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR."""
        self._file.save_content(content)

    def _save(self, document: JsonObject) -> None:
        """TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR; then the file is as it was."""
        fault_point("groups.before_save")
        self._file.save(document)
        fault_point("groups.after_save")
        self._document = document


class SubscriptionGroups(ConfigTable[SubscriptionGroup]):
    """The groups by name. for_use() works also while a change is being saved."""

    NOUN = "group"
    NOT_FOUND = errors.GROUP_NOT_FOUND
    REMEDY = (
        "delete those that no program uses (trovemq group list, trovemq group delete), and give each "
        "application one fixed group name; group_expiry_ms forgets unused ones"
    )

    def __init__(self, file: GroupsFile, document: JsonObject) -> None:
        values, version = object_member(document, _TABLE), object_member(document, "dataVersion")
        super().__init__(file, values, version, SubscriptionGroup.from_json)
        self._unsaved: set[str] = set()

    @classmethod
    def load(cls, files: FileSystem) -> SubscriptionGroups:
        """Reads the table; empty if there is none. TroveError STORE_FAILED if it cannot be read."""
        file = GroupsFile(files)
        return read_table(SUBSCRIPTION_GROUPS_PATH, lambda: cls(file, file.load()))

    @property
    def unsaved(self) -> frozenset[str]:
        """The groups that their first use created and that are not on disk yet."""
        return frozenset(self._unsaved)

    def for_use(
        self,
        name: str,
        *,
        auto_create: bool,
        now_ms: EpochMs,
        orderly: bool = False,
        creator: Creator = NOBODY,
    ) -> SubscriptionGroup:
        """The group; with `auto_create` an unknown one is created in memory, with defaults except for
        `orderly`, and is `unsaved` until the next save. TroveError GROUP_NOT_FOUND, GROUP_ILLEGAL,
        LIMIT_EXCEEDED."""
        group = self._configs.get(name)
        if group is not None:
            return group
        if not auto_create:
            return self.require(name)
        attributes = {**creator.attributes, MADE_BY_USE_ATTRIBUTE: "true"}
        group = SubscriptionGroup(name, orderly, attributes=attributes)
        group.check()
        self._check_count()
        self._check_creator(creator)
        self._place(name, group)
        self._unsaved.add(name)
        self._notify()
        return group

    def create(self, group: SubscriptionGroup, *, now_ms: EpochMs | None = None) -> SubscriptionGroup:
        """Creates the group. TroveError GROUP_ILLEGAL, GROUP_EXISTS, REQUEST_ILLEGAL, LIMIT_EXCEEDED,
        DISK_FULL, STORE_FAILED, SERVICE_NOT_AVAILABLE."""
        self._carry_out(self.begin_create(group, now_ms=now_ms))
        return self.require(group.name)

    def begin_create(
        self, group: SubscriptionGroup, *, creator: Creator = NOBODY, now_ms: EpochMs | None = None
    ) -> GroupChange:
        """Begins to create the group, which exists after finish(). TroveError GROUP_ILLEGAL, GROUP_EXISTS,
        REQUEST_ILLEGAL, LIMIT_EXCEEDED, SERVICE_NOT_AVAILABLE."""
        group.check()
        if group.name in self._configs:
            raise TroveError(errors.GROUP_EXISTS, f"group {group.name} exists already", group=group.name)
        self._check_count()
        self._check_creator(creator)
        made = replace(group, attributes={**group.attributes, **creator.attributes})
        return self._begin_put(None, made, now_ms)

    def alter(
        self, name: str, *, now_ms: EpochMs | None = None, **wanted: Unpack[GroupAlteration]
    ) -> SubscriptionGroup:
        """Changes the given values. TroveError GROUP_NOT_FOUND, GROUP_ILLEGAL, REQUEST_ILLEGAL, DISK_FULL,
        STORE_FAILED, SERVICE_NOT_AVAILABLE."""
        self._carry_out(self.begin_alter(name, now_ms=now_ms, **wanted))
        return self.require(name)

    def begin_alter(
        self, name: str, *, now_ms: EpochMs | None = None, **wanted: Unpack[GroupAlteration]
    ) -> GroupChange | None:
        """Begins to change the given values; None if nothing is to be changed. TroveError GROUP_NOT_FOUND,
        GROUP_ILLEGAL, REQUEST_ILLEGAL, SERVICE_NOT_AVAILABLE."""
        before = self.require(name)
        given: dict[str, Any] = {field: value for field, value in wanted.items() if value is not None}
        after = replace(before, **given)
        if after == before:
            return None
        kept = {name: text for name, text in before.attributes.items() if name != MADE_BY_USE_ATTRIBUTE}
        after = replace(after, attributes=kept)
        after.check()
        return self._begin_put(before, after, now_ms)

    def begin_mark(
        self, name: str, attribute: str, text: str | None, *, now_ms: EpochMs
    ) -> GroupChange | None:
        """Begins to set an attribute of the group; `text` None removes it. None if nothing is to be changed.
        TroveError GROUP_NOT_FOUND, SERVICE_NOT_AVAILABLE."""
        before = self.require(name)
        if before.attributes.get(attribute) == text:
            return None
        attributes = {key: value for key, value in before.attributes.items() if key != attribute}
        if text is not None:
            attributes[attribute] = text
        return self._begin_put(before, replace(before, attributes=attributes), now_ms)

    def mark(self, name: str, attribute: str, text: str | None, *, now_ms: EpochMs) -> None:
        """Sets an attribute of the group, or removes it. Raises the errors of begin_mark(), and TroveError
        DISK_FULL, STORE_FAILED."""
        self._carry_out(self.begin_mark(name, attribute, text, now_ms=now_ms))

    def delete(self, name: str, *, now_ms: EpochMs | None = None) -> None:
        """Forgets the group. TroveError GROUP_NOT_FOUND; GROUP_ILLEGAL for one of RocketMQ's own."""
        self._carry_out(self.begin_delete(name, now_ms=now_ms))

    def begin_delete(
        self, name: str, *, now_ms: EpochMs | None = None, deleted_below: PhysicalOffset | None = None
    ) -> GroupChange:
        """The group is gone from now on; it is back if run() fails. deleted_below: the end of the log: all
        that the log has of its offsets and deliveries is dead with the record."""
        before = self.require(name)
        self._check_not_own(name)
        change = self._begin_delete(before, now_ms, deleted_below)
        self._unsaved.discard(name)
        return change

    @property
    def is_deleting(self) -> bool:
        """Whether a group's deletion has begun, and is not finished."""
        return self._change is not None and any(part.value is None for part in self._change.parts)

    def save_work(self, *, now_ms: EpochMs | None = None) -> GroupChange | None:
        """The change that saves the groups which were created by use; None if there are none, or during a
        change."""
        if not self._unsaved or self._change is not None:
            return None
        return self._begin("", [], now_ms)

    def persist(self, *, now_ms: EpochMs | None = None) -> None:
        """Saves the groups that were created by use; blocks. TroveError DISK_FULL, STORE_FAILED."""
        self._carry_out(self.save_work(now_ms=now_ms))

    def is_system(self, name: str) -> bool:
        return is_system_group(name)

    def _check_not_own(self, name: str) -> None:
        if self.is_system(name):
            raise TroveError(errors.GROUP_ILLEGAL, f"group {name} is the broker's own", group=name)

    def _count_max(self) -> int:
        return GROUP_COUNT_MAX

    def _begin(
        self,
        name: str,
        parts: Sequence[Changed[SubscriptionGroup]],
        now_ms: EpochMs | None,
        *,
        versions: int = 1,
        deleted_below: PhysicalOffset | None = None,
    ) -> GroupChange:
        """Each save includes the groups that were created by use."""
        changed = {part.name for part in parts}
        used = [self._configs[other] for other in self._unsaved if other not in changed]
        both = [*(self._put(one, one) for one in used), *parts]
        return super()._begin(name, both, now_ms, versions=versions, deleted_below=deleted_below)

    def _finish_part(self, part: Changed[SubscriptionGroup], *, saved: bool) -> None:
        super()._finish_part(part, saved=saved)
        if (part.after if saved else part.before) is None:
            return
        if part.name in self._values:
            self._unsaved.discard(part.name)
        else:
            self._unsaved.add(part.name)
