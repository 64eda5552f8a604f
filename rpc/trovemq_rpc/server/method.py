"""A method as its calls use it: everything that a call needs is one attribute away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Deserializer = Callable[[bytes], Any]
Serializer = Callable[[Any], bytes]

# How a method begins
ON_MESSAGE = 0  # a coroutine with one request: begins when it is complete
ON_HEADERS = 1  # a coroutine with a stream of requests: begins at once
BATCH = 2  # CallbackUnary
CALLBACKS = 3  # CallbackStream


class Method:
    """A handler, prepared by methods.method_of()."""

    __slots__ = (
        "begins",
        "deserialize",
        "function",
        "handler",
        "in_task",
        "is_async",
        "is_generator",
        "path",
        "request_streaming",
        "response_streaming",
        "serialize",
        "waiting",
    )

    def __init__(
        self,
        path: str,
        handler: Any,
        begins: int,
        function: Any,
        *,
        is_generator: bool = False,
        is_async: bool = True,
    ) -> None:
        self.path = path
        self.handler = handler
        self.begins = begins
        self.function = function
        self.is_generator = is_generator
        self.is_async = is_async
        self.request_streaming = bool(handler.request_streaming)
        self.response_streaming = bool(handler.response_streaming)
        self.deserialize: Deserializer | None = handler.request_deserializer
        self.serialize: Serializer | None = handler.response_serializer
        self.waiting: list[Any] = []
        """Complete calls of this turn, where it is a CallbackUnary's."""
        self.in_task: Method | None = None
        """The coroutine for calls of it that have to wait."""
