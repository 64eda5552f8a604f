"""A replica group as a client sees it: whose address counts, and how it finds the next leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer, FrameHook
from trovemq import Backoff, Client, ClientOptions, TroveError
from trovemq._net import connections
from trovemq._net.leaders import Leaders
from trovemq._wire.convert import server_info
from trovemq.models.cluster import (
    BrokerInfo,
    BrokerRoute,
    ClusterState,
    GroupLeader,
    GroupNode,
    LostBroker,
    ServerInfo,
    TopicRoute,
)
from trovemq_proto import errors
from trovemq_proto.positions import GROUP_EPOCH_MAX
from trovemq_proto.records.layout import PROPERTY_SEQUENCE
from trovemq_proto.v1 import common_pb2, message_pb2, route_pb2

NODES = tuple(GroupNode(name, f"10.0.0.{number}:1") for number, name in enumerate("abc", 1))
PATIENCE_S = 15.0


# --- the state alone -------------------------------------------------------------------------------------
def seat(node: str, epoch: int, group: str = "g") -> GroupLeader:
    return GroupLeader(group, node, epoch, NODES)


def route(node: str, epoch: int, topics: int = 1, group: str = "g") -> BrokerRoute:
    address = dict(NODES)[node]
    info = BrokerInfo("c", "g1", address, leader=seat(node, epoch, group) if epoch else None)
    return BrokerRoute(info, tuple(TopicRoute(f"t{number}", 4) for number in range(topics)))


def answer(node: str, epoch: int, *, leads: str | None = None, group: str = "g") -> ServerInfo:
    return ServerInfo("broker", "1", "g1", node=node, leader=seat(leads or node, epoch, group))


def applied(made: Leaders, *routes: BrokerRoute, now: float = 0.0) -> ClusterState:
    return made.applied(ClusterState(routes), now)[0]


def known(state: ClusterState) -> tuple[str, int]:
    (one,) = state.brokers
    return one.broker.address, one.broker.epoch


def leaders(*routes: BrokerRoute) -> Leaders:
    made = Leaders(PATIENCE_S, by_tls=False)
    applied(made, *routes)
    return made


def test_a_route_of_a_lower_epoch_keeps_its_topics_alone() -> None:
    made = leaders(route("b", 6))
    state = applied(made, route("a", 5, topics=3))
    assert known(state) == ("10.0.0.2:1", 6)
    assert len(state.brokers[0].topics) == 3


def test_a_node_leads_by_its_own_word_only() -> None:
    made = leaders(route("a", 5))
    assert not made.adopt("g1", "10.0.0.2:1", answer("b", 6, leads="c")), "it names another one"
    assert not made.adopt("g1", "10.0.0.2:1", answer("b", 5)), "one epoch has one leader"
    assert not made.adopt("g1", "10.0.0.2:1", answer("b", 6, group="other"))
    assert not made.adopt("g1", "10.0.0.2:1", replace(answer("b", 6), name="g2"))
    assert known(applied(made, route("a", 5))) == ("10.0.0.1:1", 5)
    assert made.adopt("g1", "10.0.0.2:1", answer("b", 6))
    assert known(applied(made, route("a", 5))) == ("10.0.0.2:1", 6)
    assert known(applied(made, route("c", 7))) == ("10.0.0.3:1", 7), "routes may be newer"


def test_by_tls_an_answer_replaces_the_address_of_tls() -> None:
    made = Leaders(PATIENCE_S, by_tls=True)
    applied(made, route("a", 5))
    assert made.nodes("g1") == ()
    assert made.adopt("g1", "b.example:8443", answer("b", 6))
    (one,) = applied(made, route("a", 5)).brokers
    assert (one.broker.tls_address, one.broker.address) == ("b.example:8443", "10.0.0.1:1")


def test_a_group_stays_in_the_routes_while_a_leader_is_chosen() -> None:
    made = leaders(route("a", 5))
    lost = LostBroker("g1", "c", "10.0.0.1:1", 10, 1, 1)
    state, again = made.applied(ClusterState((), lost=(lost,)), 100.0)
    assert (known(state), state.lost, again) == (("10.0.0.1:1", 5), (), 100.0 + PATIENCE_S)
    assert made.missing() == ["g1"]
    assert known(applied(made, route("b", 6), now=101.0)) == ("10.0.0.2:1", 6)
    assert made.missing() == []
    applied(made, now=200.0)
    assert applied(made, now=200.0 + PATIENCE_S).brokers == ()
    assert not made.has("g1")


def test_a_broker_without_a_group_leaves_the_routes_at_once() -> None:
    single = BrokerRoute(BrokerInfo("c", "g1", "10.0.0.1:1"), ())
    alone = replace(single, broker=replace(single.broker, leader=GroupLeader("g", "a", 3, NODES[:1])))
    for one in (single, alone):
        made = leaders(one)
        assert applied(made).brokers == ()
        assert not made.has("g1")


def test_a_follower_s_own_route_does_not_hide_the_leader() -> None:
    made = leaders(route("a", 5))
    assert known(applied(made, route("b", 0), now=1.0)) == ("10.0.0.1:1", 5)
    left = applied(made, route("b", 0), now=1.0 + PATIENCE_S)
    assert known(left) == ("10.0.0.2:1", 0), "it is a broker without a group by now"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.booleans()), max_size=20))
def test_the_epoch_that_counts_never_falls(steps: list[tuple[str, int, bool]]) -> None:
    made, highest = leaders(route("a", 1)), 1
    for node, epoch, is_route in steps:
        if is_route:
            state = applied(made, route(node, epoch))
        else:
            made.adopt("g1", dict(NODES)[node], answer(node, epoch or 1))
            state = applied(made, route("a", 1))
        highest = max(highest, epoch)
        assert known(state)[1] == highest


def test_an_epoch_beyond_the_limits_is_no_leader() -> None:
    for epoch in (0, -1, GROUP_EPOCH_MAX + 1):
        info = route_pb2.ServerInfo(role=route_pb2.BROKER, node="a")
        info.leader.CopyFrom(common_pb2.GroupLeader(group_id="g", node="a", epoch=epoch))
        assert not server_info(info).leads


# --- with servers ----------------------------------------------------------------------------------------
@dataclass
class Group:
    """Nodes a, b and c of one group; `lead` makes one of them the leader."""

    nodes: dict[str, FakeServer]
    epoch: int = 4

    def named(self, node: str) -> common_pb2.GroupLeader:
        members = [common_pb2.GroupNode(node=one, address=fake.address) for one, fake in self.nodes.items()]
        return common_pb2.GroupLeader(group_id="g", node=node, epoch=self.epoch, role="leader", nodes=members)

    def lead(self, node: str) -> FakeServer:
        self.epoch += 1
        for name, fake in self.nodes.items():
            fake.leader = self.named(node)
            fake.set_routes(*([fake.route({"orders": 1}, leader=self.named(node))] if name == node else []))
            fake.on_frame = fake.acknowledge if name == node else self.refusing(fake)
        return self.nodes[node]

    @staticmethod
    def refusing(fake: FakeServer) -> FrameHook:
        async def refuse(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
            fields = {} if fake.leader is None else {"leader": fake.leader.node, "epoch": "9"}
            return fake.refusal(frame, TroveError(errors.NOT_LEADER, "it follows", **fields))

        return refuse


@asynccontextmanager
async def a_group() -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        nodes = {}
        for name in "abc":
            nodes[name] = await stack.enter_async_context(FakeServer("g1"))
            nodes[name].node = name
        made = Group(nodes)
        made.lead("a")
        yield made


async def send(client: Client, count: int = 1) -> list[str]:
    async with client.producer("orders", idempotent=True) as producer:
        return [(await producer.send(b"x")).broker for _ in range(count)]


@pytest.mark.asyncio
@pytest.mark.parametrize("given", ["a", "b", "abc"])
async def test_a_client_finds_the_leader_by_any_node(connect: Connect, given: str) -> None:
    async with a_group() as group:
        client = await connect(*[group.nodes[name] for name in given])
        await send(client)
        assert len(group.nodes["a"].frames) == 1


@pytest.mark.asyncio
async def test_a_client_of_a_follower_had_no_routes_where_the_leader_was_slow(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first look-up or subscription ended with NOT_LEADER."""
    monkeypatch.setattr(connections, "LEADER_S_MAX", 0.0)
    async with a_group() as group, asyncio.timeout(60):
        asked, answers = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            asked.set()
            await answers.wait()

        group.nodes["a"].on_info = slow
        connecting = asyncio.ensure_future(connect(group.nodes["b"]))
        await asked.wait()
        done, _ = await asyncio.wait([connecting], timeout=2 * connections.LEADER_LOOK_S)
        assert not done
        answers.set()
        client = await connecting
        assert [broker.name for broker in client._pool.routes.brokers()] == ["g1"]


@pytest.mark.asyncio
async def test_a_client_of_a_follower_does_not_wait_for_a_leader_that_is_gone(connect: Connect) -> None:
    async with a_group() as group, asyncio.timeout(60):
        await group.nodes["a"].stop()
        client = await connect(group.nodes["b"], failover_timeout_ms=1_000_000)
        with pytest.raises(TroveError, match=r"BROKER_NOT_FOUND|NOT_LEADER"):
            client._pool.routes.brokers()


@pytest.mark.asyncio
async def test_a_refusal_sends_the_client_to_the_next_leader(connect: Connect) -> None:
    """The nameserver knows the former one only."""
    async with a_group() as group, FakeServer("ns", role="NAMESERVER") as nameserver:
        nameserver.set_routes(group.nodes["a"].route({"orders": 1}, leader=group.named("a")))
        client = await connect(nameserver)
        async with client.producer("orders") as producer:
            await producer.send(b"1")
            second = group.lead("b")
            await producer.send(b"2")
        assert [message.body for message in second.messages()] == [b"2"]
        assert client._pool.routes.broker("g1").epoch == group.epoch


@pytest.mark.asyncio
async def test_a_killed_leader_is_a_wait_and_no_error(connect: Connect) -> None:
    """The message that is under way gets the same number at the next leader."""
    async with a_group() as group:
        client = await connect(group.nodes["a"])
        first = group.nodes["a"]
        arrived = asyncio.Event()

        async def swallow(_frame: message_pb2.AppendFrame) -> None:
            arrived.set()
            await asyncio.Event().wait()

        async with client.producer("orders", idempotent=True) as producer:
            await producer.send(b"1")
            first.on_frame = swallow
            under_way = asyncio.create_task(producer.send(b"2"))
            await arrived.wait()
            await first.stop()
            second = group.lead("b")
            await under_way
        numbers = [
            [message.properties[PROPERTY_SEQUENCE] for message in fake.messages() if message.body == b"2"]
            for fake in (first, second)
        ]
        assert numbers == [["1"], ["1"]]


@pytest.mark.asyncio
async def test_a_send_in_doubt_without_a_number_is_not_repeated(connect: Connect) -> None:
    async with a_group() as group:
        client = await connect(group.nodes["a"])
        first = group.nodes["a"]
        await send(client)

        async def stop(_frame: message_pb2.AppendFrame) -> None:
            group.lead("b")
            await first.stop()

        first.on_frame = stop
        with pytest.raises(TroveError) as lost:
            await client.send("orders", b"x")
        assert lost.value.in_doubt
        assert not group.nodes["b"].frames


@pytest.mark.asyncio
async def test_followers_that_name_each_other_move_no_client(connect: Connect) -> None:
    async with a_group() as group:
        client = await connect(group.nodes["a"], failover_timeout_ms=600, backoff=Backoff())
        await send(client)
        await group.nodes["a"].stop()
        group.epoch = 9
        group.nodes["b"].leader, group.nodes["c"].leader = group.named("c"), group.named("b")
        began = asyncio.get_running_loop().time()
        with pytest.raises(TroveError) as refused:
            await send(client)
        assert refused.value.spec in (errors.BROKER_UNREACHABLE, errors.BROKER_NOT_FOUND, errors.NOT_LEADER)
        assert asyncio.get_running_loop().time() - began < 10
        asked = [group.nodes[name].infos_asked for name in "bc"]
        assert max(asked) < 30, "pauses lie between the questions"
        assert not group.nodes["b"].frames
        assert not group.nodes["c"].frames


@pytest.mark.asyncio
async def test_a_redirect_to_an_unknown_address_gets_no_call(connect: Connect) -> None:
    """A refusal is no route: the program's credentials, and its messages, go to no address of it."""
    async with a_group() as group, FakeServer("g1") as stranger:
        stranger.node = "d"
        stranger.leader = common_pb2.GroupLeader(group_id="g", node="d", epoch=99, role="leader")
        client = await connect(group.nodes["a"], failover_timeout_ms=500)

        async def redirect(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
            fields = {"leader": "d", "address": stranger.address, "epoch": "99"}
            return group.nodes["a"].refusal(frame, TroveError(errors.NOT_LEADER, "it follows", **fields))

        group.nodes["a"].on_frame = redirect
        for name in "abc":
            group.nodes[name].leader = None
        with pytest.raises(TroveError, match="NOT_LEADER"):
            await client.send("orders", b"x")
        assert (stranger.infos_asked, stranger.frames) == (0, [])


@pytest.mark.asyncio
async def test_too_few_copies_are_waited_for(connect: Connect) -> None:
    async with a_group() as group:
        client = await connect(group.nodes["a"], send_attempts_max=2)
        first = group.nodes["a"]

        async def few(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
            if len(first.frames) < 5:
                return first.refusal(frame, TroveError(errors.NOT_ENOUGH_REPLICAS, "1 of 2"))
            return first.acknowledgement(frame)

        first.on_frame = few
        await client.send("orders", b"x")
        assert len(first.frames) == 5


@pytest.mark.asyncio
async def test_late_copies_are_asked_again_for_a_numbered_message(connect: Connect) -> None:
    async with a_group() as group:
        client = await connect(group.nodes["a"])
        first = group.nodes["a"]

        async def late(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
            reply = first.acknowledgement(frame)
            if len(first.frames) == 1:
                reply.status = common_pb2.FLUSH_SLAVE_TIMEOUT
            return reply

        first.on_frame = late
        async with client.producer("orders", idempotent=True) as producer:
            assert (await producer.send(b"x")).status == "PUT_OK"
        numbers = [message.properties[PROPERTY_SEQUENCE] for message in first.messages()]
        assert numbers == ["0", "0"]


@pytest.mark.asyncio
async def test_a_call_goes_on_at_the_next_leader(connect: Connect) -> None:
    async with a_group() as group:
        client = await connect(group.nodes["a"])
        await send(client)
        group.nodes["b"].next_sequence = 7
        await group.nodes["a"].stop()
        asking = asyncio.create_task(client.admin.next_sequences("orders", "p"))
        await asyncio.sleep(0)
        group.lead("b")
        assert await asking == {"g1": 7}


def test_the_patience_is_an_option() -> None:
    assert ClientOptions().failover_timeout_ms == 15_000


@pytest.mark.asyncio
async def test_a_subscription_did_not_wait_for_a_new_leader(connect: Connect) -> None:
    """A new leader refuses ordered groups while the rights of the one before may last."""
    async with a_group() as group:
        client, consuming = await connect(group.nodes["a"]), group.nodes["a"].consuming
        consuming.refusal = TroveError(errors.SERVICE_NOT_AVAILABLE, "ordered groups wait")

        async def serves() -> None:
            await asyncio.sleep(0.1)
            consuming.refusal = None

        serving = asyncio.create_task(serves())
        async with client.subscribe("orders", "g") as subscription:
            await consuming.offer(b"1")
            assert (await anext(subscription)).body == b"1"
        await serving


@pytest.mark.asyncio
async def test_a_subscription_that_no_leader_serves_ends_with_the_refusal(connect: Connect) -> None:
    async with a_group() as group:
        client = await connect(group.nodes["a"], failover_timeout_ms=100)
        group.nodes["a"].consuming.refusal = TroveError(errors.SERVICE_NOT_AVAILABLE, "ordered groups wait")
        with pytest.raises(TroveError, match="ordered groups wait"):
            async with client.subscribe("orders", "g"):
                pass


@pytest.mark.asyncio
async def test_a_subscription_was_refused_before_there_was_a_leader(connect: Connect) -> None:
    async with a_group() as group:
        follower = group.nodes["b"]
        follower.leader = None
        group.nodes["a"].set_routes()
        client = await connect(follower)

        async def elect() -> None:
            await asyncio.sleep(0.1)
            group.lead("b")

        electing = asyncio.create_task(elect())
        async with client.subscribe("orders", "g") as subscription:
            await follower.consuming.offer(b"1")
            assert (await anext(subscription)).body == b"1"
        await electing
