"""A gRPC server with our limits, health checking, reflection, and errors in their wire form.

One event loop per process: several grpc.aio loops in one process run into an open gRPC bug.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from trovemq_daemon.addresses import Address
from trovemq_daemon.calls import CallHandler, calls_of, for_batches, for_coroutines, takes_one_request
from trovemq_daemon.errors import AddressInUseError
from trovemq_daemon.grpc_transport import GrpcTransport, ServerCredentials, new_server, server_credentials
from trovemq_daemon.handler_guard import HandlerGuard
from trovemq_daemon.limits import ConnectionLimit
from trovemq_daemon.metrics import RpcMetrics
from trovemq_daemon.reply_budget import ReplyBudget, ReplyLimits
from trovemq_daemon.tls import TlsIdentity
from trovemq_daemon.transport_budget import TransportBudget
from trovemq_proto.channels import TRANSPORT_DEFAULT
from trovemq_rpc.options import ConnectionCount
from trovemq_rpc.server.guest import MakeGuest

AccessCheck: TypeAlias = Callable[[str, Any], Any]
"""Wraps the handler of a path (`/Service/Method`) with authentication of its callers."""
_NO_COMPRESSION: Final = 1 << 0
"""The bit set of gRPC's compression methods: only the identity. Otherwise a message with a thousandth of
receive_size_max could be inflated to all of it. Clients compress bodies, which the broker inflates within its
own bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits:
    """Limits of one server, and its transport. Sizes in bytes, times in milliseconds."""

    transport: GrpcTransport = TRANSPORT_DEFAULT
    receive_size_max: int = 4_194_304  # one request message
    send_size_max: int = 67_108_864  # one reply message
    concurrent_streams_max: int = 1_000  # calls and streams open at once on one connection
    concurrent_calls_max: int = 10_000  # calls and streams open at once altogether
    handshake_timeout_ms: int = 5_000  # a connection without a handshake is closed after this
    keepalive_time_ms: int = 10_000  # a silent connection is pinged after this
    keepalive_timeout_ms: int = 5_000  # and closed if no reply came for this long
    replies: ReplyLimits = field(default_factory=ReplyLimits)

    def options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.so_reuseport", 0),  # otherwise a second daemon would share the port unnoticed
            ("grpc.max_receive_message_length", self.receive_size_max),
            ("grpc.max_send_message_length", self.send_size_max),
            ("grpc.max_concurrent_streams", self.concurrent_streams_max),
            ("grpc.server_handshake_timeout_ms", self.handshake_timeout_ms),
            ("grpc.keepalive_time_ms", self.keepalive_time_ms),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout_ms),
            ("grpc.http2.ping_timeout_ms", self.keepalive_timeout_ms),  # or grpcio's core waits a minute
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.compression_enabled_algorithms_bitset", _NO_COMPRESSION),
        ]


class GuardedServices:
    """The server to which services are added: each handler gets its guard, once. It collects the names of
    the added services, so that they are listed nowhere else."""

    def __init__(
        self,
        server: Any,
        guard: HandlerGuard,
        access: AccessCheck | None = None,
        *,
        callbacks: bool = False,
    ) -> None:
        """`callbacks`: the server is our own transport's."""
        self._server = server
        self._guard = guard
        self._access = access
        self._callbacks = callbacks
        self.names: set[str] = set()

    def add_generic_rpc_handlers(self, _handlers: Sequence[object]) -> None:
        """The generated code of health checking and reflection registers the same handlers by
        `add_registered_method_handlers`."""

    def add_registered_method_handlers(
        self,
        service_name: str,
        method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any] | CallHandler],
    ) -> None:
        self.names.add(service_name)
        guarded = {
            name: self._guarded(f"/{service_name}/{name}", one) for name, one in method_handlers.items()
        }
        self._server.add_registered_method_handlers(service_name, guarded)

    def _guarded(self, path: str, handler: grpc.RpcMethodHandler[Any, Any] | CallHandler) -> Any:
        name = path.rpartition("/")[2]
        if self._access is not None:
            handler = self._access(path, handler)
        if not takes_one_request(handler):
            return self._guard.streams(name, handler)
        guarded = self._guard.calls(name, calls_of(handler))
        return for_batches(guarded) if self._callbacks else for_coroutines(guarded)


class GrpcServer:
    """A gRPC server, before and after it listens.

    Order of use: `add_service(it.server, …)` for each service, `bind()` and `bind_tls()`, `start()`,
    `set_serving(True)`; at the end `set_serving(False)` and `stop()`.
    """

    def __init__(
        self,
        limits: GrpcLimits,
        metrics: RpcMetrics,
        access: AccessCheck | None = None,
        connections: ConnectionCount | None = None,
    ) -> None:
        """`access`: adds the check of access before each handler; None: every call is allowed. `connections`:
        which peers may connect, within `connection_limit`; grpcio supports neither."""
        self._transport = limits.transport
        ours = limits.transport == "trovemq"
        self.connection_limit: Final = ConnectionLimit(connections)
        self.replies: Final = ReplyBudget(limits.replies, transport_counts=ours)
        metrics.replies = self.replies
        options: list[tuple[str, Any]] = list(limits.options())
        if ours:
            budget = TransportBudget(self.replies.budget, limits.receive_size_max)
            options += [
                ("trovemq.budget", budget),
                ("trovemq.unread_timeout_ms", limits.replies.unread_time_max_ms),
                ("trovemq.connections", self.connection_limit),
            ]
        self._server = new_server(limits.transport, options, limits.concurrent_calls_max)
        if ours:
            metrics.add_transport(self._server.metrics, budget, self.connection_limit)
        self._services = GuardedServices(
            self._server, HandlerGuard(metrics, self.replies), access, callbacks=ours
        )
        self.server: grpc.aio.Server = self._services
        self._tls: ServerCredentials | None = None
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)

    def bind(self, address: Address) -> Address:
        """Takes the port, and returns the address with its real port. Until `start` connections are reset
        (with grpcio they wait).

        Raises AddressInUseError.
        """
        return self._bind(address, self._server.add_insecure_port)

    def bind_tls(self, address: Address, identity: TlsIdentity) -> Address:
        """Takes a port for TLS, in addition to the plain one. Until `start` connections are reset. Raises
        AddressInUseError."""
        self._tls = made = server_credentials(self._transport, identity)
        return self._bind(address, lambda text: self._server.add_secure_port(text, made.credentials))

    def share_port(self, address: Address, identity: TlsIdentity, *, tls_only: bool) -> None:
        """The plain port takes TLS, too; our own transport only. `tls_only`: and nothing else."""
        assert self._transport == "trovemq", "the settings refuse it"
        self._tls = made = server_credentials(self._transport, identity)
        self._server.share_port(address.port, made.credentials, tls_only=tls_only)

    def add_guest(self, first_byte: int, make_guest: MakeGuest) -> None:
        """Another protocol on all ports (trovemq_rpc.server.guest); our own transport only."""
        assert self._transport == "trovemq", "the settings refuse it"
        self._server.add_guest(first_byte, make_guest)

    def explain(self, first_byte: int, reason: str) -> None:
        """Connections that begin with that byte are refused, and the log has this reason. grpcio has its own
        reasons."""
        if self._transport == "trovemq":
            self._server.explain(first_byte, reason)

    def replace_identity(self, identity: TlsIdentity) -> None:
        """Replaces the certificate for later TLS connections; open ones keep theirs. Raises ValueError,
        ssl.SSLError if it cannot be used."""
        if self._tls is not None:
            self._tls.replace(identity)

    def _bind(self, address: Address, add_port: Callable[[str], int]) -> Address:
        try:
            port = add_port(str(address))
        except RuntimeError as error:
            raise AddressInUseError(f"cannot listen on {address} (gRPC): {_bind_reason(error)}") from None
        if port == 0:
            raise AddressInUseError(f"cannot listen on {address} (gRPC)")
        if self._transport == "trovemq":
            self._server.refuse_until_start()  # a recovery may take minutes: clients go to another broker
        return address.with_port(port)

    @property
    def service_names(self) -> list[str]:
        """The full names of all added services."""
        return sorted(self._services.names)

    async def start(self) -> None:
        """Begins to serve; reflection lists the added services, which are NOT_SERVING yet."""
        names = (*self.service_names, reflection.SERVICE_NAME)
        servicer = reflection.aio.ReflectionServicer(names)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, self.server)
        await self.set_serving(False)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """Sets the answer of the health service, for the server as a whole and for each service."""
        states = health_pb2.HealthCheckResponse
        for name in ("", *self.service_names):
            await self._health.set(name, states.SERVING if serving else states.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls; running calls may end within grace_s, then they are cancelled."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


def _bind_reason(error: RuntimeError) -> str:
    text = str(error)
    if "Failed to bind" not in text:
        return text
    return (
        "the address is in use or not of this machine; "
        "stop the process that has it, or choose another address in the settings"
    )
