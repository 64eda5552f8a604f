"""A call on the server: the `ServicerContext` of coroutine handlers and the `call` of callbacks.

| state | until | then |
| --- | --- | --- |
| reading: `ended` is False | the client ends its half | `read` returns EOF after the last message |
| answering: `headers_sent` | the status is sent | over |
| over: `over` | | nothing is sent, and nothing is held any more |

A call is over with our status, the client's reset, its deadline, or the end of the connection.
`was_cancelled` says that it was not our status.

Invariants:
- `over` is set once. Nothing is sent afterwards.
- `unread` is the size of the messages in `messages`. It is 0 at the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

from trovemq_rpc.errors import EOF, AbortError, UsageError, like_grpc, public_code
from trovemq_rpc.http2.constants import ErrorCode
from trovemq_rpc.http2.streams import CLOSED, Buffer, Stream
from trovemq_rpc.intake import Received
from trovemq_rpc.server.call_endpoint import CallEndpoint
from trovemq_rpc.server.head import CallHead
from trovemq_rpc.server.incoming import Incoming
from trovemq_rpc.server.outgoing import Outgoing
from trovemq_rpc.wire.metadata import MetadataLike, Pair
from trovemq_rpc.wire.status import StatusCode, as_status

WRITE_PENDING_MAX: Final = 256 << 10
"""`write` waits while more of the stream's bytes are held back: enough to keep a network busy until it goes
on.
"""


class ServerCall(Incoming, Outgoing):
    """Attributes that few calls need belong to the class until they are set: so a call is made quickly."""

    task: asyncio.Task[None] | None = None
    over = False
    was_cancelled = False
    deadline: float | None = None
    wheel_key = 0
    parsed: Any = None
    """For a callback's use: the request, if it has read it."""
    _done_callbacks: list[Callable[[Any], None]] | None = None
    _writable: asyncio.Future[None] | None = None
    _code: StatusCode | None = None
    _details = ""

    def __init__(self, endpoint: CallEndpoint, stream: Stream, head: CallHead) -> None:
        self.endpoint = endpoint
        self.stream = stream
        self.head = head
        assert head.method is not None
        self.method = head.method
        if head.method.request_streaming:
            self.messages: deque[Received] = deque()

    # --- reading ----------------------------------------------------------------------------------------
    async def read(self) -> Any:
        """The next request, or EOF. A call has one reader."""
        reads = self.endpoint.reads
        while True:
            while not self.messages:
                if self.ended and not self.kept_size:
                    return EOF
                if self.over:
                    raise asyncio.CancelledError
                if self.waiter is not None:
                    raise UsageError("two tasks read the same call")
                self.endpoint.flush_before_wait()
                self.waiter = self.endpoint.loop.create_future()
                try:
                    await self.waiter
                finally:
                    self.waiter = None
            if reads.left:
                reads.take(1)
                return self.take_message()
            await asyncio.sleep(0)

    def __aiter__(self) -> ServerCall:
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is EOF:
            raise StopAsyncIteration
        return message

    def wake_reader(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    # --- writing ----------------------------------------------------------------------------------------
    async def write(self, message: Any, compress: bool = True) -> None:
        """Sends a response of a stream. Waits while the client or the network holds back too much of it."""
        if self.over:
            raise asyncio.CancelledError if self.was_cancelled else UsageError("the call is over")
        if not compress:
            self.disable_next_message_compression()
        self.send(message)
        while self.stream.pending_size > WRITE_PENDING_MAX and not self.over:
            self._writable = self.endpoint.loop.create_future()
            try:
                await self._writable
            finally:
                self._writable = None

    def try_send(self, message: Any) -> bool:
        """`write` for a callback. False, and nothing was done, if the call is over or the client has not
        taken the bytes before.
        """
        if self.over or self.stream.pending:
            return False
        self.send(message)
        return True

    def try_send_now(self, message: Any) -> bool:
        """`try_send`; the message is with the transport when this returns. While a read is handled, its end
        writes."""
        if self.over or self.stream.pending:
            return False
        endpoint = self.endpoint
        if endpoint.gathering:
            self.send(message)
            return True
        endpoint.gathering = True
        try:
            self.send(message)
        finally:
            endpoint.end_iteration()
        return True

    @property
    def can_send(self) -> bool:
        """Whether `try_send` would send."""
        return not self.over and not self.stream.pending

    def on_writable(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    async def send_initial_metadata(self, initial_metadata: MetadataLike) -> None:
        self.set_initial_metadata(initial_metadata)
        self.send_headers()

    # --- status -----------------------------------------------------------------------------------------
    async def abort(self, code: Any, details: str = "", trailing_metadata: MetadataLike = ()) -> NoReturn:
        status = as_status(code)
        if status is StatusCode.OK:
            raise UsageError("abort needs another status than OK")
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        self._code, self._details = status, details
        self.finish(status, details)
        raise like_grpc(AbortError)("Locally aborted.")

    async def abort_with_status(self, status: Any) -> NoReturn:
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    def fail(self, code: Any, details: str = "") -> None:
        """Ends the call with a status, from a callback."""
        self.finish(as_status(code), details)

    def set_code(self, code: Any) -> None:
        self._code = as_status(code)

    def set_details(self, details: str) -> None:
        self._details = details

    @property
    def status(self) -> StatusCode | None:
        """The code given to `set_code`."""
        return self._code

    def code(self) -> Any:
        return public_code(self._code) if self._code is not None else 0

    def details(self) -> str:
        return self._details

    # --- the client's headers ---------------------------------------------------------------------------
    def invocation_metadata(self) -> tuple[Pair, ...]:
        return self.head.metadata

    def first_metadata(self, key: str) -> str | None:
        """The first value of a key that does not end with -bin: cheaper than all metadata. (grpc.aio has no
        such method.)"""
        return self.head.first(key)

    def time_remaining(self) -> float | None:
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - self.endpoint.loop.time())

    def peer(self) -> str:
        return self.endpoint.peer()

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return self.endpoint.auth_context()

    def peer_identities(self) -> Iterable[bytes] | None:
        key = self.peer_identity_key()
        return self.auth_context()[key] if key else None

    def peer_identity_key(self) -> str | None:
        context = self.auth_context()
        return next((k for k in ("x509_subject_alternative_name", "x509_common_name") if k in context), None)

    # --- the end ----------------------------------------------------------------------------------------
    def cancelled(self) -> bool:
        return self.was_cancelled

    def done(self) -> bool:
        return self.over

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._done_callbacks is None:
            self._done_callbacks = []
        self._done_callbacks.append(callback)

    def on_deadline(self) -> None:
        """The time is up. The client ends the call; here the work must stop."""
        self.wheel_key = 0
        if not self.over:
            self.finish(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            self.stop_work()

    def on_reset(self) -> None:
        """The client cancelled, or the connection is lost."""
        if not self.over:
            self.end("CANCELLED")
            self.stop_work()

    def stop_work(self) -> None:
        self.was_cancelled = True
        if self.task is not None and not self.task.done():
            if self.stream.state == CLOSED:
                self.endpoint.linger_until_done(self.task)
            self.task.cancel()

    def refuse(self, code: StatusCode, details: str) -> None:
        self.finish(code, details)
        self.stop_work()

    def reset(self, code: ErrorCode, status: str) -> None:
        """Ends the stream by RST_STREAM instead of a status: the peer broke the protocol or a limit."""
        self.endpoint.connection.reset(self.stream, code)
        if not self.over:
            self.end(status)
            self.stop_work()
        self.endpoint.flush_soon()

    def end(self, status: str) -> None:
        """Nothing is sent or read any more."""
        self.over = True
        self.stream.owner = self.receiver = None  # else a cycle would wait for the garbage collector
        endpoint = self.endpoint
        if self.wheel_key:
            endpoint.parts.wheel.remove(self.wheel_key, self)
            self.wheel_key = 0
        if self.charged or self.admitted or self.reader is not None:
            self.release_all()
        if self.unread:
            self.messages.clear()
            self.unread = 0
        endpoint.call_ended(self, status)
        if self.waiter is not None:
            self.wake_reader()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if self._done_callbacks:
            for callback in self._done_callbacks:
                endpoint.loop.call_soon(callback, self)

    # --- for callbacks ----------------------------------------------------------------------------------
    def keep(self) -> bytes:
        """The request's bytes, which last."""
        message: Buffer = self.message
        if not isinstance(message, bytes):
            self.message = message = bytes(message)
        return message

    def in_task(self) -> None:
        """Leaves a call of `on_calls` to the coroutine that its CallbackUnary has."""
        if self.method.in_task is None:
            raise UsageError("this CallbackUnary has no coroutine")
        self.keep()
        self.method = self.method.in_task
        self.endpoint.start(self)
