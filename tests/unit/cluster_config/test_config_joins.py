"""ConfigNode of a broker that joins: when it serves and is registered, and settings that name no owner."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.cluster_config.config_brokers import ConfigBroker, config_cluster
from trovemq_broker.cluster_config.entries import Kind
from trovemq_broker.daemon.config_wiring import serve_messages
from trovemq_broker.server.access.serving_gate import ServingGate
from trovemq_proto import errors

pytestmark = pytest.mark.asyncio


async def test_a_broker_that_joins_is_not_ready_before_it_has_the_users() -> None:
    async with config_cluster() as cluster:
        owner = await cluster.add("a")
        owner.tables.add(Kind.USER, "admin")
        joining = await cluster.add("b", "a")
        joining.tables.free.clear()
        await cluster.until(lambda: joining.node.table.exists)
        await cluster.second()
        assert (joining.state, joining.node.condition.serves) == ("waiting", False)
        assert "makes the missing entries" in joining.node.condition.problem()
        joining.tables.free.set()
        await joining.node.until_serves()
        assert joining.tables.names(Kind.USER) == ["admin"]


async def test_a_broker_is_registered_with_the_summary_of_its_table() -> None:
    async with config_cluster() as cluster:
        await cluster.add("a")
        joining = await cluster.add("b", "a")
        await joining.node.until_serves()
        assert joining.summary is not None
        assert joining.summary.owner == "a"


async def test_brokers_that_name_each_other_say_so_and_ask_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with config_cluster() as cluster:
        first = await cluster.add("a", "b")
        second = await cluster.add("b", "a")
        for text in ("must be the owner", "does not own") * 2:
            await _until_problem(first, text)
            await _until_problem(second, text)
        lines = [line for line in capsys.readouterr().out.splitlines() if "owner_unreachable" in line]
        problems = [line.partition("message=")[2] for line in lines]
        assert len(problems) == len(set(problems)), "each problem is logged once"
        await second.stop()
        second.owner = ""
        await second.start()
        await cluster.until(lambda: first.state == "current")
        assert first.node.table.head.owner == "b"


async def test_three_brokers_that_follow_in_a_circle_end_when_one_owns() -> None:
    async with config_cluster() as cluster:
        first, second = await cluster.add("a", "b"), await cluster.add("b", "c")
        third = await cluster.add("c", "a")
        await cluster.until(lambda: "must be the owner" in first.node.status().problem)
        await third.stop()
        third.owner = ""
        await third.start()
        await cluster.until(lambda: first.state == second.state == "current")
        assert second.node.table.head.owner == "c"


class FakeRegistrations:
    def __init__(self) -> None:
        self.done: list[str] = []

    def start(self) -> None:
        self.done.append("start")

    async def stop(self) -> None:
        self.done.append("stop")


async def test_no_message_asks_for_the_configuration_while_they_are_served() -> None:
    async with config_cluster() as cluster:
        owner = await cluster.add("a")
        follower = await cluster.add("b", "a")
        await cluster.until(lambda: follower.state == "current" and owner.node.status().members[1].live)
        gates = []
        for broker in (owner, follower):
            gate, registrations = ServingGate(), FakeRegistrations()
            gate.refusal = broker.node.condition.refusal
            gates.append((gate, registrations))
        tasks = [
            asyncio.create_task(serve_messages(broker.node, gate, [registrations]))
            for broker, (gate, registrations) in zip((owner, follower), gates, strict=True)
        ]
        await cluster.until(lambda: all(one.done == ["start"] for _, one in gates))
        assert [gate.refusal for gate, _ in gates] == [None, None]
        await owner.delete(Kind.BROKER, "b")
        await tasks[1]
        (gate, registrations) = gates[1]
        assert registrations.done == ["start", "stop"]
        refusal = gate.refusal() if gate.refusal is not None else None
        assert refusal is not None
        assert refusal.spec is errors.CONFIG_MEMBER_REMOVED
        tasks[0].cancel()


async def _until_problem(broker: ConfigBroker, text: str) -> None:
    await broker.cluster.until(lambda: text in broker.node.status().problem)
