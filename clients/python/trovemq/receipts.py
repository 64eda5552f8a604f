"""Delivery receipts: the place of an acknowledged message, and its durability.

A frame of records is acknowledged as a whole. The values of single messages follow by arithmetic (record i
has the first queue offset + i, and begins after the sizes of those before it), so a batch's receipt computes
them only on demand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from trovemq._common.numpy_extra import bools, int64s
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.ids import encode_offset_msg_id

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NO_GAP: Final = range(0)
NO_GAPS: Final[Mapping[int, range]] = {}


class SendReceipt(NamedTuple):
    """The acknowledgement of one message.

    Attributes:
        topic: The topic.
        queue_id: The queue it was put on.
        queue_offset: Its place in the queue.
        physical_offset: Its place in the broker's commit log.
        offset_msg_id: The broker's address and the physical offset as RocketMQ writes them.
        message_id: Its id: the sender's, or a new one. It is the same over retries and second sends.
        durability: `disk` (covered by a completed sync) or `memory`.
        copies: How many nodes hold it like that, the broker included; more than 1 only in a replica group.
        store_timestamp: When the broker stored it, epoch ms.
        broker: Name of that broker.
        status: `PUT_OK`; `FLUSH_DISK_TIMEOUT` if the message is in the log but not yet synced;
            `FLUSH_SLAVE_TIMEOUT` if it is in the broker's log, and the other nodes of its replica group did
            not have it in time.
        recall_handle: For `Client.recall`, of a delayed message; else empty.
        transaction_id: Of a message in a transaction; else empty.
        duplicate: The topic had a message with this UNIQ_KEY within its window (option deduplicate): this one
            was not stored, and the receipt has the place of the other one.
        sequence_gap: For a producer that numbers its messages: the numbers just before this one that the
            broker had not received when it stored this message, `range(5, 8)` for 5, 6 and 7; empty if none
            is missing. The missing messages were refused or lost with a connection, or come later. A gap is
            reported once, not again with a duplicate.

    A delayed message, and one in a transaction, is put on a queue later: its queue_id, queue_offset and
    physical_offset are -1, its offset_msg_id is empty, and store_timestamp is when it was sent.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    offset_msg_id: str
    message_id: str
    durability: str
    store_timestamp: int
    broker: str
    status: str
    recall_handle: str = ""
    transaction_id: str = ""
    duplicate: bool = False
    sequence_gap: range = NO_GAP
    copies: int = 1

    @property
    def unique_key(self) -> str:
        """The former name of `message_id`, until the first release."""
        return self.message_id


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Record `index` of a frame was not stored; this is the earlier message with its UNIQ_KEY."""

    index: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int


class AppendOutcome(NamedTuple):
    """A broker's acknowledgement of one frame: the records except the duplicates have first_queue_offset + 0,
    1, …"""

    frame_id: int
    status: str
    error: TroveError | None
    first_queue_offset: int
    physical_offset: int
    record_count: int
    store_timestamp: int
    durability: str
    store_host: bytes
    broker: str
    duplicates: tuple[Duplicate, ...] = ()
    sequence_gaps: Mapping[int, range] = NO_GAPS
    """Record of the frame -> the missing numbers just before its own."""
    copies: int = 1


COPIES_LATE: Final = "FLUSH_SLAVE_TIMEOUT"
LATE_STATUSES: Final = {
    "FLUSH_DISK_TIMEOUT": errors.FLUSH_DISK_TIMEOUT,
    COPIES_LATE: errors.REPLICA_TIMEOUT,
}
"""Statuses of records that have not all that the broker's settings ask for, as errors."""
STORED_STATUSES: Final = frozenset({"PUT_OK", *LATE_STATUSES})
"""The statuses of records that are in the log, whether or not the sync ended, and the copies had them, in
time."""

MessageIds: TypeAlias = "Sequence[str] | NDArray[np.uint8]"
Sizes: TypeAlias = "Sequence[int] | NDArray[np.int64]"


@dataclass(frozen=True, slots=True)
class FrameReceipt:
    """One acknowledged frame with the data to find its records.

    Attributes:
        topic: The topic of all records.
        queue_id: The queue of all records.
        sizes: Each record's size in bytes.
        message_ids: n texts, or uint8[n, k] in ASCII.
        outcome: The broker's reply.
    """

    topic: str
    queue_id: int
    sizes: Sizes
    message_ids: MessageIds
    outcome: AppendOutcome

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def physical_offsets(self) -> list[int]:
        """One a record."""
        duplicates = {each.index: each for each in self.outcome.duplicates}
        sizes = self._size_list()
        if not duplicates:
            return list(accumulate(sizes, initial=self.outcome.physical_offset))[:-1]
        found, end = [], self.outcome.physical_offset
        for index, size in enumerate(sizes):
            original = duplicates.get(index)
            found.append(end if original is None else original.physical_offset)
            end += size if original is None else 0
        return found

    def _size_list(self) -> Sequence[int]:
        return self.sizes if isinstance(self.sizes, Sequence) else self.sizes.tolist()

    @property
    def queue_offsets(self) -> Sequence[int]:
        """One a record."""
        first, duplicates = self.outcome.first_queue_offset, self.outcome.duplicates
        if not duplicates:
            return range(first, first + len(self))
        originals = {each.index: each for each in duplicates}
        found, end = [], first
        for index in range(len(self)):
            original = originals.get(index)
            found.append(end if original is None else original.queue_offset)
            end += original is None
        return found

    @property
    def queue_ids(self) -> list[int]:
        """One a record."""
        found = [self.queue_id] * len(self)
        for each in self.outcome.duplicates:
            found[each.index] = each.queue_id
        return found

    @property
    def are_duplicates(self) -> list[bool]:
        """One a record."""
        found = [False] * len(self)
        for each in self.outcome.duplicates:
            found[each.index] = True
        return found

    def message_id(self, index: int) -> str:
        """The UNIQ_KEY of record `index`."""
        if isinstance(
            self.message_ids, (list, Sequence)
        ):  # the concrete class first: a check of an abstract one takes longer
            return self.message_ids[index]
        return bytes(self.message_ids[index]).decode("ascii")

    def receipt(self, index: int, physical_offset: int) -> SendReceipt:
        """The receipt of record `index`, which begins at `physical_offset`."""
        outcome = self.outcome
        if outcome.duplicates:
            return self._receipt_among_duplicates(index, physical_offset)
        return record_receipt(
            self.topic, self.queue_id, self.message_id(index), outcome, index, physical_offset
        )

    def _receipt_among_duplicates(self, index: int, physical_offset: int) -> SendReceipt:
        outcome = self.outcome
        original = next((each for each in outcome.duplicates if each.index == index), None)
        before = sum(each.index < index for each in outcome.duplicates)
        return SendReceipt(
            topic=self.topic,
            queue_id=self.queue_id if original is None else original.queue_id,
            queue_offset=outcome.first_queue_offset + index - before
            if original is None
            else original.queue_offset,
            physical_offset=physical_offset,
            offset_msg_id=encode_offset_msg_id(outcome.store_host, PhysicalOffset(physical_offset)),
            message_id=self.message_id(index),
            durability=outcome.durability,
            store_timestamp=outcome.store_timestamp if original is None else original.store_timestamp,
            broker=outcome.broker,
            status=outcome.status,
            duplicate=original is not None,
            sequence_gap=outcome.sequence_gaps.get(index, NO_GAP),
            copies=outcome.copies,
        )

    def receipts(self) -> list[SendReceipt]:
        """One receipt per record."""
        outcome = self.outcome
        if len(self.sizes) == 1:
            return [self.receipt(0, outcome.physical_offset)]
        places = self.physical_offsets
        if outcome.duplicates or outcome.sequence_gaps or outcome.physical_offset < 0:
            return [self.receipt(index, place) for index, place in enumerate(places)]
        host, topic, queue_id = _host_digits(outcome.store_host), self.topic, self.queue_id
        durability, time, broker, status = (
            outcome.durability, outcome.store_timestamp, outcome.broker, outcome.status
        )  # fmt: skip
        rest = (durability, time, broker, status, "", "", False, NO_GAP, outcome.copies)
        new = tuple.__new__  # as record_receipt
        keys = self.message_ids
        if not isinstance(keys, list):
            keys = [self.message_id(index) for index in range(len(places))]
        return [
            new(SendReceipt, (topic, queue_id, queue_offset, place, f"{host}{place:016X}", key, *rest))
            for queue_offset, place, key in zip(self.queue_offsets, places, keys, strict=True)
        ]


def record_receipt(
    topic: str, queue_id: int, message_id: str, outcome: AppendOutcome, index: int, physical_offset: int
) -> SendReceipt:
    """The receipt of record `index` of a frame without duplicates."""
    _, status, _, first, _, _, stored_at, durability, host, broker, _, gaps, copies = outcome
    # As SendReceipt(…) does, which is a function in Python.
    return tuple.__new__(
        SendReceipt,
        (
            topic,
            queue_id,
            first + index,
            physical_offset,
            f"{_host_digits(host)}{physical_offset:016X}"  # as encode_offset_msg_id
            if physical_offset >= 0
            else encode_offset_msg_id(host, PhysicalOffset(physical_offset)),
            message_id,
            durability,
            stored_at,
            broker,
            status,
            "",
            "",
            False,
            gaps.get(index, NO_GAP) if gaps else NO_GAP,
            copies,
        ),
    )


@lru_cache(maxsize=64)
def _host_digits(store_host: bytes) -> str:
    """The digits of an offsetMsgId that stand for the broker's address."""
    return encode_offset_msg_id(store_host, PhysicalOffset(0))[:-16]


class PartialBatchError(TroveError):
    """Some frames of a batch were not acknowledged; the error is that of the first failure.

    Attributes:
        receipts: The acknowledgements of the other frames.
        indexes: For each receipt, its message's place in the batch.
    """

    def __init__(self, first: TroveError, receipts: BatchReceipt, indexes: list[int], count: int) -> None:
        text = f"{first.message} ({len(receipts)} of the batch's {count} messages are stored)"
        super().__init__(first.spec, text, **{**first.fields, "stored_count": len(receipts)})
        self.receipts = receipts
        self.indexes = indexes


class BatchReceipt(Sequence[SendReceipt]):
    """The acknowledgement of one `send_batch`: columns, and a SendReceipt per message on demand.

    Message i of the batch is item i. A batch that was larger than one frame is stored in several parts. The
    columns (`queue_ids`, `queue_offsets`, `physical_offsets`, `duplicates`) need NumPy (`trovemq[numpy]`).
    """

    def __init__(self, parts: Sequence[FrameReceipt]) -> None:
        self.parts = tuple(parts)
        self._starts = list(accumulate(map(len, self.parts), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # Sequence's two overloads
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        number = bisect_right(self._starts, position) - 1
        part, inside = self.parts[number], position - self._starts[number]
        return part.receipt(inside, self._places[position])

    def __iter__(self) -> Iterator[SendReceipt]:
        for part in self.parts:
            yield from part.receipts()

    @cached_property
    def _places(self) -> list[int]:
        return [place for part in self.parts for place in part.physical_offsets]

    @cached_property
    def queue_ids(self) -> NDArray[np.int64]:
        """int64[n]."""
        return int64s([queue_id for part in self.parts for queue_id in part.queue_ids])

    @cached_property
    def queue_offsets(self) -> NDArray[np.int64]:
        """int64[n]."""
        return int64s([offset for part in self.parts for offset in part.queue_offsets])

    @cached_property
    def physical_offsets(self) -> NDArray[np.int64]:
        """int64[n]."""
        return int64s(self._places)

    @cached_property
    def duplicates(self) -> NDArray[np.bool_]:
        """bool[n]: which messages were not stored, because their topic had their UNIQ_KEY
        (`SendReceipt.duplicate`)."""
        return bools([duplicate for part in self.parts for duplicate in part.are_duplicates])

    @property
    def sequence_gaps(self) -> dict[int, range]:
        """Message of the batch -> the missing numbers before its own (`SendReceipt.sequence_gap`)."""
        return {
            start + index: gap
            for start, part in zip(self._starts, self.parts, strict=False)
            for index, gap in part.outcome.sequence_gaps.items()
        }

    @property
    def message_ids(self) -> list[str]:
        """One UNIQ_KEY per message."""
        return [part.message_id(i) for part in self.parts for i in range(len(part))]

    @property
    def durability(self) -> str:
        """The weakest durability of the batch: `disk` only if every part is on disk."""
        return "disk" if all(part.outcome.durability == "disk" for part in self.parts) else "memory"

    @property
    def copies(self) -> int:
        """The fewest copies of any part of the batch."""
        return min((part.outcome.copies for part in self.parts), default=1)
