"""The common part of the Append and the Fetch stream: replies from the reader and from callbacks, and an end
that loses none of them.

A reply is written at once by the reader's coroutine (`reply`: without another task), or later, when a sync or
a new message has made it ready (`reply_soon`, from a callback). gRPC supports one write at a time, so both
use one lock.

With our own transport neither requests nor replies need a task, as long as they need not wait: `handle_now`
gets the request in the callback that received it, and replies are written in the callback that made them.

Invariants
- Every reply that is ready is written before the stream ends, unless the client is gone.
- While a client does not read its replies, at most a fixed number of its requests is read.
- A stream that ends because the broker is stopping has answered all requests that it read: its error says
  so, and the client knows that nothing was done for the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import grpc

from trovemq_daemon.grpc_transport import is_end
from trovemq_daemon.reply_budget import ReplyBudget
from trovemq_proto import errors
from trovemq_proto.errors import UNREAD, TroveError

MakeReply = Callable[[], bytes | None]


class ReplyStream:
    """One open stream of one client. Subclasses handle one request at a time in `handle`."""

    def __init__(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        waiting_max: int,
        replies: ReplyBudget | None = None,
    ) -> None:
        """`replies`: the budget of the large replies of all streams."""
        self._context = context
        self._replies = replies
        self._peer = context.peer()
        self._waiting_max = waiting_max
        self._callbacks = CallbackContext.of(context)
        self._waiting = 0  # requests whose reply comes later
        self._ready: deque[MakeReply] = deque()
        self._writing = asyncio.Lock()
        self._writers = 0  # replies that are written, or wait for the lock: no other may overtake them
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()  # set whenever a waiting request was answered
        self._handling = False
        self._ending = False  # the stream ends as soon as all requests are answered
        self._ended = False  # the reader must return
        self._over = False
        self._failure: Exception | None = None
        self.task: asyncio.Task[object] | None = None

    # --- for subclasses -----------------------------------------------------------------------------
    async def handle(self, request: Any) -> None:
        raise NotImplementedError

    def handle_now(self, request: Any) -> bool:
        """Handles a request and replies by `reply_now`. False: nothing was done, because it may have to
        wait."""
        del request
        return False

    def reply_now(self, message: bytes, *, flush: bool = False) -> None:
        """Writes the reply in this callback, or later if the client has not read earlier replies. `flush`: it
        does not wait for others of this iteration of the loop."""
        callbacks = self._callbacks
        if callbacks is not None and (callbacks.try_send_now if flush else callbacks.try_send)(message):
            return
        self.begin_waiting()
        self._make_ready(lambda: message)

    async def reply(self, message: bytes) -> None:
        """Writes a reply."""
        self._writers += 1
        try:
            async with self._writing:
                await self._write(message)
        finally:
            self._writers -= 1

    async def _write(self, message: bytes) -> None:
        if self._replies is None:
            await self._context.write(message)
            return
        try:
            with self._replies.writing(self._peer, len(message)):
                await self._context.write(message)
        except asyncio.CancelledError:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Ends the whole stream because a reply was not read in time, so that gRPC frees it."""
        if self.task is not None and not self._over and asyncio.current_task() is not self.task:
            self.task.cancel()

    def has_capacity(self) -> bool:
        """Whether another reply may be made in this step of the loop."""
        return self._replies is None or self._replies.has_space(self._peer)

    async def wait_for_capacity(self) -> None:
        """Returns when another reply may be made. TroveError LIMIT_EXCEEDED."""
        if self._replies is not None and not self._replies.has_space(self._peer):
            await self._replies.wait_for_capacity(self._peer)

    def begin_waiting(self) -> None:
        """Notes that a reply will follow by `reply_soon`."""
        self._waiting += 1

    def reply_soon(self, make: MakeReply, *, flush: bool = False) -> None:
        """Answers a waiting request: `make` returns its reply when it is to be written; None if the request
        waits again (by begin_waiting). `flush`: it does not wait for others of this iteration of the loop."""
        if not self._may_send:
            self._make_ready(make)
            return
        try:
            message = make()
        except Exception as error:  # the append or sync that called this must not fail with it
            self._make_ready(partial(fail, error))
            return
        if message is not None:
            self.reply_now(message, flush=flush)
        self._answered()
        self._end_if_idle()

    def reply_made(self, message: bytes, *, flush: bool = False) -> None:
        """Answers a waiting request with this reply. `flush`: it does not wait for others of this iteration
        of the loop."""
        if not self._may_send:
            self._make_ready(lambda: message)
            return
        self.reply_now(message, flush=flush)
        self._answered()
        self._end_if_idle()

    @property
    def _may_send(self) -> bool:
        """Whether a reply can be written at once."""
        callbacks, replies = self._callbacks, self._replies
        if callbacks is None or self._over or self._ready or self._writers:
            return False
        return callbacks.can_send and (replies is None or replies.has_space(self._peer))

    def _make_ready(self, make: MakeReply) -> None:
        self._ready.append(make)
        self._wake.set()

    def _answered(self) -> None:
        self._waiting -= 1
        self._settled.set()

    # --- the stream ---------------------------------------------------------------------------------
    async def serve(self) -> None:
        """Reads and answers until the client has no more requests, or `end` was called.

        Raises TroveError SERVICE_NOT_AVAILABLE in the latter case, and the error of a refused reply.
        """
        self.task = asyncio.current_task()
        if self._callbacks is not None and type(self).handle_now is not ReplyStream.handle_now:
            self._callbacks.set_receiver(self._receive)
        writer = asyncio.create_task(self._write_ready(), name="stream-writer")
        writer.add_done_callback(self._writer_done)
        try:
            await self._read_all()
            await self._wait_for_waiting(0)
        except asyncio.CancelledError:
            if self.task is None or not (self._ended or self._failure):
                raise
            self.task.uncancel()
            raise self._failure or _stopping() from None
        finally:
            self._over = True
            if self._callbacks is not None:
                self._callbacks.set_receiver(None)
            self.task = None  # a cycle would keep unread replies until the garbage collector runs
            writer.cancel()
            self.close()

    def close(self) -> None:
        """Is called at the end of the stream; subclasses cancel waiting entries."""

    def end(self) -> None:
        """Ends the stream, because the broker is stopping, as soon as all requests that were read are
        answered."""
        self._ending = True
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        idle = not self._handling and not self._waiting
        if self._ending and idle and not self._ended and self.task is not None:
            self._ended = True
            self.task.cancel()

    def _writer_done(self, writer: asyncio.Task[None]) -> None:
        """Ends the stream if a reply could not be written."""
        if not writer.cancelled() and (failure := writer.exception()) is not None:
            self.end_with(failure if isinstance(failure, TroveError) else None)

    def end_with(self, error: Exception | None) -> None:
        """Ends the stream with this error; None: the client is gone."""
        self._failure = error
        if self.task is not None:
            self.task.cancel()

    def _receive(self, request: Any) -> bool:
        """Handles a request that arrives while the reader waits for one. False: the reader must handle it."""
        if self._ending or self._waiting >= self._waiting_max or not self._may_send:
            return False
        return self.handle_now(request)

    async def _read_all(self) -> None:
        read = self._context.read
        while True:
            request = await read()
            if is_end(request):
                return
            self._handling = True
            if self._waiting >= self._waiting_max:  # by `handle_now`
                await self._wait_for_waiting(self._waiting_max - 1)
            await self.handle(request)
            if self._waiting >= self._waiting_max:
                await self._wait_for_waiting(self._waiting_max - 1)
            self._handling = False
            if self._ending:
                self._end_if_idle()

    async def _wait_for_waiting(self, count: int) -> None:
        """Returns when at most `count` requests wait for their reply."""
        while self._waiting > count:
            self._settled.clear()
            await self._settled.wait()

    async def _write_ready(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._ready:
                await self.wait_for_capacity()
                message = self._ready.popleft()()
                if message is not None:
                    await self.reply(message)
                self._answered()
            self._end_if_idle()


def _stopping() -> TroveError:
    return TroveError(errors.SERVICE_NOT_AVAILABLE, "the broker is stopping", **{UNREAD: "true"})


def fail(error: Exception) -> bytes:
    """A MakeReply that ends the stream."""
    raise error


class CallbackContext(Protocol):
    """The part of the context of trovemq_rpc that needs no task; with authentication it has the check of
    access."""

    @property
    def can_send(self) -> bool: ...

    def try_send(self, message: bytes, /) -> bool: ...

    def try_send_now(self, message: bytes, /) -> bool: ...

    def set_receiver(self, receiver: Callable[[Any], bool] | None, /) -> None: ...

    @staticmethod
    def of(context: Any) -> CallbackContext | None:
        """The context's callbacks; None with grpcio."""
        return context if hasattr(context, "set_receiver") else None


class OpenStreams:
    """The streams of one service that are open now."""

    def __init__(self) -> None:
        self._streams: set[ReplyStream] = set()
        self._ending = False

    def __len__(self) -> int:
        return len(self._streams)

    async def serve(self, stream: ReplyStream) -> None:
        """Raises TroveError SERVICE_NOT_AVAILABLE when the broker is stopping."""
        if self._ending:
            raise _stopping()
        self._streams.add(stream)
        try:
            await stream.serve()
        finally:
            self._streams.discard(stream)

    async def end_all(self, timeout_s: float) -> None:
        """Ends all streams, and accepts no others; returns when they have ended, or after timeout_s (if a
        client does not read)."""
        self._ending = True
        tasks = {stream.task for stream in self._streams if stream.task is not None}
        for stream in list(self._streams):
            stream.end()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
