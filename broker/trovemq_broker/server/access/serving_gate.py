"""Refuses messages while a broker has no configuration of its cluster: calls that send, receive or settle.

It stands before the handlers of the services that have messages; operators, other brokers and log-ins are
served. Where messages flow it costs one check for all calls that arrived together.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

import grpc

from trovemq_broker.server.access.refusals import is_rocketmq, refused_reply
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.calls import Call, CallHandler, calls_of, takes_one_request
from trovemq_proto.errors import TroveError

_SERVICES: Final = (
    "/trovemq.v1.MessageService/",
    "/trovemq.v1.ConsumerService/",
    "/trovemq.v1.ProducerService/",
    "/trovemq.v1.TransactionService/",
    "/trovemq.v1.ForwardingService/",
    "/apache.rocketmq.v2.MessagingService/",
)
_SERVED: Final = frozenset(
    {
        *(
            f"/apache.rocketmq.v2.MessagingService/{name}"
            for name in ("Heartbeat", "NotifyClientTermination", "Telemetry")
        ),
        "/trovemq.v1.ForwardingService/ForwardTelemetry",
    }
)


class ServingGate:
    """`refusal`: returns the error for messages, None where they are served. Set before requests come.
    `served`: more methods that have no gate, by path."""

    def __init__(self, served: Collection[str] = ()) -> None:
        self._served = _SERVED.union(served)
        self.refusal: Callable[[], TroveError | None] | None = None
        """None: everything is served."""
        self.forwarded: frozenset[str] = frozenset()
        """Paths whose calls another broker handles. Set before handlers are added."""
        self.checked_elsewhere: frozenset[str] = frozenset()
        """Among `forwarded`: for these that broker alone checks the rights of the caller."""

    def handler(self, path: str, handler: Any) -> Any:
        """The handler with the gate before it."""
        is_served = path in self._served or path in self.forwarded
        if not path.startswith(_SERVICES) or is_served:
            return handler
        if takes_one_request(handler):
            return self._calls(path, calls_of(handler))
        return self._streams(handler)

    def _calls(self, path: str, handler: CallHandler) -> CallHandler:
        inner = handler.on_calls

        def on_calls(calls: Sequence[Call]) -> None:
            error = None if self.refusal is None else self.refusal()
            if error is None:
                inner(calls)
                return
            outcome: Any = error
            if is_rocketmq(path):
                reply = refused_reply(path, error)
                outcome = [reply] if handler.streams else reply
            for call in calls:
                call.answer(outcome)

        return replace(handler, on_calls=on_calls)

    def _streams(self, handler: Any) -> Any:
        """A handler of a stream of requests, or one that writes its own replies."""
        kind = "_".join(
            "stream" if streaming else "unary"
            for streaming in (handler.request_streaming, handler.response_streaming)
        )
        behaviour = getattr(handler, kind)
        generates = inspect.isasyncgenfunction(behaviour)
        gated: Any = self._generator(behaviour) if generates else self._coroutine(behaviour)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(gated, handler.request_deserializer, handler.response_serializer)

    def _check(self) -> None:
        error = None if self.refusal is None else self.refusal()
        if error is not None:
            raise error

    def _generator(self, behaviour: Any) -> Any:
        async def gated(requests: Any, context: Context) -> AsyncGenerator[Any, None]:
            self._check()
            async with aclosing(behaviour(requests, context)) as replies:
                async for reply in replies:
                    yield reply

        return gated

    def _coroutine(self, behaviour: Any) -> Any:
        async def gated(requests: Any, context: Context) -> Any:
            self._check()
            return await behaviour(requests, context)

        return gated
