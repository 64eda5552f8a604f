"""Batches in flight: the messages that a producer keeps until they are acknowledged.

A batch keeps its inputs, not its encoded records: it is encoded when its stream writes it, and again when
it goes to another queue or to a broker whose settings changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from trovemq._arguments import check_text
from trovemq._routes import Slot
from trovemq._sequences import SequenceAssigner
from trovemq._unique_keys import next_unique_key
from trovemq._wire.frames import append_frame
from trovemq.model import BrokerInfo
from trovemq.receipts import AppendOutcome, FrameReceipt, SendReceipt, Sizes, UniqueKeys
from trovemq.send_arguments import Keys
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.numpy_extra import PLAIN_ENCODED_MAX, has_numpy
from trovemq_proto.records import (
    PROPERTY_SHARDING_KEY,
    PROPERTY_UNIQ_KEY,
    BatchEncoder,
    SingleRecords,
    encode_properties,
)
from trovemq_proto.records.fields import split_fields
from trovemq_proto.records.internal_properties import Writer
from trovemq_proto.records.priorities import PROPERTY_PRIORITY
from trovemq_proto.records.priorities import check_priority as stored_form
from trovemq_proto.records.properties import message_properties

# The most bytes beside body, keys, tag and properties: 91 fixed bytes, topic, IPv6 hosts, names, CRC,
# UNIQ_KEY.
RECORD_OVERHEAD = 320
MESSAGE_GROUP_SIZE_MAX = 63  # bytes
ENCODERS_KNOWN = 1_024  # queues
_UNIQUE_KEY_NAME = PROPERTY_UNIQ_KEY.encode()


class RecordForm(NamedTuple):
    """The form of the records that a broker's settings require."""

    store_host_ipv6: bool
    append_property_crc: bool
    born_host_ipv6: bool

    @classmethod
    def of(cls, broker: BrokerInfo, address: str) -> RecordForm:
        """The form for a broker that is dialled at `address`: BORNHOST is of that connection's family."""
        return cls(broker.store_host_ipv6, broker.append_property_crc, address.startswith("["))


class Destination(NamedTuple):
    """The destination of a batch.

    Attributes:
        slot: The queue.
        movable: Whether it may go to another queue instead.
        ordered: Whether no other ordered batch may be in flight to that queue.
    """

    slot: Slot
    movable: bool = False
    ordered: bool = False


class Owner(Protocol):
    """The owner of a batch, which decides about its retries and its end."""

    def batch_taken(self, batch: Batch) -> None:
        """The batch is being written: no message may join it any more."""

    def batch_answered(self, batch: Batch, outcome: AppendOutcome) -> None:
        """The broker replied."""

    def batch_failed(self, batch: Batch, error: TroveError, in_doubt: bool) -> None:
        """No reply will come."""

    def batch_done(self, batch: Batch) -> None:
        """The messages of the batch have their results."""


class Batch:
    """Messages of one topic for one queue; a frame for AppendStream.

    Attributes:
        form: How its records are encoded, set before it is submitted.
        size: The bytes that it counts in the producer's back-pressure.
        size_max: No message that would make it larger is added.
        attempts: How often it was submitted.
        broker: The broker that it goes to, set before it is submitted.
        sequence_assigner: Numbers its messages, if they are numbered.
        numbered_for: The broker for which they are numbered.
        refreshed: The routes were fetched again because a broker refused its form.
        released: It was submitted to its broker's stream.
        sizes: The encoded records' sizes.
    """

    growing = False

    def __init__(
        self, topic: str, owner: Owner, destination: Destination, deadline: float, one_way: bool = False
    ) -> None:
        self.topic = topic
        self.owner = owner
        self.destination = destination
        self.deadline = deadline
        self.one_way = one_way
        self.form: RecordForm | None = None
        self.broker = ""
        self.sequence_assigner: SequenceAssigner | None = None
        self.numbered_for = ""
        self.size = 0
        self.size_max = 0
        self.attempts = 0
        self.refreshed = False
        self.released = False
        self.sizes: Sizes = ()

    @property
    def slot(self) -> Slot:
        """The queue it goes to."""
        return self.destination.slot

    # --- Frame ----------------------------------------------------------------------------------------

    @property
    def queue(self) -> Hashable:
        """Its messages keep the order of those of other batches with the same value."""
        return self.topic, None if self.destination.movable else self.slot

    def take(self, frame_id: int) -> bytes | None:
        """The serialised frame. No message can be added after that."""
        self.owner.batch_taken(self)
        try:
            records = self.encode()
        except TroveError as error:
            self.fail(error)
            return None
        if records is None:
            self.owner.batch_done(self)
            return None
        return append_frame(
            frame_id=frame_id,
            topic=self.topic.encode(),
            queue_id=self.slot.queue_id,
            records=records,
            one_way=self.one_way,
        )

    def written(self) -> None:
        """A one-way batch is done: the client gets no further information."""
        self.owner.batch_done(self)

    def answered(self, outcome: AppendOutcome) -> None:
        """The broker's reply."""
        self.owner.batch_answered(self, outcome)

    def failed(self, error: TroveError, *, in_doubt: bool) -> None:
        """No reply will come."""
        self.owner.batch_failed(self, error, in_doubt)

    def succeed(self, outcome: AppendOutcome) -> None:
        """The end: acknowledged."""
        self.resolve(FrameReceipt(self.topic, self.slot.queue_id, self.sizes, self.unique_keys, outcome))
        self.owner.batch_done(self)

    def fail(self, error: TroveError) -> None:
        """The end: given up."""
        self.reject(error)
        self.owner.batch_done(self)

    # --- where the two kinds of batches differ --------------------------------------------------------

    @property
    def unique_keys(self) -> UniqueKeys:
        """One unique key per record."""
        raise NotImplementedError

    def encode(self) -> bytes | bytearray | None:
        """The records, with `sizes` set; None if nobody waits for any of them. Raises TroveError."""
        raise NotImplementedError

    def resolve(self, receipt: FrameReceipt) -> None:
        """Passes the acknowledgement to the callers."""
        raise NotImplementedError

    def reject(self, error: TroveError) -> None:
        """Passes the failure to the callers."""
        raise NotImplementedError


@dataclass(slots=True)
class _Single:
    body: bytes
    block: bytes  # its encoded properties
    unique_key: str
    born_timestamp: int
    waiter: asyncio.Future[SendReceipt] | None
    sequence: int = -1


class SingleMessages(Batch):
    """Messages that were sent one by one and share one frame."""

    growing = True

    def __init__(
        self, topic: str, owner: Owner, destination: Destination, deadline: float, one_way: bool = False
    ) -> None:
        super().__init__(topic, owner, destination, deadline, one_way)
        self._messages: list[_Single] = []

    def add(
        self,
        body: bytes,
        block: bytes,
        unique_key: str,
        waiter: asyncio.Future[SendReceipt] | None,
        size: int,
    ) -> None:
        """Adds a message; `block` is its encoded properties."""
        self._messages.append(_Single(body, block, unique_key, time.time_ns() // 1_000_000, waiter))
        self.size += size

    @property
    def unique_keys(self) -> list[str]:
        return [message.unique_key for message in self._messages]

    def encode(self) -> bytes | None:
        # A caller that was cancelled before its message was written stays cancelled.
        self._messages = [m for m in self._messages if m.waiter is None or not m.waiter.cancelled()]
        if not self._messages:
            return None
        assert self.form is not None
        self._number()
        encoder = _encoder(self.topic, self.slot.queue_id, self.form)
        records = [
            encoder.encode(message.body, self._block_of(message), message.born_timestamp)
            for message in self._messages
        ]
        self.sizes = [len(record) for record in records]
        return records[0] if len(records) == 1 else b"".join(records)

    def _number(self) -> None:
        """Numbers the messages for their broker, unless they are numbered."""
        if self.sequence_assigner is not None and self.numbered_for != self.broker:
            sequences = self.sequence_assigner.take(self.broker, len(self._messages))
            for message, sequence in zip(self._messages, sequences, strict=True):
                message.sequence = sequence
            self.numbered_for = self.broker

    def _block_of(self, message: _Single) -> bytes:
        return (
            message.block
            if self.sequence_assigner is None
            else message.block + self.sequence_assigner.block(message.sequence)
        )

    def resolve(self, receipt: FrameReceipt) -> None:
        for message, single in zip(self._messages, receipt.receipts(), strict=True):
            if message.waiter is not None and not message.waiter.done():
                message.waiter.set_result(single)

    def reject(self, error: TroveError) -> None:
        for message in self._messages:
            if message.waiter is not None and not message.waiter.done():
                message.waiter.set_exception(error)


@dataclass(frozen=True, slots=True)
class Columns:
    """The inputs of a batch, those of message i at index i; tags and properties may be one for all.

    `size` is their size in bytes.
    """

    bodies: Sequence[bytes]
    unique_keys: UniqueKeys
    keys: Sequence[Keys] | None
    tags: Sequence[str | None] | str | None
    properties: Sequence[Mapping[str, str] | None] | Mapping[str, str] | None
    size: int


class ColumnBatch(Batch):
    """Messages that were sent together as columns: one future, and no object per message."""

    def __init__(
        self, topic: str, owner: Owner, destination: Destination, deadline: float, columns: Columns
    ) -> None:
        super().__init__(topic, owner, destination, deadline)
        self.size = columns.size
        self.receipt: asyncio.Future[FrameReceipt] = asyncio.get_running_loop().create_future()
        self._born_timestamp = time.time_ns() // 1_000_000
        self._columns = columns
        self._sequences = range(0)

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self._columns.bodies)

    @property
    def unique_keys(self) -> UniqueKeys:
        return self._columns.unique_keys

    def encode(self) -> bytearray | None:
        if self.receipt.cancelled():
            return None
        assert self.form is not None
        encoder = BatchEncoder(
            self.topic,
            store_host_ipv6=self.form.store_host_ipv6,
            append_property_crc=self.form.append_property_crc,
            born_host_ipv6=self.form.born_host_ipv6,
            writer=Writer.SDK,
        )
        columns = self._columns
        properties = columns.properties
        if self.sequence_assigner is not None:
            if self.numbered_for != self.broker:
                self._sequences = self.sequence_assigner.take(self.broker, self.count)
                self.numbered_for = self.broker
            properties = self.sequence_assigner.with_numbers(properties, self._sequences)
        records = encoder.encode(
            columns.bodies,
            queue_id=self.slot.queue_id,
            unique_keys=columns.unique_keys,
            keys=columns.keys,
            tags=columns.tags,
            properties=properties,
            born_timestamp=self._born_timestamp,
        )
        self.sizes = _sizes_of(records, self.count)
        return records

    def resolve(self, receipt: FrameReceipt) -> None:
        if not self.receipt.done():
            self.receipt.set_result(receipt)

    def reject(self, error: TroveError) -> None:
        if not self.receipt.done():
            self.receipt.set_exception(error)


def _sizes_of(records: bytearray, count: int) -> Sizes:
    """The sizes of the encoded records in these bytes."""
    if count > PLAIN_ENCODED_MAX and has_numpy():
        from trovemq_proto.records import RecordBatch

        return RecordBatch.split(records).sizes
    return [fields.size for fields in split_fields(memoryview(records))]


@lru_cache(maxsize=ENCODERS_KNOWN)
def _encoder(topic: str, queue_id: int, form: RecordForm) -> SingleRecords:
    return SingleRecords(
        topic,
        queue_id,
        born_host=_empty_host(form.born_host_ipv6),
        store_host=_empty_host(form.store_host_ipv6),
        append_property_crc=form.append_property_crc,
    )


def _empty_host(ipv6: bool) -> bytes:
    return bytes(20 if ipv6 else 8)


def property_block(
    keys: Keys = None,
    tag: str | None = None,
    properties: Mapping[str, str] | None = None,
    unique_key: str | None = None,
    message_group: str | None = None,
    priority: int | None = None,
    writer: Writer = Writer.USER,
) -> tuple[str, bytes]:
    """A message's UNIQ_KEY and its encoded properties, each checked. Raises TroveError for a wrong one."""
    found: dict[str, str] = {}
    if unique_key is None:  # a generated one needs no check
        unique_key = next_unique_key()
        if keys is None and tag is None and properties is None and message_group is None and priority is None:
            return unique_key, b"%s\x01%s\x02" % (_UNIQUE_KEY_NAME, unique_key.encode())
        found = {PROPERTY_UNIQ_KEY: unique_key}
        found |= message_properties(None, keys, tag, properties, writer)
    else:
        found = message_properties(unique_key, keys, tag, properties, writer)
    if message_group is not None:
        found[PROPERTY_SHARDING_KEY] = check_message_group(message_group)
    if priority is not None:
        found[PROPERTY_PRIORITY] = check_priority(priority, message_group)
    return unique_key, encode_properties(found)


def check_priority(priority: int, message_group: str | None) -> str:
    """The priority as it is stored. Raises TroveError PROPERTY_ILLEGAL, REQUEST_ILLEGAL."""
    if message_group is not None:
        text = "give a priority or a message group, whose order is that of sending; not both"
        raise TroveError(errors.REQUEST_ILLEGAL, text)
    return stored_form(priority)


def check_message_group(group: str) -> str:
    """The group itself. Raises TroveError MESSAGE_GROUP_ILLEGAL."""
    check_text("message_group", group, errors.MESSAGE_GROUP_ILLEGAL)
    size = len(group.encode("utf-8", "surrogatepass"))
    if not group.strip() or size > MESSAGE_GROUP_SIZE_MAX or not group.isprintable():
        raise TroveError(
            errors.MESSAGE_GROUP_ILLEGAL,
            f"the message group {group[:80]!r} is blank, longer than {MESSAGE_GROUP_SIZE_MAX} bytes or has a"
            " control character",
        )
    return group
