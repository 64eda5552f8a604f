"""The implementation of a method: a handler of generated code, or callbacks.

| handler | runs as | gets |
| --- | --- | --- |
| RpcMethodHandler of grpc_tools | one task a call | request or iterator, context |
| CallbackUnary | a call for all calls of a turn, no task | a list of calls, each with `message` and `reply` |
| CallbackStream | a call for all messages of a read | the call and its messages |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from trovemq_rpc.server.call import ServerCall, StreamCallbacks
from trovemq_rpc.server.method import (
    BATCH,
    CALLBACKS,
    ON_HEADERS,
    ON_MESSAGE,
    Deserializer,
    Method,
    Serializer,
)


class CallbackUnary:
    """`on_calls` gets the calls that one turn of the loop completed, of all connections. Each is
    answered by `reply` or `fail`, now or later. A call's `message` is a view that is valid until
    `on_calls` returns; `keep()` makes it last. `coroutine` is a handler for the calls that `on_calls`
    leaves to it by `call.in_task()`: those that have to wait.
    """

    request_streaming = False
    response_streaming = False

    def __init__(
        self,
        on_calls: Callable[[list[ServerCall]], None],
        request_deserializer: Deserializer | None = None,
        response_serializer: Serializer | None = None,
        *,
        coroutine: Any = None,
    ) -> None:
        self.on_calls = on_calls
        self.request_deserializer = request_deserializer
        self.response_serializer = response_serializer
        self.coroutine = coroutine


class CallbackStream:
    """`on_open` gets a call whose headers arrived and returns its handler."""

    request_streaming = True
    response_streaming = True

    def __init__(
        self,
        on_open: Callable[[ServerCall], StreamCallbacks],
        request_deserializer: Deserializer | None = None,
        response_serializer: Serializer | None = None,
    ) -> None:
        self.on_open = on_open
        self.request_deserializer = request_deserializer
        self.response_serializer = response_serializer


def method_of(path: str, handler: Any) -> Method:
    """The handler, prepared."""
    if isinstance(handler, CallbackUnary):
        method = Method(path, handler, BATCH, handler.on_calls)
        method.in_task = method_of(path, handler.coroutine) if handler.coroutine is not None else None
        return method
    if isinstance(handler, CallbackStream):
        return Method(path, handler, CALLBACKS, handler.on_open)
    function = _behaviour(handler)
    is_generator = inspect.isasyncgenfunction(_plain(function))
    return Method(
        path,
        handler,
        ON_HEADERS if handler.request_streaming else ON_MESSAGE,
        function,
        is_generator=is_generator,
        is_async=is_generator or inspect.iscoroutinefunction(_plain(function)),
    )


def _behaviour(handler: Any) -> Any:
    if handler.request_streaming:
        return handler.stream_stream if handler.response_streaming else handler.stream_unary
    return handler.unary_stream if handler.response_streaming else handler.unary_unary


def _plain(function: Any) -> Any:
    """The function below partials and objects that can be called."""
    while hasattr(function, "func"):
        function = function.func
    if not inspect.isroutine(function) and callable(function):
        return type(function).__call__
    return function
