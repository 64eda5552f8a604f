"""Retries, reconnections, doubt, and changes of the routes while messages are on their way."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import Client, TroveError
from trovemq._net.routes import Slot
from trovemq._produce.delivery import Delivery
from trovemq._produce.outgoing import Batch
from trovemq.receipts import AppendOutcome
from trovemq.testing import free_port
from trovemq_proto import errors
from trovemq_proto.records import RecordBatch
from trovemq_proto.v1 import common_pb2, message_pb2

pytestmark = pytest.mark.asyncio


async def until_missed(client: Client, broker: str) -> None:
    """Until the client noticed that the stream is broken: messages that it writes before may be in doubt."""
    while not client._pool.suspect(client._pool.routes.broker(broker)):
        await asyncio.sleep(0.001)


def refuse(server: FakeServer, error: TroveError, times: int) -> None:
    """The first `times` frames are refused."""

    async def hook(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        if len(server.frames) <= times:
            return server.refusal(frame, error)
        return server.acknowledgement(frame)

    server.on_frame = hook


async def test_what_may_succeed_later_is_tried_again(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    refuse(broker, TroveError(errors.OS_PAGE_CACHE_BUSY), times=3)
    receipt = await client.send("orders", b"x")
    assert receipt.queue_offset == 0
    assert len(broker.frames) == 4
    assert len({message.message_id for message in broker.messages()}) == 1


async def test_attempts_are_bounded(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker, send_attempts_max=3)
    refuse(broker, TroveError(errors.DISK_FULL, "full"), times=99)
    with pytest.raises(TroveError) as refused:
        await client.send("orders", b"x")
    assert refused.value.spec is errors.DISK_FULL
    assert len(broker.frames) == 3


async def test_what_can_never_succeed_is_not_tried_again(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    error = TroveError(errors.TOPIC_NOT_FOUND, "gone", topic="orders")
    refuse(broker, error, times=99)
    with pytest.raises(TroveError) as refused:
        await client.send("orders", b"x")
    assert (refused.value.message, refused.value.fields) == ("gone", {"topic": "orders"})
    assert len(broker.frames) == 1


async def test_a_late_sync_is_a_receipt_in_memory(broker: FakeServer, connect: Connect) -> None:
    async def late(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        reply = broker.acknowledgement(frame)
        reply.status, reply.durability = common_pb2.FLUSH_DISK_TIMEOUT, common_pb2.MEMORY
        reply.error.symbol = "FLUSH_DISK_TIMEOUT"
        return reply

    broker.on_frame = late
    client = await connect(broker)
    receipt = await client.send("orders", b"x")
    assert (receipt.status, receipt.durability) == ("FLUSH_DISK_TIMEOUT", "memory")
    assert len(broker.frames) == 1


async def test_a_message_whose_copies_were_late_was_sent_again(broker: FakeServer, connect: Connect) -> None:
    async def late(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        reply = broker.acknowledgement(frame)
        reply.status, reply.durability = common_pb2.FLUSH_SLAVE_TIMEOUT, common_pb2.DISK
        reply.error.symbol = "REPLICA_TIMEOUT"
        return reply

    broker.on_frame = late
    client = await connect(broker)
    receipt = await client.send("orders", b"x")
    assert (receipt.status, receipt.durability, receipt.copies) == ("FLUSH_SLAVE_TIMEOUT", "disk", 1)
    assert len(broker.frames) == 1


async def test_a_receipt_says_how_many_copies_there_are(broker: FakeServer, connect: Connect) -> None:
    async def replicated(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        reply = broker.acknowledgement(frame)
        reply.copies = 3
        return reply

    client = await connect(broker)
    assert (await client.send("orders", b"x")).copies == 1
    broker.on_frame = replicated
    assert (await client.send("orders", b"x")).copies == 3
    batch = await client.producer("orders").send_batch([b"x", b"y"])
    assert (batch.copies, [one.copies for one in batch]) == (3, [3, 3])


async def test_a_refused_message_goes_to_the_other_broker(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    client = await connect(nameserver)
    for server in (broker, other):
        refuse(server, TroveError(errors.DISK_FULL), times=99)
    other.on_frame = None
    receipts = [await client.send("orders", b"%d" % i) for i in range(6)]
    assert {receipt.broker for receipt in receipts} == {"b2"}


async def test_a_message_for_one_broker_stays_there(
    nameserver: FakeServer, other: FakeServer, broker: FakeServer, connect: Connect
) -> None:
    client = await connect(nameserver, send_attempts_max=2)
    refuse(broker, TroveError(errors.DISK_FULL), times=99)
    with pytest.raises(TroveError) as refused:
        await client.send("orders", b"x", broker="b1")
    assert refused.value.spec is errors.DISK_FULL
    assert other.frames == []
    with pytest.raises(TroveError) as refused:
        await client.send("orders", b"x", queue_id=1)
    assert refused.value.spec is errors.BROKER_AMBIGUOUS
    assert "b1" in refused.value.fields["brokers"]
    assert (await client.send("orders", b"x", queue_id=1, broker="b2")).broker == "b2"


async def test_a_broker_that_is_gone_is_skipped(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    client = await connect(nameserver)
    await broker.stop()  # and still in the routes; no stream was open
    receipts = await asyncio.gather(*(client.send("orders", b"x") for _ in range(20)))
    receipts += [await client.send("orders", b"x") for _ in range(8)]
    assert {receipt.broker for receipt in receipts} == {"b2"}
    nameserver.set_routes(other.route({"orders": 4}))
    assert (await client.send("orders", b"x")).broker == "b2"


async def test_a_broker_that_comes_back_is_used_again(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker, send_attempts_max=10_000)
    await client.send("orders", b"before")
    await broker.stop()
    await until_missed(client, "b1")
    waiting = asyncio.ensure_future(client.send("orders", b"between"))
    for _ in range(20):
        await asyncio.sleep(0)
    await broker.start()
    assert (await waiting).queue_offset is not None
    assert broker.streams == 2


async def break_off_after_taking(server: FakeServer) -> None:
    """Every frame is read, then the server dies without an answer."""

    async def hook(frame: message_pb2.AppendFrame) -> None:
        server.on_frame = None
        await server.stop()

    server.on_frame = hook


async def test_what_may_be_stored_is_not_sent_again(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    client = await connect(nameserver)
    await break_off_after_taking(broker)
    waiting = asyncio.ensure_future(client.send("orders", b"x", broker="b1"))
    while not broker.frames or broker._server is not None:
        await asyncio.sleep(0.001)
    await broker.start()  # it would take the message a second time
    with pytest.raises(TroveError) as failure:
        await waiting
    assert failure.value.spec is errors.BROKER_UNREACHABLE
    assert failure.value.in_doubt
    assert len(broker.frames) == 1
    assert other.frames == []


async def test_unless_that_is_wanted(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker, send_attempts_max=10_000)
    await break_off_after_taking(broker)
    async with client.producer("orders", retry_in_doubt=True) as producer:
        waiting = asyncio.ensure_future(producer.send(b"x"))
        while not broker.frames:
            await asyncio.sleep(0.001)
        while broker._server is not None:
            await asyncio.sleep(0.001)
        await broker.start()
        await waiting
    assert len({message.message_id for message in broker.messages()}) == 1
    assert len(broker.frames) == 2


@pytest.mark.parametrize("in_doubt", [True, False])
async def test_a_message_in_doubt_moved_to_another_broker(in_doubt: bool) -> None:
    """The first broker may have stored it; the other one cannot know that, and stored it again. Also after
    further attempts that were refused."""
    options: Any = SimpleNamespace(
        backoff=SimpleNamespace(seconds=lambda _: 0.0), send_attempts_max=10, delivery_timeout_ms=1_000
    )
    pool: Any = SimpleNamespace(options=options, closed=False, has_nodes=lambda _broker: False)
    error = TroveError(errors.OS_PAGE_CACHE_BUSY)
    refused = AppendOutcome(1, "", error, 0, 0, 0, 0, "", b"", "b1")
    chooser: Any = SimpleNamespace(next=lambda: Slot("b2", 0))
    in_flight: Any = None
    delivery = Delivery(pool, chooser, in_flight, lambda _: None, retry_in_doubt=True)
    now = asyncio.get_running_loop().time()
    batch = Batch("orders", delivery, Slot("b1", 0), deadline=now + 60, movable=True)
    delivery.batch_failed(batch, TroveError(errors.BROKER_UNREACHABLE, "broke"), in_doubt)
    delivery.batch_refused(batch, refused)
    assert batch.slot.broker == ("b1" if in_doubt else "b2")


async def test_no_answer_in_time(broker: FakeServer, connect: Connect) -> None:
    async def never(frame: message_pb2.AppendFrame) -> None:
        return None

    client = await connect(broker)
    await client.send("orders", b"w")  # the stream is open: the next frame leaves at once
    options = client._pool.options
    client._pool.options = replace(options, delivery_timeout_ms=200)
    broker.on_frame = never
    with pytest.raises(TroveError) as failure:
        await client.send("orders", b"x")
    assert failure.value.spec is errors.REQUEST_TIMEOUT
    assert failure.value.fields["in_doubt"] == "true"
    broker.on_frame, client._pool.options = None, options
    await client.send("orders", b"y")
    assert broker.streams == 1


@pytest.mark.parametrize("batch", [False, True])
async def test_changed_settings_are_learned_once(broker: FakeServer, connect: Connect, batch: bool) -> None:
    """The broker wants IPv6 store hosts and property CRCs now, and the client has not heard of it."""
    client = await connect(broker)
    await client.send("orders", b"old form")
    changed = broker.route({"orders": 4}, store_host_ipv6=True, append_property_crc=True)
    broker.routes = [changed]  # watchers are not notified

    async def hook(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        wide = all(flags & 0x20 for flags in RecordBatch.split(frame.records).sys_flags.tolist())
        if not wide:
            return broker.refusal(frame, TroveError(errors.BATCH_ILLEGAL, "host form"))
        return broker.acknowledgement(frame)

    broker.on_frame = hook
    async with client.producer("orders") as producer:
        if batch:
            await producer.send_batch([b"a", b"b"])
        else:
            await producer.send(b"a")
    assert len(broker.frames) == 3
    last = RecordBatch.split(broker.frames[-1].records)
    assert b"__CRC32#\x01" in bytes(last.record(0))


async def test_an_illegal_batch_is_not_repeated(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    refuse(broker, TroveError(errors.BATCH_ILLEGAL, "crc"), times=99)
    with pytest.raises(TroveError) as refused:
        await client.send("orders", b"x")
    assert refused.value.message == "crc"
    assert len(broker.frames) == 1


async def test_route_changes_are_followed(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    nameserver.set_routes(broker.route({"orders": 1}))
    client = await connect(nameserver)
    assert (await client.send("orders", b"x")).broker == "b1"
    nameserver.set_routes(other.route({"orders": 1}))
    while (await client.send("orders", b"x")).broker == "b1":
        pass
    nameserver.set_routes(broker.route({"orders": 2}), other.route({"orders": 2}))
    seen: set[tuple[str, int]] = set()
    while len(seen) < 4:
        receipt = await client.send("orders", b"x")
        seen.add((receipt.broker, receipt.queue_id))


async def test_a_new_topic_is_looked_up(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    broker.routes = [broker.route({"orders": 4, "fresh": 2})]
    receipts = [await client.send("fresh", b"x") for _ in range(2)]
    assert {receipt.queue_id for receipt in receipts} == {0, 1}


async def test_an_unknown_topic_is_the_broker_s_to_judge(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    refuse(broker, TroveError(errors.TOPIC_NOT_FOUND, "no"), times=1)
    with pytest.raises(TroveError) as refused:
        await client.send("unknown", b"x")
    assert refused.value.spec is errors.TOPIC_NOT_FOUND
    await client.send("unknown", b"made by sending")


async def test_no_broker_at_all(nameserver: FakeServer, connect: Connect) -> None:
    client = await connect(nameserver, send_attempts_max=2)
    nameserver.set_routes()
    while client._pool.routes.state.brokers:
        await asyncio.sleep(0.001)
    with pytest.raises(TroveError) as failure:
        await client.send("elsewhere", b"x")
    assert failure.value.spec is errors.BROKER_NOT_FOUND


async def test_a_nameserver_that_misses_a_broker_hid_it_from_clients(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    """Each of two nameservers knows one broker: the client sends to both, also after one of them is gone."""
    nameserver.set_routes(broker.route({"orders": 1}))
    async with FakeServer("ns2", role="NAMESERVER") as second:
        second.set_routes(other.route({"orders": 1}))
        client = await connect(f"{nameserver.address},{second.address}")
        routes = client._pool.routes
        assert await routes.wait_until(lambda: len(routes.state.brokers) == 2, 30)
        assert {(await client.send("orders", b"x")).broker for _ in range(4)} == {"b1", "b2"}
        seen: list[int] = []
        routes.listen(lambda: seen.append(len(routes.state.brokers)))
        await nameserver.stop()
        second.set_routes(other.route({"orders": 2}))
        assert await routes.wait_until(lambda: len(routes.slots("orders")) == 3, 30)
        await client._pool.refresh()
        assert set(seen) == {2}, "nothing flaps"


async def test_nobody_hears_of_the_nameserver_that_does_not_answer(
    nameserver: FakeServer, connect: Connect
) -> None:
    server = f"127.0.0.1:{free_port()},{nameserver.address}"
    client = await connect(server)
    assert len(client._pool.routes.state.brokers) == 2
    await client._pool.refresh()
    assert (await client.send("orders", b"x")).broker in ("b1", "b2")


async def test_nothing_is_dialled_that_is_not_in_the_routes(broker: FakeServer, connect: Connect) -> None:
    """A broker given by its address is dialled there, not where it says it is."""
    broker.set_routes(broker.route({"orders": 1}, address="192.0.2.1:9"))
    client = await connect(broker)
    await client.send("orders", b"x")
    assert len(broker.frames) == 1


async def test_a_broker_that_leaves_may_still_acknowledge(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    client = await connect(nameserver)
    gate = asyncio.Event()

    async def hold(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        await gate.wait()
        return broker.acknowledgement(frame)

    broker.on_frame = hold
    waiting = asyncio.ensure_future(client.send("orders", b"x", broker="b1"))
    while not broker.frames:
        await asyncio.sleep(0.001)
    nameserver.set_routes(other.route({"orders": 4}))
    while client._pool.routes.find("b1"):
        await asyncio.sleep(0.001)
    assert (await client.send("orders", b"y")).broker == "b2"
    gate.set()
    assert (await waiting).broker == "b1"


async def test_a_reply_that_is_not_a_reply_ends_its_frames(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)

    async def nonsense(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        reply = broker.acknowledgement(frame)
        reply.store_host = b"short"
        return reply

    broker.on_frame = nonsense
    with pytest.raises((TroveError, AssertionError)):
        await client.send("orders", b"x")
    broker.on_frame = None
    await client.send("orders", b"y")
