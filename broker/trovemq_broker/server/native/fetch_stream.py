"""The Fetch stream: pulls are answered as they arrive; one that waits for its queue does not delay others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from trovemq_broker.fetch.long_poll import LongPolls, Waiter
from trovemq_broker.fetch.pull import PullRequest, PullResult
from trovemq_broker.server.core.read_core import ReadCore
from trovemq_broker.server.core.refused_message import RefusedMessage
from trovemq_broker.server.native.reply_stream import ReplyStream, fail
from trovemq_broker.server.wire.fetch_frames import Fetch, MoreReplies, fetch_id_of, read_fetch, read_pull
from trovemq_broker.server.wire.native_calls import Request
from trovemq_broker.server.wire.native_messages import fetch_error, fetch_reply
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.calls import Call
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueOffset

REPLIES_MAX: Final = 1_024
"""Outstanding replies of one fetch: a client that wants more asks for them."""


class FetchWait:
    """One fetch that waits for its queue to grow, until its deadline.

    `attempt` is tried again after each growth. If it `stands` after a reply, that had all of the queue, and
    the fetch waits for its next reply.
    """

    def __init__(
        self, core: ReadCore, fetch_id: int, request: PullRequest, wait_ms: int, replies_max: int
    ) -> None:
        self._core = core
        self._started = time.perf_counter()
        self._waited = False
        self.fetch_id: Final = fetch_id
        self.request = _of_one_topic(core, request)
        """The request that it is to answer."""
        self._space_max: Final = core.puller.bytes_max(request)
        self._space = self._space_max
        self._loop: Final = asyncio.get_running_loop()
        self._wait_s: Final = wait_ms / 1000
        self._deadline = self._loop.time() + self._wait_s
        self._replies_remaining = min(max(1, replies_max), REPLIES_MAX)
        self.stands = False
        self.is_due = False
        """Whether it is answered as soon as the client has read earlier replies."""

    @property
    def remaining_ms(self) -> int:
        return max(0, round((self._deadline - self._loop.time()) * 1000))

    def attempt(self, *, last: bool) -> bytes | None:
        """The reply; None if there are no messages yet and the fetch may still wait."""
        core, request = self._core, self.request
        try:
            result = core.puller.pull(request)
        except TroveError as error:
            return self.refusal(error)
        following = result.next_offset
        at_end = following >= result.max_offset
        if at_end and not last and result.at_end:
            self.request = _from(request, following, request.bytes_max)
            self._waited = True
            return None
        core.traffic.answered("Fetch", "OK", self._started, waited=self._waited)
        self._replies_remaining = left = self._replies_remaining - 1
        self._space = space = self._space - result.byte_count
        self.stands = left > 0 and at_end and not last and space > 0
        if not self.stands:  # the next fetch is not at the end of the queue, or would be too much
            return counted_reply(core, self.fetch_id, request.topic, result)
        self.request = _from(request, following, space)
        self._started, self._waited = time.perf_counter(), True
        self._deadline = self._loop.time() + self._wait_s
        return counted_reply(core, self.fetch_id, request.topic, result, left)

    def grant(self, replies: int) -> None:
        """Allows this many more replies, and as many bytes as at the beginning."""
        self._replies_remaining = min(self._replies_remaining + max(0, replies), REPLIES_MAX)
        self._space = self._space_max
        self.request = _from(self.request, self.request.offset, self._space)

    def refusal(self, error: TroveError) -> bytes:
        """The reply with the error, which is the last."""
        self.stands = False
        self._core.traffic.answered("Fetch", error.symbol, self._started, waited=self._waited)
        return fetch_error(self.fetch_id, error)


class FetchStream(ReplyStream):
    def __init__(self, core: ReadCore, context: Context) -> None:
        super().__init__(context, core.settings.fetch_frames_in_flight_max, core.replies)
        self._core = core
        self._waiters: dict[FetchWait, Waiter] = {}
        self._standing: dict[int, FetchWait] = {}  # by fetch id
        self._admit_again: Callable[[PullRequest], None] | None = getattr(context, "admit_again", None)
        """With authentication: raises TroveError if the topic may no longer be read."""

    async def handle(self, request: Request | RefusedMessage) -> None:
        if isinstance(request, RefusedMessage):
            self._core.traffic.answered("Fetch", request.error.symbol, time.perf_counter())
            await self.reply(fetch_error(fetch_id_of(request.message), request.error))
            return
        await self.wait_for_capacity()
        message = self._fetch(read_fetch(request))
        if message is not None:
            await self.reply(message)

    def handle_now(self, request: Request | RefusedMessage) -> bool:
        if isinstance(request, RefusedMessage):
            return False
        message = self._fetch(read_fetch(request))
        if message is not None:
            self.reply_now(message)
        return True

    def _fetch(self, command: Fetch | MoreReplies) -> bytes | None:
        """The reply; None if the fetch waits for new messages in its queue, or has no reply."""
        if isinstance(command, MoreReplies):
            if (standing := self._standing.get(command.fetch_id)) is not None:
                standing.grant(command.replies)
            return None
        core = self._core
        wait_ms = wait_limit(command.wait_ms, core.settings.long_poll_wait_max_ms)
        may_wait = self._waiting < core.settings.fetch_frames_in_flight_max - 1
        replies_max = command.replies_max if may_wait and not core.long_polls.full else 1
        fetch = FetchWait(core, command.fetch_id, command.pull, wait_ms, replies_max)
        message = fetch.attempt(last=wait_ms == 0 or self._ending or core.long_polls.closed)
        if message is not None and not fetch.stands:
            return message
        if not may_wait:
            error = TroveError(errors.LIMIT_EXCEEDED, f"{self._waiting} fetches of this stream are waiting")
            return fetch.refusal(error)
        try:
            self._wait(fetch)
        except TroveError as error:
            return fetch.refusal(error)
        self.begin_waiting()
        return message

    def _wait(self, fetch: FetchWait) -> None:
        """Waits for new messages. Raises TroveError LIMIT_EXCEEDED."""
        topic, queue_id = fetch.request.topic, fetch.request.queue_id
        self._waiters[fetch] = self._core.long_polls.wait(
            topic, queue_id, fetch.remaining_ms, partial(self._woken, fetch), stands=True
        )
        self._standing[fetch.fetch_id] = fetch

    def _woken(self, fetch: FetchWait, grown: bool) -> None:
        """Answers now: the message's producer has its answer. Later if the client has not read earlier
        replies."""
        if not grown:
            del self._waiters[fetch]  # LongPolls has forgotten it
        if fetch.is_due:
            return
        if not self._may_send:
            fetch.is_due = True
            self._make_ready(partial(self._due, fetch))
            return
        try:
            last = self._ending or (not grown and not fetch.remaining_ms)
            message = self._answer(fetch, last=last)
            if message is not None:
                # Several waiters may share a connection, and then share a write.
                self.reply_now(message, flush=self._core.long_polls.woke_one)
        except Exception as error:  # the append or sync that called this must not fail with it
            self._make_ready(partial(fail, error))
            return
        if fetch not in self._waiters:
            self._answered()
            self._end_if_idle()

    def _due(self, fetch: FetchWait) -> bytes | None:
        """The reply of a fetch that waited until earlier ones had been read; None if it has none yet."""
        fetch.is_due = False
        message = self._answer(fetch, last=self._ending or not fetch.remaining_ms)
        if fetch in self._waiters:
            self.begin_waiting()
        return message

    def _answer(self, fetch: FetchWait, *, last: bool) -> bytes | None:
        """The reply; None if there is none yet. A fetch that has ended has no waiter."""
        try:
            if self._admit_again is not None:
                self._admit_again(fetch.request)
            message = fetch.attempt(last=last)
            if message is None or fetch.stands:
                if fetch not in self._waiters:  # the deadline was moved meanwhile
                    self._wait(fetch)
                return message
        except TroveError as error:
            message = fetch.refusal(error)
        self._forget(fetch)
        return message

    def _forget(self, fetch: FetchWait) -> None:
        waiter = self._waiters.pop(fetch, None)
        if waiter is not None:
            waiter.cancel()
        if self._standing.get(fetch.fetch_id) is fetch:
            del self._standing[fetch.fetch_id]

    def end(self) -> None:
        super().end()
        for waiter in list(self._waiters.values()):
            waiter.wake()

    def close(self) -> None:
        for waiter in self._waiters.values():
            waiter.cancel()
        self._waiters.clear()
        self._standing.clear()


def begin_pull(core: ReadCore, call: Call) -> None:
    """The unary form: waits up to wait_ms, in a task. The answer is a serialised FetchReply. TroveError."""
    command = read_pull(call.request)
    own = _of_one_topic(core, command.pull)
    result = core.puller.pull(own)
    wait_ms = wait_limit(command.wait_ms, core.settings.long_poll_wait_max_ms)
    if result.at_end and wait_ms and not core.long_polls.closed:
        until = asyncio.get_running_loop().time() + wait_ms / 1000
        call.run(_pull_until(core, call, command.fetch_id, own, result, until))
    else:
        call.answer(counted_reply(core, command.fetch_id, own.topic, result))


async def _pull_until(
    core: ReadCore, call: Call, fetch_id: int, own: PullRequest, result: PullResult, until: float
) -> None:
    """Many calls may wait for the same message: each reply is made when there is space for it."""
    loop = asyncio.get_running_loop()
    while result.at_end and not core.long_polls.closed and (remaining := until - loop.time()) > 0:
        own = _from(own, result.next_offset, own.bytes_max)
        await _growth(core.long_polls, own, max(1, round(remaining * 1000)))
        await call.wait_for_capacity()
        if not call.may_answer():
            return
        result = core.puller.pull(own)
    call.answer(counted_reply(core, fetch_id, own.topic, result))


async def _growth(long_polls: LongPolls, request: PullRequest, wait_ms: int) -> None:
    """Returns when the queue grew or the time has passed. Raises TroveError LIMIT_EXCEEDED."""
    woken = asyncio.Event()
    waiter = long_polls.wait(request.topic, request.queue_id, wait_ms, lambda _grown: woken.set())
    try:
        await woken.wait()
    finally:
        waiter.cancel()


def counted_reply(core: ReadCore, fetch_id: int, topic: str, result: PullResult, remaining: int = 0) -> bytes:
    core.traffic.fetched(topic, result.message_count, result.byte_count)
    return fetch_reply(fetch_id, result, core.puller.topic_identity(topic), remaining)


def wait_limit(wait_ms: int, wait_ms_max: int) -> int:
    return max(0, min(wait_ms, wait_ms_max))


def _of_one_topic(core: ReadCore, request: PullRequest) -> PullRequest:
    """The request, which is refused from now on once its topic is deleted and recreated."""
    if request.topic_identity is not None:
        return request
    topic, queue_id, offset, messages_max, bytes_max, tags, _, lag = request
    identity = core.puller.topic_identity(topic)
    return PullRequest(topic, queue_id, offset, messages_max, bytes_max, tags, identity, lag)


def _from(request: PullRequest, offset: QueueOffset, bytes_max: int) -> PullRequest:
    topic, queue_id, _, messages_max, _, tags, identity, lag = request
    return PullRequest(topic, queue_id, offset, messages_max, bytes_max, tags, identity, lag)
