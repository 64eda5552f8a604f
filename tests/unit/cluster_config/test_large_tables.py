"""A table whose parts are larger than a frame of HTTP/2."""

from __future__ import annotations

import pytest

from tests.unit.cluster_config.config_brokers import config_cluster
from trovemq_broker.cluster_config.entries import Kind

pytestmark = pytest.mark.asyncio


async def test_a_table_with_long_names_never_reached_a_follower() -> None:
    """Parts beyond a frame of HTTP/2 are no bytes, but a bytearray, and passed for the stream's end."""
    async with config_cluster() as cluster:
        owner = await cluster.add("a")
        for number in range(2_000):
            owner.tables.add(Kind.TOPIC, f"{number:0100}", 4)
        follower = await cluster.add("b", "a")
        await cluster.until(lambda: follower.state == "current")
        assert follower.node.table.count(Kind.TOPIC) == 2_000
