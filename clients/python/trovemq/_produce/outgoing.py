"""Batches in flight: the messages that a producer keeps until they are acknowledged.

A batch keeps its inputs, not its encoded records: it is encoded when its stream writes it, and again when
it goes to another queue or to a broker whose settings changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Protocol

from trovemq._net.routes import Slot
from trovemq._produce.property_block import GROUP_NAME, UNIQUE_KEY_NAME
from trovemq._produce.queue_routes import QueueRoute, RecordForm
from trovemq._produce.sequences import SequenceAssigner
from trovemq._produce.unique_keys import next_unique_key, next_unique_texts
from trovemq._wire.frames import append_frame, append_head
from trovemq.fetched import Buffer
from trovemq.receipts import (
    COPIES_LATE,
    STORED_STATUSES,
    AppendOutcome,
    FrameReceipt,
    MessageIds,
    SendReceipt,
    Sizes,
    record_receipt,
)
from trovemq_proto.errors import TroveError
from trovemq_proto.records import (
    SingleRecords,
)

# The most bytes beside body, keys, tag and properties: 91 fixed bytes, topic, IPv6 hosts, names, CRC,
# UNIQ_KEY.
RECORD_OVERHEAD = 320
ENCODERS_KNOWN = 1_024  # queues


Encoded = tuple[bytes, Sequence[Buffer], int]
"""The records of one frame: its head, their pieces, and the size of all these."""


class Owner(Protocol):
    """The owner of a batch, which decides about its retries and its end."""

    @property
    def batch_taken(self) -> Callable[[Batch], None]:
        """Called when the batch is being written: no message may join it any more."""

    def batch_refused(self, batch: Batch, outcome: AppendOutcome) -> None:
        """The broker replied that it did not store the batch."""

    def batch_is_late(self, batch: Batch) -> bool:
        """The copies did not have the batch in time. Returns whether it is sent again."""

    def batch_failed(self, batch: Batch, error: TroveError, in_doubt: bool) -> None:
        """No reply will come."""

    def batch_done(self, batch: Batch) -> None:
        """The messages of the batch have their results."""


class Batch:
    """Messages of one topic for one queue; a frame for AppendStream. Attributes that few batches need belong
    to the class until they are set: so a batch is made quickly.

    Attributes:
        slot: The queue.
        movable: Whether it may go to another queue instead.
        ordered: Whether no other ordered batch may be in flight to that queue.
        queue: Its messages keep the order of those of other batches with the same value.
        route: Where the queue is, set before it is submitted.
        size: The bytes that it counts in the producer's back-pressure.
        size_max: No message that would make it larger is added.
        attempts: How often it was submitted.
        failovers: How often it had to wait for a leader of a replica group, or for its copies.
        failing_since: When the first of these waits began, in the loop's time; 0: there was none.
        sequence_assigner: Numbers its messages, if they are numbered.
        numbered_for: The broker for which they are numbered.
        refreshed: The routes were fetched again because a broker refused its form.
        doubtful: An attempt got no answer: it may be stored.
        sent: It was submitted to its broker's stream, and its end is not known.
        chosen_among: Of a FIFO topic: the queues among which its message groups have chosen this one.
        serial: The place of its messages in the order of sending.
        released: It was submitted to its broker's stream.
        open_key: The key of the batch while messages may join it.
        sizes: The encoded records' sizes.
    """

    growing = False
    lone = False
    route: QueueRoute | None = None
    sequence_assigner: SequenceAssigner | None = None
    numbered_for = ""
    size = 0
    size_max = 0
    attempts = 0
    failovers = 0
    failing_since = 0.0
    refreshed = False
    doubtful = False
    sent = False
    chosen_among: tuple[Slot, ...] | None = None
    serial = 0
    released = False
    open_key: tuple[Slot | None, bool, bool] | None = None
    sizes: Sizes = ()

    def __init__(
        self,
        topic: str,
        owner: Owner,
        slot: Slot,
        deadline: float,
        movable: bool = False,
        ordered: bool = False,
        one_way: bool = False,
    ) -> None:
        self.topic = topic
        self.owner = owner
        self.slot = slot
        self.deadline = deadline
        self.movable = movable
        self.ordered = ordered
        self.one_way = one_way
        self.queue: Hashable = (topic, None if movable else slot)

    @property
    def broker(self) -> str:
        """Name of the broker that it goes to."""
        assert self.route is not None
        return self.route.broker.name

    def stay(self) -> None:
        """It may go to no other queue any more."""
        self.movable = False
        self.queue = (self.topic, self.slot)

    # --- Frame ----------------------------------------------------------------------------------------

    def take(self, frame_id: int) -> bytes | None:
        """The serialised frame. No message can be added after that."""
        self.owner.batch_taken(self)
        try:
            encoded = self.encode()
        except TroveError as error:
            self.fail(error)
            return None
        if encoded is None:
            self.owner.batch_done(self)
            return None
        head, pieces, size = encoded
        return append_frame(frame_id=frame_id, head=head, records=pieces, size=size, one_way=self.one_way)

    def written(self) -> None:
        """A one-way batch is done: the client gets no further information."""
        self.owner.batch_done(self)

    def answered(self, outcome: AppendOutcome) -> None:
        """The broker's reply."""
        if outcome.status in STORED_STATUSES:
            if outcome.status == COPIES_LATE and self.owner.batch_is_late(self):
                return
            self.resolve(outcome)
            self.owner.batch_done(self)
        else:
            self.owner.batch_refused(self, outcome)

    def failed(self, error: TroveError, *, in_doubt: bool) -> None:
        """No reply will come."""
        self.owner.batch_failed(self, error, in_doubt)

    def fail(self, error: TroveError) -> None:
        """The end: given up."""
        self.reject(error)
        self.owner.batch_done(self)

    # --- where the two kinds of batches differ --------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of messages; those whose callers were cancelled do not count."""
        raise NotImplementedError

    @property
    def message_ids(self) -> MessageIds:
        """One message id per record."""
        raise NotImplementedError

    def encode(self) -> Encoded | None:
        """The records, with `sizes` set; None if all their callers were cancelled. Raises TroveError."""
        raise NotImplementedError

    def resolve(self, outcome: AppendOutcome) -> None:
        """Passes the acknowledgement to the callers."""
        raise NotImplementedError

    def reject(self, error: TroveError) -> None:
        """Passes the failure to the callers."""
        raise NotImplementedError

    def frame_receipt(self, outcome: AppendOutcome) -> FrameReceipt:
        """The acknowledgement of all messages."""
        return FrameReceipt(self.topic, self.slot.queue_id, self.sizes, self.message_ids, outcome)


_Single = tuple[bytes, bytes, str, int, "asyncio.Future[SendReceipt] | None", int]
"""A message: its body, its encoded properties, its message id, its BORNTIMESTAMP, the waiter, its number."""


class SingleMessages(Batch):
    """Messages that were sent one by one and share one frame."""

    growing = True
    _bare = 0  # messages without properties: they get their message ids together

    def __init__(
        self,
        topic: str,
        owner: Owner,
        slot: Slot,
        deadline: float,
        movable: bool = False,
        ordered: bool = False,
        one_way: bool = False,
    ) -> None:
        super().__init__(topic, owner, slot, deadline, movable, ordered, one_way)
        self._messages: list[_Single] = []

    def add(
        self,
        body: bytes,
        block: bytes,
        message_id: str,
        waiter: asyncio.Future[SendReceipt] | None,
        size: int,
    ) -> None:
        """Adds a message; `block` is its encoded properties, empty for one that shall get a message id and
        has nothing else."""
        self._messages.append((body, block, message_id, time.time_ns() // 1_000_000, waiter, -1))
        self.size += size
        if not block:
            self._bare += 1

    def by_group(self) -> list[tuple[str, _Single]]:
        """The messages that are still wanted, each with its message group."""
        return [(_group_of(message[1]), message) for message in self._wanted()]

    def take_over(self, message: _Single) -> None:
        """Adds a message of another batch."""
        self._messages.append(message)

    @property
    def count(self) -> int:
        waiters = (message[4] for message in self._messages)
        return sum(waiter is None or not waiter.cancelled() for waiter in waiters)

    @property
    def message_ids(self) -> list[str]:
        return [message[2] for message in self._messages]

    def encode(self) -> Encoded | None:
        messages = self._wanted()
        if not messages:
            return None
        if self.sequence_assigner is not None:
            messages = self._numbered(self.sequence_assigner)
        route = self.route
        assert route is not None
        self.lone = len(messages) == 1
        head, records = _encoding(self.topic, self.slot.queue_id, route.form)
        pieces: list[bytes] = []
        sizes = []
        size = 0
        for body, block, _, born_timestamp, _, _ in messages:
            added = records.add(pieces, body, block, born_timestamp)
            sizes.append(added)
            size += added
        self.sizes = sizes
        return head, pieces, size

    def _wanted(self) -> list[_Single]:
        """The messages, each with a message id, without those whose callers were cancelled before they were
        written: these stay cancelled."""
        kept: list[_Single] = []
        made = iter(next_unique_texts(self._bare)) if self._bare > 1 else None
        self._bare = 0
        for message in self._messages:
            body, block, message_id, born_timestamp, waiter, number = message
            if waiter is not None and waiter.cancelled():
                continue
            if not block:
                message_id = next_unique_key() if made is None else next(made)
                block = b"%s\x01%s\x02" % (UNIQUE_KEY_NAME, message_id.encode())
                kept.append((body, block, message_id, born_timestamp, waiter, number))
            else:
                kept.append(message)
        self._messages = kept
        return kept

    def _numbered(self, sequence_assigner: SequenceAssigner) -> list[_Single]:
        """The messages with their numbers for this broker among their properties."""
        broker = self.broker
        if self.numbered_for != broker:
            numbers = sequence_assigner.take(broker, len(self._messages))
            self._messages = [
                (*message[:5], number) for message, number in zip(self._messages, numbers, strict=True)
            ]
            self.numbered_for = broker
        return [
            (body, block + sequence_assigner.block(number), message_id, born_timestamp, waiter, number)
            for body, block, message_id, born_timestamp, waiter, number in self._messages
        ]

    def resolve(self, outcome: AppendOutcome) -> None:
        messages = self._messages
        if len(messages) == 1 and not outcome.duplicates:
            _, _, key, _, waiter, _ = messages[0]
            if waiter is not None and not waiter.done():
                place = outcome.physical_offset
                waiter.set_result(record_receipt(self.topic, self.slot.queue_id, key, outcome, 0, place))
            return
        for message, receipt in zip(messages, self.frame_receipt(outcome).receipts(), strict=True):
            waiter = message[4]
            if waiter is not None and not waiter.done():
                waiter.set_result(receipt)

    def reject(self, error: TroveError) -> None:
        for message in self._messages:
            waiter = message[4]
            if waiter is not None and not waiter.done():
                waiter.set_exception(error)


def _group_of(block: bytes) -> str:
    """The message group among encoded properties; empty if there is none."""
    for part in block.split(b"\x02"):
        name, _, value = part.partition(b"\x01")
        if name == GROUP_NAME:
            return value.decode()
    return ""


@lru_cache(maxsize=ENCODERS_KNOWN)
def _encoding(topic: str, queue_id: int, form: RecordForm) -> tuple[bytes, SingleRecords]:
    """The head of each frame of a queue, and the encoder of its records."""
    records = SingleRecords(
        topic,
        queue_id,
        born_host=_empty_host(form.born_host_ipv6),
        store_host=_empty_host(form.store_host_ipv6),
        append_property_crc=form.append_property_crc,
    )
    return append_head(topic, queue_id), records


def _empty_host(ipv6: bool) -> bytes:
    return bytes(20 if ipv6 else 8)
