"""Methods that every caller may call, and calls of unknown callers: counted by address.

Handshakes and health checks need no credentials, and a call with wrong ones is refused after some work. The
quotas of addresses apply to both: calls beyond them wait, and are then refused.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from trovemq_broker.server.access.gate import Caller, CallQuota, Gate
from trovemq_daemon.peers import peer_of_call
from trovemq_daemon.reply_budget import size_of

_HANDSHAKE_SIZE = 256
"""The size that is counted for a stream that is refused before its first message."""


class OpenMethod:
    """One method with one request and one reply or a stream of replies."""

    def __init__(self, gate: Gate, path: str, handler: grpc.RpcMethodHandler[Any, Any]) -> None:
        assert not handler.request_streaming, "each message of a stream would have to be counted"
        self._gate = gate
        self._path = path
        self._handler = handler
        self._kind = "unary_stream" if handler.response_streaming else "unary_unary"
        self._behaviour = getattr(handler, self._kind)

    def handler(self) -> grpc.RpcMethodHandler[Any, Any]:
        make = getattr(grpc, f"{self._kind}_rpc_method_handler")
        generator = inspect.isasyncgenfunction(self._behaviour)
        behaviour = self._generator if generator else self._coroutine
        read, write = self._handler.request_deserializer, self._handler.response_serializer
        return make(behaviour, read, write)

    async def _coroutine(self, request: Any, context: Any) -> Any:
        quota = await self._begin(request, context)
        try:
            return await self._behaviour(request, context)
        finally:
            if quota is not None:
                quota.end()

    async def _generator(self, request: Any, context: Any) -> AsyncIterator[Any]:
        quota = await self._begin(request, context)
        try:
            async with aclosing(self._behaviour(request, context)) as replies:
                async for reply in replies:
                    yield reply
        finally:
            if quota is not None:
                quota.end()

    async def _begin(self, request: Any, context: Any) -> CallQuota | None:
        """TroveError LIMIT_EXCEEDED."""
        quota = unknown_quota(self._gate, context)
        if quota is None:
            return None
        refusal = await quota.request(size_of(request))
        if refusal is not None:
            source = peer_of_call(context).source
            self._gate.refused(self._path, refusal, source)
            await self._gate.hold(refusal, source, context.time_remaining)
            quota.end()
            raise refusal
        return quota


def unknown_quota(gate: Gate, context: Any) -> CallQuota | None:
    """The accounts of a call whose caller is unknown; None if there are no quotas. TroveError
    LIMIT_EXCEEDED."""
    return gate.quota_of(Caller("", peer_of_call(context).source, None), "", context.peer())


async def count_unknown(gate: Gate, context: Any, request: Any) -> None:
    """Counts a call without credentials, or with wrong ones. Raises TroveError LIMIT_EXCEEDED if its address
    had too many."""
    quota = unknown_quota(gate, context)
    if quota is None:
        return
    try:
        refusal = await quota.request(len(request) if isinstance(request, bytes) else _HANDSHAKE_SIZE)
        if refusal is not None:
            raise refusal
    finally:
        quota.end()
