"""The nameserver's settings. It stores nothing on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from trovemq_daemon.addresses import Address, check_listen, parse_address, parse_http, with_port
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.grpc_server import GrpcLimits
from trovemq_daemon.grpc_transport import GrpcTransport
from trovemq_daemon.logging import LogFormat, LogLevel
from trovemq_daemon.reply_budget import ReplyLimits
from trovemq_daemon.settings import setting
from trovemq_daemon.tls_settings import TlsSettings
from trovemq_nameserver.routes import RouteLimits
from trovemq_proto.channels import TRANSPORT_DEFAULT

ENVIRONMENT_PREFIX: Final = "TROVEMQ_NAMESERVER"
UNREAD_REPLIES_SIZE_MAX: Final = 268_435_456
"""In bytes, of all connections together, and of one: the reply with 2,000,000 routes has 72 MB and more."""

# Keys of RocketMQ's namesrv.conf that are known and not implemented.
IGNORED_KEYS: Final = frozenset(
    {
        "clientRequestThreadPoolNums", "clusterTest", "configStorePath", "defaultThreadPoolNums",
        "deleteTopicWithBrokerRegistration", "enableAllTopicList", "enableControllerInNamesrv",
        "enableTopicList", "kvConfigPath", "needWaitForService", "notifyMinBrokerIdChanged",
        "orderMessageEnable", "productEnvName", "returnOrderTopicConfigToBroker", "rocketmqHome",
        "scanNotActiveBrokerInterval", "serverWorkerThreads", "serverSelectorThreads",
        "serverChannelMaxIdleTimeSeconds", "supportActingMaster", "unRegisterBrokerQueueCapacity",
        "waitSecondsForService",
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(TlsSettings):
    """The settings of the process: its addresses, users and log."""

    listen: Annotated[str, setting("HOST:PORT", rocketmq="listenPort", convert=with_port)] = "127.0.0.1:9876"
    """Address of the gRPC services; port 0 takes any free one."""
    http: Annotated[str, setting("HOST:PORT")] = "127.0.0.1:9877"
    """Address of /metrics, /healthz and /readyz; `off` for none."""
    insecure: Annotated[bool, setting()] = False
    """Allows listening on more than loopback without authentication."""
    users_file: Annotated[str, setting("FILE")] = ""
    """TOML file of the brokers that may register and the clients that may read routes, with their secrets;
    read again when it has changed. Empty = callers are not authenticated."""
    log_level: Annotated[LogLevel, setting()] = "info"
    """The least severe events that are logged."""
    log_format: Annotated[LogFormat, setting()] = "text"
    """Form of a log line on standard error."""


@dataclass(frozen=True, kw_only=True)
class NameserverSettings(RouteLimits, ProcessSettings):
    """All settings of the nameserver, those of the process first; times in milliseconds, sizes in bytes."""

    watchers_max: Annotated[int, setting("watchers", 1, 1_000_000)] = 10_000
    """Clients that may watch the routes."""
    grpc_transport: Annotated[GrpcTransport, setting()] = TRANSPORT_DEFAULT
    """The implementation of gRPC: `trovemq` (our own) or `grpcio`. Clients see no difference."""
    remoting_enable: Annotated[bool, setting()] = False
    """Whether routes are served by RocketMQ's remoting protocol, too, on the ports of gRPC."""
    slow_request_ms: Annotated[int, setting("ms", 0, 3_600_000)] = 1_000
    """Requests that take longer are logged (`request.slow`) and counted; 0 logs none."""
    heartbeat_size_max: Annotated[int, setting("bytes", 65_536, 1 << 30)] = 33_554_432
    """Largest message of a broker, with all its topics."""

    def problems(self) -> Iterator[str]:
        """The contradictions, one sentence each."""
        try:
            asks = self.insecure or bool(self.users_file)
            check_listen("listen", self.listen_address, insecure=asks, authentication="users_file")
            if self.http_address is not None:
                check_listen("http", self.http_address, insecure=self.insecure)
            yield from self.tls_problems(self.listen_address, insecure=asks)
            yield from self.transport_problems(self.grpc_transport, self.listen)
            if self.remoting_enable and self.grpc_transport != "trovemq":
                yield "remoting_enable needs grpc_transport = trovemq: the protocols share a port"
            if self.remoting_enable and self.users_file:
                yield "remoting_enable needs an empty users_file: remoting callers cannot log in yet"
        except SettingsError as error:
            yield from error.problems

    @property
    def listen_address(self) -> Address:
        return parse_address(self.listen)

    @property
    def http_address(self) -> Address | None:
        """The address of the operations HTTP; None if it is off."""
        return parse_http(self.http)

    def grpc_limits(self) -> GrpcLimits:
        return GrpcLimits(
            transport=self.grpc_transport,
            receive_size_max=self.heartbeat_size_max,
            send_size_max=UNREAD_REPLIES_SIZE_MAX,
            replies=ReplyLimits(total_max=UNREAD_REPLIES_SIZE_MAX, connection_max=UNREAD_REPLIES_SIZE_MAX),
            concurrent_calls_max=self.watchers_max + 10_000,
        )
