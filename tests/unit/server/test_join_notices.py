"""Members of a group learn that another one has joined: once, however many join, and without credit."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.support.consuming import GROUP, ConsumeClient
from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import TestBroker
from tests.unit.server.test_consume_stream import filled, numbers, parts_with
from trovemq_broker.server.core.clients import ClientDescription, ClientRegistry, Subscription
from trovemq_broker.server.native.consume_streams import NOTICE_INTERVAL_S, ConsumeStreams
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_daemon import turns as turns_module
from trovemq_proto.positions import EpochMs
from trovemq_proto.v1 import consumer_pb2

pytestmark = fake_time


NOW_MS = EpochMs(1_000_000)


def joins(registry: ClientRegistry, client_id: str, *topics: str, group: str = GROUP) -> None:
    """Its settings arrive."""
    subscriptions = {topic: Subscription("tag", "*") for topic in topics or ("orders",)}
    description = ClientDescription(
        client_type=ClientType.PUSH_CONSUMER, group=group, subscriptions=subscriptions
    )
    registry.settle(client_id, description, NOW_MS)


class FakeStream:
    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.noted_at: list[float] = []

    def replace(self) -> None:
        raise AssertionError("each client has one stream here")

    def note_void(self) -> None:
        raise AssertionError("no delivery became void here")

    def note_joined(self) -> None:
        self.noted_at.append(asyncio.get_running_loop().time())


class Scene:
    def __init__(self, *client_ids: str) -> None:
        self.registry = ClientRegistry()
        self.notices = ConsumeStreams(self.registry)
        self.streams = [FakeStream(client_id) for client_id in client_ids]
        for stream in self.streams:
            self.notices.add((GROUP, "orders"), stream)

    def noted(self) -> list[list[float]]:
        return [stream.noted_at for stream in self.streams]


async def test_the_others_get_one_notice_and_the_one_that_joins_gets_none() -> None:
    here = Scene("a", "b", "c")
    joins(here.registry, "c")
    await asyncio.sleep(10)
    assert here.noted() == [[0.0], [0.0], []]


async def test_another_group_or_topic_gets_no_notice() -> None:
    here = Scene("a")
    joins(here.registry, "b", "invoices")
    joins(here.registry, "c", group="other")
    await asyncio.sleep(10)
    assert here.noted() == [[]]


async def test_a_client_that_connects_again_does_not_join_again() -> None:
    here = Scene("a", "b")
    for _ in range(3):
        joins(here.registry, "b")
        await asyncio.sleep(10)
    assert here.noted() == [[0.0], []]
    joins(here.registry, "b", "orders", "invoices")
    await asyncio.sleep(10)
    assert here.noted() == [[0.0], []]
    joins(here.registry, "b", group="other")
    joins(here.registry, "b")
    await asyncio.sleep(10)
    assert len(here.streams[0].noted_at) == 2


async def test_a_storm_of_members_is_one_notice_in_a_second() -> None:
    here = Scene(*(f"member-{number}" for number in range(200)))
    for number in range(200):
        joins(here.registry, f"member-{number}")
    await turns()
    assert here.noted() == [[0.0]] * 200
    for number in range(35):
        await asyncio.sleep(0.1)
        joins(here.registry, f"later-{number}")
    await asyncio.sleep(10)
    for noted in here.noted():
        assert len(noted) == 5
        assert all(later - earlier > NOTICE_INTERVAL_S - 1e-6 for earlier, later in pairwise(noted))


async def test_streams_that_have_ended_leave_nothing() -> None:
    here = Scene("a", "b")
    joins(here.registry, "c")
    for stream in here.streams:
        here.notices.discard((GROUP, "orders"), stream)
        here.notices.discard((GROUP, "orders"), stream)
    await turns()
    assert len(here.notices) == 0
    assert {task.get_name() for task in asyncio.all_tasks()} & {"join-notices"} == set()


# --- the stream -----------------------------------------------------------------------------------------
def replies(client: ConsumeClient) -> list[consumer_pb2.ConsumeReply]:
    return [consumer_pb2.ConsumeReply.FromString(one) for one in client.context.written]


async def with_first_member(parts: TestBroker, messages: int = 0) -> ConsumeClient:
    client = ConsumeClient(parts)
    await client.open(messages)
    return client


async def test_a_notice_needs_no_credit() -> None:
    parts = parts_with()
    client, joiner = await with_first_member(parts), ConsumeClient(parts, client_id="client-2")
    await joiner.open()
    assert [reply.joined for reply in replies(client)] == [True]
    await asyncio.sleep(2 * NOTICE_INTERVAL_S)
    joins(parts.registry, "client-3")
    await turns()
    assert [reply.joined for reply in replies(client)] == [True, True]
    assert [reply.joined for reply in replies(joiner)] == [True]
    await client.end()
    await joiner.end()


async def test_a_client_that_does_not_read_has_one_notice_waiting() -> None:
    parts = await filled(1)
    client = ConsumeClient(parts)
    await client.open()
    client.context.may_write.clear()
    await client.say(credit_messages=10)
    for number in range(5):
        joins(parts.registry, f"joiner-{number}")
        await asyncio.sleep(NOTICE_INTERVAL_S * 2)
    await client.say(credit_messages=1)  # it is read all the same
    client.context.may_write.set()
    await turns(40)
    assert sorted(reply.joined for reply in replies(client)) == [False, True]
    await client.end()


async def test_a_client_that_has_stopped_gets_no_notice() -> None:
    parts = parts_with()
    client = await with_first_member(parts)
    await client.say(stop=True)
    joins(parts.registry, "client-2")
    await turns()
    assert [reply.joined for reply in replies(client)] == [False]
    await client.end()


# --- credit that is revoked --------------------------------------------------------------------------
async def test_a_waiting_stream_gets_no_message_for_credit_that_is_gone() -> None:
    parts = parts_with()
    client = await with_first_member(parts, 10)
    await client.say(credit_messages=-10)
    await filled(5, parts)
    assert client.messages() == []
    await client.say(credit_messages=3)
    assert len(client.messages()) == 3
    await client.end()


async def test_a_part_of_the_credit_is_taken_back_from_a_stream_that_waits() -> None:
    parts = parts_with()
    client = await with_first_member(parts, 10)
    await client.say(credit_messages=-8)
    await filled(5, parts)
    assert len(client.messages()) == 2
    await client.end()


async def test_credit_that_batches_have_used_meanwhile_is_filled_up_first() -> None:
    parts = await filled(20)
    client = await with_first_member(parts, 10)
    assert len(client.messages()) == 10
    await client.say(credit_messages=-10)
    await client.say(credit_messages=10)
    assert client.messages() == []
    await client.say(credit_messages=4)
    assert len(client.messages()) == 4
    await client.end()


async def test_a_batch_that_is_being_written_is_not_lost_when_credit_goes() -> None:
    parts = await filled(20)
    client = ConsumeClient(parts)
    await client.open()
    client.context.may_write.clear()
    await client.say(credit_messages=10)
    await client.say(credit_messages=-10)
    client.context.may_write.set()
    await turns(40)
    assert len(client.messages()) == 10
    await client.say(credit_messages=12)
    assert len(client.messages()) == 2
    await client.end()


async def test_a_stream_that_was_stopped_takes_no_message_when_credit_goes() -> None:
    parts = parts_with()
    client = await with_first_member(parts, 10)
    for fields in ({"stop": True}, {"credit_messages": -5}):
        frame = consumer_pb2.ConsumeFrame(group=GROUP, topic="orders", **fields)
        client.context.requests.put_nowait(frame)
    client.context.write = client.context.write_now  # type: ignore[method-assign]
    await turns(10)
    await filled(5, parts)
    assert client.messages() == []
    await client.end()


async def test_frames_that_take_credit_back_made_a_task_each() -> None:
    """Frames that are here already are handled in one iteration: a client could fill the memory."""
    parts = parts_with()
    client = await with_first_member(parts, 10)
    for number in range(200):
        frame = consumer_pb2.ConsumeFrame(group=GROUP, topic="orders", credit_messages=(-9, 9)[number % 2])
        client.context.requests.put_nowait(frame)
    most = 0
    for _ in range(20):
        tasks = [task for task in asyncio.all_tasks() if task.get_name() == "consume-deliverer"]
        most = max(most, len(tasks))
        await asyncio.sleep(0)
    assert most <= 2
    await filled(5, parts)
    assert len(client.messages()) == 5
    await client.say(credit_messages=-4)
    await filled(5, parts)
    assert len(client.messages()) == 1
    await client.end()


@pytest.mark.parametrize("turn_s", [1.0, 0.0])
async def test_a_message_returned_with_the_credit_goes_to_another_member(
    turn_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the settlements take several turns of the loop."""
    monkeypatch.setattr(turns_module, "TURN_S", turn_s)
    parts = await filled(6)
    first = await with_first_member(parts, 10)
    got = first.messages()
    second = ConsumeClient(parts, client_id="client-2")
    await second.open(10)
    assert second.messages() == []
    by_receipt: dict[str, list[int]] = {}
    for one in got[1:]:
        by_receipt.setdefault(one.receipt, []).append(one.offset)
    await first.say(
        credit_messages=-4,
        settlements=[
            consumer_pb2.Settlement(
                settlement_id=number,
                kind=consumer_pb2.RETURN,
                receipt=receipt,
                ranges=[value for offset in offsets for value in (offset, 1)],
                suspend=True,
            )
            for number, (receipt, offsets) in enumerate(by_receipt.items(), 1)
        ],
    )
    again = second.messages()
    assert numbers(again) == numbers(got[1:])
    assert {one.attempt for one in again} == {1}
    assert first.messages() == []
    await first.end()
    await second.end()
