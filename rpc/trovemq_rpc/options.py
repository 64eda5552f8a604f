"""Options of servers and channels. They are given as grpc gives them, as pairs of a name and a value.

| option | default | meaning, and reason |
| --- | --- | --- |
| grpc.max_receive_message_length | 4 MiB | a larger one ends its call; -1: the budget is the bound |
| grpc.max_message_length | 4 MiB | the same by its old name |
| grpc.max_send_message_length | unlimited | the same for sent messages |
| grpc.max_metadata_size | 64 KiB | of a header list; see http2/limits.py |
| grpc.absolute_max_metadata_size | 64 KiB | the same |
| grpc.http2.max_frame_size | 64 KiB | of frames that we accept; at most 64 KiB, for the receive buffer |
| grpc.max_concurrent_streams | 1,000 | calls of a connection at one time (server) |
| grpc.keepalive_time_ms | 2 h (server), never (channel) | after a silence of this time a PING is sent |
| grpc.keepalive_timeout_ms | 20 s | without an answer to it, the peer is gone (channel: also by the kernel) |
| grpc.keepalive_permit_without_calls | 0 | 1: PING also while no call is open (channel) |
| grpc.http2.min_ping_interval_without_data_ms | 5 min | a client that pings sooner gets a strike (server) |
| grpc.http2.min_recv_ping_interval_without_data_ms | 5 min | the same |
| grpc.http2.max_ping_strikes | 2 | with more strikes it is sent away; 0: never |
| grpc.max_connection_age_ms | unlimited | older connections are drained, 10 % sooner or later (server) |
| grpc.max_connection_age_grace_ms | unlimited | how long calls may take then |
| grpc.max_connection_idle_ms | unlimited | a connection without calls is drained after this time (server) |
| grpc.initial_reconnect_backoff_ms | 1 s | the first pause before the next attempt to connect |
| grpc.max_reconnect_backoff_ms | 2 min | the longest pause |
| grpc.min_reconnect_backoff_ms | 20 s | how long an attempt may take |
| grpc.lb_policy_name | pick_first | round_robin: calls alternate between all addresses of a name (channel) |
| grpc.default_authority | the target | the value of :authority |
| grpc.ssl_target_name_override | the target | the name that the certificate must have |
| grpc.primary_user_agent | none | goes before our user agent |
| grpc.default_compression_algorithm | 0 | of sent messages; 0: none, 1: deflate, 2: gzip |
| grpc.compression_enabled_algorithms_bitset | 7 | of requests; the same numbers as bits (server) |
| trovemq.budget | 256 MiB | a BytesBudget: bytes that all connections hold together |
| trovemq.stall_timeout_ms | 5 s (server), 30 s (channel) | 512 bytes of a message or frame take no longer |
| trovemq.unread_timeout_ms | unlimited | a stream is reset if its peer takes no byte for this time |
| trovemq.setup_timeout_ms | 5 s (server), 10 s (channel) | each step of TLS, and the first SETTINGS |
| grpc.server_handshake_timeout_ms | 5 s | the same (server) |
| trovemq.connections | none | a ConnectionCount: which peers may connect (server) |
| trovemq.busy_poll_us | 0 | time without sleep of the loop after a lone request; at most 10 ms (channel) |
| trovemq.limits | Limits() | the limits of HTTP/2: see http2/limits.py |

Defaults of grpc's options are grpc's own, except for metadata, frames and streams: http2/limits.py has the
reasons. Options of other names are accepted and have no effect, as in grpc.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from trovemq_rpc.budget import BytesBudget
from trovemq_rpc.http2.limits import Limits
from trovemq_rpc.wire.compression import ACCEPTED, accepted_by

MESSAGE_SIZE_DEFAULT: Final = 4 << 20  # gRPC's
DEFAULT_LIMITS: Final = Limits()
NEVER_S: Final = float("inf")
REFUSAL_LOG_INTERVAL_S: Final = 10.0  # a flood of wrong peers must not fill a disk with log lines

log = logging.getLogger("trovemq_rpc")

ChannelArguments = Iterable[tuple[str, Any]]


class ConnectionCount(Protocol):
    """Counts connections; `peer` as grpc names it."""

    def opened(self, peer: str) -> bool:
        """False: the connection is closed, and was not counted."""
        ...

    def closed(self, peer: str) -> None:
        """One that was counted is over."""
        ...


@dataclass(slots=True, kw_only=True)
class Options:
    """The table above."""

    receive_size_max: int = MESSAGE_SIZE_DEFAULT
    send_size_max: int = -1
    limits: Limits = DEFAULT_LIMITS
    budget: BytesBudget | None = None
    connections: ConnectionCount | None = None
    keepalive_time_s: float = NEVER_S
    keepalive_timeout_s: float = 20.0
    keepalive_without_calls: bool = False
    ping_interval_min_s: float = 300.0
    ping_strikes_max: int = 2
    connection_age_s: float = NEVER_S
    connection_age_grace_s: float = NEVER_S
    connection_idle_s: float = NEVER_S
    stall_timeout_s: float = 30.0
    unread_timeout_s: float = NEVER_S
    setup_timeout_s: float = 10.0
    backoff_initial_s: float = 1.0
    backoff_max_s: float = 120.0
    connect_timeout_s: float = 20.0
    busy_poll_us: int = 0
    round_robin: bool = False
    authority: str = ""
    server_name: str = ""
    user_agent: str = ""
    compression: int = 0
    accepted_encodings: bytes = ACCEPTED
    _last_refusal: float = -NEVER_S
    _refusals: int = 0

    def log_refusal(self, peer: str, reason: str) -> None:
        """Logs that a peer broke the protocol or a limit: one line in REFUSAL_LOG_INTERVAL_S at most, with
        the number of refusals since the line before.
        """
        self._refusals += 1
        now = time.monotonic()
        if now - self._last_refusal >= REFUSAL_LOG_INTERVAL_S:
            log.warning("%s: %s (refusals since the last such line: %d)", peer, reason, self._refusals)
            self._last_refusal = now
            self._refusals = 0


def _ms(value: Any) -> float:
    return NEVER_S if value is None or int(value) >= (1 << 31) - 1 or int(value) < 0 else int(value) / 1000


_NUMBERS: Final = {
    "grpc.max_receive_message_length": "receive_size_max",
    "grpc.max_message_length": "receive_size_max",
    "grpc.max_send_message_length": "send_size_max",
    "grpc.http2.max_ping_strikes": "ping_strikes_max",
    "grpc.default_compression_algorithm": "compression",
    "trovemq.busy_poll_us": "busy_poll_us",
}
_TIMES: Final = {
    "grpc.keepalive_time_ms": "keepalive_time_s",
    "grpc.keepalive_timeout_ms": "keepalive_timeout_s",
    "grpc.http2.min_ping_interval_without_data_ms": "ping_interval_min_s",
    "grpc.http2.min_recv_ping_interval_without_data_ms": "ping_interval_min_s",
    "grpc.max_connection_age_ms": "connection_age_s",
    "grpc.max_connection_age_grace_ms": "connection_age_grace_s",
    "grpc.max_connection_idle_ms": "connection_idle_s",
    "grpc.initial_reconnect_backoff_ms": "backoff_initial_s",
    "grpc.max_reconnect_backoff_ms": "backoff_max_s",
    "grpc.min_reconnect_backoff_ms": "connect_timeout_s",
    "trovemq.stall_timeout_ms": "stall_timeout_s",
    "trovemq.unread_timeout_ms": "unread_timeout_s",
    "trovemq.setup_timeout_ms": "setup_timeout_s",
    "grpc.server_handshake_timeout_ms": "setup_timeout_s",
}
_TEXTS: Final = {
    "grpc.default_authority": "authority",
    "grpc.ssl_target_name_override": "server_name",
    "grpc.primary_user_agent": "user_agent",
}
_CHOICES: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "grpc.keepalive_permit_without_calls": ("keepalive_without_calls", bool),
    "grpc.lb_policy_name": ("round_robin", "round_robin".__eq__),
    "grpc.compression_enabled_algorithms_bitset": ("accepted_encodings", accepted_by),
}


def options_of(pairs: ChannelArguments | None, server: bool) -> Options:
    """Options of grpc's pairs."""
    options = (
        Options(keepalive_time_s=7200.0, stall_timeout_s=5.0, setup_timeout_s=5.0) if server else Options()
    )
    for name, value in pairs or ():
        if name in _NUMBERS:
            setattr(options, _NUMBERS[name], int(value))
        elif name in _TIMES:
            setattr(options, _TIMES[name], _ms(value))
        elif name in _TEXTS:
            setattr(options, _TEXTS[name], value.decode() if isinstance(value, bytes) else str(value))
        elif name in _CHOICES:
            attribute, choice = _CHOICES[name]
            setattr(options, attribute, choice(value))
        elif name == "grpc.max_concurrent_streams":
            options.limits = replace(options.limits, concurrent_streams_max=int(value))
        elif name == "grpc.http2.max_frame_size":
            # Receive buffers hold a frame of the default size: larger messages come in parts.
            size = min(int(value), DEFAULT_LIMITS.frame_size_max)
            options.limits = replace(options.limits, frame_size_max=size)
        elif name in {"grpc.max_metadata_size", "grpc.absolute_max_metadata_size"}:
            size = int(value)
            options.limits = replace(options.limits, header_list_size_max=size)
        elif name == "trovemq.limits":
            options.limits = value
        elif name == "trovemq.budget":
            options.budget = value
        elif name == "trovemq.connections":
            options.connections = value
    if options.budget is None:
        options.budget = BytesBudget(max(256 << 20, 2 * options.receive_size_max))
    if not 0 <= options.receive_size_max <= options.budget.message_size_max:
        options.receive_size_max = options.budget.message_size_max
    return options
