"""Producers that number their messages, against real brokers: replays, gaps, kill -9, restarts of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

import trovemq
from tests.support.broker_process import running_broker
from tests.support.stubs import MESSAGES, stub_of
from trovemq import Client, TroveError, errors
from trovemq.testing import BrokerProcess, free_port
from trovemq_proto.records import Message, parse_properties
from trovemq_proto.v1 import message_pb2

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

QUEUES = 2


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with trovemq.connect(broker.address) as connected:
        yield connected


async def make(client: Client, topic: str) -> str:
    await client.admin.create_topic(topic, QUEUES, options={"deduplicate": "1h"})
    return topic


async def stored(client: Client, topic: str) -> list[Message]:
    return [message for queue_id in range(QUEUES) async for message in client.pull(topic, queue_id=queue_id)]


def stored_properties(message: Message) -> dict[str, str]:
    """With TroveMQ's own, which no receiver sees."""
    assert not any(name.startswith("TROVEMQ_") for name in message.properties)
    return parse_properties(message.property_block)


def sequences(messages: list[Message]) -> list[int]:
    return sorted(int(stored_properties(message)["TROVEMQ_SEQUENCE"]) for message in messages)


async def test_messages_are_numbered_in_each_way_of_sending(client: Client) -> None:
    topic = await make(client, "numbered")
    async with client.producer(topic, idempotent=True) as producer:
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(50)))
        await producer.send_batch([b"body"] * 30, properties={"colour": "red"})
        await producer.send_batch([b"body"] * 2, properties=[{"colour": "red"}, None], priority=3)
        producer.send_oneway(b"one way")
        await producer.send(b"last", properties={"colour": "red"}, ordering_key="k")
        await producer.flush()
        producer_id = producer.producer_id
    assert producer_id is not None
    found = await stored(client, topic)
    assert {stored_properties(message)["TROVEMQ_PRODUCER"] for message in found} == {producer_id}
    assert sequences(found) == list(range(84))
    assert sum(message.properties.get("colour") == "red" for message in found) == 32
    (next_sequence,) = (await client.admin.next_sequences(topic, producer_id)).values()
    assert next_sequence == 84


async def test_a_producer_continues_where_an_earlier_one_of_its_id_stopped(client: Client) -> None:
    topic = await make(client, "continued")
    for _ in range(3):
        async with client.producer(topic, producer_id="loader-1") as producer:
            assert not (await producer.send_batch([b"body"] * 5)).duplicates.any()
            assert not (await producer.send(b"body")).duplicate
    assert sequences(await stored(client, topic)) == list(range(18))


async def test_of_two_running_producers_of_one_id_one_is_refused(client: Client) -> None:
    topic = await make(client, "doubled")
    async with client.producer(topic, producer_id="p") as one, client.producer(topic, producer_id="p") as two:
        await one.send(b"1")
        await two.send(b"2")
        with pytest.raises(TroveError) as caught:
            await one.send(b"3")
        assert caught.value.spec is errors.PRODUCER_SEQUENCE_CONFLICT
    assert len(await stored(client, topic)) == 2


async def test_gaps_and_replays_are_distinguished(client: Client) -> None:
    topic = await make(client, "distinguished")

    async def send(sequence: int) -> bool:
        properties = {"TROVEMQ_PRODUCER": "app", "TROVEMQ_SEQUENCE": str(sequence)}
        receipt = await client.send(topic, b"body", properties=properties, message_id=f"m-{sequence}")
        return receipt.duplicate

    (before,) = await client.admin.statistics()
    replays = [await send(sequence) for sequence in (0, 3, 3, 1, 0, 4)]
    assert replays == [False, False, True, False, True, False]
    (after,) = await client.admin.statistics()
    counted = {name: after.counters[name] - before.counters[name] for name in after.counters}
    assert (counted["producer_missing"], counted["producer_filled"]) == (2, 1)
    await send(4 + 2_048)
    with pytest.raises(TroveError) as caught:
        await send(2)
    assert caught.value.spec is errors.PRODUCER_SEQUENCE_TOO_OLD


async def test_receipts_report_gaps_once(client: Client) -> None:
    topic = await make(client, "gaps-reported")

    def properties(sequence: int) -> dict[str, str]:
        return {"TROVEMQ_PRODUCER": "app", "TROVEMQ_SEQUENCE": str(sequence)}

    async def send(sequence: int) -> range:
        key = f"m-{sequence}"
        receipt = await client.send(
            topic, b"body", properties=properties(sequence), message_id=key, queue_id=0
        )
        return receipt.sequence_gap

    missing = [await send(sequence) for sequence in (0, 1, 5, 5, 2, 6)]
    assert missing == [range(0), range(0), range(2, 5), range(0), range(0), range(0)]
    async with client.producer(topic) as producer:
        rows = [properties(sequence) for sequence in (5, 7, 10, 9, 12)]
        keys = [f"m-{row['TROVEMQ_SEQUENCE']}" for row in rows]
        batch = await producer.send_batch([b"body"] * 5, properties=rows, message_ids=keys)
    assert batch.sequence_gaps == {2: range(8, 10), 4: range(11, 12)}
    assert batch.duplicates.tolist() == [True, False, False, False, False]
    assert batch[4].sequence_gap == range(11, 12)


async def test_a_unary_send_says_of_gaps_too(client: Client, broker: BrokerProcess) -> None:
    topic = await make(client, "gaps-unary")

    def request(*sequences: int) -> message_pb2.SendRequest:
        messages = [
            message_pb2.OutgoingMessage(
                body=b"x", properties={"TROVEMQ_PRODUCER": "app", "TROVEMQ_SEQUENCE": str(sequence)}
            )
            for sequence in sequences
        ]
        return message_pb2.SendRequest(topic=topic, queue_id=0, messages=messages)

    async with grpc.aio.insecure_channel(broker.address) as channel:
        service = stub_of(MESSAGES, channel)
        first = await service.Send(request(0))
        second = await service.Send(request(1, 4))
    assert not first.sequence_gaps
    assert [(gap.index, gap.first, gap.last) for gap in second.sequence_gaps] == [(1, 2, 3)]


@pytest.mark.parametrize(
    "properties",
    [
        {"TROVEMQ_PRODUCER": "p", "TROVEMQ_SEQUENCE": "-1"},
        {"TROVEMQ_PRODUCER": "p", "TROVEMQ_SEQUENCE": "one"},
        {"TROVEMQ_PRODUCER": "p", "TROVEMQ_SEQUENCE": str(2**63)},
        {"TROVEMQ_PRODUCER": "p" * 65, "TROVEMQ_SEQUENCE": "0"},
        {"TROVEMQ_PRODUCER": "p"},
        {"TROVEMQ_SEQUENCE": "0"},
    ],
)
async def test_what_is_not_a_number_is_refused(client: Client, properties: dict[str, str]) -> None:
    if "bad" not in {each.topic for each in await client.admin.list_topics()}:
        await make(client, "bad")
    with pytest.raises(TroveError) as caught:
        await client.send("bad", b"body", properties=properties)
    assert caught.value.spec is errors.PRODUCER_SEQUENCE_ILLEGAL
    assert await stored(client, "bad") == []


async def test_a_wrong_use_of_a_producer_is_named(client: Client) -> None:
    for producer_id in ("", "x" * 65, "a b", "ä"):
        with pytest.raises(TroveError) as caught:
            client.producer("any", producer_id=producer_id)
        assert caught.value.spec is errors.PRODUCER_SEQUENCE_ILLEGAL
    await client.admin.create_topic("plain", 1)
    async with client.producer("plain", idempotent=True) as producer:
        with pytest.raises(TroveError) as caught:
            await producer.send(b"body")
    assert caught.value.spec is errors.REQUEST_ILLEGAL
    assert "deduplicate" in caught.value.message


async def test_after_kill_9_what_was_in_doubt_is_sent_again_and_stored_once(tmp_path: Path) -> None:
    port = free_port()
    arguments = ("--listen", f"127.0.0.1:{port}")
    options = trovemq.ClientOptions(send_attempts_max=60, delivery_timeout_ms=60_000)
    with running_broker(tmp_path, arguments=arguments) as broker:
        async with trovemq.connect(broker.address, options=options) as client:
            topic = await make(client, "killed")
            async with client.producer(topic, producer_id="p") as producer:
                sends: list[asyncio.Task[Any]] = []

                async def send_on() -> None:
                    for number in range(3_000):
                        sends.append(asyncio.ensure_future(producer.send(b"%d" % number)))
                        if number % 20 == 0:
                            await asyncio.wait(sends[-40:], return_when=asyncio.FIRST_COMPLETED)

                sending = asyncio.ensure_future(send_on())
                while sum(send.done() for send in sends) < 500:
                    await asyncio.wait({sending}, timeout=0.01)
                broker.kill()
                with running_broker(tmp_path, arguments=arguments) as second:
                    await sending
                    receipts = await asyncio.gather(*sends)
                    found = await stored(client, topic)
                    assert sorted(int(message.body) for message in found) == list(range(3_000))
                    places = {(message.queue_id, message.queue_offset): message.body for message in found}
                    for number, receipt in enumerate(receipts):
                        assert places[receipt.queue_id, receipt.queue_offset] == b"%d" % number
                    (next_sequence,) = (await client.admin.next_sequences(topic, "p")).values()
                    assert next_sequence == max(sequences(found)) + 1
                    assert second.stop() == 0
