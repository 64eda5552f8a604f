"""ConfigNode: brokers that found, join, follow and forward, over loopback."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.logs import logged
from tests.unit.cluster_config.config_brokers import config_cluster, refused, two
from trovemq_broker.admin.shared_groups import SharedGroups
from trovemq_broker.cluster.config_node import ConfigNode
from trovemq_broker.cluster_config.entries import ChangeKind, ConfigChange, Kind
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.topics.creators import Creator
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = pytest.mark.asyncio


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


async def test_a_store_of_another_cluster_owned_its_table_in_silence() -> None:
    """It was started with the nameserver of this cluster: two configurations, and nothing said so."""
    async with config_cluster() as cluster:
        owner, _ = await two(cluster)
        third = await cluster.add("c")
        fourth = await cluster.add("d", "c")
        await cluster.until(lambda: fourth.state == "current")
        cluster.announce()
        with logged() as log:
            await cluster.second()
            await cluster.second()
        assert log.getvalue().count("config.other_cluster") == 4, "each broker says it once"
        for broker, others in ((owner, "c, d"), (third, "a, b")):
            warning = broker.node.condition.warning()
            assert warning.startswith("CONFIG_OTHER_CLUSTER")
            assert f"{others} in the same routes" in warning
        cluster.hidden = {"c", "d"}
        cluster.announce()
        assert owner.node.condition.warning() == ""
