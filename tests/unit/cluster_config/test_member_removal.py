"""A broker that is removed is no member, and no topic of the cluster lies on it."""

from __future__ import annotations

import pytest

from tests.unit.cluster_config.config_brokers import config_cluster
from trovemq_broker.cluster_config.entries import ChangeKind, ConfigChange, Kind
from trovemq_broker.cluster_config.owner import CHANGES_AT_ONCE_MAX
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

pytestmark = pytest.mark.asyncio


def topic(name: str, *brokers: str) -> ConfigChange:
    return ConfigChange(ChangeKind.CREATE, Kind.TOPIC, name, settings={}, placement=dict.fromkeys(brokers, 2))


def placements(table: ConfigTable) -> dict[str, list[str]]:
    return {one.name: sorted(one.placement) for one in table if one.kind is Kind.TOPIC}


async def test_a_removed_broker_leaves_the_placements_of_topics() -> None:
    async with config_cluster() as cluster:
        owner = await cluster.add("a")
        follower = await cluster.add("b", "a")
        await cluster.until(lambda: follower.state == "current")
        await owner.node.change(lambda _: [topic("both", "a", "b"), topic("there", "b"), topic("here", "a")])
        assert await owner.node.remove_member("b") == set()
        assert owner.node.table.members() == ["a"]
        assert placements(owner.node.table) == {"both": ["a"], "there": ["b"], "here": ["a"]}
        await cluster.until(lambda: follower.state == "removed")
        assert await owner.node.remove_member("b") is None


async def test_more_topics_than_one_write_takes_leave_a_removed_broker() -> None:
    async with config_cluster() as cluster:
        owner = await cluster.add("a")
        follower = await cluster.add("b", "a")
        await cluster.until(lambda: follower.state == "current")
        names = [f"topic-{number}" for number in range(CHANGES_AT_ONCE_MAX + 1)]
        await owner.node.change(lambda _: [topic(name, "a", "b") for name in names[:-1]])
        await owner.node.change(lambda _: [topic(names[-1], "a", "b")])
        await owner.node.remove_member("b")
        assert placements(owner.node.table) == {name: ["a"] for name in names}


async def test_the_owner_and_calls_to_others_are_refused() -> None:
    async with config_cluster() as cluster:
        owner = await cluster.add("a")
        follower = await cluster.add("b", "a")
        await cluster.until(lambda: follower.state == "current")
        for node, spec in (
            (owner.node, errors.CONFIG_OWNER_STAYS),
            (follower.node, errors.CONFIG_OWNER_MOVED),
        ):
            with pytest.raises(TroveError) as found:
                await node.remove_member("a")
            assert found.value.spec is spec
        assert owner.node.table.members() == ["a", "b"]
