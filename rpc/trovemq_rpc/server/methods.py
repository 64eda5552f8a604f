"""What serves a method: a handler of generated code, or callbacks.

| handler | runs as | gets |
| --- | --- | --- |
| RpcMethodHandler of grpc_tools | one task a call | request or iterator, context |
| CallbackUnary | a call for all calls of a turn, no task | a list of calls, each with `message` and `reply` |
| CallbackStream | a call for all messages of a read | the call and its messages |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from trovemq_rpc.server.call import ServerCall

Deserializer = Callable[[bytes], Any]
Serializer = Callable[[Any], bytes]


class CallbackUnary:
    """`on_calls` gets the calls that one turn of the loop completed, of all connections. Each is
    answered by `reply` or `fail`, now or later. A call's `message` is a view that is valid until
    `on_calls` returns; `keep()` makes it last.
    """

    request_streaming = False
    response_streaming = False

    def __init__(
        self,
        on_calls: Callable[[list[ServerCall]], None],
        request_deserializer: Deserializer | None = None,
        response_serializer: Serializer | None = None,
    ) -> None:
        self.on_calls = on_calls
        self.request_deserializer = request_deserializer
        self.response_serializer = response_serializer


class StreamCallbacks(Protocol):
    """One stream's callbacks."""

    def on_messages(self, call: ServerCall, messages: list[Any], ended: bool) -> None:
        """Messages of one read, in order; `ended`: the client sends no more."""

    def on_writable(self, call: ServerCall) -> None:
        """All that `send` could not write yet is written."""

    def on_end(self, call: ServerCall) -> None:
        """The call is over without our doing: cancelled, its deadline passed, or the connection lost."""


class CallbackStream:
    """`on_open` gets a call whose headers arrived and returns what serves it."""

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


# How a method begins
ON_MESSAGE = 0  # a coroutine with one request: begins when it is complete
ON_HEADERS = 1  # a coroutine with a stream of requests: begins at once
BATCH = 2  # CallbackUnary
CALLBACKS = 3  # CallbackStream


class Method:
    """A handler, prepared: everything that a call needs is one attribute away."""

    __slots__ = (
        "begins",
        "deserialize",
        "function",
        "handler",
        "is_async",
        "is_generator",
        "path",
        "request_streaming",
        "response_streaming",
        "serialize",
        "waiting",
    )

    def __init__(self, path: str, handler: Any) -> None:
        self.path = path
        self.handler = handler
        self.request_streaming = bool(handler.request_streaming)
        self.response_streaming = bool(handler.response_streaming)
        self.deserialize: Deserializer | None = handler.request_deserializer
        self.serialize: Serializer | None = handler.response_serializer
        self.waiting: list[ServerCall] = []
        self.is_async = True
        self.is_generator = False
        if isinstance(handler, CallbackUnary):
            self.begins = BATCH
            self.function: Any = handler.on_calls
        elif isinstance(handler, CallbackStream):
            self.begins = CALLBACKS
            self.function = handler.on_open
        else:
            self.begins = ON_HEADERS if self.request_streaming else ON_MESSAGE
            self.function = _behaviour(handler)
            self.is_generator = inspect.isasyncgenfunction(_plain(self.function))
            self.is_async = self.is_generator or inspect.iscoroutinefunction(_plain(self.function))


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
