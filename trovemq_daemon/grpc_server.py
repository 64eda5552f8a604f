"""A grpc.aio server with our limits, health checking, reflection, and errors in their wire form.

One event loop a process: several grpc.aio loops in one process run into an open gRPC bug.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from trovemq_daemon.addresses import Address
from trovemq_daemon.errors import AddressInUseError
from trovemq_daemon.logging import get_logger
from trovemq_daemon.metrics import RpcMetrics
from trovemq_daemon.reply_budget import ReplyBudget, ReplyLimits, size_of
from trovemq_daemon.request_bounds import check_parts
from trovemq_daemon.tls import TlsIdentity
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2

ERROR_METADATA_KEY: Final = "trovemq-error-bin"
ERROR_TEXT_LENGTH_MAX: Final = 1_024  # a longer one would not fit gRPC's limit for trailing metadata
ERROR_FIELDS_MAX: Final = 16
_NO_COMPRESSION: Final = 1 << 0
"""The set of gRPC's own methods: as it is alone. A message that gRPC inflates may become receive_size_max out
of a thousandth of it; clients compress bodies, which we inflate within bounds of our own."""
_STATUS_BY_NAME: Final = {status.name: status for status in grpc.StatusCode}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits:
    """Bounds of one server. Sizes in bytes, times in milliseconds."""

    receive_size_max: int = 4_194_304  # one request message
    send_size_max: int = 67_108_864  # one reply message
    concurrent_streams_max: int = 1_000  # calls and streams open at once on one connection
    concurrent_calls_max: int = 10_000  # calls and streams open at once altogether
    handshake_timeout_ms: int = 5_000  # a connection that says nothing is closed after this
    keepalive_time_ms: int = 10_000  # a silent connection is pinged after this
    keepalive_timeout_ms: int = 5_000  # and closed where no answer came for this long
    replies: ReplyLimits = field(default_factory=ReplyLimits)

    def options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.so_reuseport", 0),  # else a second daemon would share the port and nobody would notice
            ("grpc.max_receive_message_length", self.receive_size_max),
            ("grpc.max_send_message_length", self.send_size_max),
            ("grpc.max_concurrent_streams", self.concurrent_streams_max),
            ("grpc.server_handshake_timeout_ms", self.handshake_timeout_ms),
            ("grpc.keepalive_time_ms", self.keepalive_time_ms),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.compression_enabled_algorithms_bitset", _NO_COMPRESSION),
        ]


def error_to_wire(error: TroveError) -> common_pb2.Error:
    """The message that stands in a stream's frame, or serialised in a unary call's trailing metadata."""
    fields = list(error.fields.items())[:ERROR_FIELDS_MAX]
    return common_pb2.Error(
        symbol=error.symbol,
        code=error.spec.code,
        message=error.message[:ERROR_TEXT_LENGTH_MAX],
        fields={name: value[: ERROR_TEXT_LENGTH_MAX // 4] for name, value in fields},
    )


class _TimedCall:
    """One call under way: its metrics, and how its failure becomes a gRPC status."""

    def __init__(self, method: str, metrics: RpcMetrics, *, stream: bool) -> None:
        self._method = method
        self._metrics = metrics
        self._stream = stream
        self._started = time.perf_counter()
        if stream:
            metrics.stream_opened(method)

    def finished(self, response: str) -> None:
        if self._stream:
            self._metrics.stream_closed(self._method)
        else:
            self._metrics.observe(self._method, response, (time.perf_counter() - self._started) * 1000)

    async def fail(self, context: grpc.aio.ServicerContext[Any, Any], failure: Exception) -> None:
        """Ends the call with the error's row. Always raises grpc.aio.AbortError."""
        if isinstance(failure, TroveError):
            error = failure
        elif context.cancelled() or context.done():
            self.finished("CANCELLED")  # the client left: whatever then failed was for nobody
            raise failure
        else:
            get_logger().error("rpc.unexpected_error", method=self._method, exc_info=failure)
            error = TroveError(errors.UNKNOWN_ERROR)
        self.finished(error.symbol)
        wire = error_to_wire(error)
        metadata = ((ERROR_METADATA_KEY, wire.SerializeToString()),)
        await context.abort(_STATUS_BY_NAME[error.spec.grpc_status], wire.message, metadata)


def _bounded_reader(read: Any) -> Any:
    """A reader of generated messages that first counts their parts. It gives the refusal as the request: what
    a reader raises, gRPC would log and answer by itself."""
    descriptor = getattr(getattr(read, "__self__", None), "DESCRIPTOR", None)
    if descriptor is None:
        return read  # a reader of its own, with checks of its own

    def bounded(data: bytes) -> Any:
        try:
            check_parts(data, descriptor)
        except TroveError as error:
            return error
        return read(data)

    return bounded


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Turns TroveError into its gRPC status with details, anything else into UNKNOWN_ERROR and a log line.
    Replies are made when there is space for them (reply_budget.py)."""

    def __init__(self, metrics: RpcMetrics, replies: ReplyBudget | None = None) -> None:
        self._metrics = metrics
        self._replies = replies or ReplyBudget(ReplyLimits())
        self._large: set[str] = set()
        """Methods that have given a large reply: the next one waits for space first."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler  # gRPC answers UNIMPLEMENTED
        method = str(handler_call_details.method).rpartition("/")[2]
        kind = "_".join(
            "stream" if streaming else "unary"
            for streaming in (handler.request_streaming, handler.response_streaming)
        )
        behaviour = getattr(handler, kind)
        guard = self._guard_generator if inspect.isasyncgenfunction(behaviour) else self._guard_coroutine
        stream = handler.request_streaming or handler.response_streaming
        make_handler = getattr(grpc, f"{kind}_rpc_method_handler")
        read = handler.request_deserializer
        if not handler.request_streaming:
            read = _bounded_reader(read)
        return make_handler(guard(method, behaviour, stream), read, handler.response_serializer)

    def _guard_coroutine(self, method: str, behaviour: Any, stream: bool) -> Any:
        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            call = _TimedCall(method, self._metrics, stream=stream)
            try:
                if isinstance(request, TroveError):
                    raise request
                if method in self._large:
                    await self._replies.wait_for_capacity(context.peer())
                reply = await behaviour(request, context)
                if not stream:
                    self._count_unary(method, reply, context)
            except grpc.aio.AbortError:
                call.finished("ABORTED")
                raise
            except Exception as error:
                return await call.fail(context, error)
            except BaseException:
                call.finished("CANCELLED")
                raise
            call.finished("OK")
            return reply

        return guarded

    def _count_unary(self, method: str, reply: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """gRPC writes it after the handler's end, and says when the call is over."""
        claim = self._replies.claim(context.peer(), size_of(reply))
        if claim is not None:
            self._large.add(method)
            context.add_done_callback(lambda _context: self._replies.release(claim))

    def _guard_generator(self, method: str, behaviour: Any, stream: bool) -> Any:
        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            call = _TimedCall(method, self._metrics, stream=stream)
            try:
                if isinstance(request, TroveError):
                    raise request
                budget, peer = self._replies, context.peer()
                await budget.wait_for_capacity(peer)
                async with aclosing(behaviour(request, context)) as replies:
                    async for reply in replies:
                        with budget.writing(peer, size_of(reply)):
                            yield reply
                        if not budget.has_room(peer):
                            await budget.wait_for_capacity(peer)
            except grpc.aio.AbortError:
                call.finished("ABORTED")
                raise
            except Exception as error:
                await call.fail(context, error)
            except BaseException:
                call.finished("CANCELLED")
                raise
            else:
                call.finished("OK")

        return guarded


class _NamedServices:
    """A server that knows which services were added to it: no list of them is kept by hand."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self.names: set[str] = set()

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self.names |= {one.service_name() for one in handlers if isinstance(one, grpc.ServiceRpcHandler)}
        self._server.add_generic_rpc_handlers(handlers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


class GrpcServer:
    """A server before and after it listens.

    Order of use: `add_…Servicer_to_server(servicer, it.server)` for each service, `bind()` and `bind_tls()`,
    `start()`, `set_serving(True)`; at the end `set_serving(False)` and `stop()`.
    """

    def __init__(self, limits: GrpcLimits, metrics: RpcMetrics) -> None:
        self.replies: Final = ReplyBudget(limits.replies)
        metrics.replies = self.replies
        self._server = grpc.aio.server(
            interceptors=[ErrorInterceptor(metrics, self.replies)],
            options=limits.options(),
            maximum_concurrent_rpcs=limits.concurrent_calls_max,
        )
        self.server: grpc.aio.Server = _NamedServices(self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)

    def bind(self, address: Address) -> Address:
        """Listens (calls are served after `start`) and returns the address with its real port.

        Raises AddressInUseError.
        """
        return self._bind(address, self.server.add_insecure_port)

    def bind_tls(self, address: Address, identity: TlsIdentity) -> Address:
        """The same by TLS, beside the plain address; clients show no certificate. AddressInUseError."""
        credentials = grpc.ssl_server_credentials([(identity.key, identity.certificate)])
        return self._bind(address, lambda text: self.server.add_secure_port(text, credentials))

    def _bind(self, address: Address, add_port: Callable[[str], int]) -> Address:
        try:
            port = add_port(str(address))
        except RuntimeError as error:
            raise AddressInUseError(f"cannot listen on {address} (gRPC): {_bind_reason(error)}") from None
        if port == 0:
            raise AddressInUseError(f"cannot listen on {address} (gRPC)")
        return address.with_port(port)

    @property
    def service_names(self) -> list[str]:
        """Every service that was added, by its full name."""
        return sorted(self.server.names)

    async def start(self) -> None:
        """Begins to serve; the services that were added are listed by reflection, and NOT_SERVING yet."""
        reflection.enable_server_reflection((*self.service_names, reflection.SERVICE_NAME), self._server)
        await self.set_serving(False)
        await self.server.start()

    async def set_serving(self, serving: bool) -> None:
        """What the health service answers, for the server as a whole and for each service."""
        states = health_pb2.HealthCheckResponse
        for name in ("", *self.service_names):
            await self._health.set(name, states.SERVING if serving else states.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """No new calls; those under way may end within the grace, then they are cancelled."""
        await self._health.enter_graceful_shutdown()
        await self.server.stop(grace_s)


def _bind_reason(error: RuntimeError) -> str:
    text = str(error)
    return "the address is in use or not of this machine" if "Failed to bind" in text else text
