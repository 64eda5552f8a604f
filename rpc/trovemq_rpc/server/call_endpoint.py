"""The part of a connection that its calls need. endpoint.py implements it, so calls need not import that."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from typing import Any, Final

from trovemq_rpc.endpoint import Endpoint
from trovemq_rpc.rest import Share

FEW_STREAMS_MAX: Final = 8
"""Open streams of a connection, hardly two of which are served in one iteration: bench/rpc/in_process.py,
"streams"."""


class CallEndpoint(Endpoint):
    """`call` is always a ServerCall of this connection."""

    compression: Any
    reads: Share
    """Messages that coroutines read."""
    thread_pool: Executor | None
    """For handlers that are not coroutines."""

    @abstractmethod
    def request_complete(self, call: Any) -> None:
        """The one request of a unary call is there."""

    @abstractmethod
    def start(self, call: Any) -> None:
        """The call's coroutine begins."""

    @abstractmethod
    def callback_failed(self, call: Any, error: Exception) -> None:
        """Only the calls that a callback left unanswered fail."""

    @abstractmethod
    def call_ended(self, call: Any, status: str) -> None:
        """Nothing of the call is sent any more."""

    @abstractmethod
    def flush_answer(self) -> None:
        """A call was answered, and is over: writes now or at the end of the iteration."""

    def flush_before_wait(self) -> None:
        """A coroutine has read all its requests and is about to wait. Its responses leave now, not after
        other work of the iteration. With many open streams it is better to wait for the responses of others.
        """
        if not self.gathering and len(self.connection.streams) <= FEW_STREAMS_MAX:
            self.flush()

    @abstractmethod
    def linger_until_done(self, task: asyncio.Task[None]) -> None:
        """The handler's task has been cancelled and its stream is gone. Until the task ends it counts as a
        stream: or a peer could start any number of handlers by resetting streams.
        """

    @abstractmethod
    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """grpc's names for the client's certificate."""
