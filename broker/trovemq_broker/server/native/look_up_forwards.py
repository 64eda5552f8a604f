"""Look-ups by a client that reaches this broker only, as through a forwarded port: the other broker that the
call names answers it.

The client gets the names of the others from GetServerInfo, asks for each, and merges the answers as if it had
called them. The following calls are forwarded, one hop: one that was forwarded is answered here. Among them
is the recall of a delayed message, which look-ups find with its handle.

| a call                        | then                                                                       |
|-------------------------------|----------------------------------------------------------------------------|
| names no broker, or this one  | this broker answers                                                        |
| names another one             | its replies come from there, shortly before the caller's deadline at last  |
| and that is away, or does not | BROKER_UNREACHABLE, which names it                                         |
| take this broker's log-in     |                                                                            |
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any, Final

import grpc

from trovemq_broker.server.core.forwarding import NativeCalls, NativeStream
from trovemq_broker.server.native.leader_calls import client_of
from trovemq_broker.server.wire.forwarded_calls import to_bytes
from trovemq_broker.server.wire.statuses import Context, metadata_value
from trovemq_daemon.calls import Call, calls_of
from trovemq_daemon.peers import came_by_tls
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.forwarding import BROKER_KEY, PEER_KEY

LOOK_UPS: Final = frozenset(
    {
        "/trovemq.v1.QueryService/GetMessage",
        "/trovemq.v1.QueryService/QueryByKey",
        "/trovemq.v1.SearchService/Search",
        "/trovemq.v1.BiographyService/Biography",
        "/trovemq.v1.GroupService/FindDelayed",
        "/trovemq.v1.ProducerService/Recall",
    }
)
ATTEMPTS_MAX: Final = 2
"""A call is sent again once if the other broker has not looked at it: its session had ended."""
_AWAY: Final = (errors.BROKER_NOT_FOUND, errors.AUTHENTICATION_FAILED)
"""The client would take these for errors of the call to this broker."""


class LookUpForwards:
    """Stands for the server to which services add their handlers. `broker`: the name of this one."""

    def __init__(self, server: grpc.aio.Server, broker: str, calls: NativeCalls) -> None:
        self._server = server
        self._broker = broker
        self._calls = calls

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Adds the handlers to the server, look-ups with the forwarding around them."""
        around = {name: self._around(f"/{service}/{name}", one) for name, one in handlers.items()}
        self._server.add_registered_method_handlers(service, around)

    def _around(self, path: str, handler: Any) -> Any:
        if path not in LOOK_UPS:
            return handler
        here = calls_of(handler)
        make: Callable[..., Any] = grpc.unary_unary_rpc_method_handler
        behaviour: Callable[..., Any] = self._reply
        if here.streams:
            make, behaviour = grpc.unary_stream_rpc_method_handler, self._replies
        there = calls_of(make(partial(behaviour, path), here.read, here.write))

        def on_calls(calls: Sequence[Call]) -> None:
            forwarded = [bool(self._elsewhere(call.context)) for call in calls]
            if any(forwarded):
                there.on_calls(list(compress(calls, forwarded)))
                calls = [
                    call for call, is_forwarded in zip(calls, forwarded, strict=True) if not is_forwarded
                ]
            here.on_calls(calls)

        return replace(here, on_calls=on_calls)

    def _elsewhere(self, context: Context) -> str:
        """The other broker that the call names; empty for this one."""
        name = metadata_value(context, BROKER_KEY)
        return "" if name == self._broker or (name and metadata_value(context, PEER_KEY)) else name

    async def _reply(self, path: str, request: Any, context: Context) -> bytes:
        async with aclosing(self._replies(path, request, context)) as replies:
            async for reply in replies:
                return reply
        broker = self._elsewhere(context)
        raise TroveError(errors.BROKER_UNREACHABLE, f"broker {broker} sent no reply", broker=broker)

    async def _replies(self, path: str, request: Any, context: Context) -> AsyncGenerator[bytes, None]:
        """Raises the errors of NativeCalls, and of the other broker."""
        broker, attempts, data = self._elsewhere(context), 0, to_bytes(request)
        while True:
            attempts += 1
            try:
                async with aclosing(self._exchange(broker, path, data, context)) as replies:
                    async for reply in replies:
                        attempts = ATTEMPTS_MAX
                        yield reply
                return
            except TroveError as error:
                if errors.UNREAD in error.fields and attempts < ATTEMPTS_MAX:
                    continue
                if error.spec in _AWAY:
                    raise TroveError(errors.BROKER_UNREACHABLE, error.message, broker=broker) from error
                raise

    async def _exchange(
        self, broker: str, path: str, request: bytes, context: Context
    ) -> AsyncGenerator[bytes, None]:
        stream: NativeStream = await self._calls.open_native(
            broker, path, client_of(context), context.time_remaining(), by_tls=came_by_tls(context)
        )
        try:
            await stream.write(request)
            await stream.end()
            while (reply := await stream.read()) is not None:
                yield reply
        finally:
            stream.cancel()
