"""Handlers of methods with one request, called as grpcio calls them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc

from trovemq_daemon.calls import CallHandler, OnCalls, calls_of, for_coroutines, takes_one_request
from trovemq_daemon.handler_guard import HandlerGuard


class _Writes:
    """A context whose replies are read one by one."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.replies: asyncio.Queue[Any] = asyncio.Queue()
        self.asked = asyncio.Event()

    async def write(self, reply: Any) -> None:
        self.replies.put_nowait(reply)
        self.asked.clear()
        await self.asked.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def grpc_form(handler: Any) -> Any:
    """The handler in grpc's form; its stream of replies is an async generator."""
    if not isinstance(handler, CallHandler):
        return handler
    made = for_coroutines(handler)
    if not handler.streams:
        return made

    async def replies(request: Any, context: Any) -> AsyncIterator[Any]:
        writes = _Writes(context)
        serving = asyncio.ensure_future(made.unary_stream(request, writes))
        try:
            while True:
                asking = asyncio.ensure_future(writes.replies.get())
                await asyncio.wait((serving, asking), return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    asking.cancel()
                    await serving
                    return
                yield asking.result()
                writes.asked.set()
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await serving

    return grpc.unary_stream_rpc_method_handler(
        replies, request_deserializer=made.request_deserializer, response_serializer=made.response_serializer
    )


def called(on_calls: OnCalls, *, streams: bool = False) -> Any:
    """A coroutine function, or a generator function, of (request, context) that makes one call."""
    made = grpc_form(CallHandler(on_calls=on_calls, streams=streams))
    return made.unary_stream if streams else made.unary_unary


def guarded(guard: HandlerGuard, method: str, handler: Any) -> Any:
    """The handler with the guard around it."""
    if takes_one_request(handler):
        return grpc_form(guard.calls(method, calls_of(handler)))
    return guard.streams(method, handler)
