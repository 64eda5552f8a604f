"""Arguments and results of the calls about consumer groups. All are frozen values; none holds a
connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trovemq_proto.records import Message
from trovemq_proto.records.dead_letter_reason import DeadLetterReason, reason_of

RETRY_MAX_DEFAULT: Final = 16
_MINUTE_MS: Final = 60_000
BACKOFF_MS_DEFAULT: Final = (
    *(1_000, 5_000, 10_000, 30_000),
    *(minutes * _MINUTE_MS for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
"""RocketMQ's steps (ms), for a group whose settings name no back-off."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a consumer group.

    Attributes:
        orderly: Whether the order of each message group is kept.
        retry_max: Redeliveries before a message becomes a dead letter.
        backoff_ms: The delay before each redelivery; the last one holds for all further ones; () = RocketMQ's
            steps.
        exponential: Instead of the steps: from `backoff_initial_ms` times `backoff_multiplier` each time, up
            to `backoff_max_ms`. Zeros are the broker's defaults.
    """

    orderly: bool = False
    retry_max: int = RETRY_MAX_DEFAULT
    backoff_ms: tuple[int, ...] = ()
    exponential: bool = False
    backoff_initial_ms: int = 0
    backoff_max_ms: int = 0
    backoff_multiplier: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group on one broker.

    Attributes:
        group: Its name.
        settings: Its settings, with the defaults filled in.
        member_count: Consumers connected now.
        topics: Topics that it has offsets or subscriptions for.
        broker: The broker that describes it.
        created: False if it has only offsets or members, and the default settings.
        unordered_topics: Its topics of type FIFO whose order the group does not keep:
            alter the group to be orderly.
        pending: Of a change: brokers that make it later.
    """

    group: str
    settings: GroupSettings
    member_count: int
    topics: tuple[str, ...]
    broker: str
    created: bool = True
    unordered_topics: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A connected consumer; `subscriptions` maps topics to filter expressions."""

    client_id: str
    client_type: str
    language: str
    version: str
    address: str
    last_heartbeat: int  # epoch ms
    in_flight: int  # messages that are leased to it
    broker: str
    subscriptions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The lag of a group on one queue.

    Attributes:
        topic: The topic; a retry topic of the group has a separate row.
        queue_id: The queue.
        min_offset: Its first offset.
        max_offset: Its end.
        committed: All messages below are consumed; None if the group never read the queue.
        next_offset: The offset of the next message to be delivered for the first time.
        in_flight: Messages that were delivered and not acknowledged.
        lag: Messages that are not consumed, without those that the group's filter drops.
        lag_ms: Age of the oldest of them; 0 if there is none.
        estimated: Whether the share of the filter was estimated, because there were too many messages to
            examine.
        broker: The broker that has the queue.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    committed: int | None
    next_offset: int
    in_flight: int
    lag: int
    lag_ms: int
    estimated: bool
    broker: str


@dataclass(frozen=True, slots=True)
class GroupReset:
    """A reset's change (or planned change) of one queue; `in_flight` messages are forgotten."""

    broker: str
    queue_id: int
    offset_before: int | None
    offset: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message of a dead-letter queue, and its place there."""

    broker: str
    offset: int
    message: Message

    @property
    def reason(self) -> DeadLetterReason:
        """Why it is a dead letter."""
        return reason_of(self.message.properties)


@dataclass(frozen=True, slots=True)
class ResentDeadLetter:
    """The result for one dead letter: where it was sent, or the `error` (a symbol) with its message.

    again: whether an earlier call had sent it, and nothing was sent now.
    """

    broker: str
    offset: int
    topic: str
    offset_msg_id: str
    error: str = ""
    error_message: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True)
class DirectConsumption:
    """The client's answer to a command to consume a message: `OK`, `FAILED_TO_CONSUME_MESSAGE`, …"""

    result: str
    message: str
    broker: str


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that waits for its delivery time (epoch ms). `recall_handle` is None if it has no message id
    and so cannot be recalled."""

    message: Message
    topic: str
    delivery_timestamp: int
    recall_handle: str | None
    broker: str
