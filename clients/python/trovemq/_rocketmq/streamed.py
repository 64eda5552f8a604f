"""Messages of a Consume stream. To make one takes a microsecond; its record is read when a field is asked
for.

A message has its batch and its number in the batch. The fields of its record are read together when one of
them is asked for, the body by itself. Each field means the same as that of a message by RocketMQ's protocol
(broker/server/rocketmq/messages.py).

Invariant: the record of each message that the program gets has the right CRC and a readable body.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any, Final

from trovemq._wire.consumer import Run
from trovemq.received import ReceivedMessage, Settlement
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.numpy_extra import COLUMNS_SIZE_MIN, has_numpy
from trovemq_proto.receipts import handle_of
from trovemq_proto.records import (
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    encode_offset_msg_id,
    parse_properties,
)
from trovemq_proto.records.check import crc_matches
from trovemq_proto.records.compression import inflate_body
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.internal_properties import is_reserved
from trovemq_proto.records.layout import (
    HEADERS,
    PHYSICAL_OFFSET_AT,
    PROPERTY_DEAD_ID,
    PROPERTY_DEAD_TOPIC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    RECORD_SIZE_MIN,
    SYS_FLAG_COMPRESSED,
    host_bits,
)
from trovemq_proto.records.priorities import stored_priority

INFLATED_SIZE_MAX: Final = 64 << 20
PROPERTY_BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
PROPERTY_ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_TRACE_CONTEXT: Final = "TRACE_CONTEXT"
_TRACE_CONTEXT: Final = PROPERTY_TRACE_CONTEXT.encode()

_PHYSICAL_OFFSET: Final = Struct(">q")
_OF_RECORD: Final = (
    "message_id",
    "keys",
    "tags",
    "properties",
    "message_group",
    "priority",
    "born_timestamp",
    "store_timestamp",
    "deliver_timestamp",
    "dead_letter_of",
)

Place = tuple[str, int]


class RecordSpans:
    """Where the records of a batch lie in its bytes and in the log, and which of them are damaged."""

    __slots__ = (
        "body_ends",
        "body_starts",
        "compressed",
        "damaged",
        "data",
        "ends",
        "physical_offsets",
        "starts",
    )

    def __init__(self, data: memoryview) -> None:
        """Raises TroveError BATCH_ILLEGAL if the bytes are not records."""
        self.data = data
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.body_starts: list[int] = []
        self.body_ends: list[int] = []
        self.physical_offsets: list[int] = []
        self.damaged: set[int] = set()
        self.compressed: set[int] = set()
        if len(data) < COLUMNS_SIZE_MIN or not has_numpy() or not self._read_columns():
            self._read_each()

    def __len__(self) -> int:
        return len(self.starts)

    def _read_each(self) -> None:
        data, at = self.data, 0
        while at < len(data):
            number, size = len(self.starts), int.from_bytes(data[at : at + 4])
            if not RECORD_SIZE_MIN <= size <= len(data) - at:
                raise TroveError(errors.BATCH_ILLEGAL, f"no record at byte {at} of {len(data)}")
            self.starts.append(at)
            self.ends.append(at + size)
            self.physical_offsets += _PHYSICAL_OFFSET.unpack_from(data, at + PHYSICAL_OFFSET_AT)
            fields = read_fields(data, at, at + size)
            begin = end = at
            if fields is None or not crc_matches(data, fields):
                self.damaged.add(number)
            else:
                begin, end = fields.body_position, fields.body_position + fields.body_size
                if fields.sys_flag & SYS_FLAG_COMPRESSED:
                    self.compressed.add(number)
            self.body_starts.append(begin)
            self.body_ends.append(end)
            at += size

    def _read_columns(self) -> bool:
        """False if a record is not well formed."""
        from trovemq_proto.records import RecordBatch
        from trovemq_proto.records.record_crcs import damaged_records

        try:
            batch = RecordBatch.split(self.data)
        except TroveError:
            return False
        geometry = batch.geometry
        begins = geometry.body_positions
        self.starts = batch.positions.tolist()
        self.ends = (batch.positions + batch.sizes).tolist()
        self.body_starts = begins.tolist()
        self.body_ends = (begins + geometry.body_sizes).tolist()
        self.physical_offsets = batch.physical_offsets.tolist()
        self.damaged = set(damaged_records(batch).nonzero()[0].tolist())
        self.compressed = set((batch.sys_flags & SYS_FLAG_COMPRESSED).nonzero()[0].tolist())
        return True


class StreamedMessage(ReceivedMessage):
    """A message whose fields are read from its record on demand.

    Attributes:
        receipt: The receipt under which it is settled together with others; None: it is settled by its own
            `receipt_handle`.
        place: Identifies its record among those of all brokers.
        nbytes: The record's size.
    """

    __slots__ = ("_number", "_spans", "nbytes", "place", "receipt")

    receipt: str | None
    place: Place
    nbytes: int
    _spans: RecordSpans
    _number: int

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        """A copy with other values (`dataclasses.replace`): it is settled by its own handle."""
        super().__init__(*arguments, **fields)
        self.receipt = None

    def take_over(self, newer: ReceivedMessage) -> None:
        """Takes over the receipt of a newer delivery of the same message, because the older one is void."""
        super().take_over(newer)
        self.receipt = newer.receipt if isinstance(newer, StreamedMessage) else None

    @property
    def trace_context(self) -> str:
        """A property of RocketMQ's that programs do not see; "" if there is none."""
        begin, end = self._spans.starts[self._number], self._spans.ends[self._number]
        record = bytes(self._spans.data[begin:end])
        fields = read_fields(record, 0, len(record))
        assert fields is not None, "a batch has well-formed records only"
        block = record[fields.property_position :]
        return parse_properties(block).get(PROPERTY_TRACE_CONTEXT, "") if _TRACE_CONTEXT in block else ""

    def _read_body(self) -> None:
        spans, number = self._spans, self._number
        self.body = bytes(spans.data[spans.body_starts[number] : spans.body_ends[number]])

    def _make_handle(self) -> None:
        assert self.receipt is not None, "a message without a receipt has its handle"
        self.receipt_handle = handle_of(self.receipt, self.queue_offset)

    def _read_record(self) -> None:
        spans, number = self._spans, self._number
        record = bytes(spans.data[spans.starts[number] : spans.ends[number]])
        fields = read_fields(record, 0, len(record))
        assert fields is not None, "a batch has well-formed records only"
        header = HEADERS[host_bits(fields.sys_flag)].unpack_from(record)
        _, _, _, _, _, _, physical_offset, _, born_ms, _, store_ms, store_host, reconsume_times, _, _ = header
        properties = parse_properties(record[fields.property_position :])
        get = properties.get
        self.message_id = (
            get(PROPERTY_UNIQ_KEY)
            or get(PROPERTY_ORIGIN_ID)
            or encode_offset_msg_id(store_host, physical_offset)
        )
        self.tags = get(PROPERTY_TAGS) or None
        self.keys = tuple(get(PROPERTY_KEYS, "").split())
        self.properties = {name: value for name, value in properties.items() if not is_reserved(name)}
        self.message_group = get(PROPERTY_SHARDING_KEY) or None
        self.priority = stored_priority(properties)
        own_born_ms = _number_in(get(PROPERTY_BORN_TIMESTAMP))
        self.born_timestamp = born_ms if own_born_ms is None else own_born_ms
        self.store_timestamp = store_ms
        deliver = get(PROPERTY_TIMER_DELIVER_MS)
        if deliver is None and not reconsume_times:  # the time of a retry is that of its redelivery
            deliver = get(PROPERTY_TIMER_OUT_MS)
        self.deliver_timestamp = _number_in(deliver)
        dead_topic = get(PROPERTY_DEAD_TOPIC)
        self.dead_letter_of = (dead_topic, get(PROPERTY_DEAD_ID, "")) if dead_topic else None


class _OnDemand:
    """A field that is read when it is asked for, and kept then in its slot of the base class. `__getattr__`
    would do the same, but slows down the reading of each attribute that is there."""

    __slots__ = ("_kept", "_read")

    def __init__(self, name: str, read: Callable[[StreamedMessage], None]) -> None:
        self._kept = getattr(ReceivedMessage, name)
        self._read = read

    def __get__(self, message: StreamedMessage, owner: type) -> Any:
        try:
            return self._kept.__get__(message, owner)
        except AttributeError:
            self._read(message)
            return self._kept.__get__(message, owner)

    def __set__(self, message: StreamedMessage, value: object) -> None:
        self._kept.__set__(message, value)


def _read_on_demand() -> None:
    setattr_ = partial(setattr, StreamedMessage)
    for name in _OF_RECORD:
        setattr_(name, _OnDemand(name, StreamedMessage._read_record))
    setattr_("body", _OnDemand("body", StreamedMessage._read_body))
    setattr_("receipt_handle", _OnDemand("receipt_handle", StreamedMessage._make_handle))


_read_on_demand()


def _number_in(text: str | None) -> int | None:
    """A stored number of ms; None if the text is anything else."""
    return int(text) if text and len(text) <= 15 and text.isascii() and text.isdigit() else None


def streamed_messages(
    runs: list[Run],
    records: memoryview,
    *,
    topic: str,
    broker: str,
    poll: int,
    lease_end: float | None,
    settlement: Settlement,
) -> tuple[list[StreamedMessage], dict[int, TroveError]]:
    """The messages of a batch, and the errors of damaged ones, by their number. The body of those is empty.

    Raises:
        TroveError: BATCH_ILLEGAL, RECORD_DAMAGED: the runs and the records do not match.
    """
    spans = RecordSpans(records)
    count = sum(run.count for run in runs)
    if count != len(spans):
        raise TroveError(errors.BATCH_ILLEGAL, f"the batch has {len(spans)} records, and its runs {count}")
    messages: list[StreamedMessage] = []
    new, add = StreamedMessage.__new__, messages.append
    starts, ends, physical_offsets = spans.starts, spans.ends, spans.physical_offsets
    number = 0
    for run in runs:
        for offset in range(run.first_offset, run.first_offset + run.count):
            message = new(StreamedMessage)
            message._spans = spans
            message._number = number
            message.topic = topic
            message.queue_id = run.queue_id
            message.queue_offset = offset
            message.attempt = run.attempt
            message.broker = broker
            message.body_error = ""
            message.receipt = run.receipt
            message.settled = False
            message.lease_end = lease_end
            message.poll = poll
            message.settlement = settlement
            message.tracing = None
            message.nbytes = ends[number] - starts[number]
            message.place = (broker, physical_offsets[number])
            add(message)
            number += 1
    unreadable: dict[int, TroveError] = {}
    for number in sorted(spans.damaged | spans.compressed):
        error = _prepared(messages[number])
        if error is not None:
            unreadable[number] = error
    return messages, unreadable


def _fill_nothing(message: StreamedMessage) -> None:
    """Sets all fields of a damaged record to empty values."""
    message.body, message.message_id, message.keys, message.properties = b"", "", (), {}
    message.tags = message.message_group = message.priority = None
    message.deliver_timestamp = message.dead_letter_of = None
    message.born_timestamp = message.store_timestamp = 0


def _prepared(message: StreamedMessage) -> TroveError | None:
    """Inflates a compressed body. Returns the error if the body or the record is damaged."""
    spans, number = message._spans, message._number
    if number in spans.damaged:
        _fill_nothing(message)
        return TroveError(errors.RECORD_DAMAGED, "the record is not as it was stored: its CRC is wrong")
    begin, end = spans.body_starts[number], spans.body_ends[number]
    fields = read_fields(spans.data, spans.starts[number], spans.ends[number])
    assert fields is not None, "a batch has well-formed records only"
    try:
        message.body = inflate_body(bytes(spans.data[begin:end]), fields.sys_flag, INFLATED_SIZE_MAX)
    except TroveError as error:
        message.body = b""
        return error
    return None
