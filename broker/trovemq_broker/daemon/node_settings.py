"""Settings of one broker as a process: its addresses, its names, its store.

Sizes in bytes, times in milliseconds. `trovemq_broker.daemon.settings` adds the settings for producers and
consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from trovemq_daemon.addresses import (
    Address,
    advertised_address,
    check_advertise,
    check_listen,
    parse_address,
    parse_http,
    with_port,
)
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.logging import LogFormat, LogLevel
from trovemq_daemon.settings import DAY_MS, GIB, JAVA_INT_MAX, setting
from trovemq_daemon.tls_settings import TlsSettings
from trovemq_proto.tls import TlsOptions
from trovemq_store.settings import CONSUME_QUEUE_UNIT_SIZE, StoreSettings

NAME_LENGTH_MAX: Final = 127

# A default is declared in the class that uses it; here it gets its text, bounds and RocketMQ's name.
_STORE: Final = StoreSettings()

_INDEX_HEADER_SIZE: Final = 40
_INDEX_SLOT_SIZE: Final = 4
_INDEX_ITEM_SIZE: Final = 20


def _whole_units(text: str, _current: object) -> str:
    """RocketMQ rounds mappedFileSizeConsumeQueue up to whole units."""
    if not text.strip().isdigit():
        return text
    unit = CONSUME_QUEUE_UNIT_SIZE
    return str(-(-int(text) // unit) * unit)


def _beside(store: Path, what: str) -> Path:
    """The path of a file next to the store's directory, whose name begins with that of the directory."""
    whole = store.resolve()
    return whole.with_name(f"{whole.name}.{what}")


@dataclass(frozen=True, kw_only=True)
class NodeSettings(TlsSettings):
    """The values of the settings. `problems()` reports contradictions."""

    listen: Annotated[str, setting("HOST:PORT", rocketmq="listenPort", convert=with_port)] = "127.0.0.1:8081"
    """Address of the gRPC services; port 0 takes any free one."""
    http: Annotated[str, setting("HOST:PORT")] = "127.0.0.1:8080"
    """Address of /metrics, /healthz and /readyz; `off` for none."""
    console_url: Annotated[str, setting("URL")] = ""
    """Address of a console for browsers: the first page of the operations HTTP links to it."""
    advertise: Annotated[str, setting("HOST:PORT or HOST", rocketmq="brokerIP1")] = ""
    """Address in routes and in each record (STOREHOST); empty = the listen address."""
    insecure: Annotated[bool, setting()] = False
    """Allows listening on more than loopback although callers are not authenticated."""
    authentication_enable: Annotated[bool, setting(rocketmq="authenticationEnabled")] = False
    """Requires an access key and a secret from every caller. The first start creates the super user
    `admin`."""
    authorization_enable: Annotated[bool, setting(rocketmq="authorizationEnabled")] = False
    """Users that are not super users may do only things that rules allow (`trovemq acl`)."""
    audit_topic_enable: Annotated[bool, setting()] = True
    """If callers are authenticated, administrative acts, log-ins, operators' look-ups and denials are also
    stored as records of an internal topic (`trovemq audit`). An act that cannot be recorded is refused."""
    audit_retention_ms: Annotated[int, setting("ms", 3_600_000, 3_650 * DAY_MS)] = 90 * DAY_MS
    """How long audit records are kept, even if retention removes the log around them earlier."""
    tls_client_identity: Annotated[bool, setting()] = False
    """The common name of a client's certificate is the access key of its user, who then needs no secret.
    tls_client_ca names the authorities that are trusted for that."""
    init_authentication_user: Annotated[
        str, setting("JSON", rocketmq="initAuthenticationUser", secret=True)
    ] = ""
    """A super user that the start creates if no user has its name: {"username": …, "password": …}."""
    admin_credentials_file: Annotated[str, setting("FILE")] = ""
    """File from which the first start reads the credentials of the first super user, or to which it writes
    those that it generates; empty = next to the store."""
    sealing_key_file: Annotated[str, setting("FILE")] = ""
    """File with the key that seals users' secrets; empty = next to the store. It is neither in the store nor
    in a backup."""
    name: Annotated[str, setting(rocketmq="brokerName")] = _STORE.broker
    """Name of this broker, unique in its cluster."""
    cluster: Annotated[str, setting(rocketmq="brokerClusterName")] = _STORE.cluster
    """Name of the cluster."""
    renamed_from: Annotated[str, setting()] = ""
    """The former NAME, or CLUSTER/NAME: a broker that is renamed, or gets a copy of another one's store, may
    open that store."""
    store: Annotated[str, setting(rocketmq="storePathRootDir")] = "./data"
    """Directory of the store; created if it is missing."""
    backup_root: Annotated[str, setting()] = ""
    """Directory below which clients may create backups; empty = backups are off."""
    nameserver: Annotated[tuple[str, ...], setting("HOST:PORT", rocketmq="namesrvAddr")] = ()
    """Nameservers to register with, separated by commas; empty = the broker does not register."""
    nameserver_credentials_file: Annotated[str, setting("FILE")] = ""
    """File with the access key and secret with which this broker registers; read for each registration."""
    nameserver_tls: Annotated[bool, setting()] = False
    """Registers by TLS; this broker's tls_certificate is shown to nameservers that ask for one."""
    nameserver_tls_ca: Annotated[str, setting("FILE")] = ""
    """PEM file with the certificates that are trusted at nameservers; empty = the system's."""
    nameserver_tls_server_name: Annotated[str, setting()] = ""
    """The name in the nameservers' certificates; empty = the host of each address."""
    log_level: Annotated[LogLevel, setting(restart=False)] = "info"
    """The least severe events that are logged."""
    log_format: Annotated[LogFormat, setting()] = "text"
    """Form of a log line on standard error."""
    drain_time_max_ms: Annotated[int, setting("ms", 0, 8_000)] = 5_000
    """Time for running calls to end at shutdown."""

    def problems(self) -> Iterator[str]:
        """The contradictions, one sentence each."""
        for check in self._address_checks():
            try:
                check()
            except SettingsError as error:
                yield from error.problems
        for what, name in (("name", self.name), ("cluster", self.cluster)):
            if not 1 <= len(name) <= NAME_LENGTH_MAX or not name.isprintable():
                yield f"{what} must have 1 to {NAME_LENGTH_MAX} printable characters"
        if not self.store:
            yield "store must not be empty"
        if self.console_url and not self.console_url.startswith(("http://", "https://")):
            yield "console_url must begin with http:// or https://"
        yield from self._security_problems()

    def _security_problems(self) -> Iterator[str]:
        if self.authorization_enable and not self.authentication_enable:
            yield "authorization_enable needs authentication_enable: rules are about users"
        if self.init_authentication_user and not self.authentication_enable:
            yield "init_authentication_user needs authentication_enable"
        if self.tls_client_identity and not (self.authentication_enable and self.tls_client_ca):
            yield "tls_client_identity needs authentication_enable and tls_client_ca"
        if not self.authentication_enable:
            return
        for name, path in (
            ("sealing_key_file", self.sealing_key_path),
            ("admin_credentials_file", self.admin_credentials_path),
        ):
            for what, directory in (("store", self.store_path), ("backup_root", self.backup_path)):
                if directory is not None and path.resolve().is_relative_to(directory.resolve()):
                    yield f"{name} {path} lies in {what}: a copy of that would contain it, too"

    def _address_checks(self) -> tuple[Callable[[], None], ...]:
        return self._check_listen, self._check_http, self._check_tls, self._check_nameservers

    @property
    def _may_listen_everywhere(self) -> bool:
        return self.insecure or self.authentication_enable

    def _check_listen(self) -> None:
        check_listen(
            "listen",
            self.listen_address,
            insecure=self._may_listen_everywhere,
            authentication="authentication_enable",
        )
        check_advertise(self.listen_address, self.advertise)

    def _check_http(self) -> None:
        if self.http_address is not None:
            check_listen("http", self.http_address, insecure=self.insecure)

    def _check_tls(self) -> None:
        problems = list(self.tls_problems(self.listen_address, insecure=self._may_listen_everywhere))
        if problems:
            raise SettingsError(problems)

    def _check_nameservers(self) -> None:
        if any(address.port == 0 for address in self.nameserver_addresses):
            raise SettingsError("a nameserver's port must not be 0")
        if (self.nameserver_tls_ca or self.nameserver_tls_server_name) and not self.nameserver_tls:
            raise SettingsError(
                "nameserver_tls_ca or nameserver_tls_server_name is given, but nameserver_tls is off"
            )

    @property
    def listen_address(self) -> Address:
        return parse_address(self.listen)

    @property
    def http_address(self) -> Address | None:
        """The address of the operations HTTP; None if it is off."""
        return parse_http(self.http)

    @property
    def nameserver_addresses(self) -> tuple[Address, ...]:
        return tuple(dict.fromkeys(parse_address(text) for text in self.nameserver))

    @property
    def store_path(self) -> Path:
        return Path(self.store)

    @property
    def sealing_key_path(self) -> Path:
        return (
            Path(self.sealing_key_file) if self.sealing_key_file else _beside(self.store_path, "sealing-key")
        )

    @property
    def admin_credentials_path(self) -> Path:
        named = self.admin_credentials_file
        return Path(named) if named else _beside(self.store_path, "admin-credentials")

    @property
    def backup_path(self) -> Path | None:
        """The directory for backups; None if backups are not allowed."""
        return Path(self.backup_root) if self.backup_root else None

    def advertised(self, bound: Address) -> Address:
        """The address for routes, once the listen address is bound (its real port)."""
        return advertised_address(bound, self.advertise)

    def nameserver_tls_options(self) -> TlsOptions | None:
        """TLS of the registration; None for a plain connection."""
        if not self.nameserver_tls:
            return None
        return TlsOptions(
            ca=self.nameserver_tls_ca or None,
            certificate=self.tls_certificate or None,
            key=self.tls_key or None,
            server_name=self.nameserver_tls_server_name or None,
        )


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """The settings of the store's files. An existing store keeps its own sizes unless they are given."""

    commit_log_file_size: Annotated[
        int,
        setting("bytes", 4_096, JAVA_INT_MAX, rocketmq=("mappedFileSizeCommitLog", "mapedFileSizeCommitLog")),
    ] = _STORE.commit_log_file_size
    """Size of one commit-log segment. An existing store keeps its own values of this setting and the next
    three, unless they are given."""
    consume_queue_file_size: Annotated[
        int,
        setting(
            "bytes",
            CONSUME_QUEUE_UNIT_SIZE,
            JAVA_INT_MAX,
            rocketmq=("mappedFileSizeConsumeQueue", "mapedFileSizeConsumeQueue"),
            convert=_whole_units,
        ),
    ] = _STORE.consume_queue_file_size
    """Size of one consume-queue file; whole 20-byte units."""
    index_slot_count: Annotated[int, setting("slots", 1, 500_000_000, rocketmq="maxHashSlotNum")] = (
        _STORE.index_slot_count
    )
    """Hash slots of one index file."""
    index_item_count: Annotated[int, setting("items", 2, 100_000_000, rocketmq="maxIndexNum")] = (
        _STORE.index_item_count
    )
    """Items of one index file."""
    message_index_enable: Annotated[bool, setting(rocketmq="messageIndexEnable")] = (
        _STORE.message_index_enable
    )
    """Keeps the key index; without it key look-ups answer INDEX_DISABLED."""
    message_index_safe: Annotated[bool, setting(rocketmq="messageIndexSafe")] = _STORE.message_index_safe
    """Completes the key index before serving; otherwise it catches up in the background, and look-ups scan
    the records that it lacks."""
    tree_index_enable: Annotated[bool, setting()] = True
    """Keeps B+trees in addition to the log: search, deduplication and priority need them."""
    tree_index_share_percent: Annotated[int, setting(minimum=1, maximum=100)] = 20
    """Share of one processor that the trees use while messages arrive or are looked up. Searches scan the
    records that the trees lack."""
    producers_max: Annotated[int, setting("producers", 1, 1_000_000)] = _STORE.producers_max
    """Idempotent producers that are known; beyond it those that have been idle the longest are forgotten."""
    spare_segment_enable: Annotated[bool, setting()] = _STORE.spare_segment_enable
    """Keeps one segment and up to 8 MiB for the broker's own records on a full disk. Switch it off for small
    disks."""
    append_property_crc: Annotated[bool, setting(rocketmq="enabledAppendPropCRC")] = (
        _STORE.append_property_crc
    )
    """Ends each record's properties with RocketMQ's CRC of the whole record, so that torn headers are
    detected, too."""

    def size_problems(self) -> Iterator[str]:
        """The sizes that cannot be, one sentence each."""
        if self.consume_queue_file_size % CONSUME_QUEUE_UNIT_SIZE:
            yield f"consume_queue_file_size must be a multiple of {CONSUME_QUEUE_UNIT_SIZE}"
        index_file_size = (
            _INDEX_HEADER_SIZE
            + _INDEX_SLOT_SIZE * self.index_slot_count
            + _INDEX_ITEM_SIZE * self.index_item_count
        )
        if index_file_size > JAVA_INT_MAX:
            yield f"an index file of {index_file_size} bytes is over the limit of {JAVA_INT_MAX}"


@dataclass(frozen=True, kw_only=True)
class ProjectionSettings:
    """The settings of the projections of the log, and of consumer offsets."""

    undispatched_bytes_max: Annotated[int, setting("bytes", 65_536, 64 * GIB)] = _STORE.undispatched_bytes_max
    """Log bytes that the projections may lag before appends are slowed."""
    projection_flush_interval_ms: Annotated[
        int, setting("ms", 10, 600_000, rocketmq="flushIntervalConsumeQueue")
    ] = 1_000
    """How often consume queues, index and checkpoint are synced."""
    many_queues_flush_interval_ms: Annotated[
        int, setting("ms", 10, 600_000, rocketmq="flushConsumeQueueThoroughInterval", restart=False)
    ] = 60_000
    """How often consume queues are synced while more than 32 of their files have new units; earlier where a
    restart would read more than 512 MiB of the log again."""
    consumer_offset_flush_interval_ms: Annotated[
        int, setting("ms", 10, 600_000, rocketmq="flushConsumerOffsetInterval")
    ] = 5_000
    """How often changed consumer offsets are saved."""
