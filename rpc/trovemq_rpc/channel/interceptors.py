"""Interceptors of both ends, with grpc.aio's names and arguments.

A client interceptor gets a `continuation`, the details of the call, and its request. `await
continuation(details, request)` runs the next interceptor; the last one's makes the call. The interceptor
returns a call or, where there is one response, the response itself. The caller has an `InterceptedCall` at
once.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, NamedTuple

from trovemq_rpc.errors import EOF
from trovemq_rpc.wire.metadata import Metadata, MetadataLike


class ClientCallDetails(NamedTuple):
    """The part of a call that an interceptor may change."""

    method: str
    timeout: float | None
    metadata: MetadataLike | None
    credentials: Any
    wait_for_ready: bool | None


class ServerInterceptor(ABC):
    """Sees each call before its handler."""

    @abstractmethod
    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Returns a handler: that of `await continuation(handler_call_details)`, or another."""


class ClientInterceptor(ABC):  # noqa: B024 - the four below have its methods
    """The base of the four."""


class UnaryUnaryClientInterceptor(ClientInterceptor):
    """Sees calls of one request and one response."""

    @abstractmethod
    async def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any: ...


class UnaryStreamClientInterceptor(ClientInterceptor):
    """Sees calls of one request and a stream of responses."""

    @abstractmethod
    async def intercept_unary_stream(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any: ...


class StreamUnaryClientInterceptor(ClientInterceptor):
    """Sees calls of a stream of requests and one response."""

    @abstractmethod
    async def intercept_stream_unary(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any: ...


class StreamStreamClientInterceptor(ClientInterceptor):
    """Sees calls of streams both ways."""

    @abstractmethod
    async def intercept_stream_stream(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any: ...


class Requests:
    """An iterator over the requests that the caller writes, for interceptors to see."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._closed = False
        self._changed = asyncio.Event()

    def put(self, item: Any) -> None:
        if self._closed:
            raise asyncio.InvalidStateError('RPC is half closed after calling "done_writing".')
        self._items.append(item)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> Any:
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._items.popleft()


class InterceptedCall:
    """A call whose interceptors run in a task. It passes everything on to the real call when there is one."""

    def __init__(self, task: asyncio.Task[Any], requests: Requests | None, deadline: float | None) -> None:
        self._task = task
        self._requests = requests
        self._deadline = deadline
        self._iterator: AsyncIterator[Any] | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        task.add_done_callback(self._interceptors_done)

    async def _real(self) -> Any:
        """The call, or the response that an interceptor returned instead."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _interceptors_done(self, task: asyncio.Task[Any]) -> None:
        real: Any = None if task.cancelled() or task.exception() is not None else task.result()
        for callback in self._callbacks:
            if hasattr(real, "add_done_callback"):
                real.add_done_callback(callback)
            else:
                callback(self)

    def _now(self) -> Any:
        """The real call, where there is one already."""
        if self._task.done() and not self._task.cancelled() and self._task.exception() is None:
            return self._task.result()
        return None

    def __await__(self) -> Generator[Any, None, Any]:
        real = yield from self._real().__await__()
        if hasattr(real, "__await__"):
            return (yield from real.__await__())
        return real

    async def read(self) -> Any:
        if self._iterator is None:
            real = await self._real()
            self._iterator = real if hasattr(real, "__anext__") else real.__aiter__()
        try:
            return await self._iterator.__anext__()
        except StopAsyncIteration:
            return EOF

    def __aiter__(self) -> InterceptedCall:
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is EOF:
            raise StopAsyncIteration
        return message

    async def write(self, request: Any) -> None:
        assert self._requests is not None, "the requests were given as an iterator"
        if self.done():
            raise asyncio.InvalidStateError("RPC already finished.")
        self._requests.put(request)

    async def done_writing(self) -> None:
        assert self._requests is not None, "the requests were given as an iterator"
        self._requests.close()

    def cancel(self) -> bool:
        real = self._now()
        if real is not None and hasattr(real, "cancel"):
            return bool(real.cancel())
        return self._task.cancel()

    def cancelled(self) -> bool:
        real = self._now()
        return bool(real.cancelled()) if hasattr(real, "cancelled") else self._task.cancelled()

    def done(self) -> bool:
        real = self._now()
        return bool(real.done()) if hasattr(real, "done") else self._task.done()

    def time_remaining(self) -> float | None:
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        real = self._now()
        if hasattr(real, "add_done_callback"):
            real.add_done_callback(callback)
        elif self._task.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    async def _ask(self, name: str, default: Any) -> Any:
        real = await self._real()
        return await getattr(real, name)() if hasattr(real, name) else default

    async def initial_metadata(self) -> Any:
        return await self._ask("initial_metadata", Metadata())

    async def trailing_metadata(self) -> Any:
        return await self._ask("trailing_metadata", Metadata())

    async def code(self) -> Any:
        from trovemq_rpc.errors import public_code
        from trovemq_rpc.wire.status import StatusCode

        try:
            return await self._ask("code", public_code(StatusCode.OK))
        except Exception as error:
            if hasattr(error, "code"):
                return error.code()
            raise

    async def details(self) -> Any:
        return await self._ask("details", "")

    async def debug_error_string(self) -> Any:
        return await self._ask("debug_error_string", "")

    async def wait_for_connection(self) -> None:
        await self._ask("wait_for_connection", None)


InterceptedUnaryUnaryCall = InterceptedCall


def intercepted(
    direct: Callable[..., Any],
    interceptors: list[Any],
    name: str,
    details: ClientCallDetails,
    request: Any,
    compression: Any,
) -> InterceptedCall:
    """Starts the interceptors, from the first to the last; after the last one `direct` makes the call."""
    requests = None
    if request is None and name.startswith("intercept_stream"):
        request = requests = Requests()

    async def run(at: int, details: Any, request: Any) -> Any:
        if at == len(interceptors):
            wait, path = details.wait_for_ready, _text(details.method)
            return direct(request, details.timeout, details.metadata, wait, compression, path)

        async def continuation(details: Any, request: Any) -> Any:
            return await run(at + 1, details, request)

        return await getattr(interceptors[at], name)(continuation, details, request)

    loop = asyncio.get_running_loop()
    deadline = loop.time() + details.timeout if details.timeout is not None else None
    return InterceptedCall(loop.create_task(run(0, details, request)), requests, deadline)


def _text(method: str | bytes) -> str:
    return method.decode() if isinstance(method, bytes) else method
