"""Numbered messages on their way: each broker has its own row, and a message keeps its number there."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import TroveError
from trovemq._produce.sequences import OVERHEAD, SequenceAssigner
from trovemq_proto import errors
from trovemq_proto.records import RecordBatch, encode_properties
from trovemq_proto.v1 import message_pb2

pytestmark = pytest.mark.asyncio


def frames(broker: FakeServer) -> list[list[tuple[str, int]]]:
    """Of each frame, its messages: unique key and number."""
    return [
        [
            (message.message_id or "", int(message.properties["TROVEMQ_SEQUENCE"]))
            for message in RecordBatch.split(frame.records).messages()
        ]
        for frame in broker.frames
    ]


async def test_numbers_continue_from_what_the_broker_says_and_it_is_asked_once(
    broker: FakeServer, connect: Connect
) -> None:
    broker.next_sequence = 7
    client = await connect(broker)
    async with client.producer("orders", producer_id="p") as producer:
        await asyncio.gather(*(producer.send(b"x") for _ in range(20)), producer.send_batch([b"y"] * 5))
        await producer.send(b"z")
    numbers = [number for frame in frames(broker) for _, number in frame]
    assert numbers == list(range(7, 33))
    assert broker.producers == ["p"]
    assert {message.properties["TROVEMQ_PRODUCER"] for message in broker.messages()} == {"p"}


async def test_two_producers_have_ids_of_their_own(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    for _ in range(2):
        async with client.producer("orders", idempotent=True) as producer:
            await producer.send(b"x")
    assert len(set(broker.producers)) == 2


@pytest.mark.parametrize("columns", [False, True])
async def test_what_is_sent_again_keeps_its_number(
    broker: FakeServer, connect: Connect, columns: bool
) -> None:
    client = await connect(broker, send_attempts_max=10_000)
    stopping: list[asyncio.Task[None]] = []

    async def hook(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply | None:
        if len(broker.frames) == 2 and not stopping:
            stopping.append(asyncio.create_task(broker.stop()))
            return None
        if len(broker.frames) == 3:
            return broker.refusal(frame, TroveError(errors.OS_PAGE_CACHE_BUSY))
        return broker.acknowledgement(frame)

    broker.on_frame = hook
    async with client.producer("orders", idempotent=True) as producer:
        await producer.send(b"first")
        send = producer.send_batch([b"x", b"y"]) if columns else producer.send(b"x")
        waiting = asyncio.ensure_future(send)
        while not stopping:
            await asyncio.sleep(0.001)
        await stopping[0]
        await broker.start()
        await waiting
        await producer.send(b"last")
    first, lost, refused, stored, last = frames(broker)
    assert lost == refused == stored
    assert [number for _, number in (*first, *stored, *last)] == list(range(4 if columns else 3))


@pytest.mark.parametrize("columns", [False, True])
async def test_what_is_too_old_to_be_judged_is_sent_with_a_new_number(
    broker: FakeServer, connect: Connect, columns: bool
) -> None:
    client = await connect(broker)

    async def hook(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        if len(broker.frames) == 1:
            return broker.refusal(frame, TroveError(errors.PRODUCER_SEQUENCE_TOO_OLD))
        return broker.acknowledgement(frame)

    broker.on_frame = hook
    async with client.producer("orders", idempotent=True) as producer:
        await (producer.send_batch([b"x", b"y"]) if columns else producer.send(b"x"))
    refused, stored = frames(broker)
    assert [key for key, _ in refused] == [key for key, _ in stored]
    assert [number for _, number in stored] == [number + len(refused) for _, number in refused]


@pytest.mark.parametrize("columns", [False, True])
async def test_receipts_say_which_numbers_are_missing_before_a_message(
    broker: FakeServer, connect: Connect, columns: bool
) -> None:
    client = await connect(broker)

    async def hook(frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        reply = broker.acknowledgement(frame)
        reply.sequence_gaps.add(index=0, first=3, last=3)
        reply.sequence_gaps.add(index=2, first=5, last=8)
        reply.duplicates.add(index=1)
        return reply

    broker.on_frame = hook
    async with client.producer("orders", idempotent=True) as producer:
        if columns:
            batch = await producer.send_batch([b"x"] * 4)
            assert batch.sequence_gaps == {0: range(3, 4), 2: range(5, 9)}
            receipts = list(batch)
            assert batch[2] == receipts[2]
        else:
            receipts = await asyncio.gather(*(producer.send(b"x", queue_id=0) for _ in range(4)))
    assert [receipt.sequence_gap for receipt in receipts] == [range(3, 4), range(0), range(5, 9), range(0)]
    assert [receipt.duplicate for receipt in receipts] == [False, True, False, False]


async def test_a_broker_silent_on_where_the_producer_stands_is_asked_again(
    broker: FakeServer, connect: Connect
) -> None:
    client = await connect(broker)
    broker.next_sequence = TroveError(errors.OS_PAGE_CACHE_BUSY)
    async with client.producer("orders", producer_id="p") as producer:
        waiting = asyncio.ensure_future(producer.send(b"x"))
        while len(broker.producers) < 2:
            await asyncio.sleep(0.001)
        broker.next_sequence = 3
        await waiting
        assert frames(broker)[0][0][1] == 3
    broker.next_sequence = TroveError(errors.REQUEST_ILLEGAL, "not deduplicated")
    async with client.producer("orders", producer_id="q") as producer:
        with pytest.raises(TroveError) as caught:
            await producer.send(b"x")
        assert caught.value.spec is errors.REQUEST_ILLEGAL


async def test_an_aborted_producer_waits_for_nothing(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    broker.next_sequence = TroveError(errors.OS_PAGE_CACHE_BUSY)
    producer = client.producer("orders", producer_id="p")
    waiting = asyncio.ensure_future(producer.send(b"x"))
    while not broker.producers:
        await asyncio.sleep(0.001)
    await producer.abort()
    with pytest.raises(TroveError) as caught:
        await waiting
    assert caught.value.spec is errors.CLIENT_CLOSED
    assert not broker.frames


async def test_the_two_encodings_of_a_number_agree() -> None:
    sequence_assigner = SequenceAssigner("p" * 64, "u" * 64)
    sequence_assigner.begin("b", 2**63 - 2)
    sequence_assigner.begin("b", 0)
    (sequence,) = sequence_assigner.take("b", 1)
    (properties,) = sequence_assigner.with_numbers({"a": "1"}, range(sequence, sequence + 1))
    assert encode_properties(properties) == encode_properties({"a": "1"}) + sequence_assigner.block(sequence)
    assert len(sequence_assigner.block(sequence)) <= OVERHEAD
