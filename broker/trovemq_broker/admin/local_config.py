"""This broker's own topics, groups, users, rules and quotas, for the cluster's configuration: LocalTables.

    founding()     all of them, as the first entries of a new cluster's table
    entries()      the entries that reconcile.py compares with the table
    carry_out()    its actions: topics gathered into few writes, groups and users into one each

Left out, because each broker has its own: system topics and groups, retry and dead-letter topics. Groups that
their first use made are left out, too, until the cluster has one of that name: it is put over them.

A broker without authentication has no users, rules and quotas: their actions are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from trovemq_broker.admin import config_puts, config_texts
from trovemq_broker.admin.config_security import (
    SECURITY_KINDS,
    local_of,
    local_security,
    replaced_users,
    state_after,
)
from trovemq_broker.admin.group_changes import GroupChanges, PutGroup
from trovemq_broker.admin.security_changes import SecurityChanges
from trovemq_broker.admin.topic_changes import PutTopic, TopicChanges
from trovemq_broker.cluster_config.entries import (
    ORIGIN,
    ChangeKind,
    ConfigChange,
    Entry,
    Key,
    Kind,
)
from trovemq_broker.cluster_config.local_tables import Failure
from trovemq_broker.cluster_config.reconcile import Action, ActionKind, LocalEntry
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_broker.security.changes import SecurityState
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.topics.config_marks import is_withheld
from trovemq_store.topics.subscription_groups import SubscriptionGroup, SubscriptionGroups
from trovemq_store.topics.topics import TopicConfig, TopicTable

WITHHELD_TEXTS: Mapping[str, str] = {"withheld": ""}
"""The settings of a withheld entry whose id the table has again: they differ from all others, so that ALTER
puts it back."""

_REPLACED = (
    "another user of this name is in the cluster's configuration: its secrets and rights count now, not those"
    " that this broker had"
)


class LocalConfig:
    """`security` None: the broker has no authentication. `table()`: the cluster's present table. One call of
    carry_out() at a time."""

    def __init__(
        self,
        broker: str,
        topics: TopicTable,
        groups: SubscriptionGroups,
        topic_changes: TopicChanges,
        group_changes: GroupChanges,
        security: SecurityChanges | None,
        table: Callable[[], ConfigTable],
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._groups = groups
        self._topic_changes = topic_changes
        self._group_changes = group_changes
        self._security = security
        self._table = table

    # --- this broker's tables -------------------------------------------------------------------------
    def founding(self) -> list[ConfigChange]:
        """The creations of all that this broker has, without entries that a table cannot hold, such as a
        topic that RocketMQ has made with more queues than are allowed: it is reported as unlisted later."""
        changes, withheld = [], self._withheld()
        for own in self.entries().values():
            if own.key in withheld:
                continue
            placement = {self._broker: own.queues} if own.queues else {}
            change = ConfigChange(
                ChangeKind.CREATE,
                own.key.kind,
                own.key.name,
                settings=own.settings,
                placement=placement,
                secrets=own.secrets,
            )
            if _can_be_listed(change):
                changes.append(change)
        return changes

    def entries(self, keys: Collection[Key] | None = None) -> dict[Key, LocalEntry]:
        """The entries of the keys that exist here; all with None."""
        found = self._all() if keys is None else filter(None, map(self._entry, keys))
        return {own.key: own for own in found}

    def withheld(self) -> list[Key]:
        """Topics and groups that are kept on disk and not served."""
        return sorted(self._withheld())

    def _withheld(self) -> set[Key]:
        topics = (self._topics.require(name) for name in self._topics.names())
        groups = (self._groups.require(name) for name in self._groups.names())
        return {
            *(Key(Kind.TOPIC, one.name) for one in topics if is_withheld(one.attributes)),
            *(Key(Kind.GROUP, one.name) for one in groups if is_withheld(one.attributes)),
        }

    def _all(self) -> Iterator[LocalEntry]:
        for name in self._topics.names():
            yield self._topic(self._topics.require(name))
        for name in self._groups.names():
            group = self._groups.require(name)
            if not group.made_by_use:
                yield self._group(group)
        if self._state is not None:
            yield from local_security(self._state, self._table())

    def _entry(self, key: Key) -> LocalEntry | None:
        if key.kind is Kind.TOPIC:
            config = None if self._topics.is_system(key.name) else self._topics.get(key.name)
            return None if config is None else self._topic(config)
        if key.kind is Kind.GROUP:
            group = self._groups.get(key.name)
            return None if group is None or group.system or group.made_by_use else self._group(group)
        if key.kind not in SECURITY_KINDS or self._state is None:
            return None
        return local_of(self._state, self._table(), key)

    @property
    def _state(self) -> SecurityState | None:
        return None if self._security is None else self._security.table.state

    def _topic(self, config: TopicConfig) -> LocalEntry:
        return self._as_compared(config_puts.local_topic(config), is_withheld(config.attributes))

    def _group(self, group: SubscriptionGroup) -> LocalEntry:
        return self._as_compared(config_puts.local_group(group), is_withheld(group.attributes))

    def _as_compared(self, own: LocalEntry, withheld: bool) -> LocalEntry:
        """The entry with settings that differ from the cluster's exactly if there is something to do."""
        entry = self._table().live(own.key.kind, own.key.name)
        if entry is None:
            return own
        if entry.id == own.id:
            return LocalEntry(own.key, own.id, WITHHELD_TEXTS, own.queues) if withheld else own
        # A topic that another user made here before the cluster had it is the same topic.
        creator = {name: text for name, text in entry.settings.items() if name == "creator"}
        others = {name: text for name, text in own.settings.items() if name != "creator"}
        return LocalEntry(own.key, own.id, others | creator, own.queues)

    # --- actions --------------------------------------------------------------------------------------
    async def carry_out(self, actions: Sequence[Action]) -> list[Failure]:
        """Does the actions; those of one name in their order. They are on disk when this returns. One that
        fails stops no other one, except for a creation after a deletion that has failed."""
        run = _Run()
        for action in actions:
            if action.key.kind in SECURITY_KINDS:
                run.security.append(action)
                continue
            if action.key in run.puts:
                await self._put(run)
            if action.kind is ActionKind.DELETE:
                await self._delete(run, action)
            elif action.key not in run.kept:
                run.puts[action.key] = action
        await self._put(run)
        await self._change_security(run)
        return run.failures

    async def _delete(self, run: _Run, action: Action) -> None:
        key = action.key
        try:
            present = self._entry(key)
            if present is None:
                return
            if present.id != action.id:
                exists = errors.TOPIC_EXISTS if key.kind is Kind.TOPIC else errors.GROUP_EXISTS
                raise TroveError(exists, f"{key} is here for entry {present.id}, not {action.id}")
            if key.kind is Kind.TOPIC:
                await self._delete_topic(key.name)
            else:
                await self._group_changes.delete(key.name)
        except TroveError as error:
            run.failures.append(Failure(action, error))
            run.kept.add(key)

    async def _delete_topic(self, name: str) -> None:
        try:
            await self._topic_changes.delete(name)
        except TroveError:
            if name in self._topics:
                self._topics.close_in_memory(name)  # its new messages would be deleted, too
            raise

    async def _put(self, run: _Run) -> None:
        """Does the gathered actions."""
        puts, run.puts = run.puts, {}
        topics = {key.name: self._topic_put(one, run) for key, one in puts.items() if key.kind is Kind.TOPIC}
        groups = {key.name: _group_put(one) for key, one in puts.items() if key.kind is Kind.GROUP}
        refused = {
            Key(Kind.TOPIC, name): error
            for name, error in (await self._topic_changes.put_all(topics) if topics else {}).items()
        } | {
            Key(Kind.GROUP, name): error
            for name, error in (await self._group_changes.put_all(groups) if groups else {}).items()
        }
        run.failures += [Failure(puts[key], error) for key, error in refused.items()]

    def _topic_put(self, action: Action, run: _Run) -> PutTopic:
        if action.kind is ActionKind.WITHHOLD:
            return partial(config_puts.withheld_topic, action.key.name, action.id)
        entry = _entry_of(action)
        queues = entry.queues_on(self._broker)
        if action.kind is ActionKind.CREATE:
            return partial(config_puts.created_topic, entry, queues, self._placed(entry, run))
        return partial(config_puts.altered_topic, entry, queues)

    def _placed(self, entry: Entry, run: _Run) -> int | None:
        """The table's version if the topic may have messages on other brokers: it was spread to this one, or
        this one has joined or has lost its disk."""
        version = self._table().head.version
        if version == entry.id.version:
            return None
        if run.joins is None:
            topics = (self._topics.require(name) for name in self._topics.names())
            run.joins = all(config_puts.id_of(one.attributes) is None for one in topics)
        return version if run.joins or entry.version != entry.id else None

    async def _change_security(self, run: _Run) -> None:
        if self._security is None or not run.security:
            return
        failures: list[Failure] = []
        replaced: list[str] = []

        def make(state: SecurityState) -> SecurityState:
            nonlocal failures, replaced
            after, failures = state_after(state, run.security)
            replaced = replaced_users(state, after)
            return after

        try:
            await self._security.apply(make)
            for name in replaced:
                get_logger().warning("config.user_replaced", user=name, message=_REPLACED)
        except TroveError as error:
            failures = [Failure(action, error) for action in run.security]
        run.failures += failures


class _Run:
    """One call of carry_out(). `kept`: topics and groups whose deletion has failed. `joins`: whether the
    broker had no topic of the cluster before; None until it is needed."""

    def __init__(self) -> None:
        self.joins: bool | None = None
        self.puts: dict[Key, Action] = {}
        self.security: list[Action] = []
        self.kept: set[Key] = set()
        self.failures: list[Failure] = []


def _group_put(action: Action) -> PutGroup:
    if action.kind is ActionKind.WITHHOLD:
        return partial(config_puts.withheld_group, action.key.name, action.id)
    make = config_puts.created_group if action.kind is ActionKind.CREATE else config_puts.altered_group
    return partial(make, _entry_of(action))


def _entry_of(action: Action) -> Entry:
    assert action.entry is not None, "an entry is created, altered or adopted"
    return action.entry


def _can_be_listed(change: ConfigChange) -> bool:
    """Whether the table takes it, and every broker can make it."""
    entry = Entry(change.kind, change.name, ORIGIN, ORIGIN, change.settings, change.placement, change.secrets)
    try:
        change.check()
        if change.kind is Kind.TOPIC:
            config_texts.topic_of(entry.name, entry.settings)
        elif change.kind is Kind.GROUP:
            config_texts.group_of(entry.name, entry.settings)
    except TroveError:
        return False
    return True
