"""Replies that the client does not read: they wait for space, are refused, or end their call."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from prometheus_client import CollectorRegistry

from tests.support import fake_loop
from tests.support.fake_loop import fake_time
from trovemq_daemon.handler_guard import HandlerGuard
from trovemq_daemon.metrics import RpcMetrics
from trovemq_daemon.reply_budget import UNCOUNTED_SIZE, ReplyBudget, ReplyLimits
from trovemq_proto.errors import TroveError

pytestmark = fake_time


MIB = 1 << 20
LIMITS = ReplyLimits(total_max=16 * MIB, connection_max=4 * MIB, reply_size_expected=MIB)


async def test_a_reply_waits_until_the_connection_has_read_earlier_ones() -> None:
    replies = ReplyBudget(LIMITS)
    claims = [replies.claim("a", MIB) for _ in range(4)]
    await asyncio.wait_for(replies.wait_for_capacity("b"), 1)
    waiting = asyncio.create_task(replies.wait_for_capacity("a"))
    await fake_loop.turns()
    assert not waiting.done()
    assert claims[0] is not None
    replies.release(claims[0])
    await asyncio.wait_for(waiting, 1)
    assert replies.budget.waits == 1


async def test_who_never_reads_is_refused_more() -> None:
    replies = ReplyBudget(LIMITS)
    replies.claim("a", 4 * MIB)
    with pytest.raises(TroveError, match="unread replies"):
        await replies.wait_for_capacity("a")
    assert asyncio.get_running_loop().time() == pytest.approx(5)
    assert (replies.refused_count, replies.budget.waiting_count) == (1, 0)


async def test_a_large_reply_that_nobody_reads_was_kept_for_ever() -> None:
    replies = ReplyBudget(LIMITS)

    async def write() -> None:
        with replies.writing("a", MIB):
            await asyncio.get_running_loop().create_future()  # the client's window is shut

    writing = asyncio.create_task(write())
    await fake_loop.turns()
    assert replies.budget.used == MIB
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert asyncio.get_running_loop().time() == pytest.approx(60)
    assert (replies.budget.used, replies.ended_count) == (0, 1)


async def test_small_replies_are_not_counted() -> None:
    replies = ReplyBudget(LIMITS)
    assert replies.claim("a", UNCOUNTED_SIZE) is None
    with replies.writing("a", 100):
        assert replies.budget.used == 0


async def test_when_one_reply_was_read_all_that_waited_made_theirs() -> None:
    """A thousand streams that wait for space get it one after the other, each with the reply that it then
    makes."""
    replies = ReplyBudget(LIMITS)
    claims = [replies.claim("a", MIB) for _ in range(4)]

    async def make() -> None:
        await replies.wait_for_capacity("a")
        with replies.writing("a", MIB):
            await asyncio.get_running_loop().create_future()

    works = [asyncio.create_task(make()) for _ in range(100)]
    await fake_loop.turns()
    assert claims[0] is not None
    replies.release(claims[0])
    await fake_loop.turns(50)
    assert replies.budget.used == 4 * MIB
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)
    assert replies.budget.used == 3 * MIB


async def test_many_calls_began_while_there_was_space_for_one_reply() -> None:
    """A reply that takes several steps to make has its space before the first of them."""
    replies = ReplyBudget(LIMITS)
    making = 0

    async def make() -> None:
        nonlocal making
        claim = await replies.claim_capacity("a")
        making += 1
        await asyncio.get_running_loop().create_future()
        assert claim is not None

    works = [asyncio.create_task(make()) for _ in range(100)]
    await fake_loop.turns(50)
    assert (making, replies.budget.used) == (4, 4 * MIB)
    for work in works[4:]:
        work.cancel()
    await asyncio.gather(*works[4:], return_exceptions=True)
    assert replies.budget.waiting_count == 0


async def test_space_that_a_cancelled_call_was_given_is_free_again() -> None:
    replies = ReplyBudget(LIMITS)
    first = replies.claim("a", 4 * MIB)
    assert first is not None
    waiting = asyncio.create_task(replies.claim_capacity("a"))
    await fake_loop.turns()
    replies.release(first)  # the space is given, and the task has not run yet
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (waiting.cancelled(), replies.budget.used) == (True, 0)


async def test_a_small_reply_releases_what_was_claimed_for_a_large_one() -> None:
    replies = ReplyBudget(LIMITS)
    made = await replies.claim_capacity("a")
    assert replies.claim("a", 100, made) is None
    assert replies.budget.used == 0
    made = await replies.claim_capacity("a")
    assert replies.claim("a", 2 * MIB, made) is made
    assert replies.budget.used == 2 * MIB


async def test_open_streams_claimed_space_until_nobody_got_any() -> None:
    """Telemetry streams are answered by a coroutine, and last as long as their client."""
    replies = ReplyBudget(LIMITS)
    ended = asyncio.Event()

    async def talk(_requests: object, _context: object) -> None:
        await ended.wait()

    guard = HandlerGuard(
        RpcMetrics(CollectorRegistry(), cluster="c", node_type="broker", node_id="a"), replies
    )
    handler = guard.streams("/s/Telemetry", grpc.stream_stream_rpc_method_handler(talk))
    streams = [asyncio.create_task(handler.stream_stream(None, Peer())) for _ in range(100)]
    await fake_loop.turns(50)
    assert (replies.budget.used, replies.budget.waiting_count) == (0, 0)
    ended.set()
    await asyncio.gather(*streams)


class Peer:
    """Of a call's context."""

    def peer(self) -> str:
        return "a"
