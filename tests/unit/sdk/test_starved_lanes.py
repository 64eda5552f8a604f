"""Tasks of an orderly group that wait although messages are here: later ones of a lane."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fake_loop import fake_time, turns
from tests.unit.sdk.test_group_stream import Scene
from tests.unit.sdk.test_inbox import message
from tests.unit.sdk.test_released_early import credit
from tests.unit.sdk.test_void_batches import Member, returned
from trovemq._consume.hold import HOLD_MAX, WORK_S, Hold
from trovemq._consume.inbox import Inbox


@fake_time
async def test_a_task_waited_until_a_long_piece_of_work_was_done() -> None:
    """The hold was full of the other task's lane, and nothing asked whether that is enough."""
    here = Scene(prefetch=None)
    here.inbox.ordered = True
    here.inbox.hold.workers = 2
    await turns(10)
    tasks = [asyncio.ensure_future(here.inbox.get()) for _ in range(2)]
    await turns(10)
    assert credit(here.now) == 4
    await here.now.batch(0, 4)
    assert [task.done() for task in tasks] == [True, False]
    await asyncio.sleep(WORK_S * 4)
    await turns(10)
    assert credit(here.now) - 4 + here.inbox.count >= 8, "the broker may send another lane's messages"
    for task in tasks:
        task.cancel()
    await here.over()


@fake_time
async def test_a_task_that_began_to_wait_later_waited_as_long() -> None:
    here = Scene(prefetch=None)
    here.inbox.ordered = True
    here.inbox.hold.workers = 2
    await turns(10)
    await here.now.batch(0, 4)
    assert here.take().queue_offset == 0
    await asyncio.sleep(60)
    before = credit(here.now)
    waiting = asyncio.ensure_future(here.inbox.get())
    await asyncio.sleep(WORK_S * 8)
    await turns(10)
    assert credit(here.now) > before + 4
    waiting.cancel()
    await here.over()


@fake_time
async def test_a_broker_without_streams_was_asked_for_no_other_lane() -> None:
    inbox = Inbox(None, 1 << 20)
    inbox.ordered = True
    inbox.hold.workers = 2
    tasks = [asyncio.ensure_future(inbox.get()) for _ in range(2)]
    await turns()
    assert await inbox.wait_for_capacity() == 4
    inbox.put_all([message(offset, "a") for offset in range(5)])
    asking = asyncio.ensure_future(inbox.wait_for_capacity())
    await asyncio.sleep(WORK_S * 4)
    assert asking.done()
    assert asking.result() >= 4
    for task in (*tasks, asking):
        task.cancel()


def test_the_hold_of_lanes_is_looked_at_again_up_to_the_most() -> None:
    hold, now = Hold(), 100.0
    hold.count(now, 0, 0, ordered=True)
    hold.count(now + 60, 5, 2, ordered=True)  # a minute of work
    now += 60
    hold.note_waiting(now, 5)
    looks = 0
    while hold.count(now, 5, 2, ordered=True) < HOLD_MAX:
        looks += 1
        assert hold.looked_at_again(now, 2) == WORK_S
        now += WORK_S
        assert looks < 20
    assert hold.looked_at_again(now, 2) is None
    hold.note_working(now, 5)
    assert hold.count(now, 5, 0, ordered=True) >= 2
    assert hold.looked_at_again(now, 0) is None


@pytest.mark.parametrize("ordered", [False, True])
def test_the_hold_is_two_at_least_when_the_clock_begins(ordered: bool) -> None:
    assert Hold().count(0.0, 0, 0, ordered=ordered) == 2


@fake_time
async def test_a_cancelled_next_batch_blocked_its_message_group_for_ever() -> None:
    """It returned the head of the lane, and the lane waited for the head's settlement."""
    member = Member()
    stream = await member.receive("broker-a", orderly=True)
    await stream.batch(0, 3)
    (head,) = member.inbox.take_all(3)
    member.consumer.release(head)  # as a cancelled `next_batch` does
    await turns(10)
    assert returned(stream) == [0, 1, 2]
    await stream.settled_each()
    await stream.batch(0, 3, number=2)
    assert member.taken() == [("broker-a", 0)]
    await member.over()
