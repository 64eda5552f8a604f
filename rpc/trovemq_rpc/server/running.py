"""Coroutine handlers: a task for each call, as grpc.aio runs them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from trovemq_rpc.errors import AbortError
from trovemq_rpc.server.call import ServerCall
from trovemq_rpc.wire.status import StatusCode

log = logging.getLogger("trovemq_rpc")


async def run(call: ServerCall) -> None:
    """A call's whole life. Whatever its handler raises becomes the call's status."""
    try:
        method = call.method
        if not method.request_streaming:
            deserialize = method.deserialize
            message = call.message
            argument = message if deserialize is None else deserialize(message)  # type: ignore[arg-type]
        else:
            argument = call
        if not method.is_async:
            await _run_in_thread(call, argument)
        elif method.is_generator:
            async for response in method.function(argument, call):
                await call.write(response)
            _finish(call)
        else:
            response = await method.function(argument, call)
            if method.response_streaming:
                _finish(call)
            else:
                _answer(call, response)
    except AbortError:
        _finish(call)
    except asyncio.CancelledError:
        if not call.over:
            call.was_cancelled = True
            call.finish(StatusCode.CANCELLED, "the server stops or cancelled the call")
        raise
    except Exception as error:
        _failed(call, error)
    finally:
        call.task = None  # else a cycle with all objects of the handler would wait for the garbage collector


def _answer(call: ServerCall, response: Any) -> None:
    code = call.status
    if code is None or code is StatusCode.OK:
        call.reply(response)
    else:
        call.finish(code, call.details())


def _finish(call: ServerCall) -> None:
    if not call.over:
        call.finish(call.status or StatusCode.OK, call.details())


def _failed(call: ServerCall, error: Exception) -> None:
    if call.over:
        return
    rpc_error = _status_of(error)
    if rpc_error is None:
        log.exception("unexpected exception in %s", call.head.path, exc_info=error)
    code = call.status
    if code is None or code is StatusCode.OK:
        code = StatusCode.UNKNOWN
    call.finish(code, call.details() or f"Unexpected {type(error)}: {error}")


def _status_of(error: Exception) -> object | None:
    """The status that the error has, if it has one: then it is no surprise, and needs no traceback."""
    return getattr(error, "code", None) if hasattr(error, "details") else None


async def _run_in_thread(call: ServerCall, argument: Any) -> None:
    """Runs a handler that is not a coroutine in the thread pool given to `server`, as grpc.aio does."""
    method, loop = call.method, call.endpoint.loop
    pool = call.endpoint.thread_pool
    if method.request_streaming:
        argument = _RequestsInThread(call, loop)
    response = await loop.run_in_executor(pool, method.function, argument, call)
    if not method.response_streaming:
        _answer(call, response)
        return
    done = object()
    iterator = iter(response)
    while (item := await loop.run_in_executor(pool, next, iterator, done)) is not done:
        await call.write(item)
    _finish(call)


class _RequestsInThread:
    """A stream's requests for a handler that runs in a thread."""

    def __init__(self, call: ServerCall, loop: asyncio.AbstractEventLoop) -> None:
        self._call = call
        self._loop = loop

    def __iter__(self) -> _RequestsInThread:
        return self

    def __next__(self) -> Any:
        async def following() -> tuple[bool, Any]:
            try:
                return True, await self._call.__anext__()
            except StopAsyncIteration:
                return False, None

        there, message = asyncio.run_coroutine_threadsafe(following(), self._loop).result()
        if not there:
            raise StopIteration
        return message
