"""The results of `Client.track`. All are frozen values; none holds a connection."""

from __future__ import annotations

from dataclasses import dataclass

from trovemq.models.replica import ReplicaLag


@dataclass(frozen=True, slots=True)
class MessageCopy:
    """One record of a message.

    Attributes:
        broker: The broker that has it.
        message: The number of its message, from 1: producers may send several messages with one message id.
        role: `message`, `committed` (by its transaction) and `delivered` (after its delay) are received by
            groups. `delayed`, `recall`, `half`, `given-up`, `retry`, `dead-letter` and `carried` are the
            broker's own records of it.
        topic: Where it is stored, with `queue_id` and `queue_offset`.
        physical_offset: Its place in the broker's log, with `size` in bytes.
        offset_msg_id: The id of exactly this record.
        keys: Its keys, separated by spaces.
        born_timestamp: Epoch ms, by the clock of `born_host`, which produced it.
        store_timestamp: Epoch ms.
        reconsume_times: The number of deliveries before this copy was made.
        group: The group of a retry or dead letter; else "".
        producer_group: The producer group of a message that was sent in a transaction; else "".
        message_group: Its message group; else "".
        deliver_timestamp: The delivery time of a delayed message, epoch ms; else 0.
    """

    broker: str
    message: int
    role: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    offset_msg_id: str
    message_id: str
    keys: str
    tag: str
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    group: str
    producer_group: str
    message_group: str
    deliver_timestamp: int


@dataclass(frozen=True, slots=True)
class TrackEvent:
    """An event of a message.

    Attributes:
        broker: The broker that reports it.
        message: The number of the message, as `MessageCopy.message`.
        timestamp: Epoch ms.
        kind: `produced`, `stored`, `delivered`, `returned`, `expired`, `acknowledged`, `dead-lettered`, …
        group: The consumer group; "" for an event of the message itself.
        client_id: The consumer, if it is known.
        attempt: The number of deliveries to the group so far; 0 if there is none.
        until: The time until which the message waits, or is invisible (epoch ms); else 0.
        count: The number of equal events in a row.
        topic: Where the record of the event is stored, with `queue_id` and `queue_offset`.
        detail: Further details in words.
    """

    broker: str
    message: int
    timestamp: int
    kind: str
    group: str
    client_id: str
    attempt: int
    until: int
    count: int
    topic: str
    queue_id: int
    queue_offset: int
    detail: str


@dataclass(frozen=True, slots=True)
class ConsumptionStatus:
    """Whether and how a group has consumed a message, or why it has not.

    Attributes:
        broker: The broker that reports it.
        message: The number of the message, as `MessageCopy.message`.
        group: The consumer group.
        reason: The group has finished: `acknowledged`, `consumed`, `filtered-out`, `skipped`, `dropped`. Not
            consumed: `dead`, `in-flight`, `returned`, `ready`, `locked`, `not-reached`, `no-member`,
            `delayed`, `recalled`, `in-transaction`, `rolled-back`, `given-up`, `gone`.
        consumed: Whether the group has finished with the message, and not by a fault.
        until: When the reason ends without an action, or when the group has finished with the message (epoch
            ms); 0 if neither is known.
        attempt: The number of deliveries to the group so far.
        client_id: The consumer that has it, or had it last.
        ahead: Messages that come before it; `ahead_estimated` if there were too many to examine.
        blocked_by: Queue offset of the message in flight that locks its message group; None otherwise.
        committed: All messages below this offset are consumed; None if the group never read the queue.
        next_offset: The offset of the next message that is new to the group; None if it never received from
            the queue.
        online: The number of connected members of the group; `subscribed` of them subscribe to the topic.
        filter: The group's last filter.
        topic: Where the copy in question is stored, with `queue_id` and `queue_offset`.
        detail: Further details in words.
    """

    broker: str
    message: int
    group: str
    reason: str
    consumed: bool
    until: int
    attempt: int
    client_id: str
    ahead: int
    ahead_estimated: bool
    blocked_by: int | None
    committed: int | None
    next_offset: int | None
    online: int
    subscribed: int
    filter: str
    topic: str
    queue_id: int
    queue_offset: int
    detail: str


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """The tracks of all messages that an identifier names.

    Attributes:
        copies: Every record, oldest first.
        events: The events, in the order of time.
        statuses: One status for each message, broker and group.
        complete: Nothing was left out, and every broker answered; otherwise the notes name the gaps.
        unreachable: Brokers that did not answer.
        notes: The gaps, in words.
        replica: The lag of the replica that answered, which knows no statuses; None from a leader.
    """

    copies: tuple[MessageCopy, ...]
    events: tuple[TrackEvent, ...]
    statuses: tuple[ConsumptionStatus, ...]
    complete: bool
    unreachable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    replica: ReplicaLag | None = None

    @property
    def verdicts(self) -> tuple[ConsumptionStatus, ...]:
        """The former name of `statuses`, until the first release."""
        return self.statuses
