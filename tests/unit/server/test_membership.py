"""A member of a group by its Consume stream: its life, settlements by handle, and commands to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.consuming import GROUP, ConsumeClient, Got, acknowledgement
from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import TestBroker, message
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.core import clients
from trovemq_broker.server.native import membership
from trovemq_broker.server.wire.client_commands import StoredMessage
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.receipts import handle_of
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import consumer_pb2
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = fake_time


DEAD_LETTERS = f"%DLQ%{GROUP}"


async def filled(count: int, **settings: Any) -> TestBroker:
    parts = TestBroker(consumers=ConsumerSettings(new_group_start="begin", **settings))
    parts.registry.add_gone_listener(parts.delivery.release_client)
    for number in range(count):
        await parts.send(message(b"%d" % number, message_id=f"M{number}"))
    await turns()
    return parts


def by_handle(
    handle: str, kind: consumer_pb2.SettlementKind, *, invisible_ms: int = 0, **fields: Any
) -> consumer_pb2.Settlement:
    return consumer_pb2.Settlement(
        settlement_id=5, kind=kind, handle=handle, invisible_ms=invisible_ms, **fields
    )


def handle(one: Got) -> str:
    return handle_of(one.receipt, one.offset)


def symbols(results: Any) -> list[str]:
    return [result.error.symbol for result in results]


# --- members --------------------------------------------------------------------------------------------
async def test_a_stream_makes_its_client_a_member_and_names_the_settings() -> None:
    parts = await filled(1)
    client = ConsumeClient(parts)
    client.context.metadata |= {"x-mq-language": "PYTHON", "x-mq-client-version": "7"}
    await client.open(invisible_ms=0, filter="a", hostname="host")
    (member,) = parts.registry.members(GROUP)
    described = member.description
    assert (described.client_type, described.language, described.version) == (
        ClientType.PUSH_CONSUMER,
        "PYTHON",
        "7",
    )
    assert (described.hostname, described.peer) == ("host", client.context.address)
    assert described.subscriptions["orders"].expression == "a"
    assert (client.settings[0].retry_max, client.settings[0].orderly) == (16, False)
    other = ConsumeClient(parts, "steps")
    await other.open()
    assert set(member.description.subscriptions) == {"orders", "steps"}
    assert member.description.client_type == ClientType.SIMPLE_CONSUMER
    for one in (client, other):
        await one.end()


async def test_a_member_whose_topic_does_not_exist_is_one_all_the_same() -> None:
    parts = await filled(0)
    client = ConsumeClient(parts, "missing")
    await client.open()
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        await client.serving
    assert len(client.settings) == 1
    assert len(parts.registry.members(GROUP)) == 1


async def test_a_member_that_leaves_gives_its_messages_back_at_once() -> None:
    parts = await filled(3)
    client = ConsumeClient(parts)
    await client.open(10, invisible_ms=0)
    assert len(client.messages()) == 3
    await client.say(received_batch=9)
    await client.say(stop=True, leave=True)
    assert parts.registry.members(GROUP) == []
    await client.end()
    parts.now_ms += 1_000
    other = ConsumeClient(parts, client_id="client-2")
    await other.open(10)
    assert len(other.messages()) == 3
    await other.end()


@pytest.mark.parametrize("by_cancellation", [True, False])
async def test_a_broken_stream_gives_its_messages_back_after_a_while(by_cancellation: bool) -> None:
    parts = await filled(3)
    client = ConsumeClient(parts)
    await client.open(10, invisible_ms=0)
    client.messages()
    await client.say(received_batch=9)
    await (client.break_off() if by_cancellation else client.end())
    assert len(parts.registry.members(GROUP)) == 1
    parts.now_ms += clients.BROKEN_MS + 1
    assert parts.registry.expire_broken(parts.now_ms) == ["client-1"]


async def test_a_refused_frame_is_no_break() -> None:
    parts = await filled(0)
    client = ConsumeClient(parts)
    await client.open()
    await client.say(topic="steps")
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        await client.serving
    assert not parts.registry.has_broken


async def test_frames_are_signs_of_life_and_without_them_the_stream_ends() -> None:
    parts = await filled(0)
    client = ConsumeClient(parts)
    await client.open()
    for _ in range(3):
        parts.now_ms += clients.EXPIRY_MS
        await client.say()
        assert parts.registry.expire(parts.now_ms) == []
    parts.now_ms += clients.EXPIRY_MS + 1
    assert parts.registry.expire(parts.now_ms) == ["client-1"]
    with pytest.raises(TroveError, match="CLIENT_UNKNOWN"):
        await client.serving
    again = ConsumeClient(parts)
    await again.open()
    assert len(parts.registry.members(GROUP)) == 1
    await again.end()


async def test_too_many_streams_of_one_client_end_the_oldest() -> None:
    parts = await filled(0)
    for number in range(clients.STREAMS_MAX + 1):
        parts.store.topics.create(f"t{number}", 1)
    opened = [ConsumeClient(parts, f"t{number}") for number in range(clients.STREAMS_MAX + 1)]
    for client in opened:
        await client.open()
    with pytest.raises(TroveError, match="CLIENT_UNKNOWN"):
        await opened[0].serving
    for client in opened[1:]:
        await client.end()


async def test_a_member_took_memory_for_every_topic_it_ever_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for topics that do not exist, one stream after the other; each of them read all earlier ones."""
    monkeypatch.setattr(membership, "TOPICS_MAX", 3)
    parts = await filled(0)
    for number in range(3):
        client = ConsumeClient(parts, f"t{number}")
        await client.open()
        with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
            await client.serving
    refused = ConsumeClient(parts, "t3")
    await refused.open()
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        await refused.serving
    (member,) = parts.registry.members(GROUP)
    assert set(member.description.subscriptions) == {"t0", "t1", "t2"}
    parts.store.topics.create("t2", 1)
    again = ConsumeClient(parts, "t2")
    await again.open()
    await again.end()


async def test_a_filter_that_is_too_long_is_refused() -> None:
    parts = await filled(0)
    client = ConsumeClient(parts)
    await client.open(filter="a" * (membership.EXPRESSION_SIZE_MAX + 1))
    with pytest.raises(TroveError, match="FILTER_ILLEGAL"):
        await client.serving
    assert parts.registry.members(GROUP) == []


async def test_a_topic_that_may_not_be_read_any_more_ends_batches_only() -> None:
    parts = await filled(2)
    client = ConsumeClient(parts)
    await client.open(1)
    (one,) = client.messages()
    parts.store.topics.alter("orders", perm=2)
    await client.say(credit_messages=1)
    assert client.batches() == []
    assert client.replies[-1].ended.symbol == "PERMISSION_MISSING"
    (result,) = await client.settle(acknowledgement(one))
    assert not result.HasField("error")
    await client.end()


# --- settlements by handle ------------------------------------------------------------------------------
async def test_an_extended_message_is_settled_by_its_new_handle() -> None:
    parts = await filled(1)
    client = ConsumeClient(parts)
    await client.open(1)
    (one,) = client.messages()
    (result,) = await client.settle(
        by_handle(handle(one), consumer_pb2.EXTEND, invisible_ms=60_000, suspend=True)
    )
    assert result.handle
    assert result.handle != handle(one)
    parts.now_ms += 59_000
    await client.say(credit_messages=1)
    assert client.messages() == []
    old = await client.settle(by_handle(handle(one), consumer_pb2.ACKNOWLEDGE))
    assert symbols(old) == ["RECEIPT_HANDLE_ILLEGAL"]
    assert symbols(await client.settle(by_handle(result.handle, consumer_pb2.ACKNOWLEDGE))) == [""]
    assert parts.delivery.in_flight_count == 0
    await client.end()


async def test_an_extended_lease_that_is_over_does_not_count() -> None:
    parts = await filled(1)
    client = ConsumeClient(parts)
    await client.open(1)
    (one,) = client.messages()
    (result,) = await client.settle(by_handle(handle(one), consumer_pb2.EXTEND, invisible_ms=1_000))
    parts.now_ms += 1_000
    for kind in (consumer_pb2.ACKNOWLEDGE, consumer_pb2.EXTEND, consumer_pb2.DEAD_LETTER):
        assert symbols(await client.settle(by_handle(result.handle, kind))) == ["RECEIPT_HANDLE_ILLEGAL"]
    await client.say(credit_messages=1)
    assert [again.attempt for again in client.messages()] == [2]
    await client.end()


async def test_an_extension_to_now_at_the_last_attempt_left_no_handle() -> None:
    """The message was a dead letter, and its program could not acknowledge it any more."""
    parts = await filled(1)
    parts.groups.create(SubscriptionGroup(GROUP, retry_max=0))
    client = ConsumeClient(parts)
    await client.open(1)
    (one,) = client.messages()
    (result,) = await client.settle(by_handle(handle(one), consumer_pb2.EXTEND))
    assert (result.error.symbol, result.handle) == ("", handle(one))
    assert parts.delivery.dead_letter_count == 1
    assert symbols(await client.settle(by_handle(result.handle, consumer_pb2.ACKNOWLEDGE))) == [""]
    await client.end()


@pytest.mark.parametrize("suspend", [True, False])
async def test_a_return_by_handle_comes_again(suspend: bool) -> None:
    parts = await filled(1)
    client = ConsumeClient(parts)
    await client.open(1)
    (one,) = client.messages()
    (result,) = await client.settle(by_handle(handle(one), consumer_pb2.RETURN, suspend=suspend))
    assert (result.error.symbol, result.handle) == ("", "")
    await client.say(credit_messages=1)
    assert [again.attempt for again in client.messages()] == [1 if suspend else 2]
    await client.end()


async def test_a_dead_letter_is_copied_and_consumed_and_may_be_repeated() -> None:
    parts = await filled(2)
    client = ConsumeClient(parts)
    await client.open(2)
    one, other = client.messages()
    for _ in range(2):
        results = await client.settle(by_handle(handle(one), consumer_pb2.DEAD_LETTER))
        assert symbols(results) == [""]
    assert parts.delivery.dead_letter_count == 1
    assert parts.delivery.in_flight_count == 1
    assert symbols(await client.settle(acknowledgement(other))) == [""]
    await client.end()


async def test_a_return_at_once_after_the_last_attempt_is_a_dead_letter() -> None:
    parts = await filled(1)
    client = ConsumeClient(parts)
    await client.open(1)
    parts.groups.alter(GROUP, retry_max=0)
    (one,) = client.messages()
    assert symbols(await client.settle(by_handle(handle(one), consumer_pb2.RETURN))) == [""]
    assert parts.delivery.dead_letter_count == 1
    await client.end()


@pytest.mark.parametrize(
    ("settlement", "symbol"),
    [
        ({"kind": 9, "handle": "h"}, "REQUEST_ILLEGAL"),
        ({"kind": consumer_pb2.ACKNOWLEDGE, "handle": "h", "ranges": [0, 1]}, "REQUEST_ILLEGAL"),
        ({"kind": consumer_pb2.ACKNOWLEDGE, "handle": "h", "receipt": "r"}, "REQUEST_ILLEGAL"),
        ({"kind": consumer_pb2.DEAD_LETTER, "handle": "h"}, "RECEIPT_HANDLE_ILLEGAL"),
        ({"kind": consumer_pb2.EXTEND, "handle": "h", "invisible_ms": -1}, "INVISIBLE_DURATION_ILLEGAL"),
        ({"kind": consumer_pb2.EXTEND, "receipt": "r", "ranges": [0, 1]}, "REQUEST_ILLEGAL"),
        ({"kind": consumer_pb2.DEAD_LETTER, "receipt": "r", "ranges": [0, 1]}, "REQUEST_ILLEGAL"),
    ],
)
async def test_a_settlement_that_makes_no_sense_is_refused(settlement: dict[str, Any], symbol: str) -> None:
    parts = await filled(1)
    client = ConsumeClient(parts)
    await client.open(1)
    results = await client.settle(consumer_pb2.Settlement(settlement_id=1, **settlement))
    assert symbols(results) == [symbol]
    await client.end()


# --- commands -------------------------------------------------------------------------------------------
async def command_of(client: ConsumeClient) -> consumer_pb2.ConsumeCommand:
    await turns(20)
    client.batches()
    return client.replies[-1].command


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (consumer_pb2.DONE, v2.OK),
        (consumer_pb2.FAILED, v2.FAILED_TO_CONSUME_MESSAGE),
        (consumer_pb2.DAMAGED, v2.MESSAGE_CORRUPTED),
        (consumer_pb2.BUSY, v2.TOO_MANY_REQUESTS),
        (9, v2.INTERNAL_ERROR),
    ],
)
async def test_a_message_is_consumed_by_the_member_and_its_answer_counts(result: Any, code: int) -> None:
    parts = await filled(1)
    client = ConsumeClient(parts)
    await client.open()
    stored = StoredMessage(b"record", "orders", QueueId(1), QueueOffset(7))
    asked = asyncio.ensure_future(parts.commands.verify_message("client-1", GROUP, stored))
    command = await command_of(client)
    direct = command.consume
    assert (direct.record, direct.topic, direct.queue_id, direct.queue_offset) == tuple(stored)
    answer = consumer_pb2.CommandAnswer(nonce=command.nonce, result=result, text="said")
    await client.say(answers=[answer])
    assert await asked == (code, "said")
    await client.end()


async def test_a_member_without_a_handler_and_stacks() -> None:
    parts = await filled(0)
    client = ConsumeClient(parts)
    await client.open()
    for result in (consumer_pb2.NOT_SUPPORTED, consumer_pb2.DONE):
        asked = asyncio.ensure_future(parts.commands.print_stack_trace("client-1", GROUP))
        command = await command_of(client)
        assert command.print_stacks
        answer = consumer_pb2.CommandAnswer(nonce=command.nonce, result=result, text="main")
        await client.say(answers=[answer])
        if result == consumer_pb2.DONE:
            assert (await asked).text == "main"
        else:
            with pytest.raises(TroveError, match="NOT_IMPLEMENTED"):
                await asked
    await client.end()


async def test_a_check_of_a_transaction_ended_the_stream_of_a_member() -> None:
    """Any producer may have sent a half message with the member's client id."""
    parts = await filled(1)
    client = ConsumeClient(parts)
    await client.open()
    half = StoredMessage(b"record", "orders", QueueId(0), QueueOffset(0))
    assert not parts.commands.has_producer("client-1", "orders")
    assert parts.commands.recover_orphaned_transaction("client-1", "orders", half, "T1") is None
    await turns(20)
    assert not client.serving.done()
    await client.end()


@pytest.mark.parametrize(
    ("topic", "asked"), [("orders", "orders"), (DEAD_LETTERS, "orders"), ("deals", None)]
)
async def test_a_member_got_messages_to_consume_that_its_user_may_not(topic: str, asked: str | None) -> None:
    """With the client id of a member, any user got messages of any topic."""
    parts = await filled(0)
    client = ConsumeClient(parts)
    checked: list[tuple[str, str]] = []

    def admit_again(frame: consumer_pb2.ConsumeFrame) -> None:
        if frame.topic != "orders":
            raise TroveError(errors.ACCESS_DENIED)
        checked.append((frame.group, frame.topic))

    client.context.admit_again = admit_again  # type: ignore[attr-defined]
    await client.open()
    stored = StoredMessage(b"record", topic, QueueId(1), QueueOffset(7))
    with pytest.raises(TroveError) as caught:
        await parts.commands.verify_message("client-1", GROUP, stored, 1)
    sent = bool(client.context.written)
    assert (caught.value.symbol, sent) == (
        ("CONSUME_MSG_TIMEOUT", True) if asked else ("CONSUMER_NOT_ONLINE", False)
    )
    assert checked == ([(GROUP, asked)] * 2 if asked else [])
    await client.end()


async def test_commands_of_a_client_that_does_not_read_are_bounded() -> None:
    parts = await filled(0)
    client = ConsumeClient(parts)
    await client.open()
    client.context.may_write.clear()
    commands = parts.commands
    asked = [
        asyncio.ensure_future(commands.print_stack_trace("client-1", GROUP))
        for _ in range(membership.COMMANDS_WAITING_MAX + 2)
    ]
    await turns(20)
    failed = [one.exception() for one in asked if one.done()]
    assert 1 <= len(failed) <= 2
    assert all(isinstance(e, TroveError) and e.spec is errors.LIMIT_EXCEEDED for e in failed)
    for one in asked:
        one.cancel()
    client.context.may_write.set()
    await client.end()


async def test_a_member_that_is_to_reconnect_opens_another_stream() -> None:
    parts = await filled(0)
    client = ConsumeClient(parts)
    await client.open()
    parts.commands.reconnect("client-1")
    with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE"):
        await client.serving
    assert not parts.registry.has_broken
