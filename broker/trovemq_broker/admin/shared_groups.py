"""Consumer groups of the cluster's configuration: the checks of a change, and the change of the table.

A group that the table lacks, because its first use made it here, is this broker's own. An alteration by a
user takes it in; a deletion deletes it here alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trovemq_broker.admin.config_texts import group_of, group_texts
from trovemq_broker.admin.shared_creators import CreationsWaiting
from trovemq_broker.cluster_config.entries import ChangeKind, ConfigChange, Entry, Kind
from trovemq_broker.cluster_config.owner import ChangeResult
from trovemq_broker.cluster_config.shared import SharedConfig
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.topics.creators import Creator
from trovemq_store.topics.subscription_groups import SubscriptionGroup, SubscriptionGroups


class SharedGroups:
    """`groups`: those of this broker."""

    def __init__(self, config: SharedConfig, groups: SubscriptionGroups) -> None:
        self._config: Final = config
        self._groups: Final = groups
        self._waiting: Final = CreationsWaiting(Kind.GROUP)

    def is_listed(self, name: str) -> bool:
        """Whether the table has the group."""
        return self._config.is_shared and self._config.table.live(Kind.GROUP, name) is not None

    def settings(self, entry: Entry) -> SubscriptionGroup:
        return group_of(entry.name, entry.settings)

    async def create(self, wanted: SubscriptionGroup, creator: Creator) -> ChangeResult:
        """TroveError GROUP_EXISTS, GROUP_ILLEGAL, REQUEST_ILLEGAL, LIMIT_EXCEEDED, and those of
        SharedConfig.change."""

        def make(table: ConfigTable) -> Sequence[ConfigChange]:
            wanted.check()
            if table.live(Kind.GROUP, wanted.name) is not None:
                text = f"group {wanted.name} exists already"
                raise TroveError(errors.GROUP_EXISTS, text, group=wanted.name)
            self._waiting.check(table, creation, wanted.name, creator)
            made = replace(wanted, attributes={**wanted.attributes, **creator.attributes})
            settings = group_texts(made)
            return [ConfigChange(ChangeKind.CREATE, Kind.GROUP, wanted.name, settings=settings)]

        with self._waiting.one() as creation:
            (result,) = await self._config.change(make)
        return result

    async def alter(self, wanted: SubscriptionGroup) -> ChangeResult:
        """Replaces the settings that a user gives a group. TroveError GROUP_NOT_FOUND, GROUP_ILLEGAL,
        REQUEST_ILLEGAL, and those of SharedConfig.change."""

        def make(table: ConfigTable) -> Sequence[ConfigChange]:
            entry = table.live(Kind.GROUP, wanted.name)
            before = self._groups.get(wanted.name) if entry is None else group_of(entry.name, entry.settings)
            if before is None:
                raise _not_found(wanted.name)
            after = replace(
                before,
                orderly=wanted.orderly,
                retry_max=wanted.retry_max,
                retry_policy=wanted.retry_policy,
            )
            after.check()
            action = ChangeKind.CREATE if entry is None else ChangeKind.ALTER
            seen = None if entry is None else entry.version
            return [ConfigChange(action, Kind.GROUP, wanted.name, seen, group_texts(after))]

        (result,) = await self._config.change(make)
        return result

    async def delete(self, name: str) -> ChangeResult:
        """TroveError GROUP_NOT_FOUND, and those of SharedConfig.change."""

        def make(table: ConfigTable) -> Sequence[ConfigChange]:
            entry: Entry | None = table.live(Kind.GROUP, name)
            if entry is None:
                raise _not_found(name)
            return [ConfigChange(ChangeKind.DELETE, Kind.GROUP, name, entry.version)]

        (result,) = await self._config.change(make)
        return result


def _not_found(name: str) -> TroveError:
    shown = name[:200]
    return TroveError(errors.GROUP_NOT_FOUND, f"group {shown!r} is not known here", group=shown)
