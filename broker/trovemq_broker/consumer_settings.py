"""The settings of delivery, timers and transactions, as plain values; `trovemq_broker.daemon.settings`
creates them.

Each value is listed with RocketMQ's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

NewGroupStart = Literal["rocketmq", "begin", "end"]

YEAR_MS: Final = 365 * 86_400_000
STREAMS_PER_CLIENT: Final = 2
"""This many telemetry streams per client of `clients_max` may be open; streams that have not sent settings
count, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Times in milliseconds, sizes in bytes."""

    auto_create_group: bool = True  # autoCreateSubscriptionGroup
    fifo_group_orderly: bool = True
    """A group that is created by its first use with a FIFO topic is orderly."""
    new_group_start: NewGroupStart = "rocketmq"
    """Where a group begins to read a queue: rocketmq = at 0 while the whole queue is recent, else at the last
    message; begin = at the first message; end = after the last one."""
    recent_bytes_max: int = 1 << 30
    """`rocketmq`: a queue is recent while its first message lies at most this far before the log's end
    (RocketMQ: accessMessageInMemoryMaxRatio, 40 % of the memory)."""
    in_flight_max: int = 10_000  # of one group and queue; popInflightMessageThreshold
    priority_starvation_max: int = 100
    """In a queue that is received by priority: a message is received after this many of other priorities (and
    8 more) at the latest; 0: higher ones always go first."""
    ordered_window_max: int = 2_048  # of an orderly group: how far a receive reads beyond the first open one
    event_interval_ms: int = 100
    receive_count_max: int = 32
    receive_poll_min_ms: int = 5_000
    invisible_min_ms: int = 10_000
    invisible_max_ms: int = 43_200_000
    renewed_lease_ms: int = 60_000
    renewed_total_max_ms: int = 10_800_000
    released_after_ms: int = 1_000  # messages of a disconnected client are delivered again after this
    delivery_delay_max_ms: int = YEAR_MS  # timerMaxDelaySec
    timers_max: int = 10_000_000
    timer_batch_max: int = 1_024  # messages that one turn delivers
    timer_log_file_size: int = 104_857_600  # of the files for RocketMQ; mappedFileSizeTimerLog
    transaction_timeout_ms: int = 6_000  # transactionTimeOut
    transaction_check_interval_ms: int = 30_000  # transactionCheckInterval
    transaction_check_max: int = 15  # transactionCheckMax
    transactions_max: int = 1_000_000
