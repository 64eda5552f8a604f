"""Messages and credit that a member of a group releases: another one joins, or its program becomes slow."""

from __future__ import annotations

import asyncio

from tests.support.fake_loop import fake_time, turns
from tests.unit.sdk.test_group_stream import LOST, FakeStream, Scene, offsets_of
from trovemq._consume.hold import WORK_S, YIELD_S
from trovemq_proto.v1 import consumer_pb2

pytestmark = fake_time


JOINED = consumer_pb2.ConsumeReply(joined=True)


def credit(stream: FakeStream) -> int:
    """The unused messages of credit of all frames."""
    return sum(frame.credit_messages for frame in stream.frames)


def returned(stream: FakeStream) -> set[int]:
    """The offsets of messages that were returned untried."""
    found: set[int] = set()
    for each in stream.settlements():
        assert (each.kind, each.invisible_ms, each.suspend) == (consumer_pb2.RETURN, 0, True)
        assert not found & offsets_of(each), "each is returned once"
        found |= offsets_of(each)
    return found


async def test_a_member_that_joins_gets_what_the_program_has_not_begun() -> None:
    here = Scene(prefetch=None)
    await turns(10)
    first = await fast(here)
    await here.now.batch(first, 200, number=1_000)
    assert here.take().queue_offset == first
    await here.now.reply(JOINED)
    assert returned(here.now) == set(range(first + 2, first + 200))
    assert credit(here.now) == first + 200, "56 were returned"
    assert here.take().queue_offset == first + 1, "one is kept, so that the program need not wait"
    assert here.inbox.count == 0
    await here.over()


async def test_a_program_with_a_number_of_its_own_keeps_a_half() -> None:
    here = Scene(prefetch=100)
    await turns(10)
    assert credit(here.now) == 100
    await here.now.batch(0, 61)
    assert here.take().queue_offset == 0
    await here.now.reply(JOINED)
    assert returned(here.now) == set(range(31, 61))
    assert credit(here.now) == 61, "39 were returned"
    for _ in range(5):
        await asyncio.sleep(0.01)
        here.stream._wake.set()
        await turns(10)
    assert here.inbox.count == 30, "one notice halves once"
    await here.over()


async def test_a_member_that_joins_takes_nothing_for_longer_than_a_moment() -> None:
    here = Scene(prefetch=100)
    await here.opened(10)
    await here.now.reply(JOINED)
    await asyncio.sleep(YIELD_S * 0.9)
    assert credit(here.now) - 10 == 1
    await asyncio.sleep(YIELD_S * 0.2)
    await turns(10)
    assert credit(here.now) - 10 == 100
    assert returned(here.now) == set()
    await here.over()


async def test_a_batch_that_was_on_its_way_is_returned_too() -> None:
    here = Scene(prefetch=100)
    await turns(10)
    await here.now.batch(0, 20)
    await here.now.reply(JOINED)
    assert returned(here.now) == set(range(10, 20))
    await here.now.batch(20, 30, number=2)
    assert returned(here.now) == set(range(10, 50))
    assert credit(here.now) == 50, "80 were returned; 30 of them had been used, and are filled up"
    await asyncio.sleep(YIELD_S * 1.1)
    await turns(10)
    assert credit(here.now) - 50 + here.inbox.count == 100
    await here.over()


async def test_a_program_that_becomes_slow_returns_messages_and_no_credit() -> None:
    here = Scene(prefetch=None)
    await turns(10)
    assert credit(here.now) == 2
    first = await fast(here)
    held = credit(here.now) - first
    assert held == 256
    await here.now.batch(first, 200, number=1_000)
    here.take()  # it works on this one for long
    await asyncio.sleep(WORK_S * 6)
    await turns(10)
    kept = here.inbox.count
    assert kept <= 8
    assert len(returned(here.now)) == 199 - kept
    assert all(frame.credit_messages >= 0 for frame in here.now.frames)
    await here.now.reply(JOINED)
    assert credit(here.now) == first + 200, "the rest is returned"
    await here.over()


async def fast(here: Scene) -> int:
    """The program works fast until it holds the most. Returns how many messages it got."""
    count, number = 0, 0
    while credit(here.now) - count < 256:
        number += 1
        size = credit(here.now) - count
        waiting = asyncio.ensure_future(here.inbox.get())
        await turns(5)
        await here.now.batch(count, size, number)
        assert await waiting is not None
        for _ in range(size - 1):
            here.take()
        count += size
        await turns(10)
        assert number < 20
    return count


async def test_a_broker_without_notices_gets_no_negative_credit_after_a_break() -> None:
    here = Scene(prefetch=100)
    await here.opened(10)
    await here.now.reply(JOINED)
    await here.now.reply(LOST)
    await asyncio.sleep(1)
    await turns(10)
    assert len(here.streams) == 2
    here.inbox.hold.begin_to_yield(asyncio.get_running_loop().time(), 0)
    here.stream._wake.set()
    await turns(10)
    assert all(frame.credit_messages >= 0 for frame in here.now.frames)
    await here.over()


async def test_a_notice_after_the_end_of_receiving_returns_nothing() -> None:
    here = Scene(prefetch=100)
    await turns(10)
    await here.now.batch(0, 20)
    stopping = asyncio.ensure_future(here.stream.stop(until=asyncio.get_running_loop().time() + 10))
    await turns(10)
    before = len(here.now.frames)
    await here.now.reply(JOINED)
    assert here.now.frames[before:] == []
    await here.now.reply(consumer_pb2.ConsumeReply(stopped=True))
    await stopping
    await here.over()
