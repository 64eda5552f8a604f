"""Creating, altering and deleting consumer groups: on disk before the reply (change_saver.py).

Invariants
- One change at a time. When it is on disk, the table changes on the event loop.
- A deleted group loses its offsets, its messages in flight and its retry topics, so that a new group of the
  same name starts over. Its dead letters stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import chain
from typing import Final

from trovemq_broker.admin.change_saver import ChangeSaver, Durable, never_logged
from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.security.creators import present_creator
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
from trovemq_store.engine.deleted_groups import last_deleted_groups
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.steps import Steps
from trovemq_store.topics.names import RETRY_PREFIX, groups_of_retry_topic, retry_topics
from trovemq_store.topics.retry_policy import RetryPolicy
from trovemq_store.topics.subscription_groups import GroupChange, SubscriptionGroup, SubscriptionGroups

PAIRS_STEP: Final = 512
PutGroup = Callable[[SubscriptionGroup | None], SubscriptionGroup]
"""Makes a group from the present one, or None. TroveError: the refusal."""


class GroupChanges:
    """`persist_offsets` writes the consumer offsets to disk; `changed` is called with each group that was
    altered or deleted, `deleted` with each one that is gone. durable(end) returns when the log is on disk,
    and in a replica group committed, up to `end`; TroveError."""

    def __init__(
        self,
        groups: SubscriptionGroups,
        store: MessageStore,
        delivery: Delivery,
        topic_changes: TopicChanges,
        clock_ms: Callable[[], EpochMs],
        persist_offsets: Callable[[], Awaitable[None]],
        changed: Callable[[str], None] = lambda _group: None,
        deleted: Callable[[str], None] = lambda _group: None,
        durable: Durable = never_logged,
    ) -> None:
        self._changed = changed
        self._deleted = deleted
        self._groups = groups
        self._store = store
        self._delivery = delivery
        self._topic_changes = topic_changes
        self._clock_ms = clock_ms
        self._persist_offsets = persist_offsets
        self._changing = asyncio.Lock()
        self._saver = ChangeSaver(durable, self._changing)

    async def create(self, group: SubscriptionGroup) -> SubscriptionGroup:
        """Raises the errors of SubscriptionGroups.create."""
        creator = present_creator()
        async with self._changing:
            await self._save(self._groups.begin_create(group, creator=creator, now_ms=self._clock_ms()))
            return self._groups.require(group.name)

    async def alter(
        self, name: str, *, orderly: bool, retry_max: int, retry_policy: RetryPolicy
    ) -> SubscriptionGroup:
        """Raises the errors of SubscriptionGroups.alter."""
        async with self._changing:
            change = self._groups.begin_alter(
                name,
                orderly=orderly,
                retry_max=retry_max,
                retry_policy=retry_policy,
                now_ms=self._clock_ms(),
            )
            if change is not None:
                await self._save(change)
            return self._groups.require(name)

    async def mark(self, name: str, attribute: str, text: str | None) -> None:
        """Sets an attribute of the broker's own, or removes it. Raises TroveError GROUP_NOT_FOUND,
        DISK_FULL, …"""
        async with self._changing:
            change = self._groups.begin_mark(name, attribute, text, now_ms=self._clock_ms())
            if change is not None:
                await self._save(change)

    async def put_all(self, wanted: Mapping[str, PutGroup]) -> dict[str, TroveError]:
        """Creates or replaces the groups of these names with one write: `wanted` has for each the function
        that makes it from the present one. Returns the refusals by name: those of the functions,
        GROUP_ILLEGAL, LIMIT_EXCEEDED, DISK_FULL, STORE_FAILED, SERVICE_NOT_AVAILABLE."""
        refusals: dict[str, TroveError] = {}
        made: list[SubscriptionGroup] = []
        async with self._changing:
            for name, make in wanted.items():
                try:
                    made.append(make(self._groups.get(name)))
                except TroveError as error:
                    refusals[name] = error
            try:
                change, found = self._groups.begin_put_all(made, now_ms=self._clock_ms())
                if change is not None:
                    await self._save(change)
            except TroveError as error:
                return refusals | {one.name: error for one in made}
            refusals.update({one.name: refusal for one, refusal in zip(made, found, strict=True) if refusal})
        return refusals

    async def delete(self, name: str) -> None:
        """Raises TroveError GROUP_NOT_FOUND, GROUP_ILLEGAL for an internal group, DISK_FULL, …"""
        topics = self.topics_of(name)
        async with self._changing:
            if name in self._groups:
                end = self._store.end_offset
                change = self._groups.begin_delete(name, now_ms=self._clock_ms(), deleted_below=end)
                await self._delete(change, topics)
            elif topics:
                self._forget(name)
            else:
                shown = name[:200]
                raise TroveError(errors.GROUP_NOT_FOUND, f"group {shown!r} is not known here", group=shown)
            for topic in self._own_retry_topics(name, topics):
                await self._topic_changes.delete(topic)
        self._deleted(name)
        await self._persist_offsets()

    async def _delete(self, change: GroupChange, topics: list[str]) -> None:
        """The group's state goes with its entry, and its retry topics after it, also if the entry's change is
        on disk after the caller's wait."""

        def finish() -> None:
            self._groups.finish(change)
            if change.saved:
                self._forget(change.name, change.end)

        async def late() -> None:
            for topic in self._own_retry_topics(change.name, topics):
                try:
                    await self._topic_changes.delete(topic)
                except TroveError as error:
                    get_logger().warning("groups.retry_topic_not_deleted", topic=topic, reason=str(error))
            self._deleted(change.name)

        await self._saver.save(change, finish, late)

    async def finish_deletions(self) -> None:
        """Deletes retry topics that a crash kept after the record of their group's deletion. Call at a start,
        before groups are made. Where one cannot be deleted, the others stay, too, until the next start."""
        for topic in self._retries_of_deleted():
            try:
                await self._topic_changes.delete(topic)
            except TroveError as error:
                get_logger().warning("groups.retry_topic_not_deleted", topic=topic, reason=str(error))
                return

    def _retries_of_deleted(self) -> list[str]:
        """Retry topics older than the last deletion of a group of theirs, and of no group that is there."""
        topics = self._store.topics
        present = {*self._groups.names(include_system=True), *self._store.offsets.groups()}
        retries = (name for name in topics.names(include_system=True) if name.startswith(RETRY_PREFIX))
        owners = {name: groups_of_retry_topic(name) for name in retries}
        alone = {name: groups for name, groups in owners.items() if not groups & present}
        if not alone or self._store.tables is None:
            return []
        deleted = last_deleted_groups(self._store)
        return [
            name
            for name, groups in sorted(alone.items())
            if any(topics.places.get(name, LOG_ORIGIN) < deleted.get(one, LOG_ORIGIN) for one in groups)
        ]

    def _forget(self, name: str, end: PhysicalOffset = LOG_ORIGIN) -> None:
        """`end`: of the deletion's record. A start after a crash forgets the same because of it."""
        self._delivery.forget_group(name, self._clock_ms())
        self._store.offsets.delete_group(name, end)
        self._changed(name)

    def topics_of(self, name: str) -> list[str]:
        """The topics of which the group has offsets or messages in flight, without its retry topics."""
        return _without_retries(name, {topic for group, topic in self._pairs() if group == name})

    def topics_by_group(self) -> Steps[dict[str, list[str]]]:
        """topics_of() of each group that has any."""
        read: dict[str, set[str]] = {}
        for number, (group, topic) in enumerate(self._pairs(), 1):
            if number % PAIRS_STEP == 0:
                yield
            read.setdefault(group, set()).add(topic)
        found = {}
        for number, (group, topics) in enumerate(read.items(), 1):
            if number % PAIRS_STEP == 0:
                yield
            found[group] = _without_retries(group, topics)
        return found

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Pairs (group, topic), some of them twice."""
        return chain(self._delivery.pairs(), self._store.offsets.pairs())

    def _own_retry_topics(self, name: str, topics: list[str]) -> list[str]:
        """The group's own retry topics in the table, without those that may also belong to another group:
        group `a` for topic `b` has the same retry topic as group `a_b`."""
        names = {retry for topic in topics for retry in retry_topics(name, topic)}
        others = {
            retry
            for group in {*self._groups.names(), *self._store.offsets.groups()} - {name}
            for retry in retry_topics(group, "")[:1]
        }
        return sorted(retry for retry in names - others if retry in self._store.topics)

    async def save_used(self) -> None:
        """Writes groups that were created by their first use to disk. Raises TroveError DISK_FULL,
        STORE_FAILED."""
        async with self._changing:
            change = self._groups.save_work(now_ms=self._clock_ms())
            if change is not None:
                await self._save(change)

    async def settle(self) -> None:
        """Returns when no change is under way."""
        async with self._changing:
            pass
        if not self._store.failed:
            self._saver.settle(self._store.commit_limit)

    async def _save(self, change: GroupChange) -> None:
        """Also where the caller's wait times out, others hear of the groups that are altered."""

        def finish() -> None:
            self._groups.finish(change)
            for part in change.parts[: change.saved_parts]:
                if part.before not in (None, part.after):
                    self._changed(part.name)

        await self._saver.save(change, finish)


def _without_retries(group: str, topics: set[str]) -> list[str]:
    """The topics that are not retry topics of the group."""
    return sorted(topics - {retry for topic in topics for retry in retry_topics(group, topic)})
