# ruff: noqa: PT017  a model decides whether an error is right
"""Which node of a replica group has a broker name: the rules one by one, against a plain model, and as peers
see them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.support.stubs import ROUTES, stub_of
from tests.unit.nameserver.test_registration import (
    SLOW_HEARTBEAT,
    live,
    local_broker,
    registered,
    start_nameserver,
    until,
)
from tests.unit.nameserver.test_routes import of
from tests.unit.nameserver.test_services import heartbeat, nameserver, read_all, register
from trovemq_broker.cluster.registration import RegistrationState
from trovemq_broker.cluster.view import GroupLeader as Announced
from trovemq_broker.cluster.view import GroupNode as AnnouncedNode
from trovemq_broker.cluster.view import LocalBroker
from trovemq_nameserver.broker import Broker, GroupLeader, GroupNode
from trovemq_nameserver.leaders import KEPT_MS
from trovemq_nameserver.routes import RouteLimits, RouteTable
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import GROUP_EPOCH_MAX
from trovemq_proto.v1 import common_pb2, route_pb2

PORTS = {"n1": 1, "n2": 2, "n3": 3}


def node(name: str, epoch: int, group: str = "g") -> Broker:
    return Broker("C", "a", f"127.0.0.1:{PORTS[name]}", leader=GroupLeader(group, name, epoch))


def table() -> RouteTable:
    return RouteTable(RouteLimits())


def refusal(made: RouteTable, session: int, broker: Broker, now: int = 0) -> TroveError:
    with pytest.raises(TroveError) as refused:
        made.register(session, broker, of(), 1, now)
    return refused.value


def leader(made: RouteTable) -> tuple[str, int] | None:
    found = made.route_named("a")
    return None if found is None else (found.broker.address, found.broker.epoch)


def test_the_highest_epoch_has_the_name_at_once() -> None:
    made = table()
    assert made.register(1, node("n1", 5), of(("t", 4, "NORMAL", ())), 1, 0) is None
    assert made.register(2, node("n2", 6), of(("t", 4, "NORMAL", ())), 1, 1) == 1
    assert leader(made) == ("127.0.0.1:2", 6)
    assert (made.registered(1), made.lost(1)) == (False, []), "the one before is not lost"
    assert made.topic_routes == 1, "its routes went"


def test_a_lower_epoch_is_told_who_leads() -> None:
    made = table()
    made.register(1, node("n2", 6), of(), 1, 0)
    error = refusal(made, 2, node("n1", 5))
    fields = {"leader": "n2", "address": "127.0.0.1:2", "epoch": "6"}
    assert (error.symbol, error.fields) == ("EPOCH_STALE", fields)
    assert leader(made) == ("127.0.0.1:2", 6)


def test_two_nodes_of_one_epoch_or_without_a_group_contest_the_name() -> None:
    made = table()
    made.register(1, node("n1", 5), of(), 1, 0)
    assert refusal(made, 2, node("n2", 5)).symbol == "BROKER_NAME_TAKEN"
    single = table()
    single.register(1, Broker("C", "a", "127.0.0.1:1"), of(), 1, 0)
    assert refusal(single, 2, Broker("C", "a", "127.0.0.1:2")).symbol == "BROKER_NAME_TAKEN"


def test_another_group_of_that_name_gets_it_by_no_epoch() -> None:
    made = table()
    made.register(1, node("n1", 5), of(), 1, 0)
    for epoch in (1, 5, GROUP_EPOCH_MAX):
        assert refusal(made, 2, node("n2", epoch, "other")).symbol == "BROKER_NAME_TAKEN"
    made.leave(1)
    made.register(3, node("n2", 1, "other"), of(), 1, 0)
    assert leader(made) == ("127.0.0.1:2", 1), "the group was recreated"


def test_a_heartbeat_of_the_version_before_counts_as_epoch_0() -> None:
    made = table()
    made.register(1, Broker("C", "a", "127.0.0.1:1"), of(), 1, 0)
    made.register(2, node("n2", 3), of(), 1, 0)
    assert leader(made) == ("127.0.0.1:2", 3)
    assert refusal(made, 3, Broker("C", "a", "127.0.0.1:1")).symbol == "EPOCH_STALE"


def test_a_paused_leader_does_not_return_after_its_successor() -> None:
    made = table()
    made.register(1, node("n1", 5), of(), 1, 0)
    made.register(2, node("n2", 6), of(), 1, 0)
    made.leave(2)
    assert refusal(made, 3, node("n1", 5), now=KEPT_MS - 1).symbol == "EPOCH_STALE"
    made.register(4, node("n1", 5), of(), 1, KEPT_MS)
    assert leader(made) == ("127.0.0.1:1", 5), "the epoch is kept for a day"
    forgotten = table()
    forgotten.register(1, node("n2", 6), of(), 1, 0)
    forgotten.leave(1)
    forgotten.forget("a", 0)
    forgotten.register(2, node("n1", 5), of(), 1, 0)
    assert leader(forgotten) == ("127.0.0.1:1", 5)


def test_a_stream_keeps_its_epoch() -> None:
    made = table()
    made.register(1, node("n1", 5), of(), 1, 0)
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        made.heartbeat(1, 0, broker=node("n1", 6))


def illegal_leaders() -> Iterator[GroupLeader]:
    fine = GroupLeader("g", "n1", 1)
    yield from (replace(fine, epoch=epoch) for epoch in (0, -1, GROUP_EPOCH_MAX + 1, 1 << 62))
    yield replace(fine, role="follower")
    yield replace(fine, role="")
    yield replace(fine, group_id="")
    yield replace(fine, group_id="g" * 65)
    yield replace(fine, node="")
    yield replace(fine, node="n\n")
    yield replace(fine, nodes=(GroupNode("n1", "not an address"),))
    yield replace(fine, nodes=(GroupNode("n1", "0.0.0.0:1"),))
    yield replace(fine, nodes=(GroupNode("n1", "127.0.0.1:1"),) * 8)


@pytest.mark.parametrize("claimed", list(illegal_leaders()))
def test_an_illegal_claim_changes_nothing(claimed: GroupLeader) -> None:
    made = table()
    made.register(1, node("n1", 5), of(), 1, 0)
    hostile = replace(node("n2", 6), leader=claimed)
    assert refusal(made, 2, hostile).symbol == "REQUEST_ILLEGAL"
    assert leader(made) == ("127.0.0.1:1", 5)


class Claims(RuleBasedStateMachine):
    """Nodes of two groups, and brokers without one, claim one name in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.table = table()
        self.has: tuple[Broker, int] | None = None  # with its session
        self.highest: dict[str, int] = {}
        self.session = 0
        self.now = 0

    @rule(
        name=st.sampled_from(sorted(PORTS)),
        epoch=st.integers(0, 4),
        group=st.sampled_from(["g", "g", "other"]),
    )
    def claim(self, name: str, epoch: int, group: str) -> None:
        self.session += 1
        broker = node(name, epoch, group) if epoch else Broker("C", "a", f"127.0.0.1:{PORTS[name]}")
        try:
            before = self.table.register(self.session, broker, of(), 1, self.now)
        except TroveError as error:
            assert error.symbol == self.expected(broker), error
            return
        assert self.expected(broker) == ""
        is_later = self.has is not None and broker.epoch > self.has[0].epoch
        assert before == (self.has[1] if is_later and self.has is not None else None)
        self.has = broker, self.session
        if broker.leader is not None:
            self.highest = {broker.leader.group_id: broker.epoch}
        else:
            self.highest = {}

    def expected(self, broker: Broker) -> str:
        group = broker.leader.group_id if broker.leader is not None else None
        if group is not None and broker.epoch < self.highest.get(group, 0):
            return "EPOCH_STALE"
        if self.has is None:
            return ""
        mine, theirs = broker.epoch, self.has[0].epoch
        other = self.has[0].leader.group_id if self.has[0].leader is not None else None
        if mine == theirs or (None not in (group, other) and group != other):
            return "BROKER_NAME_TAKEN"  # the streams are all alive
        return "" if mine > theirs else "EPOCH_STALE"

    @rule()
    def leave(self) -> None:
        if self.has is not None:
            self.table.leave(self.has[1])
            self.has = None

    @rule()
    def the_one_with_the_name_is_in_the_routes(self) -> None:
        found = self.table.route_named("a")
        assert (found and found.broker) == (self.has and self.has[0])


TestClaims = Claims.TestCase
TestClaims.settings = settings(max_examples=60, stateful_step_count=30)


def claim(name: str, epoch: int, *topics: str) -> route_pb2.Heartbeat:
    made = heartbeat("a", *topics, port=PORTS[name])
    made.broker.leader.CopyFrom(
        common_pb2.GroupLeader(
            group_id="g",
            node=name,
            epoch=epoch,
            role="leader",
            nodes=[
                common_pb2.GroupNode(node=one, address=f"127.0.0.1:{port}") for one, port in PORTS.items()
            ],
        )
    )
    return made


@pytest.mark.asyncio
async def test_the_former_leader_and_the_watchers_hear_of_the_new_one_at_once() -> None:
    """Nothing waits for a heartbeat of the former one, or for its silence."""
    async with nameserver(broker_silent_ms=600_000) as (app, channel):
        former = await register(channel, claim("n1", 5, "orders"))
        asked = route_pb2.WatchRoutesRequest(changes=True, removed_brokers=True)
        watch = stub_of(ROUTES, channel).WatchRoutes(asked)
        first = await watch.read()
        assert first.brokers[0].broker.leader.epoch == 5
        await register(channel, claim("n2", 6, "orders"))
        async with asyncio.timeout(20):
            error = (await former.read()).error
        assert (error.symbol, dict(error.fields)) == (
            "EPOCH_STALE",
            {"leader": "n2", "address": "127.0.0.1:2", "epoch": "6"},
        )
        await read_all(former)
        (route,) = (await watch.read()).brokers
        assert (route.broker.address, route.broker.leader.node) == ("127.0.0.1:2", "n2")
        assert [one.address for one in route.broker.leader.nodes] == [
            "127.0.0.1:1",
            "127.0.0.1:2",
            "127.0.0.1:3",
        ]
        assert app.registry.leader_changes == 1
        assert not app.registry._superseded, "the stream has ended"


def leading(name: str, port: int, epoch: int) -> LocalBroker:
    broker, _ = local_broker("a", port)
    nodes = tuple(AnnouncedNode(one, f"127.0.0.1:{number}") for one, number in PORTS.items())
    broker.set_leader(Announced("g", name, epoch, nodes))
    return broker


@pytest.mark.asyncio
async def test_a_broker_shows_that_a_later_leader_has_its_name() -> None:
    app, address = await start_nameserver()
    async with registered(leading("n1", 1, 5), address, settings=SLOW_HEARTBEAT) as former:
        (registration,) = former.registrations
        await until(lambda: bool(live(app)))
        async with registered(leading("n2", 2, 6), address, settings=SLOW_HEARTBEAT):
            await until(lambda: registration.state is RegistrationState.EPOCH_STALE)
            assert "node n2 at 127.0.0.1:2" in registration.detail
            assert former.problem() == "", "it serves until the other nodes depose it"
    await app.stop()


@pytest.mark.asyncio
async def test_later_members_reach_the_routes_by_the_next_heartbeat() -> None:
    app, address = await start_nameserver()
    broker: Any = leading("n1", 1, 5)
    async with registered(broker, address, settings=SLOW_HEARTBEAT):
        await until(lambda: bool(live(app)))
        broker.set_leader(Announced("g", "n1", 5, (AnnouncedNode("n1", "127.0.0.1:1"),)))

        def nodes() -> int:
            found = app.registry.table.route_named("a")
            return 0 if found is None or found.broker.leader is None else len(found.broker.leader.nodes)

        async with asyncio.timeout(60):
            await until(lambda: nodes() == 1)
    await app.stop()
