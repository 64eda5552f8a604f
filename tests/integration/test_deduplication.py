"""Idempotent produce against real brokers: every way of sending, two connections, command line, flights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import trovemq
from deploy.demo.flights import FLIGHT_COUNT, flight_messages
from tests.support.command_line import run_here
from tests.support.rocketmq_client import RawClient
from tests.support.trials import SOAK
from trovemq import Client, TroveError, errors
from trovemq.testing import BrokerProcess
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

FRAME = 2_000 if SOAK else 500
FLIGHTS = FLIGHT_COUNT if SOAK else 20_000


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with trovemq.connect(broker.address) as connected:
        yield connected


async def make(client: Client, topic: str, message_type: str = "NORMAL", window: str = "1h") -> str:
    await client.admin.create_topic(topic, 2, message_type, options={"deduplicate": window})
    return topic


async def stored_ids(client: Client, topic: str) -> list[str]:
    return [
        message.unique_key or ""
        for queue_id in range(2)
        async for message in client.pull(topic, queue_id=queue_id)
    ]


async def test_a_known_id_is_answered_with_the_place_of_the_original(client: Client) -> None:
    topic = await make(client, "known")
    first = await client.send(topic, b"1", message_id="a", queue_id=1)
    for queue_id in (0, 1):
        again = await client.send(topic, b"2", message_id="a", queue_id=queue_id)
        assert again.duplicate
        assert (again.queue_id, again.queue_offset) == (1, first.queue_offset)
        assert (again.physical_offset, again.offset_msg_id) == (first.physical_offset, first.offset_msg_id)
        assert again.store_timestamp == first.store_timestamp
    assert not first.duplicate
    other = await client.send(topic, b"3", message_id="b", queue_id=1)
    assert other.queue_offset == first.queue_offset + 1, "a duplicate uses up no queue offset"


async def test_each_message_of_a_batch_has_its_own_answer(client: Client) -> None:
    topic = await make(client, "batched")
    first = await client.send(topic, b"body of b", message_id="b", queue_id=1)
    ids = ["a", "b", "c", "a", "d"]
    async with client.producer(topic) as producer:
        receipt = await producer.send_batch(
            [b"body of " + each.encode() for each in ids], message_ids=ids, queue_id=0
        )
    assert receipt.duplicates.tolist() == [False, True, False, True, False]
    assert receipt.queue_ids.tolist() == [0, 1, 0, 0, 0]
    assert receipt.queue_offsets.tolist() == [0, first.queue_offset, 1, 0, 2]
    for index, each in enumerate(receipt):
        assert each == receipt[index]
        assert each.physical_offset == receipt.physical_offsets[index]
        message = await client.get_at(topic, each.queue_id, each.queue_offset)
        assert (message.unique_key, message.physical_offset) == (ids[index], each.physical_offset)
        assert message.body == b"body of " + ids[index].encode()


async def test_of_sends_on_two_connections_at_once_one_is_stored(
    broker: BrokerProcess, client: Client
) -> None:
    topic = await make(client, "raced")
    async with trovemq.connect(broker.address) as second:
        for number in range(40):
            one, two = await asyncio.gather(
                *(each.send(topic, b"body", message_id=f"id-{number}") for each in (client, second))
            )
            assert sorted((one.duplicate, two.duplicate)) == [False, True]
            assert (one.queue_id, one.queue_offset) == (two.queue_id, two.queue_offset)
    assert sorted(await stored_ids(client, topic)) == sorted(f"id-{number}" for number in range(40))


async def test_unary_sends_that_share_an_append_are_distinguished(
    client: Client, broker: BrokerProcess
) -> None:
    from tests.support.broker_process import Stubs
    from trovemq_proto.v1 import message_pb2

    topic = await make(client, "unary")
    async with Stubs(broker.address) as stubs:

        def send(unique_key: str) -> Any:
            message = message_pb2.OutgoingMessage(body=b"x", unique_key=unique_key)
            return stubs.messages.Send(message_pb2.SendRequest(topic=topic, queue_id=0, messages=[message]))

        replies = await asyncio.gather(*(send(f"u-{number % 5}") for number in range(30)))
    offsets: dict[int, set[tuple[int, int]]] = {}
    for number, reply in enumerate(replies):
        place = (reply.first_queue_offset, reply.physical_offset)
        offsets.setdefault(number % 5, set()).add(place)
    assert all(len(places) == 1 for places in offsets.values())
    assert sum(reply.duplicate for reply in replies) == 25
    assert len(await stored_ids(client, topic)) == 5


async def test_rocketmqs_clients_are_answered_with_the_original(
    client: Client, broker: BrokerProcess
) -> None:
    topic = await make(client, "official", "MIXED")
    with RawClient(broker.address) as raw:
        plain = [raw.send(topic, b"1", message_id="plain") for _ in range(2)]
        assert [each.entries[0].offset for each in plain] == [0, 0]
        timestamp = datetime.now(UTC) + timedelta(minutes=10)
        delayed = [
            raw.send(topic, b"2", message_id="late", message_type=v2.DELAY, delivery_timestamp=timestamp)
            for _ in range(2)
        ]
        half = [raw.send(topic, b"3", message_id="half", message_type=v2.TRANSACTION) for _ in range(2)]
        for replies in (plain, delayed, half):
            assert [reply.status.code for reply in replies] == [v2.OK, v2.OK]
            assert replies[0].entries[0].offset == replies[1].entries[0].offset
    for unique_key in ("plain", "late", "half"):
        assert (await client.send(topic, b"again", message_id=unique_key)).duplicate
    assert await stored_ids(client, topic) == ["plain"]


async def test_a_delayed_duplicates_handle_recalls_the_original_and_frees_its_id(
    client: Client,
) -> None:
    topic = await make(client, "recalled", "MIXED")
    due = datetime.now(UTC) + timedelta(minutes=10)
    async with client.producer(topic) as producer:
        first = await producer.send(b"1", message_id="late", deliver_at=due)
        again = await producer.send(b"2", message_id="late", deliver_at=due + timedelta(minutes=1))
        assert again.recall_handle == first.recall_handle
        assert await client.recall(topic, again.recall_handle or "") == "late"
        with pytest.raises(TroveError) as caught:
            await producer.send(b"3", message_id="late", deliver_at=due)
        assert caught.value.spec is errors.DELIVERY_TIME_ILLEGAL
        other = await producer.send(b"4", message_id="late", deliver_at=due + timedelta(minutes=1))
        assert other.recall_handle != first.recall_handle
        await producer.send(b"plain", message_id="here")
        assert (await producer.send(b"5", message_id="here", deliver_at=due)).recall_handle in (None, "")
    assert (await client.send(topic, b"6", message_id="late")).duplicate
    assert await stored_ids(client, topic) == ["here"]


async def test_ids_stored_before_the_option_count_when_it_is_switched_on(client: Client) -> None:
    await client.admin.create_topic("later", 2)
    first = await client.send("later", b"1", message_id="a")
    await client.send("later", b"1", message_id="b")
    await client.admin.alter_topic("later", options={"deduplicate": "1h"})
    again = await client.send("later", b"2", message_id="a")
    assert (again.duplicate, again.physical_offset) == (True, first.physical_offset)
    await client.admin.alter_topic("later", options={"deduplicate": "off"})
    assert not (await client.send("later", b"3", message_id="a")).duplicate


async def test_a_topic_that_is_recreated_knows_nothing(client: Client) -> None:
    topic = await make(client, "remade")
    await client.send(topic, b"1", message_id="a")
    await client.admin.delete_topic(topic)
    await make(client, topic)
    assert not (await client.send(topic, b"1", message_id="a")).duplicate


@pytest.mark.parametrize("size", [0, 4_096])
async def test_an_id_of_no_or_too_many_bytes_is_refused(client: Client, size: int) -> None:
    topic = await make(client, f"sizes{size}")
    with pytest.raises(TroveError) as caught:
        await client.send(topic, b"1", message_id="x" * size)
    assert caught.value.spec is errors.UNIQUE_KEY_ILLEGAL


async def test_the_command_line_shows_duplicates_and_applies_options(
    client: Client, broker: BrokerProcess, tmp_path: Path
) -> None:
    wanted = {"topics": [{"name": "applied", "options": {"deduplicate": "1h"}}]}
    file = tmp_path / "topics.json"
    file.write_text(json.dumps(wanted))

    def run(*arguments: str) -> dict[str, Any]:
        code, out, err = run_here(broker.address, *arguments)
        assert code == 0, err
        answer: dict[str, Any] = json.loads(out)
        return answer

    assert (await asyncio.to_thread(run, "apply", str(file)))["change"] == "created"
    assert (await asyncio.to_thread(run, "apply", str(file)))["change"] == "unchanged"
    first = await asyncio.to_thread(run, "send", "applied", "body", "--message-id", "order-1")
    again = await asyncio.to_thread(run, "send", "applied", "body", "--message-id", "order-1")
    assert "duplicate" not in first
    assert again["duplicate"] is True
    assert again["offsetMsgId"] == first["offsetMsgId"]
    wanted["topics"][0]["options"] = {"deduplicate": "2h"}
    file.write_text(json.dumps(wanted))
    altered = await asyncio.to_thread(run, "apply", str(file))
    assert (altered["change"], altered["details"]) == ("altered", ["deduplicate 2h"])
    (described,) = await client.admin.describe_topic("applied")
    assert described.options == {"deduplicate": "2h"}


async def test_without_the_index_such_a_topic_is_not_made(tmp_path: Path) -> None:
    with BrokerProcess(tree_index_enable="false") as without:
        async with trovemq.connect(without.address) as connected:
            with pytest.raises(TroveError) as caught:
                await make(connected, "refused")
            assert caught.value.spec is errors.INDEX_DISABLED
            await connected.admin.create_topic("plain")
            with pytest.raises(TroveError) as caught:
                await connected.admin.alter_topic("plain", options={"deduplicate": "1h"})
            assert caught.value.spec is errors.INDEX_DISABLED


async def test_flights_loaded_twice_are_stored_once(client: Client) -> None:
    await client.admin.create_topic("flights", 8, options={"deduplicate": "7d"})
    frames: dict[int, list[Any]] = {}
    for row in islice(flight_messages(), FLIGHTS):
        frames.setdefault(row.queue_id, []).append(row)

    async def load() -> list[Any]:
        async with client.producer("flights") as producer:
            calls = [
                producer.send_batch(
                    [row.body for row in rows[begin : begin + FRAME]],
                    keys=[row.keys for row in rows[begin : begin + FRAME]],
                    tags=[row.tag for row in rows[begin : begin + FRAME]],
                    message_ids=[row.message_id for row in rows[begin : begin + FRAME]],
                    queue_id=queue_id,
                )
                for queue_id, rows in frames.items()
                for begin in range(0, len(rows), FRAME)
            ]
            return list(await asyncio.gather(*calls))

    first = await load()
    (before,) = await client.admin.describe_topic("flights")
    second = await load()
    (after,) = await client.admin.describe_topic("flights")
    assert sum(len(one) for one in first) == FLIGHTS
    assert not any(one.duplicates.any() for one in first)
    for one, two in zip(first, second, strict=True):
        assert two.duplicates.all()
        assert (one.queue_offsets == two.queue_offsets).all()
        assert (one.physical_offsets == two.physical_offsets).all()
        assert (one.queue_ids == two.queue_ids).all()
    assert before.queues == after.queues, "the second load added nothing"
