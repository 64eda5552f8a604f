"""Every setting of the broker, under our name and RocketMQ's. The engine's part goes on as `StoreSettings`.

Sizes in bytes, times in milliseconds. How they are read: `trovemq_daemon.settings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.store_settings import CONSUME_QUEUE_UNIT_SIZE, FlushMode, StoreSettings
from trovemq_daemon.addresses import (
    Address,
    advertised_address,
    check_advertise,
    check_listen,
    parse_address,
    resolve_ip,
)
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.grpc_server import GrpcLimits
from trovemq_daemon.logging import LogFormat, LogLevel
from trovemq_daemon.settings import setting

ENVIRONMENT_PREFIX: Final = "TROVEMQ_BROKER"
HTTP_OFF: Final = "off"
NAME_LENGTH_MAX: Final = 127
FRAME_OVERHEAD_MAX: Final = 65_536  # what protobuf adds around one frame's records

_GIB: Final = 1 << 30
_JAVA_INT_MAX: Final = (1 << 31) - 1  # RocketMQ maps a file with Java's int for a size
_DAY_MS: Final = 86_400_000
_INDEX_HEADER_SIZE: Final = 40
_INDEX_SLOT_SIZE: Final = 4
_INDEX_ITEM_SIZE: Final = 20


def _listen_port(text: str, listen: str) -> str:
    """listenPort changes the port alone."""
    return f"{str(listen).rpartition(':')[0]}:{text.strip()}"


def _flush_disk_type(text: str, _current: object) -> str:
    modes = {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}
    try:
        return modes[text.strip().upper()]
    except KeyError:
        raise ValueError("must be SYNC_FLUSH or ASYNC_FLUSH") from None


def _whole_units(text: str, _current: object) -> str:
    """RocketMQ rounds mappedFileSizeConsumeQueue up to whole units."""
    if not text.strip().isdigit():
        return text
    unit = CONSUME_QUEUE_UNIT_SIZE
    return str(-(-int(text) // unit) * unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The values. `problems()` says what does not go together."""

    # --- the process ------------------------------------------------------------------------------------
    listen: str = setting(
        "127.0.0.1:8081",
        "Address of the gRPC services; port 0 takes any free one.",
        unit="HOST:PORT",
        rocketmq="listenPort",
        convert=_listen_port,
    )
    http: str = setting(
        "127.0.0.1:8080",
        "Address of /metrics, /healthz and /readyz; `off` for none.",
        unit="HOST:PORT",
    )
    advertise: str = setting(
        "",
        "Address in routes and in each record (STOREHOST); empty = the listen address.",
        unit="HOST:PORT or HOST",
        rocketmq="brokerIP1",
    )
    insecure: bool = setting(False, "Allows listening on more than loopback though nobody is authenticated.")
    name: str = setting("broker-a", "Name of this broker, unique in its cluster.", rocketmq="brokerName")
    cluster: str = setting("DefaultCluster", "Name of the cluster.", rocketmq="brokerClusterName")
    store: str = setting(
        "./data", "Directory of the store; made if it is missing.", rocketmq="storePathRootDir"
    )
    nameserver: tuple[str, ...] = setting(
        (),
        "Nameservers to register with, separated by commas; none = a broker on its own.",
        unit="HOST:PORT",
        rocketmq="namesrvAddr",
    )
    log_level: LogLevel = setting(  # noqa: RUF009  it makes a dataclass field
        "info", "The least severe events that are logged."
    )
    log_format: LogFormat = setting(  # noqa: RUF009
        "text", "Form of a log line on standard error."
    )
    drain_time_max_ms: int = setting(
        5_000,
        "Time for calls under way to end at shutdown.",
        unit="ms",
        minimum=0,
        maximum=8_000,
    )

    # --- files of the store (must equal what the store was written with) --------------------------------
    commit_log_file_size: int = setting(
        _GIB,
        "Size of one commit-log segment.",
        unit="bytes",
        minimum=4_096,
        maximum=_JAVA_INT_MAX,
        rocketmq=("mappedFileSizeCommitLog", "mapedFileSizeCommitLog"),
    )
    consume_queue_file_size: int = setting(
        6_000_000,
        "Size of one consume-queue file; whole 20-byte units.",
        unit="bytes",
        minimum=CONSUME_QUEUE_UNIT_SIZE,
        maximum=_JAVA_INT_MAX,
        rocketmq=("mappedFileSizeConsumeQueue", "mapedFileSizeConsumeQueue"),
        convert=_whole_units,
    )
    index_slot_count: int = setting(
        5_000_000,
        "Hash slots of one index file.",
        unit="slots",
        minimum=1,
        maximum=500_000_000,
        rocketmq="maxHashSlotNum",
    )
    index_item_count: int = setting(
        20_000_000,
        "Items of one index file.",
        unit="items",
        minimum=2,
        maximum=100_000_000,
        rocketmq="maxIndexNum",
    )
    message_index_enable: bool = setting(
        True,
        "Keeps the key index; without it key look-ups answer INDEX_DISABLED.",
        rocketmq="messageIndexEnable",
    )
    message_index_safe: bool = setting(
        False,
        "Completes the key index before serving; else it catches up beside, and look-ups scan what it lacks.",
        rocketmq="messageIndexSafe",
    )
    append_property_crc: bool = setting(
        False,
        "Ends each record's properties with RocketMQ's CRC of the whole record.",
        rocketmq="enabledAppendPropCRC",
    )

    # --- durability -------------------------------------------------------------------------------------
    flush_mode: FlushMode = setting(  # noqa: RUF009
        "sync",
        "sync: an acknowledgement waits for the sync that covers it; async: by interval and pages.",
        rocketmq="flushDiskType",
        convert=_flush_disk_type,
    )
    flush_interval_ms: int = setting(
        500,
        "Async flush: how often the log is looked at for a sync.",
        unit="ms",
        minimum=1,
        maximum=60_000,
        rocketmq="flushIntervalCommitLog",
    )
    flush_least_pages: int = setting(
        4,
        "Async flush: dirty 4-KiB pages that make a sync worth it.",
        unit="pages",
        minimum=0,
        maximum=1_000_000,
        rocketmq="flushCommitLogLeastPages",
    )
    flush_thorough_interval_ms: int = setting(
        10_000,
        "Async flush: at least this often everything is synced.",
        unit="ms",
        minimum=1,
        maximum=_DAY_MS,
        rocketmq="flushCommitLogThoroughInterval",
    )
    sync_flush_timeout_ms: int = setting(
        5_000,
        "Sync flush: an acknowledgement that waits longer becomes FLUSH_DISK_TIMEOUT.",
        unit="ms",
        minimum=1,
        maximum=600_000,
        rocketmq="syncFlushTimeout",
    )
    unsynced_bytes_max: int = setting(
        2_147_483_648,
        "Appended bytes that may wait for their sync; beyond it sends wait for room.",
        unit="bytes",
        minimum=65_536,
        maximum=64 * _GIB,
    )
    append_wait_max_ms: int = setting(
        1_000,
        "A send that found no room for this long is refused as OS_PAGE_CACHE_BUSY.",
        unit="ms",
        minimum=1,
        maximum=600_000,
        rocketmq="osPageCacheBusyTimeOutMills",
    )
    undispatched_bytes_max: int = setting(
        268_435_456,
        "Log bytes that the projections may be behind before appends are slowed.",
        unit="bytes",
        minimum=65_536,
        maximum=64 * _GIB,
    )
    projection_flush_interval_ms: int = setting(
        1_000,
        "How often consume queues, index and checkpoint are synced.",
        unit="ms",
        minimum=10,
        maximum=600_000,
        rocketmq="flushIntervalConsumeQueue",
    )
    consumer_offset_flush_interval_ms: int = setting(
        5_000,
        "How often offsets that consumers moved are saved.",
        unit="ms",
        minimum=10,
        maximum=600_000,
        rocketmq="flushConsumerOffsetInterval",
    )

    # --- producing --------------------------------------------------------------------------------------
    body_size_max: int = setting(
        4_194_304,
        "Largest body of one message.",
        unit="bytes",
        minimum=1,
        maximum=_GIB,
        rocketmq="maxMessageSize",
    )
    batch_size_max: int = setting(
        8_388_608,
        "Largest record batch of one frame.",
        unit="bytes",
        minimum=4_096,
        maximum=_GIB,
    )
    auto_create_topic_enable: bool = setting(
        False, "Makes an unknown topic when a message is sent to it.", rocketmq="autoCreateTopicEnable"
    )
    auto_create_queue_count: int = setting(
        8,
        "Queues of a topic that was made by sending.",
        unit="queues",
        minimum=1,
        maximum=1_024,
        rocketmq="defaultTopicQueueNums",
    )
    append_frames_in_flight_max: int = setting(
        256,
        "Frames of one Append stream that may await their acknowledgement.",
        unit="frames",
        minimum=1,
        maximum=65_536,
    )

    # --- consuming and queries --------------------------------------------------------------------------
    pull_bytes_max: int = setting(
        4_194_304,
        "Most bytes of records in one reply; a single larger record still comes.",
        unit="bytes",
        minimum=4_096,
        maximum=_GIB,
    )
    fetch_frames_in_flight_max: int = setting(
        256,
        "Requests of one Fetch stream that may await their reply.",
        unit="frames",
        minimum=1,
        maximum=65_536,
    )
    long_poll_wait_max_ms: int = setting(
        30_000,
        "Longest time that a pull may wait for messages.",
        unit="ms",
        minimum=0,
        maximum=600_000,
    )
    long_polls_max: int = setting(
        10_000, "Pulls that may wait at once.", unit="polls", minimum=1, maximum=1_000_000
    )
    query_messages_max: int = setting(
        64,
        "Messages of one query's page.",
        unit="messages",
        minimum=1,
        maximum=10_000,
        rocketmq="maxMsgsNumBatch",
    )
    query_page_bytes_max: int = setting(
        4_194_304,
        "Record bytes that one query loads for a page.",
        unit="bytes",
        minimum=4_096,
        maximum=_GIB,
    )
    queries_max: int = setting(64, "Queries that may run at once.", unit="queries", minimum=1, maximum=10_000)

    # --- gRPC and the cluster ---------------------------------------------------------------------------
    grpc_streams_max: int = setting(
        1_000, "Calls and streams of one connection.", unit="streams", minimum=1, maximum=1_000_000
    )
    grpc_calls_max: int = setting(
        10_000, "Calls and streams of all connections.", unit="calls", minimum=1, maximum=1_000_000
    )
    grpc_handshake_timeout_ms: int = setting(
        5_000, "A connection that says nothing is closed after this.", unit="ms", minimum=100, maximum=600_000
    )
    grpc_keepalive_time_ms: int = setting(
        10_000, "A silent connection is pinged after this.", unit="ms", minimum=1_000, maximum=_DAY_MS
    )
    grpc_keepalive_timeout_ms: int = setting(
        5_000, "And closed where no answer came for this long.", unit="ms", minimum=100, maximum=600_000
    )
    heartbeat_interval_ms: int = setting(
        3_000,
        "How often each nameserver hears of this broker.",
        unit="ms",
        minimum=10,
        maximum=60_000,
        rocketmq="brokerHeartbeatInterval",
    )
    registration_retry_min_ms: int = setting(
        200, "First wait before registering again.", unit="ms", minimum=1, maximum=60_000
    )
    registration_retry_max_ms: int = setting(
        5_000, "Longest wait before registering again.", unit="ms", minimum=1, maximum=600_000
    )

    def problems(self) -> Iterator[str]:
        """What does not go together, one sentence each."""
        for check in (self._check_addresses, self._check_nameservers):
            try:
                check()
            except SettingsError as error:
                yield from error.problems
        for what, name in (("name", self.name), ("cluster", self.cluster)):
            if not 1 <= len(name) <= NAME_LENGTH_MAX or not name.isprintable():
                yield f"{what} must have 1 to {NAME_LENGTH_MAX} printable characters"
        if not self.store:
            yield "store must not be empty"
        if self.consume_queue_file_size % CONSUME_QUEUE_UNIT_SIZE:
            yield f"consume_queue_file_size must be a multiple of {CONSUME_QUEUE_UNIT_SIZE}"
        index_file_size = (
            _INDEX_HEADER_SIZE
            + _INDEX_SLOT_SIZE * self.index_slot_count
            + _INDEX_ITEM_SIZE * self.index_item_count
        )
        if index_file_size > _JAVA_INT_MAX:
            yield f"an index file of {index_file_size} bytes is over the limit of {_JAVA_INT_MAX}"
        if self.body_size_max > self.batch_size_max:
            yield f"body_size_max {self.body_size_max} must not exceed batch_size_max {self.batch_size_max}"
        if self.registration_retry_min_ms > self.registration_retry_max_ms:
            yield "registration_retry_min_ms must not exceed registration_retry_max_ms"

    def _check_addresses(self) -> None:
        check_listen("listen", self.listen_address, insecure=self.insecure)
        if self.http_address is not None:
            check_listen("http", self.http_address, insecure=self.insecure)
        check_advertise(self.listen_address, self.advertise)

    def _check_nameservers(self) -> None:
        if any(address.port == 0 for address in self.nameserver_addresses):
            raise SettingsError("a nameserver's port must not be 0")

    @property
    def listen_address(self) -> Address:
        return parse_address(self.listen)

    @property
    def http_address(self) -> Address | None:
        """None where there is no operations HTTP."""
        return None if self.http.casefold() == HTTP_OFF else parse_address(self.http)

    @property
    def nameserver_addresses(self) -> tuple[Address, ...]:
        return tuple(dict.fromkeys(parse_address(text) for text in self.nameserver))

    @property
    def store_path(self) -> Path:
        return Path(self.store)

    def advertised(self, bound: Address) -> Address:
        """The address for routes, once the listen address is bound (its real port)."""
        return advertised_address(bound, self.advertise)

    def store_settings(self, advertised: Address) -> StoreSettings:
        """The engine's settings. STOREHOST is the advertised address with a host name looked up (blocks).

        Raises SettingsError where that name is unknown.
        """
        return StoreSettings(
            commit_log_file_size=self.commit_log_file_size,
            consume_queue_file_size=self.consume_queue_file_size,
            index_slot_count=self.index_slot_count,
            index_item_count=self.index_item_count,
            message_index_enable=self.message_index_enable,
            message_index_safe=self.message_index_safe,
            body_size_max=self.body_size_max,
            batch_size_max=self.batch_size_max,
            append_property_crc=self.append_property_crc,
            flush_mode=self.flush_mode,
            store_host=str(resolve_ip(advertised)),
            cluster=self.cluster,
            broker=self.name,
            query_messages_max=self.query_messages_max,
            query_page_bytes_max=self.query_page_bytes_max,
            undispatched_bytes_max=self.undispatched_bytes_max,
        )

    def grpc_limits(self) -> GrpcLimits:
        return GrpcLimits(
            receive_size_max=self.batch_size_max + FRAME_OVERHEAD_MAX,
            send_size_max=max(self.batch_size_max, self.pull_bytes_max, self.query_page_bytes_max)
            + self.batch_size_max
            + FRAME_OVERHEAD_MAX,
            concurrent_streams_max=self.grpc_streams_max,
            concurrent_calls_max=self.grpc_calls_max,
            handshake_timeout_ms=self.grpc_handshake_timeout_ms,
            keepalive_time_ms=self.grpc_keepalive_time_ms,
            keepalive_timeout_ms=self.grpc_keepalive_timeout_ms,
        )
