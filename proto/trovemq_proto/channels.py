"""Every gRPC channel of a client: SDK, command line, Spark sources, and a broker at its nameservers.

This module alone knows which transport is used (grpcio or trovemq_rpc), with which times, sizes and TLS. A
channel has the methods of grpc.aio with both; their differences are in `Transport`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, Protocol, Self, cast, get_args, runtime_checkable

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.tls import ClientTls, system_certificates

GrpcTransport = Literal["grpcio", "trovemq"]
TRANSPORTS: Final[tuple[GrpcTransport, ...]] = get_args(GrpcTransport)
TRANSPORT_DEFAULT: Final[GrpcTransport] = "trovemq"
TRANSPORT_VARIABLE: Final = "TROVEMQ_GRPC_TRANSPORT"
KEEPALIVE_TIME_MS: Final = 6_000
KEEPALIVE_TIMEOUT_MS: Final = 10_000
"""A connection that died in silence (a firewall or NAT has forgotten it) is replaced within 20 s. A broker
may stand still for the second of these times without losing its clients."""

Argument = tuple[str, int | str]


class Channel(Protocol):
    """The part of grpc.aio's channel that generated stubs and our clients use."""

    def unary_unary(self, method: str, *arguments: Any, **named: Any) -> Any: ...

    def unary_stream(self, method: str, *arguments: Any, **named: Any) -> Any: ...

    def stream_unary(self, method: str, *arguments: Any, **named: Any) -> Any: ...

    def stream_stream(self, method: str, *arguments: Any, **named: Any) -> Any: ...

    async def close(self, grace: float | None = None) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exception: object) -> None: ...


class Status(Protocol):
    """A member of StatusCode, of either transport."""

    @property
    def name(self) -> str: ...


@runtime_checkable
class CallFailure(Protocol):
    """An exception that carries the status of a call: AioRpcError of either transport."""

    def code(self) -> Status: ...

    def details(self) -> str | None: ...

    def trailing_metadata(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Transport:
    """One transport, loaded.

    Attributes:
        module: grpc.aio, or trovemq_rpc in its place.
        credentials: Its `ssl_channel_credentials`.
        end_of_stream: What `read` returns after the last message.
        failures: Raised by a call that is over: its status, a misuse, a write after its end, or a
            cancellation that the caller did not request.
    """

    module: Any
    credentials: Any
    end_of_stream: object
    failures: tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSettings:
    """How a channel behaves. Sizes in bytes, times in milliseconds; None is the transport's own.

    Attributes:
        transport: Which one.
        tls: None for a plain connection.
        message_size_max: Largest message in both directions; -1 for no limit of ours.
        connect_timeout_ms: How long one attempt to connect may take.
        reconnect_min_ms: The pause after the first failed attempt.
        reconnect_max_ms: The longest pause.
        keepalive_time_ms: A connection with open calls on which nothing arrives is pinged after this time.
        keepalive_timeout_ms: How long the answer may take; then the connection is given up.
        busy_poll_us: How long the event loop does not sleep after a lone request, in microseconds; 0: not at
            all. Only our own transport does it.
        more: Further gRPC channel arguments, applied last.
    """

    transport: GrpcTransport = TRANSPORT_DEFAULT
    tls: ClientTls | None = None
    message_size_max: int = -1
    connect_timeout_ms: int = 5_000
    reconnect_min_ms: int = 50
    reconnect_max_ms: int = 1_000
    keepalive_time_ms: int = KEEPALIVE_TIME_MS
    keepalive_timeout_ms: int = KEEPALIVE_TIMEOUT_MS
    busy_poll_us: int = 0
    more: tuple[Argument, ...] = ()

    def arguments(self) -> list[Argument]:
        """As gRPC's channel arguments: no proxy, no DNS configuration, no retries but our own."""
        arguments: list[Argument] = [
            ("grpc.max_send_message_length", self.message_size_max),
            ("grpc.max_receive_message_length", self.message_size_max),
            ("grpc.initial_reconnect_backoff_ms", self.reconnect_min_ms),
            # Despite its name: how long an attempt to connect may take. A busy server needs time.
            ("grpc.min_reconnect_backoff_ms", self.connect_timeout_ms),
            ("grpc.max_reconnect_backoff_ms", self.reconnect_max_ms),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.service_config_disable_resolution", 1),
            ("grpc.enable_retries", 0),
            ("grpc.keepalive_time_ms", self.keepalive_time_ms),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout_ms),
        ]
        if self.transport == "grpcio":  # the other one reads large messages in parts, whatever their frames
            arguments.append(("grpc.http2.max_frame_size", (1 << 24) - 1))
            arguments.append(("grpc.http2.max_pings_without_data", 0))  # no limit: a quiet stream may be long
            # The core waits a minute for the answer to keepalive's PING unless this says otherwise.
            arguments.append(("grpc.http2.ping_timeout_ms", self.keepalive_timeout_ms))
        elif self.busy_poll_us:
            arguments.append(("trovemq.busy_poll_us", self.busy_poll_us))
        if self.tls is not None and self.tls.server_name is not None:
            arguments.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return [*arguments, *self.more]


def chosen_transport(name: str | None, environment: Mapping[str, str] = os.environ) -> GrpcTransport:
    """The transport of that name; for None the one of TROVEMQ_GRPC_TRANSPORT, otherwise the default.

    Raises:
        TroveError: REQUEST_ILLEGAL for another name.
    """
    source, text = "grpc_transport", name
    if text is None:
        source, text = TRANSPORT_VARIABLE, environment.get(TRANSPORT_VARIABLE) or TRANSPORT_DEFAULT
    if text not in TRANSPORTS:
        message = f"{source} is {' or '.join(TRANSPORTS)}, not {text!r}"
        raise TroveError(errors.REQUEST_ILLEGAL, message, argument=source)
    return text


@cache
def transport_of(name: GrpcTransport) -> Transport:
    """The transport, imported at its first use: grpcio costs a tenth of a second, which trovemq_rpc saves."""
    if name == "trovemq":
        import trovemq_rpc

        module, credentials = trovemq_rpc, trovemq_rpc.ssl_channel_credentials
        failed: type[BaseException] = trovemq_rpc.AioRpcError
    else:
        try:
            import grpc
            import grpc.aio
        except ModuleNotFoundError as error:
            text = "the transport grpcio is not installed: pip install 'trovemq[grpcio]'"
            raise TroveError(errors.REQUEST_ILLEGAL, text, argument="grpc_transport") from error

        module, credentials, failed = grpc.aio, grpc.ssl_channel_credentials, grpc.RpcError
    failures = (failed, module.UsageError, asyncio.InvalidStateError, asyncio.CancelledError)
    return Transport(module, credentials, module.EOF, failures)


def open_channel(address: str, settings: ChannelSettings) -> Channel:
    """A channel to HOST:PORT. It connects when it is first used, and reconnects when a connection is
    lost."""
    transport, tls, arguments = transport_of(settings.transport), settings.tls, settings.arguments()
    if tls is None:
        return cast("Channel", transport.module.insecure_channel(address, options=arguments))
    # grpcio brings its own certificates; both transports shall trust the system's.
    trusted = system_certificates() if tls.ca is None and settings.transport == "grpcio" else tls.ca
    credentials = transport.credentials(trusted, tls.key, tls.certificate)
    return cast("Channel", transport.module.secure_channel(address, credentials, options=arguments))
