"""The consumer groups of this broker: `config/subscriptionGroup.json` in RocketMQ's shape.

    {"dataVersion": {"counter": n, "stateVersion": 0, "timestamp": ms}, "forbiddenTable": {},
     "subscriptionGroupTable": {"G": {"attributes": {}, "brokerId": 0, "consumeBroadcastEnable": true,
        "consumeEnable": true, "consumeFromMinEnable": true, "consumeMessageOrderly": false,
        "consumeTimeoutMinute": 15, "groupName": "G", "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0, "notifyConsumerIdsChangedEnable": true, "retryMaxTimes": 16,
        "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1}}}

Invariants
- A change that a user asks for is on disk before the call that makes it returns; one that cannot be saved
  is not made. A group that came to be by its first use is there at once, and on disk with the next save:
  it has nothing but defaults, and perhaps the order that its topics ask for, so a crash loses nothing that
  the next use does not bring back.
- `data_version` grows with every save.
- Members that we do not know are written back as they were read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.json_file import ADVICE, JsonFile
from trovemq_store.topics.lax_json import JsonObject, integer_member, object_member
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
    """One consumer group. `orderly`: its messages are handed out in the order of their message groups."""

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


class GroupChange:
    """A change of the table that is ready to be saved: `run()` may block, and may run in another thread.

    `name` is empty where nothing is changed but what came to be by use is saved.
    """

    def __init__(
        self,
        file: JsonFile,
        document: JsonObject,
        name: str = "",
        before: SubscriptionGroup | None = None,
        after: SubscriptionGroup | None = None,
        used: frozenset[str] = frozenset(),
    ) -> None:
        self._file = file
        self.document = document
        self.name = name
        self.before = before  # None: the group is made
        self.after = after  # None: it is deleted
        self.used = used  # groups made by use that the document has
        self.saved = False

    def run(self) -> None:
        """TroveError DISK_FULL, STORE_FAILED; then the file is as it was."""
        fault_point("groups.before_save")
        self._file.save(self.document)
        fault_point("groups.after_save")
        self.saved = True


class SubscriptionGroups:
    """The groups by name; used from one thread.

    begin_create(), begin_alter(), begin_delete() and save_work() leave the saving to the caller: run() of
    what they return, wherever it may block, and finish() on the owner's thread, whatever became of run(). One
    at a time: until finish() any other is refused with SERVICE_NOT_AVAILABLE. for_use() continues meanwhile.
    """

    def __init__(self, file: JsonFile, document: JsonObject) -> None:
        self._file = file
        self._document = document
        self._values = object_member(document, _TABLE)
        self._groups = {
            name: SubscriptionGroup.from_json(name, object_member(self._values, name))
            for name in self._values
        }
        self._unsaved: set[str] = set()
        self._listeners: list[Callable[[], None]] = []
        self._change: GroupChange | None = None

    @classmethod
    def load(cls, files: FileSystem) -> SubscriptionGroups:
        """Reads the table; empty where there is none. TroveError STORE_FAILED where it cannot be read."""
        path = SUBSCRIPTION_GROUPS_PATH
        file = JsonFile(files, path)
        document = file.load() or {}
        try:
            return cls(file, document)
        except ValueError as error:
            what = f"{path}: {error}: {ADVICE}"
            raise TroveError(errors.STORE_FAILED, what, file=path) from error

    @property
    def data_version(self) -> int:
        """RocketMQ's dataVersion.counter."""
        return integer_member(object_member(self._document, "dataVersion"), "counter", 0)

    @property
    def unsaved(self) -> frozenset[str]:
        """The groups that came to be by use and are not on disk yet."""
        return frozenset(self._unsaved)

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def get(self, name: str) -> SubscriptionGroup | None:
        return self._groups.get(name)

    def require(self, name: str) -> SubscriptionGroup:
        """TroveError GROUP_NOT_FOUND where there is none."""
        group = self._groups.get(name)
        if group is None:
            raise TroveError(
                errors.GROUP_NOT_FOUND, f"group {name[:200]!r} does not exist here", group=name[:200]
            )
        return group

    def names(self, include_system: bool = False) -> list[str]:
        """Sorted; without `include_system` only those that are no names of RocketMQ's own."""
        return sorted(name for name in self._groups if include_system or not is_system_group(name))

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        """`listener()` is called after every change."""
        self._listeners.append(listener)

    def for_use(
        self, name: str, *, auto_create: bool, now_ms: int, orderly: bool = False
    ) -> SubscriptionGroup:
        """The group; with `auto_create` an unknown one is made with defaults but for `orderly`, in memory,
        and is `unsaved` until the next save. TroveError GROUP_NOT_FOUND, GROUP_ILLEGAL, LIMIT_EXCEEDED."""
        group = self._groups.get(name)
        if group is not None:
            return group
        if not auto_create:
            return self.require(name)
        group = SubscriptionGroup(name, orderly)
        group.check()
        self._check_room()
        self._groups[name] = group
        self._unsaved.add(name)
        self._notify()
        return group

    def create(self, group: SubscriptionGroup, *, now_ms: int | None = None) -> SubscriptionGroup:
        """Makes the group. TroveError GROUP_ILLEGAL, GROUP_EXISTS, REQUEST_ILLEGAL, LIMIT_EXCEEDED,
        DISK_FULL, STORE_FAILED, SERVICE_NOT_AVAILABLE."""
        self._carry_out(self.begin_create(group, now_ms=now_ms))
        return self.require(group.name)

    def begin_create(self, group: SubscriptionGroup, *, now_ms: int | None = None) -> GroupChange:
        """The group is there after finish(). Raises as create() but for what the file may raise."""
        group.check()
        if group.name in self._groups:
            raise TroveError(errors.GROUP_EXISTS, f"group {group.name} exists already", group=group.name)
        self._check_room()
        return self._begin(now_ms, group.name, None, group)

    def alter(
        self,
        name: str,
        *,
        orderly: bool | None = None,
        retry_max: int | None = None,
        retry_policy: RetryPolicy | None = None,
        consume_enable: bool | None = None,
        broadcast_enable: bool | None = None,
        now_ms: int | None = None,
    ) -> SubscriptionGroup:
        """Changes what is given. TroveError as create(), and GROUP_NOT_FOUND."""
        self._carry_out(
            self.begin_alter(
                name,
                orderly=orderly,
                retry_max=retry_max,
                retry_policy=retry_policy,
                consume_enable=consume_enable,
                broadcast_enable=broadcast_enable,
                now_ms=now_ms,
            )
        )
        return self.require(name)

    def begin_alter(
        self,
        name: str,
        *,
        orderly: bool | None = None,
        retry_max: int | None = None,
        retry_policy: RetryPolicy | None = None,
        consume_enable: bool | None = None,
        broadcast_enable: bool | None = None,
        now_ms: int | None = None,
    ) -> GroupChange | None:
        """None where nothing is to be changed. Raises as alter() but for what the file may raise."""
        before = self.require(name)
        after = SubscriptionGroup(
            name,
            orderly=before.orderly if orderly is None else orderly,
            retry_max=before.retry_max if retry_max is None else retry_max,
            retry_policy=before.retry_policy if retry_policy is None else retry_policy,
            consume_enable=before.consume_enable if consume_enable is None else consume_enable,
            consume_from_min=before.consume_from_min,
            broadcast_enable=before.broadcast_enable if broadcast_enable is None else broadcast_enable,
            attributes=before.attributes,
        )
        if after == before:
            return None
        after.check()
        return self._begin(now_ms, name, before, after)

    def delete(self, name: str, *, now_ms: int | None = None) -> None:
        """Forgets the group. TroveError GROUP_NOT_FOUND; GROUP_ILLEGAL for one of RocketMQ's own."""
        self._carry_out(self.begin_delete(name, now_ms=now_ms))

    def begin_delete(self, name: str, *, now_ms: int | None = None) -> GroupChange:
        """The group is gone from here on; it is back where run() fails."""
        before = self.require(name)
        if before.system:
            raise TroveError(errors.GROUP_ILLEGAL, f"group {name} is the broker's own", group=name)
        change = self._begin(now_ms, name, before, None)
        del self._groups[name]
        self._unsaved.discard(name)
        return change

    def save_work(self, *, now_ms: int | None = None) -> GroupChange | None:
        """Saves the groups that came to be by use; None where there are none, or a change is under way."""
        if not self._unsaved or self._change is not None:
            return None
        return self._begin(now_ms)

    def finish(self, change: GroupChange) -> None:
        """After run(): the table has the change where the file has it, else it is as it was."""
        assert change is self._change, "one change at a time"
        self._change = None
        if change.saved:
            self._document = change.document
            self._values = object_member(change.document, _TABLE)
            self._unsaved -= change.used
            if change.after is not None:
                self._groups[change.name] = change.after
                self._unsaved.discard(change.name)
            if change.name:
                self._notify()
        elif change.before is not None:
            self._groups[change.name] = change.before
            if change.name in self._values:
                self._unsaved.discard(change.name)
            else:
                self._unsaved.add(change.name)

    def persist(self, *, now_ms: int | None = None) -> None:
        """save_work(), here and now. TroveError DISK_FULL, STORE_FAILED."""
        self._carry_out(self.save_work(now_ms=now_ms))

    def _begin(
        self,
        now_ms: int | None,
        name: str = "",
        before: SubscriptionGroup | None = None,
        after: SubscriptionGroup | None = None,
    ) -> GroupChange:
        if self._change is not None:
            what = (
                f"group {self._change.name} is being changed"
                if self._change.name
                else "groups are being saved"
            )
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, f"{what}; try again")
        used = frozenset(self._unsaved - {name})
        values = {**self._values, **{other: self._to_json(self._groups[other]) for other in used}}
        if after is not None:
            values[name] = self._to_json(after)
        else:
            values.pop(name, None)
        self._change = GroupChange(self._file, self._document_of(values, now_ms), name, before, after, used)
        return self._change

    def _carry_out(self, change: GroupChange | None) -> None:
        if change is not None:
            try:
                change.run()
            finally:
                self.finish(change)

    def _to_json(self, group: SubscriptionGroup) -> JsonObject:
        return group.to_json(object_member(self._values, group.name))

    def _document_of(self, values: JsonObject, now_ms: int | None) -> JsonObject:
        version = object_member(self._document, "dataVersion")
        changed: JsonObject = {
            "counter": integer_member(version, "counter", 0) + 1,
            "stateVersion": integer_member(version, "stateVersion", 0),
            "timestamp": integer_member(version, "timestamp", 0) if now_ms is None else now_ms,
        }
        return {"forbiddenTable": {}, **self._document, "dataVersion": changed, _TABLE: values}

    def _check_room(self) -> None:
        if len(self._groups) >= GROUP_COUNT_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"this broker has {GROUP_COUNT_MAX} groups already")

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()
