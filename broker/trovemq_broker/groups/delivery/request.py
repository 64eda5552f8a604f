"""The requests and answers of the delivery engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Final, NamedTuple

from trovemq_broker.filters.filter import TAKE_ALL, Filter
from trovemq_broker.groups.delivery.records import AdjacentRecords
from trovemq_proto.positions import ANY_QUEUE, EpochMs, QueueId, QueueOffset
from trovemq_proto.receipts import handles_of
from trovemq_store.topics.subscription_groups import SubscriptionGroup

RECEIVE_BYTES_MAX: Final = 4 << 20
"""The most bytes of one receive; a single message may be larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveRequest:
    """A group's receive from a topic.

    `renewed`: the broker renews the lease while the client is alive; `invisible_ms` is then ignored.
    `attempt_id` names the call (orderly groups): a call with the same id receives the same messages again.
    """

    group: SubscriptionGroup
    topic: str
    queue_id: QueueId = ANY_QUEUE
    filter: Filter = TAKE_ALL
    count_max: int = 32
    invisible_ms: int
    now_ms: EpochMs
    client_id: str = ""
    renewed: bool = False
    confirmed: bool = True
    """False: the lease is short until confirm_run(), and renewed only from then on. So messages that did not
    reach a client are soon delivered to others."""
    attempt_id: str = ""
    bytes_max: int = RECEIVE_BYTES_MAX
    others: tuple[Filter, ...] = ()
    """The filters of other waiting members: messages for them are not skipped."""
    left: list[Filter] = field(default_factory=list)
    """Filled by the engine: the filters of `others` for which the receive has kept messages."""


class Delivered(NamedTuple):
    """One delivered message.

    `record` is the stored record, perhaps that of a copy in a retry topic (a view of the log: use it at
    once); `topic` is the original topic; queue id and offset are the present place of the record; `attempt`
    counts from 1.
    """

    record: memoryview
    topic: str
    queue_id: QueueId
    queue_offset: QueueOffset
    attempt: int
    receipt_handle: str
    until_ms: EpochMs


_new_delivered = partial(tuple.__new__, Delivered)
"""Makes a Delivered of a tuple of its fields, without a Python call per message."""


@dataclass(frozen=True, slots=True)
class DeliveredRun:
    """Consecutive messages of one queue that were delivered with the same attempt number. Record i has the
    queue offset first_offset + i. The other fields are those of Delivered."""

    records: Sequence[memoryview]
    size: int
    """The sum of the records' bytes."""
    topic: str
    queue_id: QueueId
    first_offset: QueueOffset
    attempt: int
    receipt: str
    until_ms: EpochMs

    @property
    def pieces(self) -> Sequence[memoryview]:
        """The bytes of the records, in as few pieces as they lie in the log."""
        records = self.records
        return (records.data,) if isinstance(records, AdjacentRecords) else records

    @property
    def offsets(self) -> range:
        return range(self.first_offset, self.first_offset + len(self.records))

    def messages(self) -> list[Delivered]:
        """The messages one by one, each with its receipt handle."""
        rows = zip(
            self.records,
            repeat(self.topic),
            repeat(self.queue_id),
            self.offsets,
            repeat(self.attempt),
            handles_of(self.receipt, self.offsets),
            repeat(self.until_ms),
            strict=False,
        )
        return list(map(_new_delivered, rows))


def messages_of(runs: Sequence[DeliveredRun]) -> list[Delivered]:
    """The messages of these runs, in order."""
    return [one for run in runs for one in run.messages()]


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """The progress of a group in one queue. `committed`: everything below is consumed (None: it never read
    the queue); `next_offset`: the next message that is new to the group; in_flight_count: messages that are
    delivered and not settled."""

    queue_id: QueueId
    committed: QueueOffset | None
    next_offset: QueueOffset
    in_flight_count: int
    held_count: int = 0
    """Messages below next_offset that are not delivered: in an orderly group those after a message in flight
    of their message group; in a queue that is received by priority those that higher ones have passed."""
    visible_count: int = 0
    """How many of in_flight_count wait for their next delivery: they were returned, or their lease has
    ended."""
