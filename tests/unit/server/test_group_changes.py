"""Groups are changed one at a time, on disk before the call returns, and never half."""

from __future__ import annotations

import asyncio
import errno

import pytest

from tests.support.engine import NOW_MS, open_store
from trovemq_broker.admin.group_changes import GroupChanges
from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.errors import TroveError
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.retry_policy import DEFAULT_RETRY_POLICY
from trovemq_store.topics.subscription_groups import (
    SUBSCRIPTION_GROUPS_PATH,
    SubscriptionGroup,
    SubscriptionGroups,
)

pytestmark = pytest.mark.asyncio


class Bench:
    """Writes of the groups' file are counted, and fail with `fault` if that is set."""

    def __init__(self) -> None:
        self.fault: int | None = None
        self.writes = 0
        self.persisted = 0
        self.files = FaultyFileSystem(MemoryFileSystem(), self._decide)
        store = open_store(self.files)
        self.model = ConsumerState.open(store, self.files, ConsumerSettings(), NOW_MS)
        topic_changes = TopicChanges(store, lambda: NOW_MS, self._persist)
        self.changes = GroupChanges(
            self.model.groups, store, self.model.delivery, topic_changes, lambda: NOW_MS, self._persist
        )

    def _decide(self, operation: str, path: str) -> int | None:
        if operation != "write_atomic" or path != SUBSCRIPTION_GROUPS_PATH:
            return None
        self.writes += 1
        return self.fault

    async def _persist(self) -> None:
        self.persisted += 1

    def on_disk(self) -> dict[str, int]:
        groups = SubscriptionGroups.load(self.files)
        return {name: groups.require(name).retry_max for name in groups.names()}

    async def alter(self, name: str, retry_max: int) -> SubscriptionGroup:
        return await self.changes.alter(
            name, orderly=False, retry_max=retry_max, retry_policy=DEFAULT_RETRY_POLICY
        )


async def test_changes_that_come_together_are_all_made_in_turn() -> None:
    bench = Bench()
    await asyncio.gather(*(bench.changes.create(SubscriptionGroup(f"g{n}")) for n in range(5)))
    await asyncio.gather(bench.alter("g1", 3), bench.changes.delete("g2"))
    assert bench.on_disk() == {"g0": 16, "g1": 3, "g3": 16, "g4": 16}


async def test_a_change_that_changes_nothing_writes_nothing() -> None:
    bench = Bench()
    await bench.changes.create(SubscriptionGroup("g"))
    writes = bench.writes
    assert (await bench.alter("g", 16)).retry_max == 16
    assert bench.writes == writes


async def test_a_change_that_cannot_be_saved_is_not_made() -> None:
    bench = Bench()
    await bench.changes.create(SubscriptionGroup("g"))
    bench.fault = errno.ENOSPC
    for change in (
        bench.changes.create(SubscriptionGroup("new")),
        bench.alter("g", 3),
        bench.changes.delete("g"),
    ):
        with pytest.raises(TroveError, match="DISK_FULL"):
            await change
    assert [group.retry_max for group in map(bench.model.groups.require, bench.model.groups.names())] == [16]
    assert bench.on_disk() == {"g": 16}
    bench.fault = None
    await bench.changes.delete("g")
    assert bench.on_disk() == {}


async def test_groups_that_came_to_be_by_use_are_saved_later_and_tried_again() -> None:
    bench = Bench()
    bench.model.groups.for_use("used", auto_create=True, now_ms=NOW_MS)
    assert bench.on_disk() == {}
    bench.fault = errno.ENOSPC
    with pytest.raises(TroveError, match="DISK_FULL"):
        await bench.changes.save_used()
    bench.fault = None
    await bench.changes.save_used()
    assert bench.on_disk() == {"used": 16}
    writes = bench.writes
    await bench.changes.save_used()
    assert bench.writes == writes, "nothing is left to save"


async def test_settle_waits_for_the_change_under_way() -> None:
    bench = Bench()
    creating = asyncio.create_task(bench.changes.create(SubscriptionGroup("g")))
    await asyncio.sleep(0)
    await bench.changes.settle()
    assert creating.done()
    assert bench.on_disk() == {"g": 16}


async def test_polls_of_a_changed_or_deleted_group_slept_until_their_end() -> None:
    bench = Bench()
    reported: list[str] = []
    model = bench.model
    store = open_store(MemoryFileSystem())
    changes = GroupChanges(
        model.groups,
        store,
        model.delivery,
        TopicChanges(store, lambda: NOW_MS, bench._persist),
        lambda: NOW_MS,
        bench._persist,
        reported.append,
    )
    await changes.create(SubscriptionGroup("workers"))
    await changes.alter("workers", orderly=True, retry_max=3, retry_policy=DEFAULT_RETRY_POLICY)
    await changes.delete("workers")
    assert reported == ["workers", "workers"]
