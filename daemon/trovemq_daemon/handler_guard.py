"""The guard of every handler of a daemon, for both transports: metrics, errors in their wire form, the bound
of a request's parts, and space for the replies."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

import trovemq_rpc
from trovemq_daemon.bytes_budget import Claim
from trovemq_daemon.callback_handlers import AGAIN, Begin, CallbackHandler, Usual
from trovemq_daemon.logging import get_logger
from trovemq_daemon.metrics import RpcMetrics
from trovemq_daemon.reply_budget import UNCOUNTED_SIZE, ReplyBudget, ReplyLimits, size_of
from trovemq_daemon.request_bounds import BoundedReader
from trovemq_daemon.slow_requests import REFUSAL, add_wait, begin_waits
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2

ERROR_METADATA_KEY: Final = "trovemq-error-bin"
# All of it must fit into 8 KiB of trailing metadata, because clients drop more. The metadata has the message
# twice, once with up to three bytes for each byte; in the rest three bytes become four.
ERROR_TEXT_SIZE_MAX: Final = 1_024
ERROR_FIELD_SIZE_MAX: Final = 256
ERROR_FIELDS_SIZE_MAX: Final = 1_536
WAITING_STREAMS: Final = frozenset({"PullMessage", "ReceiveMessage", "WatchRoutes"})
"""Methods whose replies wait for events and are made in one step of the loop: they claim no space while they
wait."""
TURN_S: Final = 0.001
"""A stream's replies take the loop for so long at most, and one more reply; then others have their turn. Our
own transport takes them without a pause as long as the client reads fast."""
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
    """The begin of the text, of at most this many bytes in UTF-8."""
    return text.encode(errors="replace")[:size].decode(errors="ignore")


class _TimedCall:
    """One call under way: its metrics, and how its failure becomes a gRPC status. `peer`: of a call that
    sends several replies. Its generator may end after the call, and grpcio ends the process when it is asked
    for the peer of a call that is over."""

    waits_for_messages = False
    waits: dict[str, float] | None = None
    _peer: str | None = None

    def __init__(
        self, method: str, metrics: RpcMetrics, context: Any, *, stream: bool, peer: str | None = None
    ) -> None:
        self._method = method
        self._metrics = metrics
        self._context = context
        self._peer = peer
        self._stream = stream
        self._started = time.perf_counter()
        if stream:
            metrics.stream_opened(method)

    def finished(self, response: str) -> None:
        if self._stream:
            self._metrics.stream_closed(self._method)
            return
        elapsed_ms = (time.perf_counter() - self._started) * 1000
        self._metrics.observe(self._method, response, elapsed_ms)
        slow = self._metrics.slow
        if elapsed_ms >= slow.limit_ms and not self.waits_for_messages and self._is_slow(elapsed_ms):
            slow.note(self._method, response, elapsed_ms, self._peer or self._context.peer(), self.waits)

    def _is_slow(self, elapsed_ms: float) -> bool:
        delayed_ms = self.waits.get(REFUSAL, 0.0) if self.waits else 0.0
        return elapsed_ms - delayed_ms >= self._metrics.slow.limit_ms

    def ending(
        self, context: Any, failure: Exception
    ) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes]]] | None:
        """Status, text and trailing metadata for the error's row; None if the client is gone."""
        if isinstance(failure, TroveError):
            error = failure
        elif context.cancelled() or context.done():
            self.finished("CANCELLED")  # the client is gone: later errors have no receiver
            return None
        else:
            get_logger().error("rpc.unexpected_error", method=self._method, exc_info=failure)
            error = TroveError(errors.UNKNOWN_ERROR)
        self.finished(error.symbol)
        wire = error_to_wire(error)
        metadata = ((ERROR_METADATA_KEY, wire.SerializeToString()),)
        return _STATUS_BY_NAME[error.spec.grpc_status], wire.message, metadata

    async def fail(self, context: grpc.aio.ServicerContext[Any, Any], failure: Exception) -> None:
        """Ends the call with the error's row. Always raises: grpc.aio.AbortError, or the failure itself."""
        ending = self.ending(context, failure)
        if ending is None:
            raise failure
        await context.abort(*ending)


def bounded_reader(read: Any) -> Any:
    """A method's reader, which first counts the parts of generated messages. It returns the refusal as the
    request: each transport would log and answer a reader's exception in its own way."""
    made: Any = getattr(read, "__self__", None)
    reader = BoundedReader(made) if hasattr(made, "DESCRIPTOR") else read
    if not isinstance(reader, BoundedReader):
        return read or bytes  # a reader of its own, with checks of its own

    def bounded(data: bytes) -> Any:
        try:
            return reader(data)
        except TroveError as error:
            return error
        except (DecodeError, ValueError) as error:
            name = reader.request_type.DESCRIPTOR.name
            return TroveError(errors.REQUEST_ILLEGAL, f"the bytes are not a {name}: {error}")

    return bounded


def _with_unrefused(behaviour: Any) -> Any:
    """The behaviour of a stream of requests, which gets those that `_unrefused` lets through. (A handler that
    reads them from its context has the door before it, which raises: broker/trovemq_broker/server/access.)"""
    return lambda requests, context: behaviour(_unrefused(requests), context)


async def _unrefused(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The requests of a stream. Raises TroveError for one that its reader refused."""
    async for request in requests:
        if isinstance(request, TroveError):
            raise request
        yield request


class HandlerGuard:
    """Turns TroveError into its gRPC status with details, anything else into UNKNOWN_ERROR and a log line.
    Replies are made when there is space for them (reply_budget.py)."""

    def __init__(self, metrics: RpcMetrics, replies: ReplyBudget | None = None) -> None:
        self.metrics: Final = metrics
        self.replies: Final = replies or ReplyBudget(ReplyLimits())
        self.large: dict[str, bool] = {}
        """Whether a method's last reply was large, or it had none yet: then its next one waits for space."""
        self.made = 0
        """Bytes of large replies to this batch of calls, which the transport counts when it writes them."""

    def handler(
        self, method: str, handler: grpc.RpcMethodHandler[Any, Any]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of the method with the guard around it."""
        kind = "_".join(
            "stream" if streaming else "unary"
            for streaming in (handler.request_streaming, handler.response_streaming)
        )
        behaviour = getattr(handler, kind)
        guard = self._guard_generator if inspect.isasyncgenfunction(behaviour) else self._guard_coroutine
        if handler.request_streaming:
            behaviour = _with_unrefused(behaviour)
        stream = handler.request_streaming or handler.response_streaming
        make_handler = getattr(grpc, f"{kind}_rpc_method_handler")
        read = bounded_reader(handler.request_deserializer)
        return make_handler(guard(method, behaviour, stream), read, handler.response_serializer)

    def callbacks(self, method: str, handler: CallbackHandler) -> trovemq_rpc.CallbackUnary:
        """The same around a handler whose calls are answered by callbacks, for our own transport."""
        coroutine = self.handler(method, handler.coroutine)
        read, stream = coroutine.request_deserializer or bytes, bool(coroutine.response_streaming)
        begin, usual = handler.begin, handler.usual

        def on_calls(calls: list[trovemq_rpc.ServerCall]) -> None:
            self.made = 0
            with handler.together():
                if usual is not None and not self.large.get(method):
                    calls = self._answer_usual(method, usual, calls)
                for call in calls:
                    _BegunCall(self, method, call, begin, read, stream=stream).start()

        return trovemq_rpc.CallbackUnary(
            on_calls, response_serializer=coroutine.response_serializer, coroutine=coroutine
        )

    def _answer_usual(
        self, method: str, usual: Usual, calls: list[trovemq_rpc.ServerCall]
    ) -> list[trovemq_rpc.ServerCall]:
        """Answers the usual calls, which begin and end together. Returns the others."""
        started = time.perf_counter()
        others, answered, gone = [], [], []
        try:
            replies = usual(calls)
        except Exception as error:  # begun by themselves, those at fault meet it, and no others
            get_logger().error("rpc.unexpected_error", method=method, exc_info=error)
            return calls
        for call, reply in zip(calls, replies, strict=True):
            if reply is None:
                others.append(call)
            elif call.over:
                gone.append(call)
            else:
                call.reply(reply)
                answered.append(call)
        elapsed_ms = (time.perf_counter() - started) * 1000
        slow = self.metrics.slow
        for response, ended in (("OK", answered), ("CANCELLED", gone)):
            if ended:
                self.metrics.observe(method, response, elapsed_ms, count=len(ended))
                if elapsed_ms >= slow.limit_ms:
                    for call in ended:
                        slow.note(method, response, elapsed_ms, call.peer())
        return others

    def _guard_coroutine(self, method: str, behaviour: Any, stream: bool) -> Any:
        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            call = _TimedCall(method, self.metrics, context, stream=stream)
            call.waits = begin_waits()
            try:
                if isinstance(request, TroveError):
                    raise request
                large = not stream and self.large.get(method, True)
                claim = await self._claim(request, context) if large else None
                call.waits_for_messages = bool(getattr(request, "wait_ms", 0))
                reply = await behaviour(request, context)
                if not stream:
                    self._count_unary(method, reply, context, claim)
            except grpc.aio.AbortError:
                call.finished("ABORTED")
                raise
            except Exception as error:
                return await call.fail(context, error)
            except BaseException:
                call.finished("CANCELLED")
                raise
            call.finished("OK")
            return reply

        return guarded

    async def _claim(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Claim | None:
        """Before a reply that may be large. One that waits for messages claims nothing for that time: it is
        made in one step of the loop."""
        if getattr(request, "wait_ms", 0):
            await self.replies.wait_for_capacity(context.peer())
            return None
        began = time.perf_counter()
        claim = await self.replies.claim_capacity(context.peer())
        add_wait("reply_space", (time.perf_counter() - began) * 1000)
        self._release_at_end(claim, context)
        return claim

    def _count_unary(
        self, method: str, reply: Any, context: grpc.aio.ServicerContext[Any, Any], made: Claim | None
    ) -> None:
        """gRPC writes it after the handler's end, and says when the call is over."""
        size = size_of(reply)
        self.note_size(method, size)
        claim = self.replies.claim(context.peer(), size, made)
        if claim is not made:
            self._release_at_end(claim, context)

    def note_size(self, method: str, size: int) -> None:
        if size > UNCOUNTED_SIZE:
            self.large[method] = True
            self.made += size
        elif method not in self.large:
            self.large[method] = False

    def _release_at_end(self, claim: Claim | None, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if claim is not None:
            context.add_done_callback(lambda _context: self.replies.release(claim))

    def _guard_generator(self, method: str, behaviour: Any, stream: bool) -> Any:
        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            peer = context.peer()
            call = _TimedCall(method, self.metrics, context, stream=stream, peer=peer)
            try:
                if isinstance(request, TroveError):
                    raise request
                budget = self.replies
                turn_ends = time.perf_counter() + TURN_S
                async with aclosing(behaviour(request, context)) as replies:
                    while (reply := await self._next_reply(method, replies, peer)) is not None:
                        with budget.writing(peer, size_of(reply)):
                            yield reply
                        if time.perf_counter() >= turn_ends:
                            await asyncio.sleep(0)
                            turn_ends = time.perf_counter() + TURN_S
            except grpc.aio.AbortError:
                call.finished("ABORTED")
                raise
            except Exception as error:
                await call.fail(context, error)
            except BaseException:
                call.finished("CANCELLED")
                raise
            else:
                call.finished("OK")

        return guarded

    async def _next_reply(self, method: str, replies: AsyncGenerator[Any, None], peer: str) -> Any:
        """The next reply of a stream, made when there is space for it; None at the end."""
        if method in WAITING_STREAMS:
            await self.replies.wait_for_capacity(peer)
            return await anext(replies, None)
        with self.replies.making(await self.replies.claim_capacity(peer)):
            return await anext(replies, None)


class _BegunCall(_TimedCall):
    """A call that a callback handler answers, or leaves to the coroutine."""

    is_left = False

    def __init__(
        self,
        guard: HandlerGuard,
        method: str,
        call: trovemq_rpc.ServerCall,
        begin: Begin,
        read: Any,
        *,
        stream: bool,
    ) -> None:
        # as _TimedCall, without a call more
        self._method = method
        self._metrics = guard.metrics
        self._context: Any = call
        self._stream = stream
        self._started = time.perf_counter()
        if stream:
            guard.metrics.stream_opened(method)
        self._guard = guard
        self._begin = begin
        self._read = read

    def start(self) -> None:
        guard, call = self._guard, self._context
        try:
            if (self._stream or guard.large.get(self._method, True)) and not guard.replies.has_space(
                call.peer(), guard.made
            ):
                self._leave()
                return
            request, call.parsed = call.parsed, None
            if request is None:
                request = self._read(call.keep())
            if isinstance(request, TroveError):
                raise request
            if not self._begin(request, call, self.answer):
                self._leave()
        except Exception as error:
            self.answer(error)

    def answer(self, outcome: Any) -> None:
        guard, call = self._guard, self._context
        try:
            if call.over:
                if not self.is_left:
                    self.finished("CANCELLED")
            elif isinstance(outcome, Exception):
                self._fail(outcome)
            elif outcome is AGAIN:
                self.start()
            elif self._stream:
                guard.made += sum(map(size_of, outcome))
                call.reply_all(outcome)
                self.finished("OK")
            else:
                size = len(outcome) if isinstance(outcome, bytes) else 0
                if size > UNCOUNTED_SIZE or self._method not in guard.large:
                    guard.note_size(self._method, size)
                call.reply(outcome)
                self.finished("OK")
        except Exception as error:  # who made the answer, an append or a sync, must not hear of it
            self._fail(error)

    def _leave(self) -> None:
        """To the coroutine, which times the call by itself."""
        self.is_left = True
        if self._stream:
            self._metrics.stream_closed(self._method)
        self._context.in_task()

    def _fail(self, failure: Exception) -> None:
        call = self._context
        ending = self.ending(call, failure)
        if ending is not None:
            status, text, metadata = ending
            call.set_trailing_metadata(metadata)
            call.fail(status, text)
