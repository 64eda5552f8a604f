"""The queues of FIFO topics do not change because a broker dies, drains or joins; sends wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import SendReceipt, TroveError
from trovemq._net.routes import RouteTable, Slot
from trovemq._produce.slots import SlotChooser
from trovemq.models.cluster import BrokerInfo, BrokerRoute, ClusterState, LostBroker, TopicRoute
from trovemq_proto import errors
from trovemq_proto.records.hashes import group_queue
from trovemq_proto.v1 import message_pb2

PLACED = {"a": 1, "b": 2, "c": 1}


def on(
    name: str, *, queues: int = 2, kind: str = "FIFO", draining: bool = False, **fields: Any
) -> BrokerRoute:
    info = BrokerInfo("c", name, f"192.0.2.1:{ord(name)}", draining=draining)
    return BrokerRoute(info, (TopicRoute("steps", queues, kind, **fields),))


def table(*routes: BrokerRoute, lost: tuple[str, ...] = ()) -> ClusterState:
    return ClusterState(routes, lost=tuple(LostBroker(name, "c", "", 0, 1, 0) for name in lost))


def names(slots: tuple[Slot, ...]) -> set[str]:
    return {slot.broker for slot in slots}


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.booleans()), min_size=1))
def test_with_a_placement_the_queues_are_those_it_names(steps: list[Mapping[str, bool]]) -> None:
    """Each step: the live brokers, and whether they drain. One of them has sent the placement before."""
    routes = RouteTable()
    routes.apply(table(on("b", placement=PLACED)))
    wanted = (Slot("a", 0), Slot("b", 0), Slot("b", 1), Slot("c", 0))
    assert routes.ordered_slots("steps") == wanted
    for step in steps:
        known = [on(name, draining=drains, placement=PLACED) for name, drains in step.items()]
        routes.apply(table(*known))
        assert routes.ordered_slots("steps") == wanted


def test_a_broker_that_joined_moved_most_unique_keys_between_the_others() -> None:
    """A message that is sent again must reach the broker that may have it."""
    routes = RouteTable()
    pool: Any = SimpleNamespace(routes=routes)
    keys = [f"payment-{number}" for number in range(400)]

    def homes(*brokers: str) -> list[str]:
        routes.apply(table(*(on(name, kind="NORMAL") for name in brokers)))
        chooser = SlotChooser(pool, "steps")
        return [slot.broker for key in keys if (slot := chooser.home(key)) is not None]

    before, after = homes("b", "d"), homes("a", "b", "d")
    assert len(before) == len(after) == len(keys)
    moved = [new for old, new in zip(before, after, strict=True) if new != old]
    assert set(moved) == {"a"}
    assert 80 < len(moved) < 190, "its share"
    assert min(before.count("b"), before.count("d")) > 150


def test_a_topic_that_was_spread_has_its_new_queues() -> None:
    routes = RouteTable()
    routes.apply(table(on("a", placement=PLACED), on("b", placement=PLACED)))
    assert names(routes.ordered_slots("steps")) == {"a", "b", "c"}
    routes.apply(table(on("a", placement={"a": 1}), on("b", placement={"a": 1})))
    assert routes.ordered_slots("steps") == (Slot("a", 0),)
    assert routes.writable_slots("steps") == (Slot("a", 0),)
    assert names(routes.slots("steps")) == {"a", "b"}, "b is still read"


def test_a_normal_topic_that_left_a_broker_is_not_sent_there() -> None:
    routes = RouteTable()
    routes.apply(table(on("a", kind="NORMAL"), on("b", kind="NORMAL", placement={"a": 2})))
    assert names(routes.writable_slots("steps")) == {"a"}
    assert names(routes.ordered_slots("steps")) == {"a"}
    assert names(routes.slots("steps")) == {"a", "b"}


def test_without_a_placement_a_lost_broker_keeps_its_groups() -> None:
    routes = RouteTable()
    routes.apply(table(on("a"), on("b"), on("d")))
    before = routes.ordered_slots("steps")
    routes.apply(table(on("a"), lost=("b",)))
    assert routes.ordered_slots("steps") == before
    assert names(routes.writable_slots("steps")) == {"a"}, "messages without a group continue"
    routes.apply(table(lost=("b",)))
    assert routes.ordered_slots("steps") == before
    routes.apply(table(on("a"), on("d")))
    assert names(routes.ordered_slots("steps")) == {"a", "d"}, "the nameservers have forgotten b"


def test_without_a_placement_a_drained_broker_gives_its_groups_away() -> None:
    routes = RouteTable()
    routes.apply(table(on("a"), on("b", draining=True)))
    assert names(routes.ordered_slots("steps")) == {"a"}
    routes.apply(table(on("a")))
    assert names(routes.ordered_slots("steps")) == {"a"}
    assert routes.queue_brokers("steps", 1) == ["a"]


def test_groups_waited_for_a_broker_that_had_stopped_and_was_then_removed() -> None:
    """No nameserver had lost it: it had stopped regularly, undrained."""
    routes = RouteTable()
    routes.apply(table(on("a"), on("b")))
    routes.apply(table(on("a")))
    assert names(routes.ordered_slots("steps")) == {"a", "b"}
    assert routes.lost_brokers_of("steps") == ["b"]
    routes.apply(replace(table(on("a")), removed=("b",)))
    assert names(routes.ordered_slots("steps")) == {"a"}
    assert routes.lost_brokers_of("steps") == []
    routes.apply(table(on("a"), on("b")))
    assert names(routes.ordered_slots("steps")) == {"a", "b"}, "a new one of that name"


def test_groups_of_other_topics_move_when_their_broker_dies() -> None:
    routes = RouteTable()
    routes.apply(table(on("a", kind="NORMAL"), on("b", kind="NORMAL")))
    routes.apply(table(on("a", kind="NORMAL")))
    assert names(routes.ordered_slots("steps")) == {"a"}


# --- sends ------------------------------------------------------------------------------------------------
BOTH = {"b1": 1, "b2": 1}


def fifo(server: FakeServer, placement: dict[str, int] | None = None, **fields: Any) -> Any:
    return server.route({"steps": 1}, message_type="FIFO", placement=BOTH | (placement or {}), **fields)


async def group_of(client: Any, broker: str) -> str:
    """A message group whose queue is on that broker."""
    for number in range(100):
        if (await client.send("steps", b"0", message_group=f"g{number}")).broker == broker:
            return f"g{number}"
    raise AssertionError(broker)


@pytest.mark.asyncio
async def test_messages_of_a_group_overtook_those_that_waited(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    """A broker dies with messages of a group on their way to it, and comes back: they have their order."""
    nameserver.set_routes(fifo(broker), fifo(other))
    client = await connect(nameserver, send_attempts_max=2)
    group = await group_of(client, "b2")
    other.frames.clear()
    sent = len(broker.frames)
    await other.stop()
    nameserver.set_routes(fifo(broker))
    producer = client.producer("steps")
    waiting = [producer.send_nowait(b"%d" % number, message_group=group) for number in range(3)]
    await asyncio.sleep(0.05)
    waiting += [producer.send_nowait(b"%d" % number, message_group=group) for number in range(3, 6)]
    assert not any(one.done() for one in waiting)
    await other.start()
    nameserver.set_routes(fifo(broker), fifo(other))
    assert {receipt.broker for receipt in await asyncio.gather(*waiting)} == {"b2"}
    assert [message.body for message in other.messages()] == [b"%d" % number for number in range(6)]
    assert len(broker.frames) == sent, "none of them went elsewhere"
    await producer.close()


@pytest.mark.asyncio
async def test_a_send_that_waits_in_vain_says_for_whom(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    nameserver.set_routes(fifo(broker), fifo(other))
    client = await connect(nameserver, send_attempts_max=1, delivery_timeout_ms=300)
    group = await group_of(client, "b2")
    await other.stop()
    nameserver.set_routes(fifo(broker))
    with pytest.raises(TroveError) as failed:
        await client.send("steps", b"x", message_group=group)
    assert failed.value.spec is errors.FIFO_BROKER_AWAY
    assert failed.value.fields == {"broker": "b2", "topic": "steps"}
    assert "trovemq topic spread steps" in failed.value.message


@pytest.mark.asyncio
async def test_a_draining_broker_gets_the_messages_of_its_groups(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    """Until it is drained; then they wait for it."""
    nameserver.set_routes(fifo(broker), fifo(other))
    client = await connect(nameserver, delivery_timeout_ms=300)
    group = await group_of(client, "b2")
    nameserver.set_routes(fifo(broker), fifo(other, draining=True))
    routes = client._pool.routes
    assert await routes.wait_until(lambda: routes.broker("b2").draining, 30)
    assert (await client.send("steps", b"x", message_group=group)).broker == "b2"

    async def drained(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        return other.refusal(frame, TroveError(errors.SERVICE_NOT_AVAILABLE, "this broker is drained"))

    other.on_frame = drained
    sent = len(broker.frames)
    with pytest.raises(TroveError) as failed:
        await client.send("steps", b"x", message_group=group)
    assert failed.value.spec is errors.FIFO_BROKER_AWAY
    assert "b2 is drained" in failed.value.message
    assert len(broker.frames) == sent


@pytest.mark.asyncio
async def test_sends_wait_while_their_topic_is_closed(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    nameserver.set_routes(fifo(broker), fifo(other))
    client = await connect(nameserver, send_attempts_max=1)

    async def closed(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        if len(broker.frames) + len(other.frames) < 4:
            return broker.refusal(frame, TroveError(errors.TOPIC_CLOSED, "closed"))
        return broker.acknowledgement(frame)

    broker.on_frame = other.on_frame = closed
    await client.send("steps", b"x", message_group="g")
    assert len(broker.frames) + len(other.frames) == 4


@pytest.mark.asyncio
async def test_sends_failed_as_a_broker_did_not_have_the_moved_topic_yet(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    empty = other.route({"bills": 1})
    nameserver.set_routes(fifo(broker, {"b1": 0, "b2": 1}), empty)
    client = await connect(nameserver, send_attempts_max=1)

    async def comes(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        if len(other.frames) < 3:
            return other.refusal(frame, TroveError(errors.TOPIC_NOT_FOUND, "not here"))
        return other.acknowledgement(frame)

    other.on_frame = comes
    await client.send("steps", b"x", message_group="g")
    assert len(other.frames) == 3


@pytest.mark.asyncio
async def test_a_send_failed_as_newer_routes_came_before_its_refusal(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    nameserver.set_routes(fifo(broker, {"b1": 0, "b2": 1}), other.route({"bills": 1}))
    client = await connect(nameserver, send_attempts_max=1)

    async def comes(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        if len(other.frames) > 1:
            return other.acknowledgement(frame)
        nameserver.set_routes(*(fifo(one, {"b1": 0, "b2": 1}) for one in (broker, other)))
        assert await client._pool.routes.wait_until(
            lambda: client._pool.routes.has_topic("steps", "b2"), timeout_seconds=10
        )
        return other.refusal(frame, TroveError(errors.TOPIC_NOT_FOUND, "not here"))

    other.on_frame = comes
    await client.send("steps", b"x", message_group="g")
    assert len(other.frames) == 2


@pytest.mark.asyncio
async def test_waiting_messages_go_to_the_new_queues_of_their_topic(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    """In the order of sending: some wait, one is being sent, some come later."""
    only = {"b1": 1, "b2": 0}
    nameserver.set_routes(fifo(broker, only), fifo(other, only))
    client = await connect(nameserver)
    closed, taken = True, asyncio.Event()

    async def answer(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        if not closed:
            return broker.acknowledgement(frame)
        if not taken.is_set():
            taken.set()
            await asyncio.sleep(0.2)  # refused when the others wait
        return broker.refusal(frame, TroveError(errors.TOPIC_CLOSED, "closed"))

    broker.on_frame = other.on_frame = answer
    producer = client.producer("steps")
    groups = [f"g{number}" for number in range(8)]
    sent: list[asyncio.Future[SendReceipt]] = []

    def send(numbers: range) -> None:
        sent.extend(
            producer.send_nowait(b"%s %d" % (group.encode(), number), message_group=group)
            for number in numbers
            for group in groups
        )

    send(range(2))
    await taken.wait()
    send(range(2, 4))
    nameserver.set_routes(fifo(broker), fifo(other))
    assert await client._pool.routes.wait_until(
        lambda: len(client._pool.routes.ordered_slots("steps")) == 2, 30
    )
    send(range(4, 6))
    flushed = asyncio.ensure_future(producer.flush())
    await asyncio.sleep(1.5)
    assert not flushed.done()
    broker.frames.clear()
    other.frames.clear()
    closed = False
    receipts = await asyncio.gather(*sent)
    await flushed
    assert len(receipts) == 48
    received: dict[str, list[int]] = {}
    for server in (broker, other):
        for message in server.messages():
            group, number = message.body.decode().split()
            received.setdefault(group, []).append(int(number))
            home = client._pool.routes.ordered_slots("steps")[group_queue(group, 2)]
            assert home.broker == server.name
    assert {server.name for server in (broker, other) if server.frames} == {"b1", "b2"}
    assert {group: list(dict.fromkeys(numbers)) for group, numbers in received.items()} == {
        group: list(range(6)) for group in groups
    }
    assert producer.in_flight_bytes == 0
    await producer.close()


# --- one broker -------------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_a_message_with_a_unique_key_goes_to_one_broker(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    """Also while that broker is away: another one would store the message again."""
    client = await connect(nameserver, send_attempts_max=2)
    first = {key: (await client.send("orders", b"x", message_id=key)).broker for key in map(str, range(20))}
    assert set(first.values()) == {"b1", "b2"}
    nameserver.set_routes(broker.route({"orders": 4}))
    routes = client._pool.routes
    assert await routes.wait_until(lambda: len(routes.state.brokers) == 1, 30)
    for key, name in first.items():
        if name == "b1":
            assert (await client.send("orders", b"x", message_id=key)).broker == name
        else:
            with pytest.raises(TroveError) as failed:
                await client.send("orders", b"x", message_id=key)
            assert failed.value.spec is errors.BROKER_NOT_FOUND
            with pytest.raises(TroveError):
                await client.producer("orders").send_batch([b"x"], message_ids=[key])
    assert {(await client.send("orders", b"x")).broker for _ in range(4)} == {"b1"}


@pytest.mark.asyncio
async def test_a_resend_in_doubt_failed_without_its_doubt(broker: FakeServer, connect: Connect) -> None:
    """The first attempt may be stored, although the last one reached no broker."""
    client = await connect(broker, send_attempts_max=3)

    async def hook(_frame: message_pb2.AppendFrame) -> None:
        await broker.stop()

    broker.on_frame = hook
    async with client.producer("orders", retry_in_doubt=True) as producer:
        with pytest.raises(TroveError) as failed:
            await producer.send(b"x")
    assert "no process listens there" in failed.value.message
    assert failed.value.fields["in_doubt"] == "true"
