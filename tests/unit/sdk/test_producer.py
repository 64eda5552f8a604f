"""Batching, linger, back-pressure, queues, receipts: the producer's bytes on the wire."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import PartialBatchError, TroveError
from trovemq_proto import errors
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_proto.records import encode_offset_msg_id, pack_host
from trovemq_proto.records.hashes import group_queue
from trovemq_proto.v1 import message_pb2

pytestmark = pytest.mark.asyncio


async def test_a_message_arrives_as_it_was_sent(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    receipt = await client.send(
        "orders", b"body", keys=["a", "b"], tag="paid", properties={"colour": "red"}, queue_id=2
    )
    (message,) = broker.messages()
    assert (message.topic, message.queue_id, message.body) == ("orders", 2, b"body")
    assert (message.keys, message.tags) == (("a", "b"), "paid")
    assert message.properties["colour"] == "red"
    assert message.message_id == receipt.message_id
    assert len(receipt.message_id) == 34
    assert (receipt.topic, receipt.queue_id, receipt.queue_offset) == ("orders", 2, 0)
    assert (receipt.durability, receipt.status, receipt.broker) == ("disk", "PUT_OK", "b1")
    assert receipt.offset_msg_id == encode_offset_msg_id(pack_host(broker.address), LOG_ORIGIN)


@pytest.mark.parametrize("queue_id", [-1, 2**31, 2**70])
async def test_a_queue_that_no_record_can_name(broker: FakeServer, connect: Connect, queue_id: int) -> None:
    client = await connect(broker)
    with pytest.raises(TroveError, match="QUEUE_NOT_FOUND"):
        await client.send("orders", b"body", queue_id=queue_id)
    with pytest.raises(TroveError, match="QUEUE_NOT_FOUND"):
        await anext(client.pull("orders", queue_id=queue_id))


@pytest.mark.parametrize("topic", ["a" * 128, "a" * 40_000, "\ud800"])
async def test_a_topic_that_no_record_can_carry(broker: FakeServer, connect: Connect, topic: str) -> None:
    client = await connect(broker)
    with pytest.raises(TroveError, match="TOPIC_ILLEGAL"):
        await client.send(topic, b"body")
    assert broker.frames == []


@pytest.mark.parametrize("queue_count", [-1, 0, 1025, 2**70])
async def test_a_queue_count_out_of_range(broker: FakeServer, connect: Connect, queue_count: int) -> None:
    client = await connect(broker)
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        await client.admin.create_topic("new", queue_count=queue_count)
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        await client.admin.alter_topic("orders", queue_count=queue_count)


async def test_messages_sent_together_share_a_frame(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    await client.send("orders", b"opens the stream")
    receipts = await asyncio.gather(*(client.send("orders", b"%d" % i) for i in range(50)))
    assert [len(broker.frames), broker.streams] == [2, 1]
    assert [message.body for message in broker.messages()[1:]] == [b"%d" % i for i in range(50)]
    assert len({receipt.message_id for receipt in receipts}) == 50
    assert [receipt.queue_offset for receipt in receipts] == list(
        range(receipts[0].queue_offset, receipts[0].queue_offset + 50)
    )
    sizes = [message.store_size for message in broker.messages()[1:]]
    positions = [receipt.physical_offset for receipt in receipts]
    assert [b - a for a, b in pairwise(positions)] == sizes[:-1]


async def test_linger_waits_for_company_and_flush_does_not(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.producer("orders", linger_ms=60_000) as producer:
        future = producer.send_nowait(b"one")
        for _ in range(20):
            await asyncio.sleep(0)
        assert broker.frames == []
        producer.send_nowait(b"two")
        await producer.flush()
        assert future.done()
        assert [message.body for message in broker.messages()] == [b"one", b"two"]
        assert len(broker.frames) == 1


async def test_linger_ends_by_itself(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.producer("orders", linger_ms=5) as producer:
        first, second = await asyncio.gather(producer.send(b"one"), producer.send(b"two"))
    assert (second.queue_id, second.queue_offset) == (first.queue_id, first.queue_offset + 1)


async def test_a_full_batch_leaves_before_its_linger_ends(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.producer("orders", linger_ms=60_000, batch_bytes_max=10_000) as producer:
        futures = [producer.send_nowait(bytes(1000)) for _ in range(20)]
        await asyncio.wait_for(futures[0], 30)
        await producer.flush()
    assert len(broker.frames) > 1
    assert all(len(frame.records) <= 10_000 for frame in broker.frames)


async def test_batches_take_turns_on_the_queues(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    queues = [(await client.send("orders", b"x")).queue_id for _ in range(8)]
    assert sorted(queues[:4]) == [0, 1, 2, 3]
    assert queues[:4] == queues[4:]


async def test_an_ordering_key_stays_on_its_queue(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    keys = [f"key-{i}" for i in range(40)]
    receipts = await asyncio.gather(*(client.send("orders", b"x", ordering_key=key) for key in keys))
    assert [receipt.queue_id for receipt in receipts] == [group_queue(key, 4) for key in keys]


async def test_ordered_batches_go_one_after_the_other(broker: FakeServer, connect: Connect) -> None:
    """The first attempt is refused; nothing of the same queue may be stored before the second."""
    client = await connect(broker)
    refused = False

    async def refuse_once(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        nonlocal refused
        if not refused:
            refused = True
            return broker.refusal(frame, TroveError(errors.OS_PAGE_CACHE_BUSY))
        return broker.acknowledgement(frame)

    broker.on_frame = refuse_once
    async with client.producer("orders", batch_bytes_max=1_000) as producer:
        futures = [producer.send_nowait(b"%d" % i, ordering_key="k") for i in range(30)]
        await producer.flush()
    offsets = [future.result().queue_offset for future in futures]
    assert offsets == list(range(30))


async def test_back_pressure(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    gate = asyncio.Event()

    async def hold(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        await gate.wait()
        return broker.acknowledgement(frame)

    broker.on_frame = hold
    async with client.producer("orders", in_flight_bytes_max=10_000) as producer:
        held = [producer.send_nowait(bytes(2000)) for _ in range(4)]
        with pytest.raises(TroveError) as refused:
            producer.send_nowait(bytes(2000))
        assert refused.value.spec is errors.LIMIT_EXCEEDED
        waiting = [asyncio.ensure_future(producer.send(bytes(2000))) for _ in range(6)]
        cancelled = waiting.pop(2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert producer.in_flight_bytes <= 10_000
        cancelled.cancel()
        gate.set()
        await asyncio.gather(*held, *waiting)
        await producer.ready(9_000)
    assert producer.in_flight_bytes == 0
    assert len(broker.messages()) == 9


async def test_a_message_larger_than_the_space_goes_alone(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.producer("orders", in_flight_bytes_max=1_000) as producer:
        receipts = await asyncio.gather(*(producer.send(bytes(5_000)) for _ in range(3)))
    assert len(receipts) == 3


async def test_a_message_taken_back_in_time_is_not_sent(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.producer("orders", linger_ms=60_000) as producer:
        futures = [producer.send_nowait(b"%d" % i) for i in range(3)]
        futures[1].cancel()
        await producer.flush()
        alone = producer.send_nowait(b"alone")
        alone.cancel()
        await producer.flush()
        assert producer.in_flight_bytes == 0
    assert [message.body for message in broker.messages()] == [b"0", b"2"]
    assert futures[2].result().queue_offset == 1


async def test_one_way_messages_have_no_receipt(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.producer("orders") as producer:
        producer.send_oneway(b"fire")
        await producer.flush()
        await producer.send(b"and wait")  # after the first on the same stream
    assert [(frame.one_way, len(frame.records) > 0) for frame in broker.frames] == [
        (True, True),
        (False, True),
    ]
    assert producer.in_flight_bytes == 0


async def test_send_batch_is_one_frame_of_columns(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    bodies = [b"%d" % i * (i % 7 + 1) for i in range(500)]
    async with client.producer("orders") as producer:
        receipt = await producer.send_batch(bodies, keys=[f"k{i}" for i in range(500)], tags="t", queue_id=3)
    messages = broker.messages()
    assert [message.body for message in messages] == bodies
    assert [message.keys for message in messages] == [(f"k{i}",) for i in range(500)]
    assert {message.tags for message in messages} == {"t"}
    assert len(broker.frames) == 1
    assert receipt.message_ids == [message.message_id for message in messages]
    assert receipt.queue_offsets.tolist() == list(range(500))
    assert receipt.physical_offsets.tolist() == [item.physical_offset for item in receipt]
    assert receipt[-1] == list(receipt)[499]
    assert receipt[10:12] == list(receipt)[10:12]
    assert receipt.durability == "disk"
    assert set(receipt.queue_ids.tolist()) == {3}


async def test_a_batch_over_the_broker_s_limit_is_split(broker: FakeServer, connect: Connect) -> None:
    broker.set_routes(broker.route({"orders": 4}, batch_size_max=20_000))
    client = await connect(broker)
    bodies = [bytes([i % 256]) * (i * 37 % 3_000) for i in range(100)]
    async with client.producer("orders") as producer:
        receipt = await producer.send_batch(bodies, keys=[[f"k{i}", "all"] for i in range(100)])
    assert len(broker.frames) > 5
    assert all(len(frame.records) <= 20_000 for frame in broker.frames)
    assert [message.body for message in broker.messages()] == bodies
    assert len(receipt) == 100
    assert [item.queue_offset for item in receipt] == receipt.queue_offsets.tolist()
    assert [receipt[i].physical_offset for i in range(100)] == receipt.physical_offsets.tolist()
    assert [receipt[i].message_id for i in range(100)] == receipt.message_ids


async def test_a_split_batch_says_which_part_is_stored(broker: FakeServer, connect: Connect) -> None:
    broker.set_routes(broker.route({"orders": 1}, batch_size_max=4_000))
    client = await connect(broker)

    async def refuse_second(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        if len(broker.frames) == 2:
            return broker.refusal(frame, TroveError(errors.STORE_FAILED, "no"))
        return broker.acknowledgement(frame)

    broker.on_frame = refuse_second
    async with client.producer("orders") as producer:
        with pytest.raises(PartialBatchError) as failure:
            await producer.send_batch([bytes(1_000)] * 6, message_ids=[f"u{i}" for i in range(6)])
    assert failure.value.spec is errors.STORE_FAILED
    stored = [f"u{i}" for i in failure.value.indexes]
    assert failure.value.receipts.message_ids == stored
    assert 0 < len(stored) < 6


@pytest.mark.parametrize(
    ("arguments", "spec"),
    [
        ({"keys": ["a b"]}, errors.KEY_ILLEGAL),
        ({"keys": "a\x01"}, errors.KEY_ILLEGAL),
        ({"tag": "a|b"}, errors.TAG_ILLEGAL),
        ({"message_id": "a b"}, errors.UNIQUE_KEY_ILLEGAL),
        ({"properties": {"KEYS": "x"}}, errors.PROPERTY_ILLEGAL),
        ({"properties": {"x": "y" * 40_000}}, errors.PROPERTIES_SIZE_EXCEEDED),
        ({"body": bytes((4 << 20) + 1)}, errors.MESSAGE_SIZE_EXCEEDED),
        ({"queue_id": -1}, errors.QUEUE_NOT_FOUND),
    ],
)
async def test_what_cannot_be_sent_is_refused_before_it_leaves(
    broker: FakeServer, connect: Connect, arguments: dict[str, Any], spec: errors.ErrorSpec
) -> None:
    client = await connect(broker)
    with pytest.raises(TroveError) as refused:
        await client.send("orders", **{"body": b"x", **arguments})
    assert refused.value.spec is spec
    await client.send("orders", b"fine")
    assert [message.body for message in broker.messages()] == [b"fine"]


@pytest.mark.parametrize(
    ("arguments", "spec"),
    [
        ({"keys": ["a", "b c"]}, errors.KEY_ILLEGAL),
        ({"keys": ["a"]}, errors.REQUEST_ILLEGAL),
        ({"keys": "ab"}, errors.REQUEST_ILLEGAL),
        ({"tags": ["a|b", None]}, errors.TAG_ILLEGAL),
    ],
)
async def test_an_illegal_batch_is_refused_whole(
    broker: FakeServer, connect: Connect, arguments: dict[str, Any], spec: errors.ErrorSpec
) -> None:
    client = await connect(broker)
    async with client.producer("orders") as producer:
        with pytest.raises(TroveError) as refused:
            await producer.send_batch([b"1", b"2"], **arguments)
        assert refused.value.spec is spec
        assert producer.in_flight_bytes == 0
        assert len(await producer.send_batch([])) == 0
    assert broker.frames == []


async def test_text_is_not_a_body(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    with pytest.raises(TypeError):
        await client.send("orders", "text")  # type: ignore[arg-type]


async def test_a_closed_producer_sends_nothing(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.producer("orders") as producer:
        pass
    for sending in (producer.send(b"x"), producer.send_batch([b"x"])):
        with pytest.raises(TroveError) as refused:
            await sending
        assert refused.value.spec is errors.CLIENT_CLOSED


async def test_closing_the_client_fails_what_is_in_flight(broker: FakeServer, connect: Connect) -> None:
    async def never(frame: message_pb2.AppendFrame) -> None:
        return None

    broker.on_frame = never
    client = await connect(broker)
    producer = client.producer("orders")
    future = producer.send_nowait(b"x")
    while not broker.frames:
        await asyncio.sleep(0)
    await client.close()
    with pytest.raises(TroveError):
        await future
    assert producer.in_flight_bytes == 0
