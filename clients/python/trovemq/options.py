"""The options of a client: sizes, times and retries, all of them with limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trovemq._common.backoff import Backoff
from trovemq._common.credentials import find_credentials
from trovemq.faults import Faults
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.channels import (
    KEEPALIVE_TIME_MS,
    KEEPALIVE_TIMEOUT_MS,
    ChannelSettings,
    GrpcTransport,
    chosen_transport,
)
from trovemq_proto.tls import TlsOptions, chosen_tls

if TYPE_CHECKING:  # an extra
    from trovemq.otel import Tracing


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The settings of one client; the defaults suit a client in the broker's own network.

    Attributes:
        message_size_max: The largest gRPC message that is sent or accepted, in bytes.
        call_timeout_ms: How long one call to one server may take.
        connect_timeout_ms: How long the first answer of a server may take.
        keepalive_time_ms: A connection with calls under way on which nothing arrives is pinged after this
            time, at least 1,000.
        keepalive_timeout_ms: How long the answer to a ping may take. Then the connection is given up, and the
            calls use another one.
        delivery_timeout_ms: How long a message may wait for its acknowledgement, retries included.
        send_attempts_max: The most attempts to send a message, the first one included.
        backoff: Delays between attempts and between reconnections.
        failover_timeout_ms: How long calls, and sends that were certainly not stored or are numbered, are
            repeated while a replica group has no leader, or too few copies.
        reconnect_timeout_ms: How long a pull retries while its broker is unreachable; how long the
            acknowledgement or the return of a received message is retried.
        replica: Whether the client stays with the given servers, nodes of a replica group, also where they do
            not lead: they answer pulls and look-ups (`read_from_replicas`), and refuse all else.
        max_lag_ms: A replica with a longer lag refuses pulls and look-ups with REPLICA_LAG_EXCEEDED, in
            milliseconds; 0: it answers with any lag. A healthy one has up to 600 while nothing is sent.
            Leaders answer always.
        producers_max: The most topics for which `Client.send` keeps a producer; the least recently used one
            is closed first.
        tls: True for TLS, or TlsOptions; None: as TROVEMQ_TLS and its like say, else a plain connection.
        grpc_transport: `grpcio`, or `trovemq` for our own; None: as TROVEMQ_GRPC_TRANSPORT, else trovemq.
        access_key: The user of the calls, with `secret_key`; None: as in `credentials_file`, else
            TROVEMQ_ACCESS_KEY and TROVEMQ_SECRET_KEY, else the file that TROVEMQ_CREDENTIALS names.
        secret_key: The user's secret; it is never transmitted.
        credentials_file: Both, as lines `access_key=…` and `secret_key=…`.
        faults: Faults to inject in tests; None in production.
        tracing: Makes OpenTelemetry spans (`trovemq.otel.Tracing`); None for no spans.
        failure_texts: Whether dead letters keep the text of the exception that made them. They always keep
            its type.
        redact: Changes texts before they are kept with a dead letter: called with the text of an exception,
            or the reason of `dead_letter`, it returns the text to keep. None: an address loses its secret.
        busy_poll_us: After a message or call that is the only one under way, the event loop looks for its
            answer for this long without sleeping, in microseconds, at most 10,000; 0: it sleeps at once. A
            near answer comes up to twice as fast: a processor that sleeps takes long to wake. Where answers
            take longer the loop soon stops trying.
        channel_options: Further gRPC channel arguments, applied last.
    """

    message_size_max: int = 64 << 20
    call_timeout_ms: int = 10_000
    connect_timeout_ms: int = 5_000
    keepalive_time_ms: int = KEEPALIVE_TIME_MS
    keepalive_timeout_ms: int = KEEPALIVE_TIMEOUT_MS
    delivery_timeout_ms: int = 30_000
    send_attempts_max: int = 10
    backoff: Backoff = field(default_factory=Backoff)
    failover_timeout_ms: int = 15_000
    reconnect_timeout_ms: int = 60_000
    replica: bool = False
    max_lag_ms: int = 0
    producers_max: int = 1024
    tls: bool | TlsOptions | None = None
    grpc_transport: GrpcTransport | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    credentials_file: str | None = None
    faults: Faults | None = None
    tracing: Tracing | None = None
    failure_texts: bool = True
    redact: Callable[[str], str] | None = None
    busy_poll_us: int = 300
    channel_options: tuple[tuple[str, int | str], ...] = ()

    def channel_settings(self) -> ChannelSettings:
        """The settings of its channels; reads the TLS files. Raises TroveError TLS_OPTION_ILLEGAL,
        REQUEST_ILLEGAL."""
        return ChannelSettings(
            transport=chosen_transport(self.grpc_transport),
            tls=chosen_tls(self.tls),
            message_size_max=self.message_size_max,
            connect_timeout_ms=self.connect_timeout_ms,
            keepalive_time_ms=self.keepalive_time_ms,
            keepalive_timeout_ms=self.keepalive_timeout_ms,
            busy_poll_us=self.busy_poll_us,
            more=self.channel_options,
        )

    def credentials(self) -> Credentials | None:
        """The credentials of the calls; None without authentication. Raises TroveError REQUEST_ILLEGAL."""
        return find_credentials(self.access_key, self.secret_key, self.credentials_file)
