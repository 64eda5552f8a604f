"""The four kinds of calls: one message or many in each direction."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import Any, Final

from trovemq_rpc.channel.call import Call
from trovemq_rpc.channel.call_channel import CallChannel
from trovemq_rpc.channel.client_method import ClientMethod
from trovemq_rpc.channel.endpoint import ChannelEndpoint
from trovemq_rpc.errors import EOF, AioRpcError
from trovemq_rpc.http2.streams import MAY_SEND, Buffer
from trovemq_rpc.intake import Received, as_bytes, lasting
from trovemq_rpc.wire.framing import PREFIX_SIZE, pack_prefix, unpack_prefix
from trovemq_rpc.wire.status import StatusCode

WRITE_PENDING_MAX: Final = 256 << 10
"""`write` waits while more of the stream's bytes are held back: enough to keep a network busy until it goes
on.
"""
FINISHED: Final = "RPC already finished."
HALF_CLOSED: Final = 'RPC is half closed after calling "done_writing".'


class OneResponse(Call):
    """A call whose answer is one message."""

    _response: Buffer | None = None

    def on_data(self, data: memoryview, ended: bool) -> None:
        """Takes a whole message in one frame as it is; others go to the reader, under the budget."""
        size = len(data)
        if self.reader is None and self._response is None and not self.over and size >= PREFIX_SIZE:
            length = size - PREFIX_SIZE
            if unpack_prefix(data) == (0, length) and not ended:
                self.endpoint.to_acknowledge += size
                if length > self.endpoint.options.receive_size_max:
                    limit = self.endpoint.options.receive_size_max
                    details = f"a message of {length} bytes; at most {limit} here"
                    self.finish(StatusCode.RESOURCE_EXHAUSTED, details)
                else:
                    self._response = bytes(data[PREFIX_SIZE:])
                return
        super().on_data(data, ended)

    def deliver(self, messages: list[Received], ended: bool) -> None:
        self.settle()
        for flag, message in messages:
            if self._response is not None:
                self.finish(StatusCode.UNIMPLEMENTED, "more than one response in a unary call")
                return
            self._response = lasting(message)
            self.message_compressed = bool(flag)

    def finish(self, code: StatusCode, details: str = "") -> None:
        if code is StatusCode.OK and self._response is None:
            code, details = StatusCode.UNIMPLEMENTED, "No message returned for unary request"
        super().finish(code, details)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.over:
            try:
                while not self.over:
                    yield from self._wait_step().__await__()
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self._status is not StatusCode.OK:
            self._raise()
        assert self._response is not None
        deserialize = self.method.deserialize
        return self._response if deserialize is None else deserialize(as_bytes(self._response))


class ManyResponses(Call):
    """A call whose answer is a stream of messages."""

    _readers: deque[asyncio.Future[None]] | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.messages: deque[Received] = deque()

    def deliver(self, messages: list[Received], ended: bool) -> None:
        if self.receiver is not None:
            messages = self.offer(messages)
            if self.over:  # the receiver ended the call
                return
        if messages:
            self.queue(messages)
            self.wake_reader()
        else:
            self.settle()

    def finish(self, code: StatusCode, details: str = "") -> None:
        super().finish(code, details)
        self.wake_reader()

    def on_over(self) -> None:
        """Unread messages can still be read, and count until then, unless the call failed."""
        self.receiver = None  # else a cycle would wait for the garbage collector
        if self._status is not StatusCode.OK:
            self.messages.clear()
        if not self.messages:
            self.release_all()

    def wake_reader(self) -> None:
        for waiter in self._readers or ():
            if not waiter.done():
                waiter.set_result(None)

    async def read(self) -> Any:
        """The next response; EOF after the last one; raises the status of a call that failed."""
        while not self.messages:
            if self.over:
                self._raise()
                return EOF
            waiter = asyncio.get_running_loop().create_future()
            if self._readers is None:
                self._readers = deque()
            self._readers.append(waiter)
            self.waiter = self._readers[0]
            try:
                await waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                self._readers.remove(waiter)
                self.waiter = self._readers[0] if self._readers else None
        message = self.take()
        if self.over and not self.messages:
            self.release_all()
        deserialize = self.method.deserialize
        if deserialize is None:
            return message
        data: Any = message if self.method.takes_view else as_bytes(message)
        return deserialize(data)

    def __aiter__(self) -> ManyResponses:
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is EOF:
            raise StopAsyncIteration
        return message


class OneRequest(Call):
    """A call with one message from us."""

    def __init__(self, channel: CallChannel, method: ClientMethod, request: Any, *args: Any) -> None:
        super().__init__(channel, method, *args)
        flag, message = self._message(request)
        self._body = pack_prefix(flag, len(message)), message
        channel.submit(self)

    def start(self, endpoint: ChannelEndpoint) -> None:
        block = self._block(endpoint)
        if block is not None:
            self._started(endpoint, endpoint.connection.open_unary(block, self._body))


class ManyRequests(Call):
    """A call with a stream of messages from us: from an iterator, or by `write`."""

    _closed = False  # we send no more
    _wrote = False
    _writers: list[asyncio.Future[None]] | None = None
    _task: asyncio.Task[None] | None = None

    def __init__(self, channel: CallChannel, method: ClientMethod, requests: Any, *args: Any) -> None:
        super().__init__(channel, method, *args)
        channel.submit(self)
        if requests is not None:
            self._task = channel.loop.create_task(self._send_all(requests))

    def start(self, endpoint: ChannelEndpoint) -> None:
        block = self._block(endpoint)
        if block is None:
            return
        self._started(endpoint, endpoint.connection.open_stream(block))
        if self._closed:
            self._end_stream()
        self._wake_writers()

    def can_repeat(self) -> bool:
        return not self._wrote

    def on_writable(self) -> None:
        self._wake_writers()

    def finish(self, code: StatusCode, details: str = "") -> None:
        super().finish(code, details)
        self._wake_writers()
        if self._task is not None and not self._task.done() and self._task is not _current_task():
            self._task.cancel()

    def _wake_writers(self) -> None:
        waiters, self._writers = self._writers or [], None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait_writable(self) -> None:
        """Waits until the call is sent and not too much of it is held back."""
        while not self.over and (not self.sent or self.stream.pending_size > WRITE_PENDING_MAX):
            waiter = self.channel.loop.create_future()
            if self._writers is None:
                self._writers = []
            self._writers.append(waiter)
            await waiter

    async def write(self, request: Any, compress: bool = True) -> None:
        if self._closed:
            raise asyncio.InvalidStateError(HALF_CLOSED)
        if self.over:
            self._raise()
            raise asyncio.InvalidStateError(FINISHED)
        flag, message = self._message(request, not compress)
        if not self.writable:
            try:
                await self._wait_writable()
            except asyncio.CancelledError:
                self.cancel()
                raise
        self._send(flag, message)
        self.endpoint.flush_soon()

    @property
    def writable(self) -> bool:
        """Whether write() would not wait."""
        return (
            self.sent and not self._closed and not self.over and self.stream.pending_size <= WRITE_PENDING_MAX
        )

    def write_now(self, request: Any, *, alone: bool = False) -> None:
        """Sends a message from a callback, if the call is `writable`: the transport has it when this returns.
        `alone`: all others were answered, and this one is likely to be soon. Raises AioRpcError of a call
        that failed meanwhile, InvalidStateError of one that ended."""
        assert self.writable, "a call that may have to wait is awaited: write()"
        flag, message = self._message(request)
        self._send(flag, message)
        endpoint = self.endpoint
        if not endpoint.gathering:  # else the read under way flushes
            endpoint.end_iteration()
        if alone:
            endpoint.poll()

    def _send(self, flag: int, message: bytes) -> None:
        if self.over:
            self._raise()
            raise asyncio.InvalidStateError(FINISHED)
        self._wrote = True
        size = len(message)
        self.endpoint.connection.send_data(
            self.stream, (pack_prefix(flag, size), message), size + PREFIX_SIZE
        )

    async def done_writing(self) -> None:
        """No more requests follow."""
        if self._closed or self.over:
            return
        self._closed = True
        if self.sent:
            self._end_stream()

    def _end_stream(self) -> None:
        if MAY_SEND[self.stream.state]:
            self.endpoint.connection.send_data(self.stream, (), 0, True)
            self.endpoint.flush_soon()

    async def _send_all(self, requests: Any) -> None:
        """Consumes the caller's iterator, synchronous or not."""
        try:
            if hasattr(requests, "__aiter__"):
                async for request in requests:
                    await self.write(request)
                    if self.over:
                        return
            else:
                for request in requests:
                    await self.write(request)
            await self.done_writing()
        except (AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            return  # the call is over: its status says why
        except Exception as error:
            self.channel.log_failed_iterator(self.method.path, error)
            self.cancel()


class UnaryUnaryCall(OneRequest, OneResponse):
    """One request, one response."""


class UnaryStreamCall(OneRequest, ManyResponses):
    """One request, a stream of responses."""


class StreamUnaryCall(ManyRequests, OneResponse):
    """A stream of requests, one response."""


class StreamStreamCall(ManyRequests, ManyResponses):
    """A stream in both directions."""


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
