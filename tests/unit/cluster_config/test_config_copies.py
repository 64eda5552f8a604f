"""ConfigNode: lists and rights that a broker keeps on its disk over take-overs and old copies."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.logs import logged
from tests.unit.cluster_config.config_brokers import ConfigBroker, ConfigCluster, config_cluster, two
from trovemq_broker.cluster.config_dropped import PATH as DROPPED_PATH
from trovemq_broker.cluster.config_dropped import DroppedChanges
from trovemq_broker.cluster_config.entries import ChangeKind, ConfigChange, Kind
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_store.files.memory import MemoryFileSystem

pytestmark = pytest.mark.asyncio


async def test_a_user_kept_its_rights_on_an_old_copy_after_its_deletion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trovemq_broker.cluster_config.owner.FORGET_FROM", 1)
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        users = [ConfigChange(ChangeKind.CREATE, Kind.USER, name) for name in ("ann", "eve")]
        await owner.node.change(lambda _: users)
        await owner.node.change(lambda _: [ConfigChange(ChangeKind.CREATE, Kind.RULE, "7")])
        await cluster.until(lambda: follower.tables.names(Kind.RULE) == ["7"])
        old = follower.files.after_process_kill()
        for kind, name in ((Kind.RULE, "7"), (Kind.USER, "eve")):
            await owner.delete(kind, name)
        await owner.node.change(lambda _: [ConfigChange(ChangeKind.CREATE, Kind.RULE, "8")])
        await owner.delete(Kind.RULE, "8")
        await cluster.until(lambda: follower.tables.names(Kind.USER) == ["ann"])
        await cluster.second()
        await owner.node.second(ends_minute=True)
        assert owner.node.table.get(Kind.USER, "eve") is None, "its deletion is forgotten"
        await follower.stop()
        follower.files = old
        for kind, name in ((Kind.USER, "ann"), (Kind.USER, "eve"), (Kind.USER, "bob"), (Kind.RULE, "7")):
            follower.tables.add(kind, name)  # as in its own file of the old copy
        follower.tables.failing = {"eve"}
        await follower.start()
        await cluster.until(lambda: "no space" in follower.node.status().problem)
        assert follower.state == "waiting", "the table of which eve is no part is not stored"
        follower.tables.failing = set()
        await cluster.until(lambda: follower.state == "current")
        assert follower.tables.names(Kind.USER) == ["ann", "bob"]
        assert follower.tables.names(Kind.RULE) == []
        assert [note.key.name for note in follower.node.status().unlisted] == ["bob"]


async def test_a_deleted_user_kept_its_rights_where_its_last_change_was_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trovemq_broker.cluster_config.owner.FORGET_FROM", 1)
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await owner.node.change(lambda _: [ConfigChange(ChangeKind.CREATE, Kind.USER, "eve")])
        await cluster.until(lambda: follower.tables.names(Kind.USER) == ["eve"])
        await follower.stop()
        await alone(cluster, owner, ConfigChange(ChangeKind.ALTER, Kind.USER, "eve", settings={"a": "b"}))
        old = owner.files.after_process_kill()
        await owner.stop()
        await follower.start()
        await follower.node.take_over("", "")
        await owner.start()
        await cluster.second()
        await cluster.until(lambda: owner.state == "current")
        await follower.delete(Kind.USER, "eve")
        await cluster.until(lambda: owner.tables.names(Kind.USER) == [])
        await cluster.second()
        await follower.node.second(ends_minute=True)
        assert follower.node.table.get(Kind.USER, "eve") is None, "its deletion is forgotten"
        await owner.stop()
        owner.files = old
        owner.tables.add(Kind.USER, "eve", a="b")  # as in its own file of the old copy
        await owner.start()
        await cluster.second()
        await cluster.until(lambda: owner.state == "current")
        assert owner.node.table.head.owner == "b"
        assert owner.tables.names(Kind.USER) == []


async def test_a_take_over_deleted_users_that_its_copy_never_had() -> None:
    """The owner was put back from an older copy and changed that alone; an operator names its copy."""
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        old = owner.files.after_process_kill()
        await owner.node.change(lambda _: [ConfigChange(ChangeKind.CREATE, Kind.USER, "bob")])
        await cluster.until(lambda: follower.tables.names(Kind.USER) == ["bob"])
        await follower.stop()
        await owner.stop()
        owner.files = old
        owner.tables.have.clear()
        await owner.start()
        await alone(cluster, owner, ConfigChange(ChangeKind.CREATE, Kind.USER, "new"))
        await follower.start()
        await cluster.until(lambda: "CONFIG_OWNER_OLD" in follower.node.status().problem)
        await owner.node.take_over("", "a")
        await cluster.until(lambda: follower.state == "current")
        assert follower.tables.names(Kind.USER) == ["bob", "new"]
        assert [note.key.name for note in follower.node.status().dropped] == ["bob"]


async def alone(cluster: ConfigCluster, owner: ConfigBroker, change: ConfigChange) -> None:
    """Makes the change while no other broker is there."""

    def make(table: ConfigTable) -> list[ConfigChange]:
        entry = table.live(change.kind, change.name)
        return [replace(change, seen=None if entry is None else entry.version)]

    version = owner.node.table.head.version
    changing = asyncio.create_task(owner.node.change(make))
    await cluster.until(lambda: owner.node.table.head.version > version)
    await cluster.second(3_000)
    await changing


async def test_a_damaged_list_of_dropped_changes_stops_no_broker() -> None:
    files = MemoryFileSystem()
    files.write_atomic(DROPPED_PATH, b'{"dropped": [["queue", "orders", 3]]}')
    with logged() as log:
        assert DroppedChanges(files).notes == {}
    assert "config.dropped_unreadable" in log.getvalue()
