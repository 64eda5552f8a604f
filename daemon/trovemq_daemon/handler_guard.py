"""The guard of every handler of a daemon, for both transports: metrics, errors in their wire form, the bound
of a request's parts, and space for the replies.

It has two forms: one for calls with one request (trovemq_daemon.calls), one for streams of requests.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, Self, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from trovemq_daemon.bytes_budget import Claim
from trovemq_daemon.calls import (
    ENDED,
    HELD,
    Call,
    CallHandler,
    add_layer,
    cancelled_by_grpcio,
    is_stream,
)
from trovemq_daemon.logging import get_logger
from trovemq_daemon.metrics import RpcMetrics
from trovemq_daemon.reply_budget import UNCOUNTED_SIZE, ReplyBudget, ReplyLimits, size_of
from trovemq_daemon.request_bounds import BoundedReader
from trovemq_daemon.slow_requests import REFUSAL, add_wait
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2

ERROR_METADATA_KEY: Final = "trovemq-error-bin"
# All of it must fit into 8 KiB of trailing metadata, because clients drop more. The metadata has the message
# twice, once with up to three bytes for each byte; in the rest three bytes become four.
ERROR_TEXT_SIZE_MAX: Final = 1_024
ERROR_FIELD_SIZE_MAX: Final = 256
ERROR_FIELDS_SIZE_MAX: Final = 1_536
WAITING_STREAMS: Final = frozenset(
    {"Follow", "Forward", "ForwardTelemetry", "PullMessage", "ReceiveMessage", "WatchConfig", "WatchRoutes"}
)
"""Methods whose replies wait for events and are made in one step of the loop: they claim no space while they
wait."""
TURN_S: Final = 0.001
"""A stream's replies take the loop for at most this long, and one more reply; then other work runs. Our own
transport takes them without a pause as long as the client reads fast."""
Ending: TypeAlias = tuple[grpc.StatusCode, str, tuple[tuple[str, bytes]]]
"""Status, text and trailing metadata of a failed call."""
_STATUS_BY_NAME: Final = {status.name: status for status in grpc.StatusCode}


def error_to_wire(error: TroveError) -> common_pb2.Error:
    """The message in a stream's frame, or serialised in a unary call's trailing metadata."""
    wire = common_pb2.Error(
        symbol=error.symbol,
        code=error.spec.code,
        message=_cut(error.message, ERROR_TEXT_SIZE_MAX),
    )
    left = ERROR_FIELDS_SIZE_MAX
    for name, value in error.fields.items():
        text = _cut(value, ERROR_FIELD_SIZE_MAX)
        left -= len(name.encode()) + len(text.encode())
        if left < 0:
            break
        wire.fields[name] = text
    return wire


def _cut(text: str, size: int) -> str:
    """The longest prefix of the text with at most `size` bytes in UTF-8."""
    return text.encode(errors="replace")[:size].decode(errors="ignore")


def ending_of(method: str, failure: Exception) -> tuple[str, Ending]:
    """The symbol of a failed call, and how it ends on the wire. An error that is none of ours is logged."""
    if isinstance(failure, TroveError):
        error = failure
    else:
        get_logger().error("rpc.unexpected_error", method=method, exc_info=failure)
        error = TroveError(errors.UNKNOWN_ERROR)
    wire = error_to_wire(error)
    metadata = ((ERROR_METADATA_KEY, wire.SerializeToString()),)
    return error.symbol, (_STATUS_BY_NAME[error.spec.grpc_status], wire.message, metadata)


def bounded_reader(read: Any) -> Any:
    """A method's reader, which first counts the parts of generated messages. It returns the refusal as the
    request: the two transports log and answer an exception of a reader differently."""
    made: Any = getattr(read, "__self__", None)
    reader = BoundedReader(made) if hasattr(made, "DESCRIPTOR") else read
    if not isinstance(reader, BoundedReader):
        return read or bytes  # the method's special reader, which has its checks

    def bounded(data: bytes) -> Any:
        try:
            return reader(data)
        except TroveError as error:
            return error
        except (DecodeError, ValueError) as error:
            name = reader.request_type.DESCRIPTOR.name
            return TroveError(errors.REQUEST_ILLEGAL, f"the bytes are not a {name}: {error}")

    return bounded


class _Unrefused:
    """The requests of a stream. Raises TroveError for one that its reader refused.

    No generator: one that a handler does not read to its end, because it raised an error, is left to the
    garbage collector with all that the call had, and then needs a task to be closed."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        request = await self._requests.__anext__()
        if isinstance(request, TroveError):
            raise request
        return request


class HandlerGuard:
    """Turns TroveError into its gRPC status with details, anything else into UNKNOWN_ERROR and a log line.
    Replies are made when there is space for them (reply_budget.py)."""

    def __init__(self, metrics: RpcMetrics, replies: ReplyBudget | None = None) -> None:
        self.metrics: Final = metrics
        self.replies: Final = replies or ReplyBudget(ReplyLimits())

    def calls(self, method: str, handler: CallHandler) -> CallHandler:
        """The handler of a method with one request, with the guard around it."""
        guarded = _GuardedCalls(self, method, handler)
        return replace(handler, on_calls=guarded.on_calls, read=bounded_reader(handler.read))

    def streams(
        self, method: str, handler: grpc.RpcMethodHandler[Any, Any]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of a stream of requests, or a coroutine that writes its own replies, with the guard
        around it."""
        kind = "_".join(
            "stream" if streaming else "unary"
            for streaming in (handler.request_streaming, handler.response_streaming)
        )
        behaviour = getattr(handler, kind)
        if inspect.isasyncgenfunction(behaviour):
            behaviour = self._writing(method, behaviour)
        read = bounded_reader(handler.request_deserializer)
        make_handler = getattr(grpc, f"{kind}_rpc_method_handler")
        return make_handler(self._guard_stream(method, behaviour, handler), read, handler.response_serializer)

    def _writing(self, method: str, behaviour: Any) -> Any:
        """The generator as a coroutine that writes its replies."""

        async def writing(requests: Any, context: Any) -> None:
            await self.write_all(method, behaviour(requests, context), context.peer(), context.write)

        return writing

    def _guard_stream(self, method: str, behaviour: Any, handler: grpc.RpcMethodHandler[Any, Any]) -> Any:
        metrics, streams_requests = self.metrics, handler.request_streaming

        async def guarded(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            metrics.stream_opened(method)
            try:
                if isinstance(requests, TroveError):
                    raise requests
                return await behaviour(_Unrefused(requests) if streams_requests else requests, context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                if isinstance(error, grpc.aio.InternalError):
                    await cancelled_by_grpcio()
                if not isinstance(error, TroveError) and (context.cancelled() or context.done()):
                    raise  # the client is gone: later errors have no receiver
                _, ending = ending_of(method, error)
                await context.abort(*ending)
            finally:
                metrics.stream_closed(method)

        return guarded

    async def write_all(
        self,
        method: str,
        replies: AsyncGenerator[Any, None],
        peer: str,
        write: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Writes a stream's replies, each of which is made when there is space for it."""
        budget = self.replies
        turn_ends = time.perf_counter() + TURN_S
        async with aclosing(replies):
            while (reply := await self._next_reply(method, replies, peer)) is not None:
                with budget.writing(peer, size_of(reply)):
                    await write(reply)
                if time.perf_counter() >= turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = time.perf_counter() + TURN_S

    async def _next_reply(self, method: str, replies: AsyncGenerator[Any, None], peer: str) -> Any:
        """The next reply of a stream, made when there is space for it; None at the end."""
        if method in WAITING_STREAMS:
            await self.replies.wait_for_capacity(peer)
            return await _following(replies)
        with self.replies.making(await self.replies.claim_capacity(peer)):
            return await _following(replies)


async def _following(replies: AsyncGenerator[Any, None]) -> Any:
    """The next reply; None at the end. (With anext(replies, None), Python 3.11.7 ended by SIGSEGV when the
    loop cancelled the task.)"""
    try:
        return await replies.__anext__()
    except StopAsyncIteration:
        return None


class _GuardedCalls:
    """One method with one request."""

    def __init__(self, guard: HandlerGuard, method: str, handler: CallHandler) -> None:
        self._guard = guard
        self._method = method
        self._metrics = guard.metrics
        self._replies = guard.replies
        self._inner = handler.on_calls
        self._last: Final = (self._deliver, None, True)
        self._streams = handler.streams
        self._in_steps = handler.in_steps
        self._is_large: bool | None = False if handler.small else None
        """Whether a reply was large; None before the first one. Then each reply waits for space."""
        self._made = 0
        """Bytes of this iteration's large replies, which the transport counts when it writes them."""
        self._answered: list[Call] | None = None
        """The calls of this iteration that were answered without a fault; they took the same time."""

    def on_calls(self, calls: Sequence[Call]) -> None:
        self._made = 0
        started = time.perf_counter()
        for call in calls:
            call.started = started
            call.layers = self._last
        if self._streams:
            for call in calls:
                self._metrics.stream_opened(self._method)
                self._begin(call)
        elif self._is_large is False:
            self._begin_together(calls)
        else:
            for call in calls:
                self._begin(call)

    def _begin_together(self, calls: Sequence[Call]) -> None:
        """Replies are so small that they take no space."""
        answered: list[Call] = []
        self._answered = answered
        try:
            self._pass_on(calls)
        finally:
            self._answered = None
            if answered:
                self._observe(answered, "OK")

    def _begin(self, call: Call) -> None:
        """Passes the call on when there is space for its reply."""
        call.space = self
        if self._in_steps and not self._streams:
            claim = self._replies.try_claim(call.peer())
            if claim is None:
                call.keep()
                call.run(self._begin_with_claim(call))
            else:
                self._begin_claimed(call, claim)
        elif self.has_space(call):
            self._pass_on((call,))
        else:
            call.keep()
            call.run(self._begin_with_space(call))

    def _pass_on(self, calls: Sequence[Call]) -> None:
        try:
            self._inner(calls)
        except Exception as error:  # calls of other clients are served
            for call in calls:
                if call.layers is not None:
                    call.answer(error)

    async def _begin_with_space(self, call: Call) -> None:
        await self.wait_for_space(call)
        self._pass_on((call,))

    async def _begin_with_claim(self, call: Call) -> None:
        began = time.perf_counter()
        claim = await self._replies.claim_capacity(call.peer())
        add_wait("reply_space", (time.perf_counter() - began) * 1000)
        self._begin_claimed(call, claim)

    def _begin_claimed(self, call: Call, claim: Claim) -> None:
        """Holds the claim while the reply is made; on grpcio until it is written."""

        def count(call: Call, outcome: Any) -> Any:
            size = 0 if isinstance(outcome, BaseException) else size_of(outcome)
            written = self._replies.claim(call.peer(), size, claim)
            if written is not None:
                call.on_end(lambda _call: self._replies.release(written))
            return outcome

        add_layer((call,), count)
        self._pass_on((call,))

    # --- space --------------------------------------------------------------------------------------
    def has_space(self, call: Call) -> bool:
        """Whether the call's reply may be made in this step of the loop."""
        return self._replies.has_space(call.peer(), self._made)

    async def wait_for_space(self, call: Call) -> None:
        """Returns when it may. Raises TroveError LIMIT_EXCEEDED."""
        await self._replies.wait_for_capacity(call.peer())

    # --- the outcome --------------------------------------------------------------------------------
    def _deliver(self, call: Call, outcome: Any) -> Any:
        """The last layer."""
        try:
            if type(outcome) is bytes and not self._streams:
                self._send(call, outcome)
            elif isinstance(outcome, BaseException):
                self._fail(call, outcome)
            elif call.over:
                self._end(call, "CANCELLED")
            elif is_stream(outcome):
                call.layers = self._last
                call.run(self._write(call, outcome))
            elif outcome is ENDED:
                call.fail(grpc.StatusCode.OK)
                self._end(call, "OK")
            elif self._streams:
                self._made += sum(map(size_of, outcome))
                call.reply_all(outcome)
                self._end(call, "OK")
            else:
                self._send(call, outcome)
        except Exception as error:  # who made the answer, an append or a sync, must not hear of it
            self._fail(call, error)
        return HELD

    def _send(self, call: Call, reply: Any) -> None:
        if not call.reply(reply):
            self._end(call, "CANCELLED")
            return
        size = size_of(reply)
        if size > UNCOUNTED_SIZE:
            self._is_large = True
            self._made += size
        elif self._is_large is None:
            self._is_large = False
        if self._answered is not None:
            self._answered.append(call)
        else:
            self._end(call, "OK")

    async def _write(self, call: Call, replies: AsyncGenerator[Any, None]) -> None:
        await self._guard.write_all(self._method, replies, call.peer(), call.write)
        call.answer(ENDED)

    def _fail(self, call: Call, failure: BaseException) -> None:
        if isinstance(failure, grpc.aio.AbortError):
            self._end(call, "ABORTED")
            call.stop(failure)
        elif not isinstance(failure, Exception) or call.over:  # the error would have no receiver
            self._end(call, "CANCELLED")
            call.stop(failure)
        else:
            symbol, ending = ending_of(self._method, failure)
            self._end(call, symbol)
            call.fail(*ending)

    def _end(self, call: Call, response: str) -> None:
        if self._streams:
            self._metrics.stream_closed(self._method)
        else:
            self._observe((call,), response)

    def _observe(self, calls: Sequence[Call], response: str) -> None:
        """Counts calls that began together, and end now."""
        elapsed_ms = (time.perf_counter() - calls[0].started) * 1000
        self._metrics.observe(self._method, response, elapsed_ms, count=len(calls))
        slow = self._metrics.slow
        if elapsed_ms < slow.limit_ms:
            return
        for call in calls:
            delayed_ms = call.waits.get(REFUSAL, 0.0) if call.waits else 0.0
            waits_for_messages = bool(getattr(call.parsed, "wait_ms", 0))
            if elapsed_ms - delayed_ms >= slow.limit_ms and not waits_for_messages:
                slow.note(self._method, response, elapsed_ms, call.peer(), call.waits)
