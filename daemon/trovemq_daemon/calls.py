"""The form of a handler of methods with one request: it takes the calls that arrived together.

| part | does |
| --- | --- |
| `Call` | one call: its request, and `answer`, which is called once, now or later |
| `CallHandler` | a method: `on_calls`, and how requests are read and replies are written |
| `calls_of` | makes it of a coroutine function, or of an async generator function of replies |
| `for_batches`, `for_coroutines` | make the handler for our own transport, or for grpcio |

A layer (errors, access, guard) wraps `on_calls`. It answers the calls that it refuses, keeps those that have
to wait and passes them on later, and passes the others on together. To see the outcome of a call it adds
itself to `layers` before it passes the call on.

| outcome | the client gets |
| --- | --- |
| a reply | the reply; of a stream of replies, a list of them all |
| an async generator | its replies, each made when there is space for it |
| an exception | its status; of CancelledError, nothing: the client is gone, or the server stops |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from inspect import isasyncgenfunction
from types import AsyncGeneratorType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeGuard

import grpc

import trovemq_rpc
from trovemq_daemon.slow_requests import measure_waits

HELD: Final = object()
"""A layer's result instead of the outcome: it calls `answer` later, for the layers outside of it."""
ENDED: Final = object()
"""The outcome of a stream of which all replies are written."""
Trailers: TypeAlias = Sequence[tuple[str, bytes]]
STOPPED: Final = "the server stops or cancelled the call"
CANCELLED_WITHIN_S: Final = 5.0


class Call:
    """One call of a method with one request. `answer` is called once, also if the client has gone away."""

    # Attributes that few calls need belong to the class until they are set: so a call is made quickly.
    sends_at_once = True
    """Whether `answer` sends a list of replies before it returns: then the context says if that failed."""
    layers: Layers | None = None
    started = 0.0
    """By time.perf_counter()."""
    waits: dict[str, float] | None = None
    """Measured waits, if there were any; by name, in milliseconds."""
    check: Callable[[], bool] | None = None
    space: Space | None = None
    _request: Any = None

    def __init__(self, context: Any, read: Callable[[Any], Any] | None) -> None:
        self.context: Final = context
        self._read: Final = read

    # --- the request ------------------------------------------------------------------------------------
    @property
    def request(self) -> Any:
        """The request as the method's reader makes it. Raises the TroveError that the reader returned."""
        request = self._request
        if request is None:
            data = self.keep()
            request = self._request = data if self._read is None else self._read(data)
        if isinstance(request, Exception):
            raise request
        return request

    @property
    def parsed(self) -> Any:
        """The request as it was read; None if it was not."""
        return self._request

    @parsed.setter
    def parsed(self, request: Any) -> None:
        self._request = request

    def keep(self) -> Any:
        """The bytes of the request, which last."""
        raise NotImplementedError

    def peer(self) -> str:
        """The client's address in gRPC's form."""
        return str(self.context.peer())

    def invocation_metadata(self) -> Any:
        return self.context.invocation_metadata()

    # --- the answer -------------------------------------------------------------------------------------
    def answer(self, outcome: Any) -> None:
        """Ends the call. Never raises."""
        while (layers := self.layers) is not None:
            layer, self.layers, sees_bytes = layers
            if not sees_bytes and type(outcome) is bytes:
                continue
            try:
                outcome = layer(self, outcome)
            except Exception as error:
                outcome = error
            if outcome is HELD:
                return
        self.deliver(outcome)

    def may_answer(self) -> bool:
        """To be called before a call that has waited for messages receives them. False:
        its caller lost the right to them meanwhile, and it is answered."""
        return self.check is None or self.check()

    def has_capacity(self) -> bool:
        """Whether there is space for a large reply that is made in this step of the loop."""
        return self.space is None or self.space.has_space(self)

    async def wait_for_capacity(self) -> None:
        """Returns when there is. Raises TroveError LIMIT_EXCEEDED."""
        if self.space is not None:
            await self.space.wait_for_space(self)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs work that answers the call in a task, which ends with the call. Its exception is the
        outcome."""
        if self.waits is None:
            self.waits = {}
        context = copy_context()
        context.run(measure_waits, self.waits)
        task = asyncio.get_running_loop().create_task(work, context=context)
        self.work_in(task)
        task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            self.answer(error)

    # --- of the transport -------------------------------------------------------------------------------
    @property
    def over(self) -> bool:
        """Whether nothing can be sent any more."""
        raise NotImplementedError

    def on_end(self, callback: Callable[[Call], None]) -> None:
        """Calls `callback` soon after the call has ended, in whatever way."""
        raise NotImplementedError

    def work_in(self, task: asyncio.Task[None]) -> None:
        """The task is cancelled if the call ends before it."""
        raise NotImplementedError

    def deliver(self, outcome: Any) -> None:
        """Sends the outcome, after all layers."""
        raise NotImplementedError

    def reply(self, reply: Any) -> bool:
        """Ends the call with a reply. False: nothing can be sent any more."""
        raise NotImplementedError

    def reply_all(self, replies: Sequence[Any]) -> None:
        raise NotImplementedError

    async def write(self, reply: Any) -> None:
        """Sends one reply of a stream, and waits while the client does not read."""
        await self.context.write(reply)

    def fail(
        self, status: grpc.StatusCode, text: str = "", metadata: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        raise NotImplementedError

    def stop(self, error: BaseException) -> None:
        """Ends a call with CancelledError, or after `context.abort`."""
        raise NotImplementedError


class TransportCall(Call):
    """A call on our own transport."""

    def keep(self) -> bytes:
        kept: bytes = self.context.keep()
        return kept

    def first_metadata(self, key: str) -> str | None:
        """As of the transport's call."""
        first: str | None = self.context.first_metadata(key)
        return first

    @property
    def over(self) -> bool:
        return bool(self.context.over)

    def on_end(self, callback: Callable[[Call], None]) -> None:
        self.context.add_done_callback(lambda _context: callback(self))

    def work_in(self, task: asyncio.Task[None]) -> None:
        context = self.context
        context.task = task
        task.add_done_callback(partial(_no_longer, context))

    def deliver(self, outcome: Any) -> None:
        """HandlerGuard is the last layer, and has sent the call's outcome: this one is too late."""

    def reply(self, reply: Any) -> bool:
        context = self.context
        if context.over:
            return False
        context.reply(reply)
        return True

    def reply_all(self, replies: Sequence[Any]) -> None:
        self.context.reply_all(replies)

    def fail(
        self, status: grpc.StatusCode, text: str = "", metadata: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        if metadata:
            self.context.set_trailing_metadata(metadata)
        self.context.fail(status, text)

    def stop(self, error: BaseException) -> None:
        if not self.context.over and isinstance(error, asyncio.CancelledError):
            self.context.was_cancelled = True
            self.context.fail(grpc.StatusCode.CANCELLED, STOPPED)


def _no_longer(context: Any, task: asyncio.Task[None]) -> None:
    if context.task is task:
        context.task = None  # else a cycle with all objects of the handler would wait for the collector


async def cancelled_by_grpcio() -> None:
    """To be awaited after grpcio's InternalError. Where the client is gone, a write fails a moment before
    grpcio cancels the handler, and that is no fault. Returns if it does not cancel it."""
    await asyncio.sleep(CANCELLED_WITHIN_S)


class AwaitedCall(Call):
    """A call for which a coroutine of grpcio's waits: `ending` says how that ends it."""

    sends_at_once = False

    def __init__(self, context: Any, read: Callable[[Any], Any] | None, data: Any) -> None:
        super().__init__(context, read)
        self._data = data
        self._peer = str(context.peer())  # grpcio ends the process when it is asked after the end of the call
        self._task: asyncio.Task[None] | None = None
        self._callbacks: list[Callable[[Call], None]] = []
        self.ending: Final[asyncio.Future[Any]] = asyncio.get_running_loop().create_future()

    def keep(self) -> Any:
        return self._data

    def peer(self) -> str:
        return self._peer

    @property
    def over(self) -> bool:
        return self.ending.done()

    def on_end(self, callback: Callable[[Call], None]) -> None:
        self._callbacks.append(callback)

    def work_in(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def ended(self) -> None:
        """The coroutine has ended."""
        self.ending.cancel()
        if self._task is not None:
            self._task.cancel()
        for callback in self._callbacks:
            callback(self)

    def deliver(self, outcome: Any) -> None:
        if isinstance(outcome, BaseException):
            self.stop(outcome)
        elif is_stream(outcome):
            self.run(self._write_all(outcome))
        elif outcome is ENDED:
            self.reply_all(())
        else:
            self._end(outcome)

    async def write(self, reply: Any) -> None:
        try:
            await super().write(reply)
        except grpc.aio.InternalError:
            await cancelled_by_grpcio()
            raise

    async def _write_all(self, replies: AsyncGenerator[Any, None]) -> None:
        async with aclosing(replies):
            async for reply in replies:
                await self.write(reply)
        self.answer(ENDED)

    def reply(self, reply: Any) -> bool:
        if self.over:
            return False
        self._end(reply)
        return True

    def reply_all(self, replies: Sequence[Any]) -> None:
        self._end(list(replies))

    def fail(
        self, status: grpc.StatusCode, text: str = "", metadata: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        self._end(None if status is grpc.StatusCode.OK else _Status(status, text, tuple(metadata)))

    def stop(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.ending.cancel()
        elif not self.ending.done():
            self.ending.set_exception(error)

    def _end(self, ending: Any) -> None:
        if not self.ending.done():
            self.ending.set_result(ending)


class _Status(NamedTuple):
    status: grpc.StatusCode
    text: str
    metadata: tuple[tuple[str, bytes], ...]


Answer: TypeAlias = Callable[[Any], None]
"""Called once, with the reply or with an exception."""
Layer: TypeAlias = Callable[[Call, Any], Any]
"""(the call, its outcome so far): the outcome from now on, or HELD. An exception is the outcome, too."""
Layers: TypeAlias = "tuple[Layer, Layers | None, bool]"
"""The innermost layer, those outside of it, and whether it sees replies that are serialised: if not, these
pass it."""
OnCalls: TypeAlias = Callable[[Sequence[Call]], None]


def add_layer(calls: Sequence[Call], layer: Layer, *, sees_bytes: bool = True) -> None:
    """Adds an inner layer to each call."""
    outer = calls[0].layers
    layers = (layer, outer, sees_bytes)
    for call in calls:
        if call.layers is not outer:
            outer = call.layers
            layers = (layer, outer, sees_bytes)
        call.layers = layers  # mostly the same for all of them


def answer_into(future: asyncio.Future[Any]) -> Answer:
    """An answer for a coroutine that waits for it."""

    def answer(outcome: Any) -> None:
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    return answer


def is_stream(outcome: Any) -> TypeGuard[AsyncGenerator[Any, None]]:
    """Whether the outcome is a stream of replies that are made one by one."""
    return isinstance(outcome, AsyncGeneratorType)


class Space(Protocol):
    """Space for replies."""

    def has_space(self, call: Call) -> bool:
        """Whether the call's reply may be made now."""
        ...

    async def wait_for_space(self, call: Call) -> None:
        """Returns when it may. Raises TroveError LIMIT_EXCEEDED."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHandler:
    """A method with one request. `on_calls` gets the calls that arrived together, in order.

    Args:
        read: As a request deserializer of grpc's.
        write: As a response serializer of grpc's.
        streams: It has a stream of replies.
        in_steps: A reply takes more than one step of the loop.
        small: Replies are small as a rule: none waits for space before one was large.
    """

    on_calls: OnCalls
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], bytes] | None = None
    streams: bool = False
    in_steps: bool = False
    small: bool = False


def takes_one_request(handler: Any) -> bool:
    """Whether `calls_of` takes the handler. It takes no stream of requests, and no coroutine that writes its
    own replies."""
    if isinstance(handler, CallHandler):
        return True
    if handler.request_streaming:
        return False
    return not handler.response_streaming or isasyncgenfunction(handler.unary_stream)


def _request_of(call: Call) -> Any:
    return call.request


def calls_of(handler: Any, read: Callable[[Call], Any] = _request_of) -> CallHandler:
    """The handler, of grpc's form, in ours: a task for each call. A CallHandler stays as it is. `read`: the
    request of a call; raises the refusal of one that is malformed."""
    if isinstance(handler, CallHandler):
        return handler
    begin = (
        _generating(handler.unary_stream) if handler.response_streaming else _awaiting(handler.unary_unary)
    )

    def on_calls(calls: Sequence[Call]) -> None:
        for call in calls:
            try:
                begin(call, read(call))
            except Exception as error:
                call.answer(error)

    return CallHandler(
        on_calls=on_calls,
        read=handler.request_deserializer,
        write=handler.response_serializer,
        streams=bool(handler.response_streaming),
        in_steps=True,
    )


def _generating(behaviour: Callable[[Any, Any], AsyncGenerator[Any, None]]) -> Callable[[Call, Any], None]:
    return lambda call, request: call.answer(behaviour(request, call.context))


def _awaiting(behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Call, Any], None]:
    async def work(call: Call, request: Any) -> None:
        call.answer(await behaviour(request, call.context))

    return lambda call, request: call.run(work(call, request))


def for_batches(handler: CallHandler) -> trovemq_rpc.CallbackUnary:
    """The handler for our own transport."""
    on_calls, read = handler.on_calls, handler.read

    def on_server_calls(calls: list[trovemq_rpc.ServerCall]) -> None:
        on_calls([TransportCall(call, read) for call in calls])

    return trovemq_rpc.CallbackUnary(on_server_calls, response_serializer=handler.write)


def for_coroutines(handler: CallHandler) -> Any:
    """The handler for grpcio, whose calls come one by one."""

    async def behaviour(data: Any, context: Any) -> Any:
        call = AwaitedCall(context, handler.read, data)
        try:
            handler.on_calls([call])
            ending = await call.ending
        finally:
            call.ended()
        if isinstance(ending, _Status):
            await context.abort(*ending)
        if not handler.streams:
            return ending
        for reply in ending or ():
            await call.write(reply)
        return None

    kind = "unary_stream" if handler.streams else "unary_unary"
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(behaviour, request_deserializer=bytes, response_serializer=handler.write)
