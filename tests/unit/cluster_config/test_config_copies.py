"""ConfigNode: lists and rights that a broker keeps on its disk over take-overs and old copies."""

from __future__ import annotations

import pytest

from tests.support.logs import logged
from tests.unit.cluster_config.config_brokers import config_cluster
from tests.unit.cluster_config.test_config_nodes import two
from trovemq_broker.cluster.config_dropped import PATH as DROPPED_PATH
from trovemq_broker.cluster.config_dropped import DroppedChanges
from trovemq_broker.cluster_config.entries import ChangeKind, ConfigChange, Kind
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


async def test_a_damaged_list_of_dropped_changes_stops_no_broker() -> None:
    files = MemoryFileSystem()
    files.write_atomic(DROPPED_PATH, b'{"dropped": [["queue", "orders", 3]]}')
    with logged() as log:
        assert DroppedChanges(files).notes == {}
    assert "config.dropped_unreadable" in log.getvalue()
