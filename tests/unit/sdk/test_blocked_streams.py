"""A Consume stream whose client holds up its event loop: confirmations, and the order after a break."""

from __future__ import annotations

import asyncio

from tests.support.fake_loop import fake_time, turns
from tests.unit.sdk.test_group_stream import LOST, Scene
from trovemq_proto.v1 import consumer_pb2

pytestmark = fake_time


async def test_a_handler_that_blocked_held_up_the_confirmation_of_its_batch() -> None:
    """Its messages were leased for 10 s then, and were run again and again."""
    here = Scene()
    await turns(10)
    frames: list[int] = []
    taken = asyncio.ensure_future(here.inbox.get())
    taken.add_done_callback(lambda _: frames.append(here.now.frames[-1].received_batch))
    await here.now.batch(0, 3, number=7)
    assert taken.done()
    assert frames == [7]
    await here.over()


async def test_after_a_break_settlements_precede_credit_and_messages_that_wait() -> None:
    """A client that stood still counted as dead: its messages may be with other members."""
    here = Scene(prefetch=10)
    await turns(10)
    await here.now.batch(0, 5)
    here.stream.settle(here.take(), None)
    await here.now.reply(LOST)
    assert here.inbox.count == 0
    await asyncio.sleep(1)
    start, settling, *_ = here.now.frames
    assert (start.HasField("start"), start.credit_messages) == (True, 0)
    settled = [(one.kind, list(one.ranges), one.suspend) for one in settling.settlements]
    assert settled == [(consumer_pb2.ACKNOWLEDGE, [0, 1], False), (consumer_pb2.RETURN, [1, 4], True)]
    assert sum(frame.credit_messages for frame in here.now.frames) == 10
    await here.over()


async def test_a_batch_is_returned_if_its_stream_broke_before_the_confirmation() -> None:
    here = Scene()
    await turns(10)
    sent = here.now.send
    blocked = asyncio.Event()

    async def send(frame: bytes) -> None:
        await blocked.wait()
        await sent(frame)

    here.now.send = send  # type: ignore[method-assign]
    await here.now.batch(0, 2)
    assert here.inbox.count == 0
    await here.now.reply(LOST)
    await asyncio.sleep(1)
    assert [list(one.ranges) for one in here.now.settlements()] == [[0, 2]]
    assert here.inbox.count == 0
    await here.over()


async def test_a_batch_is_confirmed_at_once_if_that_needs_no_wait() -> None:
    here = Scene()
    await turns(10)
    stream = here.now

    def send_now(frame: bytes, *, alone: bool) -> None:
        assert (here.inbox.count, alone) == (0, False)
        stream.frames.append(consumer_pb2.ConsumeFrame.FromString(frame))

    stream.writable = True
    stream.send_now = send_now  # type: ignore[attr-defined]
    await stream.batch(0, 3, number=5)
    assert (stream.frames[-1].received_batch, here.inbox.count) == (5, 3)
    await here.over()
