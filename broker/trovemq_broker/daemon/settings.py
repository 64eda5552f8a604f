"""All settings of the broker, with our names and RocketMQ's. `StoreSettings` (engine) and `ConsumerSettings`
(delivery, timers, transactions) are made from them.

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
from trovemq_broker.consumer_settings import STREAMS_PER_CLIENT, YEAR_MS, ConsumerSettings, NewGroupStart
from trovemq_broker.daemon.retention_settings import RetentionSettings
from trovemq_broker.maintenance.group_expiry import EXPIRY_MIN_MS
from trovemq_broker.produce.append import AppendSettings
from trovemq_daemon.addresses import Address
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
_CONSUMERS: Final = ConsumerSettings()
_ATOMIC: Final = AtomicLimits()
_REGISTRATION: Final = RegistrationSettings()


def _seconds(text: str, _current: object) -> str:
    """RocketMQ's timerMaxDelaySec counts seconds."""
    if not text.strip().isdecimal():
        raise ValueError("must be a whole number of seconds")
    return f"{text.strip()}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(RetentionSettings):
    """The values of the settings. `problems()` reports contradictions."""

    # --- producing --------------------------------------------------------------------------------------
    body_size_max: Annotated[int, setting("bytes", 1, GIB, rocketmq="maxMessageSize")] = _STORE.body_size_max
    """Largest body of one message."""
    batch_size_max: Annotated[int, setting("bytes", 4_096, GIB)] = _STORE.batch_size_max
    """Largest record batch of one frame."""
    auto_create_topic_enable: Annotated[bool, setting(rocketmq="autoCreateTopicEnable", restart=False)] = (
        False
    )
    """Creates an unknown topic when a message is sent to it."""
    auto_create_queue_count: Annotated[
        int, setting("queues", 1, 1_024, rocketmq="defaultTopicQueueNums", restart=False)
    ] = 8
    """Queues of a topic that was created by sending."""
    append_frames_in_flight_max: Annotated[int, setting("frames", 1, 65_536)] = 256
    """Frames of one Append stream that may await their acknowledgement."""

    atomic_open_max: Annotated[int, setting("transactions", 1, 100_000, restart=False)] = _ATOMIC.open_max
    """Atomic transactions (of several messages, stored together) that may be open."""
    atomic_bytes_max: Annotated[int, setting("bytes", 4_096, 64 * GIB, restart=False)] = _ATOMIC.bytes_max
    """Memory that all open atomic transactions may take together."""
    atomic_timeout_max_ms: Annotated[int, setting("ms", 1, DAY_MS, restart=False)] = _ATOMIC.timeout_max_ms
    """Longest time that an atomic transaction may be open; a client's default is 60 s."""

    # --- consuming and queries --------------------------------------------------------------------------
    pull_bytes_max: Annotated[int, setting("bytes", 4_096, GIB)] = 4_194_304
    """Most bytes of records in one reply; a single larger record is still sent."""
    fetch_frames_in_flight_max: Annotated[int, setting("frames", 1, 65_536)] = 256
    """Requests of one Fetch stream that may await their reply."""
    long_poll_wait_max_ms: Annotated[int, setting("ms", 0, 600_000)] = 30_000
    """Longest time that a pull may wait for messages."""
    long_polls_max: Annotated[int, setting("polls", 1, 1_000_000)] = 10_000
    """Pulls that may wait at once."""
    query_messages_max: Annotated[int, setting("messages", 1, 10_000, rocketmq="maxMsgsNumBatch")] = (
        _STORE.query_messages_max
    )
    """Messages of one query's page."""
    query_page_bytes_max: Annotated[int, setting("bytes", 4_096, GIB)] = _STORE.query_page_bytes_max
    """Record bytes that one query loads for a page."""
    queries_max: Annotated[int, setting("queries", 1, 10_000, restart=False)] = 64
    """Queries that may run at once."""

    # --- consumer groups --------------------------------------------------------------------------------
    auto_create_group: Annotated[bool, setting(rocketmq="autoCreateSubscriptionGroup")] = (
        _CONSUMERS.auto_create_group
    )
    """Creates an unknown consumer group at its first use."""
    fifo_group_orderly: Annotated[bool, setting()] = _CONSUMERS.fifo_group_orderly
    """A consumer group that is created by its first use is orderly (keeps the order of message groups) if one
    of its topics is FIFO."""
    new_group_start: Annotated[NewGroupStart, setting()] = _CONSUMERS.new_group_start
    """Where a new group begins: at the begin or the end of a queue, or as in RocketMQ: at the begin of a
    queue that is recent as a whole, else at its last message."""
    group_expiry_ms: Annotated[int, setting("ms", 0, 36_500 * DAY_MS)] = 0
    """A group that its first use made is forgotten when it has had no member for this time since the start
    and has read everything; at least seven days and `reserved_time_ms`; 0 = never. It needs `new_group_start
    = begin`: a name that returns skips nothing."""
    recent_memory_percent: Annotated[int, setting("%", 0, 100, rocketmq="accessMessageInMemoryMaxRatio")] = 40
    """A queue is recent while its first message lies within this share of the machine's memory."""
    in_flight_max: Annotated[
        int, setting("messages", 1, 1_000_000, rocketmq="popInflightMessageThreshold")
    ] = _CONSUMERS.in_flight_max
    """Messages of one queue that a group may hold unacknowledged; then it gets no further ones."""
    ordered_window_max: Annotated[int, setting("messages", 1, 1_000_000)] = _CONSUMERS.ordered_window_max
    """How far beyond its first open message an orderly group reads for other message groups."""
    priority_starvation_max: Annotated[int, setting("messages", 0, 1_000_000)] = (
        _CONSUMERS.priority_starvation_max
    )
    """In a queue that is received by priority, a message is received after this many of other priorities, and
    8 more, at the latest; 0: higher ones always go first."""
    event_interval_ms: Annotated[int, setting("ms", 1, 10_000)] = _CONSUMERS.event_interval_ms
    """Deliveries and acknowledgements are written to the log at least this often."""
    receive_count_max: Annotated[
        int, setting("messages", 1, 10_000, rocketmq="grpcClientConsumerLongPollingBatchSize")
    ] = _CONSUMERS.receive_count_max
    """Messages of one receive."""
    receive_polls_max: Annotated[int, setting("polls", 1, 1_000_000, rocketmq="maxPopPollingSize")] = 20_000
    """Receives that may wait at once."""
    receive_poll_min_ms: Annotated[
        int, setting("ms", 0, 20_000, rocketmq="grpcClientConsumerMinLongPollingTimeoutMillis")
    ] = _CONSUMERS.receive_poll_min_ms
    """Shortest time that a receive waits for messages, even if it asks for less."""
    invisible_min_ms: Annotated[int, setting("ms", 0, DAY_MS, rocketmq="minInvisibleTimeMillsForRecv")] = (
        _CONSUMERS.invisible_min_ms
    )
    """Shortest invisible time of a receive."""
    invisible_max_ms: Annotated[int, setting("ms", 1, DAY_MS, rocketmq="maxInvisibleTimeMills")] = (
        _CONSUMERS.invisible_max_ms
    )
    """Longest invisible time, of a receive and of a change."""
    renewed_lease_ms: Annotated[int, setting("ms", 1_000, DAY_MS, rocketmq="defaultInvisibleTimeMills")] = (
        _CONSUMERS.renewed_lease_ms
    )
    """Invisible time of a receive with automatic renewal; it is renewed while the client is alive."""
    renewed_total_max_ms: Annotated[int, setting("ms", 1_000, 7 * DAY_MS, rocketmq="renewMaxTimeMillis")] = (
        _CONSUMERS.renewed_total_max_ms
    )
    """Longest time for which a message is renewed."""
    released_after_ms: Annotated[int, setting("ms", 0, DAY_MS, rocketmq="invisibleTimeMillisWhenClear")] = (
        _CONSUMERS.released_after_ms
    )
    """Messages of a client that is gone are delivered again after this time."""

    # --- delayed messages and transactions --------------------------------------------------------------
    delivery_delay_max_ms: Annotated[
        int, setting("ms", 1_000, 10 * YEAR_MS, rocketmq="timerMaxDelaySec", convert=_seconds)
    ] = _CONSUMERS.delivery_delay_max_ms
    """Furthest delivery time of a delayed message."""
    timers_max: Annotated[int, setting("messages", 1, 1_000_000_000)] = _CONSUMERS.timers_max
    """Delayed messages that may be pending."""
    timer_batch_max: Annotated[int, setting("messages", 1, 65_536)] = _CONSUMERS.timer_batch_max
    """Delayed messages that one turn delivers."""
    timer_log_file_size: Annotated[
        int, setting("bytes", 68, JAVA_INT_MAX, rocketmq="mappedFileSizeTimerLog")
    ] = _CONSUMERS.timer_log_file_size
    """Size of the timer log's files that a clean stop writes for RocketMQ, if there are none yet."""
    timer_stop_dequeue: Annotated[bool, setting(rocketmq="timerStopDequeue")] = False
    """Delivers no delayed messages, not even overdue ones: for examining a store without a change."""
    transaction_timeout_ms: Annotated[int, setting("ms", 1, DAY_MS, rocketmq="transactionTimeOut")] = (
        _CONSUMERS.transaction_timeout_ms
    )
    """The producer of a transaction that has been open for this long is asked about it."""
    transaction_check_interval_ms: Annotated[
        int, setting("ms", 1, DAY_MS, rocketmq="transactionCheckInterval")
    ] = _CONSUMERS.transaction_check_interval_ms
    """How often the producer of an open transaction is asked."""
    transaction_check_max: Annotated[int, setting("checks", 1, 10_000, rocketmq="transactionCheckMax")] = (
        _CONSUMERS.transaction_check_max
    )
    """After this many questions without an answer the transaction is given up."""
    transactions_max: Annotated[int, setting("transactions", 1, 100_000_000)] = _CONSUMERS.transactions_max
    """Transactions that may be open."""

    # --- gRPC and the cluster ---------------------------------------------------------------------------
    clients_max: Annotated[int, setting("clients", 1, 1_000_000)] = 10_000
    """RocketMQ clients that may be known at once."""
    client_expiry_ms: Annotated[int, setting("ms", 1_000, DAY_MS, rocketmq="channelExpiredTimeout")] = 120_000
    """A RocketMQ client without a stream is forgotten after this time without a heartbeat."""
    grpc_transport: Annotated[GrpcTransport, setting()] = TRANSPORT_DEFAULT
    """The implementation of gRPC: `trovemq` (our own) or `grpcio`. Clients see no difference."""
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
    limits of their own."""
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
    heartbeat_interval_ms: Annotated[int, setting("ms", 10, 60_000, rocketmq="brokerHeartbeatInterval")] = (
        _REGISTRATION.heartbeat_interval_ms
    )
    """How often a heartbeat is sent to each nameserver."""
    registration_retry_min_ms: Annotated[int, setting("ms", 1, 60_000)] = _REGISTRATION.retry_min_ms
    """First wait before the broker registers again."""
    registration_retry_max_ms: Annotated[int, setting("ms", 1, 600_000)] = _REGISTRATION.retry_max_ms
    """Longest wait before the broker registers again."""

    def problems(self) -> Iterator[str]:
        """The contradictions, one sentence each."""
        yield from RetentionSettings.problems(self)  # a class with slots has no super() before Python 3.14
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            yield "otlp_endpoint must begin with http:// or https://"
        yield from self.transport_problems(self.grpc_transport)
        if self.body_size_max > self.batch_size_max:
            yield f"body_size_max {self.body_size_max} must not exceed batch_size_max {self.batch_size_max}"
        if self.group_expiry_ms and self.group_expiry_ms < EXPIRY_MIN_MS:
            yield f"group_expiry_ms is 0 or at least {EXPIRY_MIN_MS} (seven days)"
        if self.group_expiry_ms and self.new_group_start != "begin":
            yield "group_expiry_ms needs new_group_start = begin: a name that returns must skip nothing"
        for least, most in (
            ("registration_retry_min_ms", "registration_retry_max_ms"),
            ("invisible_min_ms", "invisible_max_ms"),
            ("renewed_lease_ms", "renewed_total_max_ms"),
        ):
            if getattr(self, least) > getattr(self, most):
                yield f"{least} must not exceed {most}"

    def store_settings(self, own: Address) -> StoreSettings:
        """The engine's settings. STOREHOST is the broker's own address, with an IP address as its host."""
        assert own.ip is not None, "records have an IP address"
        return part_of(self, StoreSettings, store_host=str(own), broker=self.name)

    def append_settings(self) -> AppendSettings:
        """The settings of the appender."""
        return AppendSettings(
            auto_create_topic=self.auto_create_topic_enable,
            auto_create_queue_count=self.auto_create_queue_count,
        )

    def waits_of_requests(self) -> dict[str, str]:
        """For each method, the wait before its reply: with sync flush, appends wait for their sync."""
        return dict.fromkeys(("Append", "Send", "SendMessage"), "sync") if self.flush_mode == "sync" else {}

    def atomic_limits(self) -> AtomicLimits:
        """The limits of open atomic transactions."""
        return AtomicLimits(
            open_max=self.atomic_open_max,
            bytes_max=self.atomic_bytes_max,
            timeout_max_ms=self.atomic_timeout_max_ms,
        )

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
        if not self.nameserver_credentials_file:
            return None
        path = Path(self.nameserver_credentials_file)
        read_credentials(path, "nameserver_credentials_file")
        return lambda: read_credentials(path, "nameserver_credentials_file")

    def registration_settings(self) -> RegistrationSettings:
        """How this broker registers at nameservers."""
        return part_of(
            self,
            RegistrationSettings,
            retry_min_ms=self.registration_retry_min_ms,
            retry_max_ms=self.registration_retry_max_ms,
        )

    @property
    def _waiting_calls_max(self) -> int:
        """The most calls that only wait; other calls need space beside them."""
        return self.receive_polls_max + self.long_polls_max + STREAMS_PER_CLIENT * self.clients_max

    def grpc_limits(self) -> GrpcLimits:
        """A request may be as large as those of RocketMQ's clients, and as one of our own frames."""
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
