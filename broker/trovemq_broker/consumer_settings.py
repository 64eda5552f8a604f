"""The settings of consumer groups, delayed messages and transactions, with RocketMQ's names and bounds.
`trovemq_broker.daemon.settings` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from trovemq_daemon.settings import DAY_MS, JAVA_INT_MAX, setting

NewGroupStart = Literal["earliest", "latest", "rocketmq", "begin", "end"]
"""`begin` and `end` are former names of `earliest` and `latest`."""
EARLIEST: Final = ("earliest", "begin")
LATEST: Final = ("latest", "end")

YEAR_MS: Final = 365 * DAY_MS
STREAMS_PER_CLIENT: Final = 2
"""This many telemetry streams per client of `clients_max` may be open; streams that have not sent settings
count, too."""


def _seconds(text: str, _current: object) -> str:
    """RocketMQ's timerMaxDelaySec counts seconds."""
    if not text.strip().isdecimal():
        raise ValueError("must be a whole number of seconds")
    return f"{text.strip()}s"


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings:
    """Times in milliseconds, sizes in bytes."""

    # --- consumer groups --------------------------------------------------------------------------------
    auto_create_group: Annotated[bool, setting(rocketmq="autoCreateSubscriptionGroup")] = True
    """Creates an unknown consumer group at its first use."""
    fifo_group_orderly: Annotated[bool, setting()] = True
    """A consumer group that is created by its first use is orderly (keeps the order of message groups) if one
    of its topics is FIFO."""
    new_group_start: Annotated[NewGroupStart, setting()] = "earliest"
    """Where a new group begins in a queue: at the earliest offset, at the latest, or as in RocketMQ: at the
    earliest if the queue is recent as a whole, else at its last message. `begin` and `end` are former names
    of the first two."""
    group_expiry_ms: Annotated[int, setting("ms", 0, 36_500 * DAY_MS)] = 0
    """A group that its first use made is forgotten when it has had no member for this time since the start
    and has read everything; at least seven days and `reserved_time_ms`; 0 = never. It needs `new_group_start
    = earliest`: a name that returns skips nothing."""
    recent_memory_percent: Annotated[int, setting("%", 0, 100, rocketmq="accessMessageInMemoryMaxRatio")] = 40
    """A queue is recent while its first message lies within this share of the machine's memory."""
    recent_bytes_max: int = 1 << 30
    """`recent_memory_percent` in bytes: a queue is recent while its first message lies at most this far
    before the log's end."""
    in_flight_max: Annotated[
        int, setting("messages", 1, 1_000_000, rocketmq="popInflightMessageThreshold")
    ] = 10_000
    """Messages of one queue that a group may hold unacknowledged; then it gets no further ones."""
    ordered_window_max: Annotated[int, setting("messages", 1, 1_000_000)] = 2_048
    """How far beyond its first open message an orderly group reads for other message groups."""
    priority_starvation_max: Annotated[int, setting("messages", 0, 1_000_000)] = 100
    """In a queue that is received by priority, a message is received after this many of other priorities, and
    8 more, at the latest; 0: higher ones always go first."""
    event_interval_ms: Annotated[int, setting("ms", 1, 10_000)] = 100
    """Deliveries and acknowledgements are written to the log at least this often."""
    receive_count_max: Annotated[
        int, setting("messages", 1, 10_000, rocketmq="grpcClientConsumerLongPollingBatchSize")
    ] = 32
    """Messages of one receive."""
    receive_polls_max: Annotated[int, setting("polls", 1, 1_000_000, rocketmq="maxPopPollingSize")] = 20_000
    """Receives that may wait at once."""
    receive_poll_min_ms: Annotated[
        int, setting("ms", 0, 20_000, rocketmq="grpcClientConsumerMinLongPollingTimeoutMillis")
    ] = 5_000
    """Shortest time that a receive waits for messages, even if it asks for less."""
    invisible_min_ms: Annotated[int, setting("ms", 0, DAY_MS, rocketmq="minInvisibleTimeMillsForRecv")] = (
        10_000
    )
    """Shortest invisible time of a receive."""
    invisible_max_ms: Annotated[int, setting("ms", 1, DAY_MS, rocketmq="maxInvisibleTimeMills")] = 43_200_000
    """Longest invisible time, of a receive and of a change."""
    renewed_lease_ms: Annotated[int, setting("ms", 1_000, DAY_MS, rocketmq="defaultInvisibleTimeMills")] = (
        60_000
    )
    """Invisible time of a receive with automatic renewal; it is renewed while the client is alive."""
    renewed_total_max_ms: Annotated[int, setting("ms", 1_000, 7 * DAY_MS, rocketmq="renewMaxTimeMillis")] = (
        10_800_000
    )
    """Longest time for which a message is renewed."""
    released_after_ms: Annotated[int, setting("ms", 0, DAY_MS, rocketmq="invisibleTimeMillisWhenClear")] = (
        1_000
    )
    """Messages of a client that is gone are delivered again after this time."""

    # --- delayed messages and transactions --------------------------------------------------------------
    delivery_delay_max_ms: Annotated[
        int, setting("ms", 1_000, 10 * YEAR_MS, rocketmq="timerMaxDelaySec", convert=_seconds)
    ] = YEAR_MS
    """Furthest delivery time of a delayed message."""
    timers_max: Annotated[int, setting("messages", 1, 1_000_000_000)] = 10_000_000
    """Delayed messages that may be pending."""
    timer_batch_max: Annotated[int, setting("messages", 1, 65_536)] = 1_024
    """Delayed messages that are delivered in one step."""
    timer_log_file_size: Annotated[
        int, setting("bytes", 68, JAVA_INT_MAX, rocketmq="mappedFileSizeTimerLog")
    ] = 104_857_600
    """Size of the timer log's files that a clean stop writes for RocketMQ, if there are none yet."""
    timer_stop_dequeue: Annotated[bool, setting(rocketmq="timerStopDequeue")] = False
    """Delivers no delayed messages, not even overdue ones: for examining a store without a change."""
    transaction_timeout_ms: Annotated[int, setting("ms", 1, DAY_MS, rocketmq="transactionTimeOut")] = 6_000
    """The producer of a transaction that has been open for this long is asked about it."""
    transaction_check_interval_ms: Annotated[
        int, setting("ms", 1, DAY_MS, rocketmq="transactionCheckInterval")
    ] = 30_000
    """How often the producer of an open transaction is asked."""
    transaction_check_max: Annotated[int, setting("checks", 1, 10_000, rocketmq="transactionCheckMax")] = 15
    """After this many checks without an answer the transaction is given up."""
    transactions_max: Annotated[int, setting("transactions", 1, 100_000_000)] = 1_000_000
    """Transactions that may be open."""
