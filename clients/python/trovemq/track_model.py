"""The results of `Client.track`. All are frozen values; none holds a connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MessageCopy:
    """One record of a message.

    Attributes:
        broker: The broker that has it.
        message: To which message it belongs, from 1: producers may send several under one unique key.
        role: `message`, `committed` (by its transaction), `delivered` (after its waiting time): what groups
            receive. `delayed`, `recall`, `half`, `given-up`, `retry`, `dead-letter`, `carried`: the broker's
            own records of it.
        topic: Where it lies, with `queue_id` and `queue_offset`.
        physical_offset: Its place in the broker's log, with `size` in bytes.
        offset_msg_id: Finds exactly this record.
        keys: Its keys, separated by spaces.
        born_timestamp: Epoch ms, by the clock of `born_host`, which produced it.
        store_timestamp: Epoch ms.
        reconsume_times: Deliveries before this copy was made.
        group: Whose retry or dead letter it is; else "".
        producer_group: Of a message that was sent in a transaction; else "".
        message_group: By which it is ordered; else "".
        deliver_timestamp: Of one that waits, or waited, for its time: epoch ms; else 0.
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
    unique_key: str
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
    """Something that happened to a message.

    Attributes:
        broker: The broker that says so.
        message: To which message, as `MessageCopy.message`.
        timestamp: Epoch ms.
        kind: `produced`, `stored`, `delivered`, `returned`, `expired`, `acknowledged`, `dead-lettered`, …
        group: The consumer group; "" where it is about the message itself.
        client_id: The consumer, where it is known.
        attempt: Deliveries to the group so far; 0 where it is none.
        until: The message waits, or is invisible, until then (epoch ms); 0 where it does not.
        count: How many in a row.
        topic: Where the record lies that it is about, with `queue_id` and `queue_offset`.
        detail: In words.
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
    """Why a group has not consumed a message yet, or how it did.

    Attributes:
        broker: The broker that says so.
        message: Which message, as `MessageCopy.message`.
        group: The consumer group.
        reason: Done: `acknowledged`, `consumed`, `filtered-out`, `skipped`, `dropped`. Not consumed: `dead`,
            `in-flight`, `returned`, `ready`, `locked`, `not-reached`, `no-member`, `delayed`, `recalled`,
            `in-transaction`, `rolled-back`, `given-up`, `gone`.
        consumed: The group is done with the message, and not by a fault.
        until: When the reason ends by itself, or when the group was done with the message (epoch ms); 0
            where neither is known.
        attempt: Deliveries to the group so far.
        client_id: Who has it, or had it last.
        ahead: Messages that come before it; `ahead_estimated` where there were too many to look at.
        blocked_by: Queue offset of the message in flight that locks its message group; None otherwise.
        committed: Everything below this offset is consumed; None where the group never read the queue.
        next_offset: The next one that is new to the group; None where it never received from the queue.
        online: Members of the group that are connected; `subscribed` of them subscribe the topic.
        filter: The group's last filter.
        topic: Where the copy lies that this is about, with `queue_id` and `queue_offset`.
        detail: In words.
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
        statuses: One for each message, broker and group.
        complete: Nothing was left out, and every broker answered; otherwise the notes name the gaps.
        unreachable: Brokers that did not answer.
        notes: In words.
    """

    copies: tuple[MessageCopy, ...]
    events: tuple[TrackEvent, ...]
    statuses: tuple[ConsumptionStatus, ...]
    complete: bool
    unreachable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[ConsumptionStatus, ...]:
        """The former name of `statuses`, until the first release."""
        return self.statuses
