"""ConfigNode: brokers that found, join, follow, forward, take over and are removed, over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.logs import logged
from tests.unit.cluster_config.config_brokers import ConfigBroker, ConfigCluster, config_cluster
from trovemq_broker.admin.shared_groups import SharedGroups
from trovemq_broker.cluster.config_node import ConfigNode
from trovemq_broker.cluster_config.entries import ORIGIN, ChangeKind, ConfigChange, Generation, Kind
from trovemq_broker.cluster_config.follower import FollowerWork
from trovemq_broker.cluster_config.messages import Hello, Report
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_store.topics.creators import Creator
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = pytest.mark.asyncio


async def two(cluster: ConfigCluster) -> tuple[ConfigBroker, ConfigBroker]:
    """An owner `a` and `b`, which follows it."""
    owner = await cluster.add("a")
    follower = await cluster.add("b", "a")
    await cluster.until(lambda: follower.state == "current" and owner.node.status().members[1].live)
    return owner, follower


async def refused(work: Awaitable[object], spec: ErrorSpec) -> TroveError:
    with pytest.raises(TroveError) as found:
        await work
    assert found.value.spec is spec, found.value
    return found.value


# --- alone and founding -----------------------------------------------------------------------------------
async def test_a_single_broker_has_no_file_no_task_and_no_table() -> None:
    async with config_cluster() as cluster:
        before = asyncio.all_tasks()
        broker = await cluster.add("a")
        assert {t.get_name() for t in asyncio.all_tasks() - before if "config" in t.get_name()} == set()
        assert (broker.state, broker.node.is_shared, broker.node.condition.serves) == ("alone", False, True)
        assert list(broker.files.list("")) == []
        assert broker.summary is None


async def test_the_first_hello_founds_a_table_of_all_that_the_broker_has() -> None:
    async with config_cluster() as cluster:
        owner = await cluster.add("a")
        for number in range(600):
            owner.tables.add(Kind.TOPIC, f"t{number:03}", 4)
        owner.tables.add(Kind.GROUP, "g")
        follower = await cluster.add("b", "a")
        await cluster.until(lambda: follower.state == "current")
        assert follower.node.table.count(Kind.TOPIC) == 600
        assert follower.tables.names() == []
        assert follower.tables.names(Kind.GROUP) == ["g"]
        await cluster.until(lambda: all(one.id is not None for one in owner.tables.have.values()))
        assert owner.summary is not None
        assert owner.summary.owner == "a"


async def test_a_founding_that_ended_half_way_is_completed_by_the_next_hello() -> None:
    async with config_cluster() as cluster:
        owner = await cluster.add("a")
        follower = await cluster.add("b", "a")
        await cluster.until(lambda: follower.state == "current")
        await follower.stop()
        await owner.delete(Kind.BROKER, "b")
        owner.tables.add(Kind.TOPIC, "late", 4)
        other = await cluster.add("c", "a")
        await cluster.until(lambda: other.state == "current")
        assert other.node.table.live(Kind.TOPIC, "late") is not None


# --- changes ----------------------------------------------------------------------------------------------
async def test_a_change_is_on_all_live_brokers_when_its_caller_is_answered() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        result = await owner.create_topic("orders")
        assert (result.held_by, result.pending) == (("a", "b"), ())
        assert owner.tables.names() == follower.tables.names() == ["orders"]


async def test_a_forwarded_call_is_answered_when_its_change_has_arrived() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        third = await cluster.add("c", "a")
        await cluster.until(lambda: third.state == "current")
        reply = await third.node.forward("/s/Create", b"orders", caller="u", source="10.0.0.1")
        assert reply == b"made orders"
        assert third.tables.names() == ["orders"]
        assert owner.handled == [("/s/Create", b"orders", "u", "10.0.0.1")]
        assert follower.state == "current"


async def test_the_owners_refusal_of_a_forwarded_call_is_the_callers() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await owner.create_topic("orders", retention="1")
        error = await refused(
            follower.node.forward("/s/Create", b"orders", caller="", source=""), errors.TOPIC_EXISTS
        )
        assert "orders" in error.message


async def test_many_callers_at_once_share_writes_and_all_are_answered() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        version = owner.node.table.head.version
        results = await asyncio.gather(*(owner.create_topic(f"t{number}") for number in range(300)))
        assert len({one.entry.version for one in results}) == 300
        assert owner.node.table.head.version == version + 300
        assert len(owner.tables.names()) == len(follower.tables.names()) == 300


async def test_creations_that_shared_a_write_made_more_than_the_quota_allows() -> None:
    """None of them saw the others in the table."""

    def check(_noun: str, count: int) -> None:
        if count >= 3:
            raise TroveError(errors.LIMIT_EXCEEDED, "the quota")

    async with config_cluster() as cluster:
        owner, _ = await two(cluster)
        groups: Any = {}
        shared, bob = SharedGroups(owner.node, groups), Creator("bob", check)
        made = [shared.create(SubscriptionGroup(f"g{number}"), bob) for number in range(20)]
        results = await asyncio.gather(*made, return_exceptions=True)
        refused_ = [one for one in results if isinstance(one, TroveError)]
        assert {one.spec for one in refused_} == {errors.LIMIT_EXCEEDED}
        assert len(refused_) == 17
        assert owner.node.table.made_by(Kind.GROUP, "bob") == 3
        await owner.delete(Kind.GROUP, "g0")
        await shared.create(SubscriptionGroup("another"), bob)
        assert owner.node.table.made_by(Kind.GROUP, "bob") == 3


async def test_of_a_caller_whose_second_change_is_refused_none_is_made() -> None:
    async with config_cluster() as cluster:
        owner, _ = await two(cluster)
        await owner.create_topic("there", x="1")

        def make(_table: ConfigTable) -> list[ConfigChange]:
            return [ConfigChange(ChangeKind.CREATE, Kind.TOPIC, name) for name in ("new", "there")]

        await refused(owner.node.change(make), errors.TOPIC_EXISTS)
        assert owner.node.table.get(Kind.TOPIC, "new") is None


async def test_a_caller_that_is_cancelled_stops_no_change() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        caller = asyncio.create_task(owner.create_topic("orders"))
        await asyncio.sleep(0)
        caller.cancel()
        await cluster.until(lambda: follower.tables.names() == owner.tables.names() == ["orders"])


async def test_an_owner_alone_waits_two_seconds_for_its_member_then_acknowledges() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await follower.stop()
        await cluster.until(lambda: not owner.node.status().members[1].live)
        change = asyncio.create_task(owner.create_topic("orders"))
        await cluster.until(lambda: owner.node.table.get(Kind.TOPIC, "orders") is not None)
        await cluster.second(1_500)
        assert not change.done()
        assert owner.tables.names() == []
        await cluster.second(1_000)
        result = await change
        assert (result.held_by, result.pending) == (("a",), ("b",))
        assert owner.tables.names() == ["orders"]


async def test_an_action_that_failed_is_shown_and_done_again_in_a_minute() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        follower.tables.failing.add("orders")
        await owner.create_topic("orders")
        (note,) = follower.node.status().failed
        assert note.key == (Kind.TOPIC, "orders")
        assert "no space" in note.message
        assert "1 entries" in follower.node.condition.warning()
        follower.tables.failing.clear()
        await follower.node.second(ends_minute=True)
        assert follower.tables.names() == ["orders"]
        assert not follower.node.status().failed


# --- away and back ----------------------------------------------------------------------------------------
async def test_a_follower_without_its_owner_serves_by_its_table_after_ten_s() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await owner.create_topic("orders")
        await owner.stop()
        await follower.stop()
        await follower.start()
        assert (follower.state, follower.node.condition.serves) == ("waiting", False)
        assert "waits for its owner" in follower.node.condition.problem()
        refusal = follower.node.condition.refusal()
        assert refusal is not None
        assert refusal.spec.retriable
        await cluster.second(10_000)
        await cluster.until(lambda: follower.node.condition.serves)
        assert (follower.state, follower.node.condition.serves, follower.node.condition.problem()) == (
            "stored",
            True,
            "",
        )
        assert "stored table" in follower.node.condition.warning()
        await refused(
            follower.node.forward("/s/Create", b"x", caller="", source=""), errors.CONFIG_OWNER_UNREACHABLE
        )


async def test_an_owner_that_starts_again_is_followed_without_a_new_table() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await owner.create_topic("orders")
        await owner.stop()
        await cluster.until(lambda: follower.state == "stored")
        assert follower.node.condition.serves
        await owner.start()
        await cluster.until(lambda: follower.state == "current")
        await owner.create_topic("bills")
        assert follower.tables.names() == ["bills", "orders"]


async def test_a_follower_that_was_away_gets_what_it_missed() -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await owner.create_topic("orders")
        await follower.stop()
        await cluster.until(lambda: not owner.node.status().members[1].live)
        deletion = asyncio.create_task(owner.delete(Kind.TOPIC, "orders"))
        await cluster.until(lambda: owner.node.table.live(Kind.TOPIC, "orders") is None)
        await cluster.second(3_000)
        await deletion
        await follower.start()
        await cluster.until(lambda: follower.state == "current" and follower.tables.names() == [])


async def test_a_joining_broker_serves_nothing_until_it_has_the_table() -> None:
    async with config_cluster() as cluster:
        joining = await cluster.add("b", "a")
        await cluster.second(60_000)
        assert (joining.state, joining.node.condition.serves, joining.node.is_shared) == (
            "joining",
            False,
            True,
        )
        assert "joins the cluster" in joining.node.condition.problem()
        assert "a" in joining.node.condition.problem()
        await refused(
            joining.node.forward("/s/Create", b"x", caller="", source=""), errors.CONFIG_OWNER_UNREACHABLE
        )
        await cluster.add("a")
        await cluster.until(lambda: joining.node.condition.serves)


async def test_a_joining_broker_served_if_asked_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    start, asked = ConfigNode.start, list[tuple[bool, str]]()

    async def asked_first(node: ConfigNode) -> None:
        asked.append((node.condition.serves, node.condition.problem()))
        await start(node)

    monkeypatch.setattr(ConfigNode, "start", asked_first)
    async with config_cluster() as cluster:
        joining = await cluster.add("b", "a")
        assert asked == [(False, "it reads its configuration")]
        assert not joining.node.condition.serves


async def test_a_take_over_without_nameservers_asks_the_owner_of_the_setting() -> None:
    async with config_cluster() as cluster:
        cluster.hidden = {"a", "b"}
        owner = await cluster.add("a")
        follower = await cluster.add("b", f"a@{owner.address}")
        await cluster.until(lambda: follower.state == "current")
        done = await follower.node.take_over("", "")
        assert (done.promised, done.unreached) == (["a", "b"], [])
        await cluster.until(lambda: owner.state == "current")


async def test_a_joining_broker_that_asks_a_follower_is_sent_to_the_owner() -> None:
    async with config_cluster() as cluster:
        await two(cluster)
        third = await cluster.add("c", "b")
        await cluster.until(lambda: third.state == "current")
        assert third.node.table.head.owner == "a"
        assert third.node.condition.warning() == ""


@pytest.mark.parametrize("setting", ["a", "a@127.0.0.1:1"])
async def test_a_broker_whose_setting_names_a_lost_owner_waited_for_ever(setting: str) -> None:
    async with config_cluster() as cluster:
        owner, follower = await two(cluster)
        await owner.stop()
        cluster.hidden = {"c"}  # a broker that joins is not registered
        with logged() as log:
            third = await cluster.add("c", setting)
            await cluster.until(lambda: "a" in third.node.status().problem)
            assert third.state == "joining", "the owner may come back: no broker has taken over"
            await follower.node.take_over("", "")
            await cluster.until(lambda: third.state == "current")
        assert third.node.table.head.owner == "b"
        warnings = [line for line in log.getvalue().splitlines() if "config.owner_lost" in line]
        assert len(warnings) == 1
        assert "Set config_owner=b" in warnings[0]


async def test_a_broker_that_joins_followed_another_cluster_than_it_was_set_to() -> None:
    """Its owner is not there yet, and the nameservers show brokers of another configuration."""
    async with config_cluster() as cluster:
        await two(cluster)
        third = await cluster.add("c", "other")
        await cluster.until(lambda: "other is not known" in third.node.status().problem)
        assert third.state == "joining"


async def test_a_broker_that_joins_followed_another_cluster_after_its_take_over() -> None:
    async with config_cluster() as cluster:
        _, follower = await two(cluster)
        await follower.node.take_over("", "")
        await cluster.second()
        third = await cluster.add("c", "other")
        await cluster.until(lambda: "other, which is no broker of" in third.node.status().problem)
        assert third.state == "joining"
        assert not third.node.table.exists


async def test_a_take_over_left_a_warning_for_ever_on_brokers_with_the_setting() -> None:
    async with config_cluster() as cluster:
        _, follower = await two(cluster)
        await follower.stop()
        follower.owner = "elsewhere"
        await follower.start()
        await cluster.until(lambda: follower.state == "current")
        assert follower.node.condition.warning() == ""
        assert "config_owner is elsewhere, the table says a" in follower.node._finder.contradiction()


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
