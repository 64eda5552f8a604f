"""A Consume stream as its client's membership, and the settlements of single messages by their handles."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fake_loop import fake_time, turns
from tests.unit.sdk.test_group_stream import LOST, RECEIPT, Scene
from trovemq._consume import member
from trovemq._wire.consumer import DEAD_LETTER, Change
from trovemq.models.group import GroupSettings
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.receipts import handle_of
from trovemq_proto.v1 import consumer_pb2, group_pb2

pytestmark = fake_time


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_the_first_reply_makes_the_client_a_member() -> None:
    here = Scene()
    opened = asyncio.ensure_future(here.stream.member.opened(1_000))
    await turns(10)
    (frame,) = [one for one in here.now.frames if one.HasField("start")]
    assert frame.start.hostname
    assert not opened.done()
    settings = group_pb2.GroupSettings(orderly=True, retry_max=3, backoff_ms=[5])
    await here.now.reply(consumer_pb2.ConsumeReply(settings=settings))
    await opened
    expected = GroupSettings(orderly=True, retry_max=3, backoff_ms=(5,))
    assert here.stream.member.settings == expected
    await here.over()


async def test_a_broker_that_does_not_answer_is_reported() -> None:
    here = Scene()
    with pytest.raises(TroveError, match="REQUEST_TIMEOUT"):
        await here.stream.member.opened(1_000)
    await here.now.reply(LOST)
    with pytest.raises(TroveError, match="BROKER_UNREACHABLE"):
        await here.stream.member.opened(1_000)
    await here.over()


async def test_an_idle_stream_sends_signs_of_life_and_leaves_at_its_end() -> None:
    here = Scene()
    await turns(10)
    here.now.frames.clear()
    await asyncio.sleep(3 * member.HEARTBEAT_SECONDS + 1)
    assert [frame.ListFields()[2:] for frame in here.now.frames] == [[]] * 3
    here.running.cancel()
    await here.stream.stop(until=now())
    await here.stream.close(until=now() + 1)
    assert [frame.leave for frame in here.now.frames][-1]
    assert here.now.cancelled


async def test_commands_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "COMMANDS_AT_ONCE_MAX", 0)
    here = Scene()
    await turns(10)
    command = consumer_pb2.ConsumeCommand(nonce="n", print_stacks=True)
    await here.now.reply(consumer_pb2.ConsumeReply(command=command))
    (answer,) = here.now.frames[-1].answers
    assert (answer.nonce, answer.result) == ("n", consumer_pb2.BUSY)
    await here.over()


async def test_an_extension_has_the_new_handle_as_its_result() -> None:
    here = Scene()
    (message,) = await here.opened(1)
    extended = here.stream.extend(message, 7_000)
    await turns(10)
    (sent,) = here.now.settlements()
    assert (sent.kind, sent.invisible_ms, sent.receipt) == (consumer_pb2.EXTEND, 7_000, "")
    assert sent.handle == handle_of(RECEIPT, 0)
    assert [here.stream.is_answered] == [False]
    await here.now.settled(handle="new")
    await extended
    assert message.receipt_handle == "new"
    assert here.stream.is_answered
    assert here.reported == []
    await here.over()


async def test_a_late_answer_to_an_extension_left_the_void_handle() -> None:
    """The caller had its time-out. The broker then refused the acknowledgement by the old handle, and
    delivered the message again."""
    here = Scene()
    (message,) = await here.opened(1)
    extended = here.stream.extend(message, 7_000)
    await turns(10)
    extended.cancel()
    await here.now.settled(handle="new")
    assert (message.receipt_handle, message.receipt) == ("new", None)
    assert message.lease_end == now() + 7
    async with message.process():
        pass
    await turns(10)
    assert here.now.settlements()[-1].handle == "new"
    await here.now.settled()
    await here.over()


@pytest.mark.parametrize("by", ["process", "ack", "settle_all"])
@pytest.mark.parametrize("gathers", [True, False])
async def test_an_acknowledgement_overtaken_by_an_extension_was_refused(by: str, gathers: bool) -> None:
    """A task extended the lease from time to time while the handler worked. The acknowledgement named the
    receipt, which the extension before it had replaced: the message was delivered again."""
    here = Scene()
    one, other = await here.opened(2)
    if gathers:
        here.stream.consume(other)
    extended = here.stream.extend(one, 7_000)
    await turns(10)
    acknowledged: asyncio.Future[None] | None = None
    if by == "process":
        async with one.process():
            pass
    elif by == "ack":
        acknowledged = here.stream.settle_with_result(one, None)
    else:
        here.stream.settle_all(RECEIPT, [one])
    await turns(10)
    assert [list(sent.ranges) for sent in here.now.settlements()] == [[1, 1]] * gathers + [[]]
    await here.now.settled(handle="new")
    await extended
    sent = here.now.settlements()[-1]
    assert (sent.kind, sent.handle) == (consumer_pb2.ACKNOWLEDGE, "new")
    await here.now.settled()
    if acknowledged is not None:
        await acknowledged
    assert here.stream.is_answered
    await here.over()


async def test_what_waited_for_an_extension_ends_with_its_subscription() -> None:
    here = Scene()
    (message,) = await here.opened(1)
    extended = here.stream.extend(message, 7_000)
    await turns(10)
    acknowledged = here.stream.settle_with_result(message, None)
    here.stream.refuse_all(TroveError(errors.CLIENT_CLOSED, "closed"))
    for answer in (extended, acknowledged):
        with pytest.raises(TroveError, match="CLIENT_CLOSED"):
            await answer
    assert here.stream.is_answered
    assert here.reported == [(0, True, "CLIENT_CLOSED")]
    await here.over()


async def test_an_acknowledgement_after_an_extension_that_broke_is_sent() -> None:
    here = Scene()
    (message,) = await here.opened(1)
    extended = here.stream.extend(message, 7_000)
    await turns(10)
    acknowledged = here.stream.settle_with_result(message, None)
    await here.now.reply(LOST)
    with pytest.raises(TroveError, match="BROKER_UNREACHABLE"):
        await extended
    await asyncio.sleep(1)
    (sent,) = here.now.settlements()
    assert (sent.kind, sent.receipt) == (consumer_pb2.ACKNOWLEDGE, RECEIPT)
    await here.now.settled()
    await acknowledged
    await here.over()


async def test_an_extension_is_not_repeated_after_a_break() -> None:
    here = Scene()
    (message,) = await here.opened(1)
    extended = here.stream.extend(message, 7_000)
    await turns(10)
    await here.now.reply(LOST)
    with pytest.raises(TroveError, match="BROKER_UNREACHABLE"):
        await extended
    await asyncio.sleep(1)
    assert here.streams[-1].settlements() == []
    await here.over()


async def test_a_dead_letter_is_settled_by_its_handle() -> None:
    here = Scene()
    one, two = await here.opened(2)
    answers = [here.stream.settle_with_result(each, Change(kind=DEAD_LETTER)) for each in (one, two)]
    await turns(10)
    sent = here.now.settlements()
    assert [(each.kind, each.handle) for each in sent] == [
        (consumer_pb2.DEAD_LETTER, handle_of(RECEIPT, offset)) for offset in (0, 1)
    ]
    await here.now.settled()
    await asyncio.gather(*answers)
    assert here.reported == [(0, True, ""), (1, True, "")]
    await here.over()


async def test_an_extended_message_is_acknowledged_by_its_handle() -> None:
    here = Scene()
    (message,) = await here.opened(1)
    message.receipt_handle, message.receipt = "new", None
    async with message.process():
        pass
    await turns(10)
    (sent,) = here.now.settlements()
    assert (sent.kind, sent.handle, list(sent.ranges)) == (consumer_pb2.ACKNOWLEDGE, "new", [])
    await here.now.settled()
    assert here.stream.is_answered
    await here.over()


async def test_after_a_final_error_settlements_fail_with_it() -> None:
    here = Scene()
    one, two = await here.opened(2)
    here.stream.settle(one, None)
    waiting = here.stream.settle_with_result(two, Change(7, suspend=False))
    await turns(10)
    await here.now.reply(TroveError(errors.TOPIC_NOT_FOUND, "deleted"))
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        await here.running
    here.stream.refuse_all(TroveError(errors.ACCESS_DENIED, "no"))
    with pytest.raises(TroveError, match="ACCESS_DENIED"):
        await waiting
    assert here.reported == [(0, True, "ACCESS_DENIED"), (1, False, "ACCESS_DENIED")]
    here.stream.release(one)  # is not reported
    await here.stream.consumed(until=asyncio.get_running_loop().time())
    await here.over()
