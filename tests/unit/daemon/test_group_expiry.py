"""Groups that their first use made are forgotten when no program uses them: never early, never with a lag."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.delivery import Engine
from tests.support.engine import NOW_MS, open_store, send
from tests.support.fake_loop import run
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.maintenance import group_expiry
from trovemq_broker.maintenance.group_expiry import EXPIRY_MIN_MS, GroupExpiry
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.engine.steps import finished
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup, SubscriptionGroups

DAY_S = 86_400.0
DAYS_10_MS = 10 * 86_400_000
LOOK_S = 3_600.0


@pytest.fixture(autouse=True)
def few_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """One scan an hour, which forgets three groups at most."""
    monkeypatch.setattr(group_expiry, "SCAN_INTERVAL_S", LOOK_S)
    monkeypatch.setattr(group_expiry, "FORGOTTEN_MAX", 3)


class World:
    """A store with three messages in a queue, its groups, and the task."""

    def __init__(self, expiry_ms: int = DAYS_10_MS) -> None:
        files = MemoryFileSystem()
        self.store = open_store(files)
        for _ in range(3):
            send(self.store, b"x")
        self.store.dispatch()
        self.groups = SubscriptionGroups.load(files)
        self.members: set[str] = set()
        self.delayed: dict[str, int] = {}
        self.expiry_ms = expiry_ms
        self.task = GroupExpiry(
            self.groups,
            self.store,
            lambda: self.members,
            lambda topic: self.delayed.get(topic, 0),
            lambda: self.expiry_ms,
            self._delete,
            self._in_turns,
        )

    async def _in_turns(self, steps: Any) -> Any:
        return finished(steps)

    async def _delete(self, name: str) -> None:
        self.groups.delete(name)
        self.store.offsets.delete_group(name)

    def use(self, name: str, offset: int = 3) -> None:
        self.groups.for_use(name, auto_create=True, now_ms=NOW_MS)
        self.store.offsets.commit(name, "orders", QueueId(0), QueueOffset(offset))

    async def days(self, count: float) -> None:
        task = asyncio.ensure_future(self.task.run())
        await asyncio.sleep(count * DAY_S)
        task.cancel()


def scene(script: Callable[[World], Awaitable[None]], **options: Any) -> World:
    async def played() -> World:
        world = World(**options)
        await script(world)
        return world

    return run(played())


def test_a_group_that_no_program_uses_is_forgotten_when_its_time_is_over() -> None:
    async def script(world: World) -> None:
        world.use("app-1")
        await world.days(9.9)
        assert "app-1" in world.groups
        await world.days(0.2)
        assert "app-1" not in world.groups
        assert world.store.offsets.groups() == []

    scene(script)


def test_the_time_of_a_group_begins_when_its_last_member_has_left() -> None:
    async def script(world: World) -> None:
        world.use("app-1")
        world.members.add("app-1")
        await world.days(12)
        world.members.clear()
        await world.days(9.9)
        assert "app-1" in world.groups
        await world.days(0.2)
        assert "app-1" not in world.groups

    scene(script)


@pytest.mark.parametrize("expiry_ms", [0, 1, EXPIRY_MIN_MS])
def test_never_before_seven_days(expiry_ms: int) -> None:
    async def script(world: World) -> None:
        world.use("app-1")
        await world.days(6.9)
        assert "app-1" in world.groups

    scene(script, expiry_ms=expiry_ms)


def test_a_group_is_kept_while_it_is_used_or_wanted() -> None:
    async def script(world: World) -> None:
        world.groups.create(SubscriptionGroup("created"))
        for name in ("altered", "member", "lags", "retries", "moves", "unused"):
            world.use(name)
        world.groups.alter("altered", retry_max=3)
        world.members.add("member")
        world.store.offsets.commit("lags", "orders", QueueId(0), QueueOffset(2))
        world.delayed["%RETRY%retries_orders"] = 1
        for number in range(5):
            world.store.offsets.commit("moves", "orders", QueueId(0), QueueOffset(number % 2 + 2))
            await world.days(6)
        world.store.offsets.commit("moves", "orders", QueueId(0), QueueOffset(3))
        assert world.groups.names() == ["altered", "created", "lags", "member", "moves", "retries"]
        world.members.clear()
        world.delayed.clear()
        world.store.offsets.commit("lags", "orders", QueueId(0), QueueOffset(3))
        await world.days(10.1)
        assert world.groups.names() == ["altered", "created"]

    scene(script)


def test_one_scan_forgets_a_bounded_number() -> None:
    async def script(world: World) -> None:
        for number in range(5):
            world.use(f"app-{number}")
        await world.days(10 + LOOK_S / 2 / DAY_S)
        assert len(world.groups) == 2
        await world.days(LOOK_S / DAY_S)
        assert len(world.groups) == 0

    scene(script)


def test_a_member_that_comes_during_a_deletion_keeps_its_group() -> None:
    async def script(world: World) -> None:
        for name in ("app-1", "app-2"):
            world.use(name)
        await world.days(9.9)
        whole = world.task._delete

        async def delete(name: str) -> None:
            world.members.add("app-2")
            await whole(name)

        world.task._delete = delete
        await world.days(1)
        assert world.groups.names() == ["app-2"]

    scene(script)


def test_a_name_that_returns_begins_at_the_earliest_message() -> None:
    engine = Engine()
    for number in range(3):
        engine.send(f"m{number}")
    engine.ack(*engine.receive("app-1"), group="app-1")
    engine.delivery.forget_group("app-1", engine.now_ms)
    engine.store.offsets.delete_group("app-1")
    assert [one.queue_offset for one in engine.receive("app-1")] == [0, 1, 2]


def test_the_setting_demands_a_start_that_skips_nothing() -> None:
    off = BrokerSettings()
    assert off.group_expiry_ms == 0
    (problem,) = replace(off, group_expiry_ms=DAYS_10_MS, new_group_start="rocketmq").problems()
    assert "new_group_start = earliest" in problem
    for start in ("earliest", "begin"):
        assert list(replace(off, group_expiry_ms=DAYS_10_MS, new_group_start=start).problems()) == []
    (problem,) = replace(off, group_expiry_ms=1, new_group_start="begin").problems()
    assert "seven days" in problem
