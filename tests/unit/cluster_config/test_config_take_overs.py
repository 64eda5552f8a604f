"""ConfigNode: take-overs of the configuration, and members that are removed, over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.unit.cluster_config.config_brokers import ConfigBroker, config_cluster, refused, two
from trovemq_broker.cluster.config_store import ConfigStore
from trovemq_broker.cluster_config.entries import ORIGIN, Generation, Kind
from trovemq_broker.cluster_config.follower import FollowerWork
from trovemq_broker.cluster_config.messages import Hello, Report
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

pytestmark = pytest.mark.asyncio


# --- take-over --------------------------------------------------------------------------------------------
async def test_a_take_over_moves_the_owner_and_the_former_one_obeys() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        third = await cluster.add("c", "a")
        await cluster.until(lambda: third.state == "current")
        await owner.create_topic("orders")
        await owner.stop()
        done = await follower.node.take_over("", "")
        assert (done.promised, done.unreached, done.dropped) == (["b", "c"], ["a"], [])
        assert done.head.owner == "b"
        assert done.head.generation.number == 2
        await cluster.until(lambda: third.state == "current" and third.node.table.head.owner == "b")
        await cluster.second(3_000)
        await follower.create_topic("bills")
        assert third.tables.names() == ["bills", "orders"]

        await owner.start()  # by its own table it is still the owner
        await cluster.second()
        await cluster.until(lambda: owner.state == "current" and owner.tables.names() == ["bills", "orders"])
        assert owner.node.table.head.owner == "b"
        assert not owner.node.is_owner


async def test_changes_of_a_lost_owner_alone_are_dropped_and_reported() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await follower.stop()
        await cluster.until(lambda: not owner.node.status().members[1].live)
        change = asyncio.create_task(owner.create_topic("lost"))
        await cluster.until(lambda: owner.node.table.get(Kind.TOPIC, "lost") is not None)
        await cluster.second(3_000)
        await change
        await owner.stop()
        await follower.start()
        done = await follower.node.take_over("", "")
        assert done.unreached == ["a"]
        await owner.start()
        await cluster.second()
        await cluster.until(lambda: owner.state == "current" and owner.node.table.head.owner == "b")
        assert [note.key.name for note in owner.node.status().dropped] == ["lost"]
        assert owner.tables.names() == ["lost"]
        assert [note.key.name for note in owner.node.status().unlisted] == ["lost"]
        await owner.stop()
        await owner.start()
        kept = owner.node.status().dropped
        assert [(note.key.name, note.message[:8]) for note in kept] == [("lost", "version ")], (
            "gone at a start"
        )
        assert await owner.node.clear_dropped() == 1
        await owner.stop()
        await owner.start()
        assert owner.node.status().dropped == []


async def test_a_lost_change_is_reported_before_its_last_copy_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await follower.stop()
        change = asyncio.create_task(owner.create_topic("lost"))
        await cluster.until(lambda: owner.node.table.get(Kind.TOPIC, "lost") is not None)
        await cluster.second(3_000)
        await change
        await owner.stop()
        await follower.start()
        await follower.node.take_over("", "")

        def full(_work: FollowerWork) -> None:
            raise TroveError(errors.DISK_FULL, "no space")

        monkeypatch.setattr(FollowerWork, "run", full)
        await owner.start()
        await cluster.second()
        await cluster.until(lambda: "no space" in owner.node.status().problem)
        assert owner.node.table.live(Kind.TOPIC, "lost") is not None
        assert [note.key.name for note in owner.node.status().dropped] == ["lost"]


async def test_an_owner_obeys_a_later_generation_that_a_hello_shows() -> None:
    async with config_cluster() as cluster:
        owner, _ = await two(cluster)
        stream = owner.node.watch(_later(owner), _no_reports())
        await refused(stream.__anext__(), errors.CONFIG_OWNER_MOVED)
        assert (owner.node.is_owner, owner.state) == (False, "superseded")
        assert owner.node.status().copy.promised.number == 9
        await refused(owner.create_topic("orders"), errors.CONFIG_OWNER_MOVED)


async def test_callers_that_wait_when_another_owner_takes_over_are_in_doubt() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await follower.stop()
        await cluster.until(lambda: not owner.node.status().members[1].live)
        change = asyncio.create_task(owner.create_topic("orders"))
        await cluster.until(lambda: owner.node.table.get(Kind.TOPIC, "orders") is not None)
        stream = owner.node.watch(_later(owner), _no_reports())
        await refused(stream.__anext__(), errors.CONFIG_OWNER_MOVED)
        error = await refused(change, errors.CONFIG_OWNER_MOVED)
        assert error.fields["in_doubt"] == "true"
        assert owner.tables.names() == []


async def test_an_empty_broker_takes_over_with_the_copy_of_another_one() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await owner.create_topic("orders")
        await owner.stop()
        empty = await cluster.add("e")
        done = await empty.node.take_over("", "")
        assert (done.source, done.promised, done.unreached) == ("b", ["b", "e"], ["a"])
        await cluster.until(lambda: follower.state == "current" and follower.node.table.head.owner == "e")
        assert empty.node.table.members() == ["a", "b", "e"]
        assert empty.node.table.live(Kind.TOPIC, "orders") is not None


async def test_a_take_over_that_ended_half_way_is_repeated() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        third = await cluster.add("c", "a")
        await cluster.until(lambda: third.state == "current")
        await owner.stop()
        error = await refused(follower.node.take_over("", "nowhere"), errors.BROKER_NOT_FOUND)
        assert "nowhere" in error.message
        assert (follower.node.is_owner, third.node.is_owner) == (False, False)
        done = await follower.node.take_over("", "c")  # it is repeated
        assert (done.source, done.head.generation.number) == ("c", 3)
        await cluster.until(lambda: third.state == "current" and third.node.table.head.owner == "b")


async def test_a_take_over_where_two_clusters_are_reached_asks_for_one() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        other = await cluster.add("x")
        second = await cluster.add("y", "x")
        await cluster.until(lambda: second.state == "current")
        await owner.stop()
        await refused(follower.node.take_over("", ""), errors.CONFIG_OTHER_CLUSTER)
        assert not follower.node.status().copy.promised.number > 1
        done = await follower.node.take_over(follower.node.table.head.cluster, "")
        assert done.promised == ["b"]
        assert other.node.is_owner


async def test_a_broker_of_another_cluster_is_refused_and_says_so() -> None:
    async with config_cluster() as cluster:
        await two(cluster)
        other = await cluster.add("x")
        second = await cluster.add("y", "x")
        await cluster.until(lambda: second.state == "current")
        await second.stop()
        await other.stop()
        second.owner = f"x@{cluster.brokers['a'].address}"
        await second.start()
        await cluster.until(lambda: "CONFIG_OTHER_CLUSTER" in second.node.status().problem)


async def test_an_empty_broker_refuses_a_follower_of_a_cluster_and_founds_none() -> None:
    async with config_cluster() as cluster:
        _, follower = await two(cluster)
        empty = await cluster.add("e")
        stream = empty.node.watch(_hello_of(follower), _no_reports())
        await refused(stream.__anext__(), errors.CONFIG_OTHER_CLUSTER)
        assert empty.state == "alone"


# --- members ----------------------------------------------------------------------------------------------
async def test_a_removed_broker_does_not_become_a_member_by_its_next_hello() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await owner.delete(Kind.BROKER, "b")
        await cluster.until(lambda: follower.state == "removed")
        assert not follower.node.condition.serves
        assert "removed" in follower.node.condition.problem()
        await follower.stop()
        await follower.start()
        assert follower.state == "removed"
        stream = owner.node.watch(_hello_of(follower), _no_reports())
        await refused(stream.__anext__(), errors.CONFIG_MEMBER_REMOVED)
        assert owner.node.table.members() == ["a"]


async def test_a_removed_broker_whose_group_commits_nothing_did_not_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def commits_nothing(_store: ConfigStore) -> None:
        await asyncio.Event().wait()

    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await owner.delete(Kind.BROKER, "b")
        await cluster.until(lambda: follower.state == "removed")
        await follower.stop()
        monkeypatch.setattr(ConfigStore, "note_removal", commits_nothing)
        async with asyncio.timeout(60):
            await follower.start()
            assert follower.state == "removed"
            await follower.stop()


async def test_a_removed_broker_stays_removed_while_its_owner_is_away() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await follower.stop()
        await owner.delete(Kind.BROKER, "b")
        await follower.start()
        await cluster.until(lambda: follower.state == "removed")
        assert follower.node.table.live(Kind.BROKER, "b") is not None, "its table lacks the deletion"
        await cluster.until(lambda: StoredTable.load(follower.files).removed)
        await follower.stop()
        await owner.stop()
        await follower.start()
        await cluster.second(10_000)
        assert (follower.state, follower.node.condition.serves) == ("removed", False)
        await refused(follower.node.take_over("", ""), errors.CONFIG_MEMBER_REMOVED)


async def test_an_owner_of_the_past_does_not_call_a_member_removed() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await owner.delete(Kind.BROKER, "b")
        stream = owner.node.watch(
            replace(_hello_of(follower), promised=Generation(9, "9" * 16)), _no_reports()
        )
        await refused(stream.__anext__(), errors.CONFIG_OWNER_MOVED)


async def test_a_removed_broker_joins_again_with_an_empty_store() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await follower.stop()
        await owner.delete(Kind.BROKER, "b")
        again = await cluster.add("b", "a")
        await cluster.until(lambda: again.state == "current")
        assert owner.node.table.members() == ["a", "b"]


async def test_the_owner_itself_cannot_be_removed() -> None:
    async with config_cluster() as cluster:
        owner, _ = await two(cluster)
        await refused(owner.delete(Kind.BROKER, "a"), errors.CONFIG_OWNER_STAYS)


async def test_two_brokers_of_one_name_are_refused() -> None:
    async with config_cluster() as cluster:
        owner, _ = await two(cluster)
        stream = owner.node.watch(_hello_of(owner), _no_reports())
        await refused(stream.__anext__(), errors.BROKER_NAME_TAKEN)


def _hello_of(broker: ConfigBroker) -> Hello:
    copy = broker.node.status().copy
    return Hello(
        broker.name, "f" * 16, copy.head.cluster, copy.head.position, copy.head.digest, copy.promised
    )


def _later(broker: ConfigBroker) -> Hello:
    """Of a broker that has seen a later generation."""
    return replace(_hello_of(broker), broker="z", promised=Generation(9, "9" * 16))


async def _no_reports() -> AsyncIterator[Report]:
    await asyncio.Event().wait()
    yield Report(ORIGIN)
