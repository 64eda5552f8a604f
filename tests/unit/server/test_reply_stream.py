"""A stream whose client does not read: it ends as a whole, for every writer."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from tests.support import fake_loop
from tests.support.fake_loop import fake_time
from trovemq_broker.server.native.reply_stream import ReplyStream
from trovemq_daemon.reply_budget import ReplyBudget, ReplyLimits

MIB = 1 << 20


class Unread:
    """A client that sends one request and reads nothing."""

    def __init__(self) -> None:
        self.requests = 1

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    async def read(self) -> Any:
        if self.requests:
            self.requests -= 1
            return b"request"
        return await asyncio.get_running_loop().create_future()

    async def write(self, _message: bytes) -> None:
        await asyncio.get_running_loop().create_future()


class Large(ReplyStream):
    """Answers at once, or later."""

    later = False

    async def handle(self, _request: Any) -> None:
        if self.later:
            self.begin_waiting()
            self.reply_soon(lambda: b"x" * MIB)
        else:
            await self.reply(b"x" * MIB)


@fake_time
@pytest.mark.parametrize("later", [False, True])
async def test_a_stream_lived_on_without_its_writer(later: bool) -> None:
    replies = ReplyBudget(ReplyLimits())
    context: Any = Unread()
    stream = Large(context, 10, replies)
    stream.later = later
    serving = asyncio.create_task(stream.serve())
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(serving, 100)
    assert asyncio.get_running_loop().time() == pytest.approx(60)
    assert (replies.budget.used, replies.ended_count) == (0, 1)


class Held:
    """A large reply that the client does not read."""


class Holding(ReplyStream):
    held: weakref.ref[Held]

    async def handle(self, _request: Any) -> None:
        large = Held()
        self.held = weakref.ref(large)
        await self.reply(b"x")
        assert large is not None


@fake_time
async def test_an_unread_reply_was_kept_until_the_garbage_collector_came_by() -> None:
    context: Any = Unread()
    stream = Holding(context, 10)
    gc.disable()
    try:
        serving = asyncio.create_task(stream.serve())
        await fake_loop.turns()
        assert stream.held() is not None
        serving.cancel()
        await asyncio.wait({serving})
        del serving
        await fake_loop.turns()
        assert stream.held() is None
    finally:
        gc.enable()
