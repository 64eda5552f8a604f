"""All settings of the broker, with our names and RocketMQ's: the settings that its parts declare, and the
daemon's own. `StoreSettings` (engine) are made from them.

Sizes in bytes, times in milliseconds. `trovemq_daemon.settings` reads them. RocketMQ's names are those of its
broker or, for settings of its gRPC proxy, those of the proxy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from trovemq_broker.atomic.limits import AtomicLimits
from trovemq_broker.cluster.registration import RegistrationSettings, registration_channels
from trovemq_broker.consumer_settings import EARLIEST, STREAMS_PER_CLIENT, ConsumerSettings
from trovemq_broker.daemon.config_settings import ClusterConfigSettings
from trovemq_broker.daemon.node_settings import FileSettings, NodeSettings, ProjectionSettings
from trovemq_broker.daemon.replica_settings import ReplicaSettings
from trovemq_broker.daemon.retention_settings import RetentionSettings
from trovemq_broker.maintenance.group_expiry import EXPIRY_MIN_MS
from trovemq_broker.produce.append import AppendSettings
from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_broker.server.core.settings import CoreSettings, ReadSettings, RegistrySettings
from trovemq_daemon.addresses import Address, parse_address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.grpc_server import GrpcLimits
from trovemq_daemon.grpc_transport import GrpcTransport
from trovemq_daemon.private_files import read_credentials
from trovemq_daemon.reply_budget import ReplyLimits
from trovemq_daemon.settings import DAY_MS, GIB, JAVA_INT_MAX, part_of, setting
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.channels import TRANSPORT_DEFAULT, ChannelSettings
from trovemq_store.settings import StoreSettings

ENVIRONMENT_PREFIX: Final = "TROVEMQ_BROKER"
FRAME_OVERHEAD_MAX: Final = 65_536  # protobuf's overhead around one frame's records

_STORE: Final = StoreSettings()


@dataclass(frozen=True, kw_only=True)
class MessageSizes:
    """The settings of the sizes of messages."""

    body_size_max: Annotated[int, setting("bytes", 1, GIB, rocketmq="maxMessageSize")] = _STORE.body_size_max
    """Largest body of one message."""
    batch_size_max: Annotated[int, setting("bytes", 4_096, GIB)] = _STORE.batch_size_max
    """Largest record batch of one frame."""


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """The settings of connections."""

    grpc_transport: Annotated[GrpcTransport, setting()] = TRANSPORT_DEFAULT
    """The implementation of gRPC: `trovemq` (our own) or `grpcio`. Clients see no difference."""
    remoting_enable: Annotated[bool, setting()] = False
    """Whether RocketMQ's remoting protocol is served, too, on the ports of gRPC: for clients of 4.x, and the
    remoting clients of 5.x."""
    rocketmq_nameserver: Annotated[tuple[str, ...], setting("HOST:PORT")] = ()
    """Nameservers of RocketMQ itself at which this broker registers, by remoting, separated by commas: it is
    one more broker of their clusters."""
    grpc_receive_size_max: Annotated[
        int, setting("bytes", 65_536, JAVA_INT_MAX, rocketmq="grpcMaxInboundMessageSize")
    ] = 136_314_880
    """Largest request; RocketMQ's value is 130 MiB: 32 bodies of 4 MiB, which a client may send in one
    request."""
    reply_bytes_max: Annotated[int, setting("bytes", 16_777_216, 1 << 40)] = 268_435_456
    """Bytes of replies of all connections that are ready and not read; beyond it large replies wait, for at
    most 5 s."""
    reply_connection_bytes_max: Annotated[int, setting("bytes", 1_048_576, 1 << 40)] = 67_108_864
    """Bytes of replies of one connection that are ready and not read; beyond it large replies wait."""
    reply_unread_time_max_ms: Annotated[int, setting("ms", 1_000, 86_400_000)] = 60_000
    """A call ends when its client has not read a large reply for this long."""
    grpc_streams_max: Annotated[int, setting("streams", 1, 1_000_000)] = 1_000
    """Calls and streams of one connection."""
    grpc_calls_max: Annotated[int, setting("calls", 1, 1_000_000)] = 10_000
    """Calls and streams of all connections, without those that only wait: receives, pulls and telemetry have
    separate limits."""
    grpc_handshake_timeout_ms: Annotated[int, setting("ms", 100, 600_000)] = 5_000
    """A connection without a handshake is closed after this time."""
    grpc_keepalive_time_ms: Annotated[int, setting("ms", 1_000, DAY_MS)] = 10_000
    """An idle connection is pinged after this time."""
    grpc_keepalive_timeout_ms: Annotated[int, setting("ms", 100, 600_000)] = 5_000
    """A connection that does not answer a ping is closed after this time."""
    slow_request_ms: Annotated[int, setting("ms", 0, 3_600_000, restart=False)] = 1_000
    """Requests that take longer are logged (`request.slow`) and counted; 0 logs none."""
    otlp_endpoint: Annotated[str, setting("URL")] = ""
    """Address to which spans of messages in a sampled trace are sent, by OTLP over HTTP
    (http://127.0.0.1:4318/v1/traces); empty = no spans. Needs trovemq[otlp]."""


@dataclass(frozen=True, kw_only=True)
class BrokerSettings(
    RegistrationSettings,
    ConnectionSettings,
    CoreSettings,
    RegistrySettings,
    ConsumerSettings,
    ReadSettings,
    AtomicLimits,
    AppendSettings,
    MessageSizes,
    RetentionSettings,
    ProjectionSettings,
    FlushSettings,
    FileSettings,
    ClusterConfigSettings,
    ReplicaSettings,
    NodeSettings,
):
    """All settings of the broker; of the bases, the last one's come first. `problems()` reports
    contradictions."""

    def problems(self) -> Iterator[str]:
        """The contradictions, one sentence each."""
        yield from NodeSettings.problems(self)
        yield from self.config_problems()
        yield from self.replica_problems()
        yield from self.etcd_problems(is_used=self.is_elected, insecure=self.insecure)
        yield from self.size_problems()
        yield from self.hour_problems()
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            yield "otlp_endpoint must begin with http:// or https://"
        yield from self.transport_problems(self.grpc_transport, self.listen)
        if self.remoting_enable and self.grpc_transport != "trovemq":
            yield "remoting_enable needs grpc_transport = trovemq: the protocols share a port"
        yield from self._rocketmq_problems()
        if self.body_size_max > self.batch_size_max:
            yield f"body_size_max {self.body_size_max} must not exceed batch_size_max {self.batch_size_max}"
        if self.group_expiry_ms and self.group_expiry_ms < EXPIRY_MIN_MS:
            yield f"group_expiry_ms is 0 or at least {EXPIRY_MIN_MS} (seven days)"
        if self.group_expiry_ms and self.new_group_start not in EARLIEST:
            yield "group_expiry_ms needs new_group_start = earliest: a name that returns must skip nothing"
        for least, most in (
            ("registration_retry_min_ms", "registration_retry_max_ms"),
            ("invisible_min_ms", "invisible_max_ms"),
            ("renewed_lease_ms", "renewed_total_max_ms"),
        ):
            if getattr(self, least) > getattr(self, most):
                yield f"{least} must not exceed {most}"

    def _rocketmq_problems(self) -> Iterator[str]:
        if not self.rocketmq_nameserver:
            return
        if not self.remoting_enable:
            yield "rocketmq_nameserver needs remoting_enable: clients of that nameserver use remoting"
        named = self.owner_named if not list(self.config_problems()) else None
        if named is not None and named.name != self.name and not (named.address or self.nameserver):
            yield "with rocketmq_nameserver alone, config_owner must be NAME@HOST:PORT: no route has it"
        try:
            if any(address.port == 0 for address in self.rocketmq_nameserver_addresses):
                yield "a nameserver's port must not be 0"
        except SettingsError as error:
            yield from error.problems

    @property
    def rocketmq_nameserver_addresses(self) -> tuple[Address, ...]:
        return tuple(dict.fromkeys(parse_address(text) for text in self.rocketmq_nameserver))

    def store_settings(self, own: Address) -> StoreSettings:
        """The engine's settings. STOREHOST is the broker's own address, with an IP address as its host."""
        assert own.ip is not None, "records have an IP address"
        return part_of(self, StoreSettings, store_host=str(own), broker=self.name, tables_in_log=True)

    def waits_of_requests(self) -> dict[str, str]:
        """For each method, the wait before its reply: with sync flush, appends wait for their sync."""
        return dict.fromkeys(("Append", "Send", "SendMessage"), "sync") if self.flush_mode == "sync" else {}

    def consumer_settings(self) -> ConsumerSettings:
        """The settings of delivery, timers and transactions."""
        recent_bytes_max = machine_memory_size() * self.recent_memory_percent // 100
        return part_of(self, ConsumerSettings, recent_bytes_max=recent_bytes_max)

    def registration_channels(self) -> ChannelSettings:
        """Reads the TLS files; blocks. Raises SettingsError for files that cannot be used."""
        return registration_channels(self.nameserver_tls_options(), self.grpc_transport)

    def registration_credentials(self) -> Callable[[], Credentials] | None:
        """A function that reads the credentials, which blocks and raises SettingsError for a file that cannot
        be used; None if no file is set."""
        return _reader_of(self.nameserver_credentials_file, "nameserver_credentials_file")

    def config_credentials(self) -> Callable[[], Credentials] | None:
        """A function that reads the credentials for the owner of the cluster's configuration; None if no file
        is set."""
        if not self.config_credentials_file:
            return self.registration_credentials()
        return _reader_of(self.config_credentials_file, "config_credentials_file")

    @property
    def _waiting_calls_max(self) -> int:
        """The most calls that only wait; other calls need space beside them."""
        return self.receive_polls_max + self.long_polls_max + STREAMS_PER_CLIENT * self.clients_max

    def grpc_limits(self) -> GrpcLimits:
        """A request may be as large as those of RocketMQ's clients, and as one frame of our SDK."""
        return GrpcLimits(
            transport=self.grpc_transport,
            receive_size_max=max(self.grpc_receive_size_max, self.batch_size_max + FRAME_OVERHEAD_MAX),
            send_size_max=min(
                max(self.batch_size_max, self.pull_bytes_max, self.query_page_bytes_max)
                + self.batch_size_max
                + FRAME_OVERHEAD_MAX,
                JAVA_INT_MAX,  # gRPC's limit is an int, too
            ),
            concurrent_streams_max=self.grpc_streams_max,
            concurrent_calls_max=self.grpc_calls_max + self._waiting_calls_max,
            handshake_timeout_ms=self.grpc_handshake_timeout_ms,
            keepalive_time_ms=self.grpc_keepalive_time_ms,
            keepalive_timeout_ms=self.grpc_keepalive_timeout_ms,
            replies=ReplyLimits(
                total_max=self.reply_bytes_max,
                connection_max=self.reply_connection_bytes_max,
                unread_time_max_ms=self.reply_unread_time_max_ms,
            ),
        )


def machine_memory_size() -> int:
    """Bytes of main memory; 1 GiB if the machine does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return GIB


def _reader_of(file: str, setting_name: str) -> Callable[[], Credentials] | None:
    if not file:
        return None
    path = Path(file)
    read_credentials(path, setting_name)
    return lambda: read_credentials(path, setting_name)
