"""However much one frame or one request brings, or one client leaves behind, others have their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.consuming import GROUP, ConsumeClient, Got
from tests.support.engine import append, record
from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import ROOMY, TestBroker, message
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_daemon import turns as turns_module
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import consumer_pb2
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = fake_time


COUNT = 1_200
LARGE = replace(ROOMY, commit_log_file_size=4 << 20, consume_queue_file_size=20 * 4_096)


@pytest.fixture(autouse=True)
def every_step_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "TURN_S", 0.0)


async def parts_of(count: int, **group: Any) -> TestBroker:
    parts = TestBroker(LARGE, consumers=ConsumerSettings(new_group_start="begin"))
    parts.groups.create(SubscriptionGroup(GROUP, **group))
    for begin in range(0, count, 400):
        append(parts.store, *(record(b"x", unique_key=f"U{begin + n}") for n in range(400)))
        parts.store.dispatch()
    return parts


def settlement(got: list[Got], **fields: Any) -> consumer_pb2.Settlement:
    """Of messages under one receipt, side by side."""
    return consumer_pb2.Settlement(receipt=got[0].receipt, ranges=[got[0].offset, len(got)], **fields)


def by_receipt(got: list[Got]) -> list[list[Got]]:
    runs: dict[str, list[Got]] = {}
    for one in got:
        runs.setdefault(one.receipt, []).append(one)
    return list(runs.values())


async def passes_of(work: Awaitable[object]) -> int:
    """How often the loop passed on to others meanwhile."""
    task, passes = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0)
        passes += 1
    await task
    return passes


async def results_of(client: ConsumeClient) -> list[consumer_pb2.SettlementResult]:
    await turns(4 * COUNT)
    replies = [consumer_pb2.ConsumeReply.FromString(one) for one in client.context.written]
    client.context.written.clear()
    return [result for reply in replies for result in reply.results]


@pytest.mark.slow
async def test_dead_letters_of_one_frame_stopped_everybody() -> None:
    """Four thousand of 10 bytes took 435 ms, larger ones longer."""
    parts = await parts_of(COUNT, retry_max=0)
    client = ConsumeClient(parts)
    await client.open(COUNT)
    runs = by_receipt(client.messages())
    await client.say(settlements=[settlement(run, kind=consumer_pb2.RETURN) for run in runs])
    assert 0 < parts.delivery.dead_letter_count <= 40, "one in each pass of the loop"
    found = await results_of(client)
    assert len(found) == len(runs)
    assert not any(one.HasField("error") or one.refused for one in found)
    assert parts.delivery.dead_letter_count == COUNT
    await client.end()


@pytest.mark.parametrize("kind", [consumer_pb2.ACKNOWLEDGE, consumer_pb2.RETURN])
async def test_refusals_of_one_frame_stopped_everybody(kind: consumer_pb2.SettlementKind) -> None:
    parts = await parts_of(400)
    client = ConsumeClient(parts)
    await client.open(1)
    (got,) = client.messages()
    beyond = consumer_pb2.Settlement(receipt=got.receipt, ranges=[1 << 40, 4_000], kind=kind)
    before = parts.turns.turn_count
    await client.say(settlements=[beyond])
    (result,) = await results_of(client)
    assert [one.offset for one in result.refused] == list(range(1 << 40, (1 << 40) + 4_000))
    assert parts.turns.turn_count - before >= 7
    await client.end()


async def test_four_thousand_wrong_receipts_of_one_frame_stopped_everybody() -> None:
    client = ConsumeClient(parts := await parts_of(400))
    await client.open(1)
    client.messages()
    before = parts.turns.turn_count
    await client.say(settlements=[consumer_pb2.Settlement(receipt="1.2", ranges=[1, 1])] * 4_000)
    found = await results_of(client)
    assert {one.error.symbol for one in found} == {"RECEIPT_HANDLE_ILLEGAL"}
    assert len(found) == 4_000
    assert parts.turns.turn_count - before >= 7
    await client.end()


@pytest.mark.parametrize("stops", [False, True])
async def test_the_end_of_a_stream_with_many_batches_stopped_everybody(stops: bool) -> None:
    """Thirty-two thousand messages that its client had not named as received took 82 ms. A broker that stops
    does not wait."""
    parts = await parts_of(COUNT)
    client = ConsumeClient(parts)
    for _ in range(24):
        await client.say(
            start=consumer_pb2.ConsumeStart(invisible_ms=30_000), credit_messages=50, credit_bytes=1 << 20
        )
    assert parts.delivery.in_flight_count == COUNT
    client.serving.cancel()
    if stops:
        await turns(3)
        client.serving.cancel()
        await turns(3)
        assert client.serving.done()
    else:
        assert await passes_of(asyncio.wait([client.serving])) >= 24
    parts.now_ms += 1_000
    again = 0
    while found := await parts.messages():
        again += len(found)
    assert again == COUNT


async def test_a_thousand_messages_of_one_send_stopped_everybody() -> None:
    """With all the properties that they may have, for 124 ms."""
    parts = await parts_of(0)
    sent = [message(b"x", message_id=f"M{number}") for number in range(1_024)]
    assert await passes_of(parts.send(*sent)) >= 2 * 1_024 // 32
    assert parts.traffic.messages_in == 1_024
    refused = [*sent[:1_000], message(b"x", message_id=" ")]
    with pytest.raises(Exception, match="UNIQUE_KEY_ILLEGAL"):
        await parts.send(*refused)
    assert parts.traffic.messages_in == 1_024


async def test_four_thousand_wrong_handles_of_one_call_stopped_everybody() -> None:
    parts = await parts_of(400)
    replies = []

    async def acknowledged() -> None:
        replies.append(await parts.acknowledge(*["x" * 100] * 4_096))

    assert await passes_of(acknowledged()) >= 7
    (reply,) = replies
    assert len(reply.entries) == 4_096
    assert {one.status.code for one in reply.entries} == {v2.INVALID_RECEIPT_HANDLE}
    (first,) = await parts.messages(batch_size=1)
    handles = ["x", first.system_properties.receipt_handle] * 600
    reply = await parts.acknowledge(*handles)
    assert [one.status.code == v2.OK for one in reply.entries] == [False, True] * 600
