"""Handlers that know commands and results, and no messages of the protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from trovemq_broker.server.wire.statuses import Context

Service = TypeVar("Service")
Request = TypeVar("Request")
Command = TypeVar("Command")
Result = TypeVar("Result")
Reply = TypeVar("Reply")

Handler: TypeAlias = Callable[[Service, Command, Context], Awaitable[Result]]
Converted: TypeAlias = Callable[[Service, Request, Context], Coroutine[Any, Any, Reply]]


def converted(
    read: Callable[[Request], Command], write: Callable[[Request, Result], Reply]
) -> Callable[[Handler[Service, Command, Result]], Converted[Service, Request, Reply]]:
    """Makes a service's method for an RPC of one that takes `read(request)` and returns a result, of which
    `write(request, result)` makes the reply. TroveErrors of all three pass."""

    def around(handle: Handler[Service, Command, Result]) -> Converted[Service, Request, Reply]:
        @wraps(handle)
        async def handle_request(service: Service, request: Request, context: Context) -> Reply:
            return write(request, await handle(service, read(request), context))

        return handle_request

    return around


def nothing(_request: Any) -> None:
    """The command of a request that has no fields, or none that count."""
