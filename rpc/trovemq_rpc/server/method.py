"""A method, prepared so that everything a call needs is one attribute of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Deserializer = Callable[[bytes], Any]
Serializer = Callable[[Any], bytes]

# How a method begins
ON_MESSAGE = 0  # a coroutine with one request: begins when it is complete
ON_HEADERS = 1  # a coroutine with a stream of requests: begins at once
BATCH = 2  # CallbackUnary


class Method:
    """A handler and how it is run. `methods.method_of` makes it."""

    __slots__ = (
        "begins",
        "deserialize",
        "function",
        "in_task",
        "is_async",
        "is_generator",
        "passes_bytes",
        "path",
        "request_streaming",
        "response_streaming",
        "serialize",
        "takes_view",
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
        self.begins = begins
        self.function = function
        self.is_generator = is_generator
        self.is_async = is_async
        self.request_streaming = bool(handler.request_streaming)
        self.response_streaming = bool(handler.response_streaming)
        self.deserialize: Deserializer | None = handler.request_deserializer
        self.takes_view = bool(getattr(self.deserialize, "takes_view", False))
        self.serialize: Serializer | None = handler.response_serializer
        self.passes_bytes = self.serialize is None or bool(getattr(self.serialize, "passes_bytes", False))
        """Whether a response that is bytes is sent as it is."""
        self.waiting: list[Any] = []
        """The calls that are complete in this iteration, if the handler is a CallbackUnary."""
        self.in_task: Method | None = None
        """The coroutine for those of its calls that have to wait."""
