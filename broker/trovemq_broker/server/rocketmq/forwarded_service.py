"""ForwardingService: handles the calls of RocketMQ's protocol that other brokers forward.

The check of access lets super users call it, so brokers only. The client's user, whom the other broker has
named, needs the same rights here. Its quotas count at the broker that it called.

A reply of a stream is made when the transport asks for it. So the messages of a stream that is cut return to
their queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NoReturn

import grpc

from trovemq_broker.security.creators import reset_creator, set_creator
from trovemq_broker.server.access.broker_security import BrokerSecurity
from trovemq_broker.server.access.forwarded_callers import forwarded_creator
from trovemq_broker.server.access.needs import ROWS
from trovemq_broker.server.rocketmq.admin_forwards import FORWARDED as ADMIN_FORWARDED
from trovemq_broker.server.wire.forwarded_messages import (
    SERVICE,
    ForwardedClient,
    forward_reply,
    forwarded,
    later_command,
    opening_client,
)
from trovemq_broker.server.wire.statuses import Context, Malformed
from trovemq_daemon.calls import AwaitedCall, CallHandler
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.peers import peer_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.topics.creators import Creator

PATH: Final = "/apache.rocketmq.v2.MessagingService/"
ADMIN_PATH: Final = "/apache.rocketmq.v2.Admin/"
TELEMETRY: Final = "Telemetry"


class ForwardedContext:
    """The context of a call for its handler: the client's address and metadata, the other broker's call."""

    def __init__(self, client: ForwardedClient, outer: Any) -> None:
        self._client = client
        self._outer = outer
        self._metadata: Final = tuple(client.metadata)
        self._replies: asyncio.Queue[Any] = asyncio.Queue()
        self.has_ended = False

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def peer(self) -> str:
        return self._client.peer

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        found: Mapping[str, Iterable[bytes]] = self._outer.auth_context() or {}
        return found

    def time_remaining(self) -> float | None:
        remaining: float | None = self._outer.time_remaining()
        return remaining

    def done(self) -> bool:
        return self.has_ended or bool(self._outer.done())

    def cancelled(self) -> bool:
        return self.has_ended or bool(self._outer.cancelled())

    async def write(self, reply: Any) -> None:
        """Returns when the transport asks for the next reply."""
        self._replies.put_nowait(reply)
        await self._replies.join()

    async def abort(self, _code: grpc.StatusCode, details: str = "", _metadata: object = ()) -> NoReturn:
        raise TroveError(errors.REQUEST_ILLEGAL, details)

    async def written(self) -> AsyncGenerator[Any, None]:
        """The replies that are written, until end()."""
        while (reply := await self._replies.get()) is not _END:
            yield reply
            self._replies.task_done()

    def end(self, _future: object = None) -> None:
        self._replies.put_nowait(_END)


_END: Final = object()


class ForwardedService:
    """`handlers`: of the methods with one request, by name; they forward nothing. `telemetry` handles a
    stream. `security`: None without authentication."""

    def __init__(
        self,
        handlers: Mapping[str, CallHandler],
        telemetry: Callable[[Any], Awaitable[None]],
        security: BrokerSecurity | None = None,
    ) -> None:
        self._handlers = handlers
        self._telemetry_of = telemetry
        self._security = security

    async def _telemetry(self, context: ForwardedTelemetryContext) -> None:
        await self._telemetry_of(context)

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, SERVICE, self)

    async def forward(self, request: Any, context: Context) -> AsyncGenerator[Any, None]:
        """Raises TroveError REQUEST_ILLEGAL, ACCESS_DENIED, AUTHENTICATION_FAILED, LIMIT_EXCEEDED."""
        asked = forwarded(request)
        handler = self._handlers.get(asked.method)
        if handler is None:
            raise TroveError(
                errors.REQUEST_ILLEGAL, f"{asked.method[:120]!a} is not a method with one request"
            )
        inner = ForwardedContext(asked.client, context)
        call = AwaitedCall(inner, handler.read, asked.request)
        creator = self._admitted(asked.client, asked.method, call)
        call.ending.add_done_callback(inner.end)
        try:
            token = set_creator(creator)
            try:
                handler.on_calls([call])
            finally:
                reset_creator(token)
            async with aclosing(inner.written()) as replies:
                async for reply in replies:
                    yield forward_reply(_bytes(handler, reply))
            for reply in _last(call, handler):
                yield forward_reply(_bytes(handler, reply))
        finally:
            inner.has_ended = True
            call.ended()

    def _admitted(self, client: ForwardedClient, method: str, call: AwaitedCall) -> Creator:
        """The client's user, with the rights for the request. Raises TroveError."""
        creator = forwarded_creator(self._security, client.caller)
        if self._security is not None and not isinstance(call.request, Malformed):
            self._check(client, method, call.request)  # its handler reports a malformed one
        return creator

    def _check(self, client: ForwardedClient, method: str, message: Any) -> None:
        """TroveError ACCESS_DENIED, AUTHENTICATION_FAILED, LIMIT_EXCEEDED."""
        if self._security is not None:
            path = (ADMIN_PATH if method in ADMIN_FORWARDED else PATH) + method
            source = peer_of(client.peer, {}).source
            self._security.admit(client.caller, source, ROWS[path], message, path)

    # --- telemetry ------------------------------------------------------------------------------------
    async def forward_telemetry(
        self, requests: AsyncIterator[Any], context: Context
    ) -> AsyncGenerator[Any, None]:
        """Raises TroveError REQUEST_ILLEGAL, ACCESS_DENIED, AUTHENTICATION_FAILED, LIMIT_EXCEEDED."""
        try:
            client = opening_client(await anext(requests))
        except StopAsyncIteration:
            raise TroveError(errors.REQUEST_ILLEGAL, "a forwarded stream begins with its client") from None
        creator = forwarded_creator(self._security, client.caller)
        inner = ForwardedTelemetryContext(client, context, requests, partial(self._check, client, TELEMETRY))
        token = set_creator(creator)
        try:
            serving = asyncio.create_task(self._telemetry(inner), name="forwarded-telemetry")
        finally:
            reset_creator(token)
        serving.add_done_callback(inner.end)
        try:
            async with aclosing(inner.written()) as replies:
                async for reply in replies:
                    yield forward_reply(reply.SerializeToString())
            await serving
        finally:
            inner.has_ended = True
            serving.cancel()


class ForwardedTelemetryContext(ForwardedContext):
    """The context of a telemetry stream. `check`: raises the TroveError for a command that the client's user
    may not send."""

    def __init__(
        self,
        client: ForwardedClient,
        outer: Any,
        requests: AsyncIterator[Any],
        check: Callable[[Any], None],
    ) -> None:
        super().__init__(client, outer)
        self._requests = requests
        self.admit_again: Final = check

    def admits(self, message: Any) -> bool:
        try:
            self.admit_again(message)
        except TroveError:
            return False
        return True

    async def read(self) -> Any:
        try:
            request = await anext(self._requests)
        except StopAsyncIteration:
            return grpc.aio.EOF
        command = later_command(request)
        if not isinstance(command, Malformed):
            self.admit_again(command)
        return command


def _last(call: AwaitedCall, handler: CallHandler) -> list[Any]:
    """The replies with which the call ended. Raises TroveError."""
    if call.ending.cancelled():
        raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the broker is stopping, or cancelled the call")
    ending = call.ending.result()
    if handler.streams:
        return list(ending or ())
    return [ending]


def _bytes(handler: CallHandler, reply: Any) -> bytes:
    return reply if isinstance(reply, bytes) or handler.write is None else handler.write(reply)
