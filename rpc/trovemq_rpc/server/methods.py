"""The two kinds of handlers.

| handler | runs | with |
| --- | --- | --- |
| RpcMethodHandler, of generated code | as a task for each call | the request or an iterator; the context |
| CallbackUnary | once for all calls of an iteration of the loop | these calls, each with its `message` |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from trovemq_rpc.server.call import ServerCall
from trovemq_rpc.server.method import (
    BATCH,
    ON_HEADERS,
    ON_MESSAGE,
    Method,
    Serializer,
)


class CallbackUnary:
    """A method with one request, without tasks. `on_calls` gets the calls that one iteration of the
    loop completed, on all connections. Each is answered by `reply` or `fail`, now or later; by
    `reply_all` if it has several responses.

    A call's `message` is a view that is valid until `on_calls` returns; `keep()` makes it last. For a call
    that has to wait, `on_calls` may call `call.in_task()`: then `coroutine` handles it.

    A response_serializer with a true attribute `passes_bytes` gets no responses that are bytes: they are sent
    as they are.
    """

    request_streaming = False
    response_streaming = False
    request_deserializer = None

    def __init__(
        self,
        on_calls: Callable[[list[ServerCall]], None],
        response_serializer: Serializer | None = None,
        *,
        coroutine: Any = None,
    ) -> None:
        self.on_calls = on_calls
        self.response_serializer = response_serializer
        self.coroutine = coroutine


def method_of(path: str, handler: Any) -> Method:
    """Prepares a handler."""
    if isinstance(handler, CallbackUnary):
        method = Method(path, handler, BATCH, handler.on_calls)
        method.in_task = method_of(path, handler.coroutine) if handler.coroutine is not None else None
        return method
    function = _behaviour(handler)
    is_generator = inspect.isasyncgenfunction(_unwrapped(function))
    return Method(
        path,
        handler,
        ON_HEADERS if handler.request_streaming else ON_MESSAGE,
        function,
        is_generator=is_generator,
        is_async=is_generator or inspect.iscoroutinefunction(_unwrapped(function)),
    )


def _behaviour(handler: Any) -> Any:
    if handler.request_streaming:
        return handler.stream_stream if handler.response_streaming else handler.stream_unary
    return handler.unary_stream if handler.response_streaming else handler.unary_unary


def _unwrapped(function: Any) -> Any:
    """The function inside of partials, or of an object that can be called."""
    while hasattr(function, "func"):
        function = function.func
    if not inspect.isroutine(function) and callable(function):
        return type(function).__call__
    return function
