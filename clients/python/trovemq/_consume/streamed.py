"""Messages of a Consume stream. A batch makes each of them when it is handed out, in a fraction of a
microsecond; its record is read when a field is asked for.

A message has its run and its number in the batch. A run is consecutive messages of one queue, under one
receipt, and has all that they have in common. A message for which one of these values is set gets a
separate run. The fields of its record are read together when one of them is asked for, the body
separately. Each field means the same as that of a message by RocketMQ's protocol
(broker/trovemq_broker/server/wire/rocketmq_messages.py).

Invariant: the record of each message that the program gets has the right CRC and a readable body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter, length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from trovemq._consume.record_spans import RecordSpans
from trovemq._wire.consumer import Run
from trovemq.received import NO_SETTLEMENT, ReceivedMessage, Settlement
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.receipts import handle_of
from trovemq_proto.records import (
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    encode_offset_msg_id,
    parse_properties,
)
from trovemq_proto.records.dead_letter_reason import reason_of
from trovemq_proto.records.fields import RecordFields, read_fields
from trovemq_proto.records.internal_properties import is_reserved
from trovemq_proto.records.layout import (
    HEADERS,
    PROPERTY_DEAD_ID,
    PROPERTY_DEAD_TOPIC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    host_bits,
)
from trovemq_proto.records.priorities import stored_priority

if TYPE_CHECKING:
    pass

PROPERTY_BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
PROPERTY_ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_TRACE_CONTEXT: Final = "TRACE_CONTEXT"
_TRACE_CONTEXT: Final = PROPERTY_TRACE_CONTEXT.encode()

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
    "dead_letter_reason",
)
_OF_RUN: Final = (
    "topic",
    "broker",
    "queue_id",
    "attempt",
    "lease_end",
    "poll",
    "settlement",
)

Place = tuple[str, int]


class Unanswered(Protocol):
    """A stream counts its acknowledgements without a result, and has the most of them before callers wait."""

    unacknowledged: int
    acknowledged_max: int


@dataclass(slots=True, eq=False, kw_only=True)
class StreamedRun:
    """The values that consecutive messages of one queue have in common.

    Attributes:
        offsets: Their queue offsets.
        first_number: The number of the first one in the batch.
        receipt: The receipt under which they are settled together; None: each has its receipt handle.
        gathered: The queue offsets acknowledged in this iteration of the event loop. None if there is
            none yet, or if each acknowledgement needs more than that: then `settlement` acknowledges.
        stream: Counts them.
    """

    spans: RecordSpans
    first_number: int
    offsets: range
    topic: str
    broker: str
    queue_id: int
    attempt: int
    receipt: str | None
    lease_end: float | None
    poll: int
    settlement: Settlement
    gathered: list[int] | None = field(default=None, init=False)
    stream: Unanswered | None = field(default=None, init=False)

    def message(self, offset: int) -> StreamedMessage:
        """Makes the message of this queue offset."""
        message = StreamedMessage.__new__(StreamedMessage)
        message.run = self
        message._number = number = self.first_number + offset - self.offsets.start
        message._body = None
        message.queue_offset = offset
        message.settled = False
        message.tracing = None
        if number in self.spans.damaged:
            _fill_nothing(message)
        return message


class StreamedMessage(ReceivedMessage):
    """A message whose fields are read from its run and its record on demand.

    Attributes:
        run: The values that it has in common with its neighbours.
    """

    __slots__ = ("_body", "_number", "run")

    run: StreamedRun
    _number: int
    _body: bytes | None

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        """A copy with other values (`dataclasses.replace`): it is settled by its own handle."""
        self.run = _OF_COPIES
        self._number = 0
        super().__init__(*arguments, **fields)

    @property
    def receipt(self) -> str | None:
        """The receipt under which it is settled together with others; None: it is settled by its own
        `receipt_handle`."""
        return self.run.receipt

    @receipt.setter
    def receipt(self, receipt: str | None) -> None:
        self.run = replace(self.run, receipt=receipt)

    @property
    def place(self) -> tuple[object, ...]:
        """Identifies its record among those of all brokers."""
        run = self.run
        try:
            return run.broker, run.spans.physical_offsets[self._number]
        except IndexError:  # a copied message has no record
            return super().place

    @property
    def nbytes(self) -> int:
        """The record's size."""
        starts, number = self.run.spans.starts, self._number
        return starts[number + 1] - starts[number]

    def take_over(self, newer: ReceivedMessage) -> None:
        """Takes over the run and the receipt of a newer delivery of the same message, because the older one
        is void."""
        if isinstance(newer, StreamedMessage):
            self.run, self._number, self.receipt_handle = newer.run, newer._number, newer.receipt_handle
        else:
            super().take_over(newer)
            self.receipt = None

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        run = self.run
        gathered = run.gathered
        if gathered is None or failure is not None or self.settled:
            await super().__aexit__(kind, failure, where)
            return
        self.settled = True
        gathered.append(self.queue_offset)
        stream = run.stream
        assert stream is not None, "it gathers"
        stream.unacknowledged = count = stream.unacknowledged + 1
        if count > stream.acknowledged_max:
            await run.settlement.wait_for_capacity()

    @property
    def trace_context(self) -> str:
        """A property of RocketMQ's that programs do not see; "" if there is none."""
        record, fields = self._record()
        block = record[fields.property_position :]
        return parse_properties(block).get(PROPERTY_TRACE_CONTEXT, "") if _TRACE_CONTEXT in block else ""

    def _record(self) -> tuple[bytes, RecordFields]:
        spans, number = self.run.spans, self._number
        record = bytes(spans.data[spans.starts[number] : spans.starts[number + 1]])
        fields = read_fields(record, 0, len(record))
        assert fields is not None, "a batch has well-formed records only"
        return record, fields

    def _read_body(self) -> bytes:
        body = self._body
        if body is None:
            spans, number = self.run.spans, self._number
            if spans.inflated and (inflated := spans.inflated.get(number)) is not None:
                body = inflated
            else:
                body = bytes(spans.data[spans.body_starts[number] : spans.body_ends[number]])
            self._body = body
        return body

    def _keep_body(self, body: bytes) -> None:
        self._body = body

    def _make_handle(self) -> None:
        receipt = self.run.receipt
        assert receipt is not None, "a message without a receipt has its handle"
        self.receipt_handle = handle_of(receipt, self.queue_offset)

    def _has_body(self) -> None:
        self.body_error = ""

    def _read_record(self) -> None:
        record, fields = self._record()
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
        self.dead_letter_reason = reason_of(properties) if dead_topic else None


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
    setattr_("body_error", _OnDemand("body_error", StreamedMessage._has_body))
    setattr_("receipt_handle", _OnDemand("receipt_handle", StreamedMessage._make_handle))
    setattr_("body", property(StreamedMessage._read_body, StreamedMessage._keep_body))
    for name in _OF_RUN:
        setattr_(name, property(attrgetter(f"run.{name}"), partial(_set_alone, name)))


def _set_alone(name: str, message: StreamedMessage, value: object) -> None:
    values: dict[str, Any] = {name: value}
    message.run = replace(message.run, **values)


_read_on_demand()


def _number_in(text: str | None) -> int | None:
    """A stored number of ms; None if the text is anything else."""
    return int(text) if text and len(text) <= 15 and text.isascii() and text.isdigit() else None


class StreamedBatch:
    """The messages of a batch, each of which is made when it is handed out.

    Attributes:
        broker: Their broker.
        lease_end: The end of their leases.
        physical_offsets: Where their records lie in the broker's log.
        messages: Hands them out.
        unreadable: The errors of records that are damaged, by number. The body of those is empty. If there
            are any, the program gets `readable` instead of the batch.
    """

    __slots__ = (
        "_numbers",
        "_runs",
        "_spans",
        "broker",
        "lease_end",
        "messages",
        "physical_offsets",
        "unreadable",
    )

    def __init__(
        self,
        runs: list[Run],
        records: memoryview,
        *,
        topic: str,
        broker: str,
        poll: int,
        lease_end: float | None,
        settlement: Settlement,
    ) -> None:
        """Raises TroveError BATCH_ILLEGAL, RECORD_DAMAGED: the runs and the records do not match."""
        self._spans = spans = RecordSpans(records)
        self._runs: list[StreamedRun] = []
        count = 0
        for run in runs:
            made = StreamedRun(
                spans=spans,
                first_number=count,
                offsets=range(run.first_offset, run.first_offset + run.count),
                topic=topic,
                broker=broker,
                queue_id=run.queue_id,
                attempt=run.attempt,
                receipt=run.receipt,
                lease_end=lease_end,
                poll=poll,
                settlement=settlement,
            )
            self._runs.append(made)
            count += run.count
        if count != len(spans):
            text = f"the batch has {len(spans)} records, and its runs {count}"
            raise TroveError(errors.BATCH_ILLEGAL, text)
        self.broker = broker
        self.lease_end = lease_end
        self.physical_offsets: Final = spans.physical_offsets
        self._numbers = iter(range(count))
        self.messages: Final = _each_of(self._runs, self._numbers, spans.inflated)
        self.unreadable = spans.inflate()

    def __len__(self) -> int:
        """The number of messages that were not handed out yet."""
        return length_hint(self._numbers)

    def __iter__(self) -> Iterator[StreamedMessage]:
        return self.messages

    @property
    def nbytes(self) -> int:
        """The size of their records."""
        starts = self._spans.starts
        return starts[-1] - starts[-1 - len(self)]

    def message(self, number: int) -> StreamedMessage:
        """Makes one of the messages."""
        (run,) = [run for run in self._runs if 0 <= number - run.first_number < len(run.offsets)]
        return run.message(run.offsets[number - run.first_number])

    def readable(self) -> list[StreamedMessage]:
        """All messages that are readable."""
        return [
            run.message(offset)
            for run in self._runs
            for number, offset in enumerate(run.offsets, run.first_number)
            if number not in self.unreadable
        ]


def _each_of(
    runs: list[StreamedRun], numbers: Iterator[int], inflated: dict[int, bytes]
) -> Iterator[StreamedMessage]:
    """The messages of these numbers; the runs must have them all. They do not hold the batch, which would
    hold itself, nor a neighbour's inflated body."""
    new, class_ = StreamedMessage.__new__, StreamedMessage
    for run in runs:
        for offset, number in zip(run.offsets, numbers, strict=False):
            message = new(class_)
            message.run = run
            message._number = number
            message._body = inflated.pop(number, None) if inflated else None
            message.queue_offset = offset
            message.settled = False
            message.tracing = None
            yield message


def _fill_nothing(message: StreamedMessage) -> None:
    """Sets all fields of a damaged record to empty values."""
    message.body, message.message_id, message.keys, message.properties = b"", "", (), {}
    message.tags = message.message_group = message.priority = None
    message.deliver_timestamp = message.dead_letter_of = message.dead_letter_reason = None
    message.born_timestamp = message.store_timestamp = 0


_OF_COPIES: Final = StreamedRun(
    spans=RecordSpans(memoryview(b"")),
    first_number=0,
    offsets=range(0),
    topic="",
    broker="",
    queue_id=0,
    attempt=0,
    receipt=None,
    lease_end=None,
    poll=0,
    settlement=NO_SETTLEMENT,
)
"""The run of a copied message, before its values are set."""
