"""The Fetch stream: pulls are answered as they arrive; one that waits for its queue does not delay others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from broker.fetch.long_poll import LongPolls, Waiter
from broker.fetch.pull import Puller, PullRequest, PullResult
from broker.server.monitoring.traffic import Traffic
from broker.server.native.convert import fetch_error, fetch_reply, pull_request
from broker.server.native.reply_stream import ReplyStream
from broker.server.refused_message import RefusedMessage
from trovemq_daemon.reply_budget import ReplyBudget
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueOffset
from trovemq_proto.v1 import message_pb2


@dataclass(frozen=True, slots=True)
class FetchParts:
    """The common parts of all Fetch streams."""

    puller: Puller
    long_polls: LongPolls
    traffic: Traffic
    wait_ms_max: int = 30_000
    fetches_waiting_max: int = 256
    replies: ReplyBudget | None = None


class FetchWait:
    """One fetch that waits for its queue to grow, until its deadline.

    `attempt` is tried again after each growth.
    """

    def __init__(self, parts: FetchParts, fetch_id: int, request: PullRequest, wait_ms: int) -> None:
        self._parts = parts
        self._started = time.perf_counter()
        self._waited = False
        self._fetch_id = fetch_id
        self._request = request
        self._deadline = asyncio.get_running_loop().time() + wait_ms / 1000

    @property
    def remaining_ms(self) -> int:
        return max(0, round((self._deadline - asyncio.get_running_loop().time()) * 1000))

    @property
    def request(self) -> PullRequest:
        """The request that it is to answer."""
        return self._request

    def attempt(self, *, last: bool) -> bytes | None:
        """The reply; None if there are no messages yet and the fetch may still wait."""
        try:
            result = self._parts.puller.pull(self._request)
        except TroveError as error:
            return self.refusal(error)
        if result.at_end and not last:
            self._request = _from(self._request, result.next_offset)
            self._waited = True
            return None
        self._answered("OK")
        return counted_reply(self._parts, self._fetch_id, self._request.topic, result)

    def refusal(self, error: TroveError) -> bytes:
        """The reply with the error."""
        self._answered(error.symbol)
        return fetch_error(self._fetch_id, error)

    def _answered(self, response: str) -> None:
        self._parts.traffic.answered("Fetch", response, self._started, waited=self._waited)


class FetchStream(ReplyStream):
    def __init__(self, parts: FetchParts, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        super().__init__(context, parts.fetches_waiting_max, parts.replies)
        self._parts = parts
        self._waiters: dict[FetchWait, Waiter] = {}
        self._admit_again: Callable[[PullRequest], None] | None = getattr(context, "admit_again", None)
        """With authentication: raises TroveError if the topic may no longer be read."""

    async def handle(self, request: message_pb2.FetchRequest | RefusedMessage) -> None:
        if isinstance(request, RefusedMessage):
            fetch_id = request.message.fetch_id
            self._parts.traffic.answered("Fetch", request.error.symbol, time.perf_counter())
            await self.reply(fetch_error(fetch_id, request.error))
            return
        await self.wait_for_capacity()
        message = self._fetch(request)
        if message is not None:
            await self.reply(message)

    def handle_now(self, request: message_pb2.FetchRequest | RefusedMessage) -> bool:
        if isinstance(request, RefusedMessage):
            return False
        message = self._fetch(request)
        if message is not None:
            self.reply_now(message)
        return True

    def _fetch(self, request: message_pb2.FetchRequest) -> bytes | None:
        """The reply; None if the request waits for new messages in its queue."""
        parts = self._parts
        wait_ms = wait_limit(request, parts.wait_ms_max)
        fetch = FetchWait(parts, request.fetch_id, pull_request(request), wait_ms)
        message = fetch.attempt(last=wait_ms == 0 or self._ending or parts.long_polls.closed)
        if message is not None:
            return message
        if self._waiting >= parts.fetches_waiting_max - 1:
            error = TroveError(errors.LIMIT_EXCEEDED, f"{self._waiting} fetches of this stream are waiting")
            return fetch.refusal(error)
        return self._begin_wait(fetch)

    def _begin_wait(self, fetch: FetchWait) -> bytes | None:
        topic, queue_id = fetch.request.topic, fetch.request.queue_id
        loop = asyncio.get_running_loop()

        def woken(grown: bool) -> None:
            self._waiters.pop(fetch, None)
            # Not now: many fetches may wait for one queue, and the sender of the append is to be answered
            # first.
            loop.call_soon(self.reply_soon, lambda: self._answer(fetch, last=not grown))

        try:
            waiter = self._parts.long_polls.wait(topic, queue_id, fetch.remaining_ms, woken)
        except TroveError as error:
            return fetch.refusal(error)
        self._waiters[fetch] = waiter
        self.begin_waiting()
        return None

    def _answer(self, fetch: FetchWait, *, last: bool) -> bytes | None:
        if self._admit_again is not None:
            try:
                self._admit_again(fetch.request)
            except TroveError as error:
                return fetch.refusal(error)
        message = fetch.attempt(last=last or self._ending or fetch.remaining_ms == 0)
        return self._begin_wait(fetch) if message is None else message

    def end(self) -> None:
        super().end()
        for waiter in list(self._waiters.values()):
            waiter.wake()

    def close(self) -> None:
        for waiter in self._waiters.values():
            waiter.cancel()
        self._waiters.clear()


async def pull_once(parts: FetchParts, request: message_pb2.FetchRequest, peer: str) -> bytes:
    """The unary form: waits up to wait_ms. Raises TroveError; returns a serialised FetchReply.

    Many calls may wait for the same message: each reply is made when there is space for it.
    """
    own = pull_request(request)
    result = parts.puller.pull(own)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_limit(request, parts.wait_ms_max) / 1000
    while result.at_end and not parts.long_polls.closed and (remaining := deadline - loop.time()) > 0:
        own = _from(own, result.next_offset)
        await _growth(parts.long_polls, own, max(1, round(remaining * 1000)))
        if parts.replies is not None:
            await parts.replies.wait_for_capacity(peer)
        result = parts.puller.pull(own)
    return counted_reply(parts, request.fetch_id, own.topic, result)


def pull_now(parts: FetchParts, request: message_pb2.FetchRequest) -> bytes | None:
    """Pulls if that needs no waiting; else None."""
    own = pull_request(request)
    result = parts.puller.pull(own)
    if result.at_end and not parts.long_polls.closed and wait_limit(request, parts.wait_ms_max):
        return None
    return counted_reply(parts, request.fetch_id, own.topic, result)


async def _growth(long_polls: LongPolls, request: PullRequest, wait_ms: int) -> None:
    """Returns when the queue grew or the time has passed. Raises TroveError LIMIT_EXCEEDED."""
    woken = asyncio.Event()
    waiter = long_polls.wait(request.topic, request.queue_id, wait_ms, lambda _grown: woken.set())
    try:
        await woken.wait()
    finally:
        waiter.cancel()


def counted_reply(parts: FetchParts, fetch_id: int, topic: str, result: PullResult) -> bytes:
    parts.traffic.fetched(topic, result.message_count, result.byte_count)
    return fetch_reply(fetch_id, result)


def wait_limit(request: message_pb2.FetchRequest, wait_ms_max: int) -> int:
    return max(0, min(request.wait_ms, wait_ms_max))


def _from(request: PullRequest, offset: int) -> PullRequest:
    return PullRequest(
        request.topic,
        request.queue_id,
        QueueOffset(offset),
        request.messages_max,
        request.bytes_max,
        request.tags,
    )
