"""The records of a transaction, as RocketMQ 5.4.0 writes them.

(docs/store-format.md, "Transactions", and docs/store-format.md, "Properties that stay on disk")

| record   | topic, queue                      | made of                                                  |
|----------|-----------------------------------|----------------------------------------------------------|
| half     | RMQ_SYS_TRANS_HALF_TOPIC, 0       | the message and TRAN_MSG=true, REAL_TOPIC, REAL_QID,     |
|          |                                   | __transactionId__ = UNIQ_KEY; no transaction type        |
| commit   | the real ones                     | the half without REAL_TOPIC and REAL_QID; type commit,   |
|          |                                   | PREPAREDTRANSACTIONOFFSET = physical offset of the half  |
| op       | RMQ_SYS_TRANS_OP_HALF_TOPIC, 0    | TAGS=d, WAIT=true; the body names queue offsets of ended |
|          |                                   | halves in ASCII decimals, each followed by `,`; of one   |
|          |                                   | that was rolled back or given up: TROVEMQ_WITHDRAWN =    |
|          |                                   | its UNIQ_KEY, TROVEMQ_WITHDRAWN_TOPIC = its topic        |
| given up | TRANS_CHECK_MAX_TIME_TOPIC, 0     | the half with TRANSACTION_CHECK_TIMES                    |

A half that is moved to the end of its topic is the same message with TRANSACTION_CHECK_TIMES. That happens
before its segment is removed; RocketMQ does it at each check, too.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import msgspec

from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import PROPERTY_TAGS, PROPERTY_UNIQ_KEY, PROPERTY_WAIT, Message
from trovemq_proto.records.layout import (
    PROPERTY_CRC,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRANSACTION,
    PROPERTY_WITHDRAWN,
    PROPERTY_WITHDRAWN_TOPIC,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_MASK,
)
from trovemq_store.engine.record_writer import NewRecord

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRANSACTION_QUEUE_ID: Final = QueueId(0)
"""The one queue of each of these topics."""
OP_BODY_SIZE_MAX: Final = 4_096

PROPERTY_TRANSACTION_ID: Final = "__transactionId__"
PROPERTY_PRODUCER_GROUP: Final = "PGROUP"
PROPERTY_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PROPERTY_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
_OF_THE_HALF_ONLY: Final = (
    PROPERTY_REAL_TOPIC,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_CHECK_TIMES,
    PROPERTY_PREPARED_QUEUE_OFFSET,
)

_OP_TAG: Final = "d"
_OP_PROPERTIES: Final = {PROPERTY_TAGS: _OP_TAG, PROPERTY_WAIT: "true"}
_NUMBER_SIZE_MAX: Final = 19
_IMMUNITY_SECONDS_MAX: Final = 365 * 86_400


class HalfMessage(msgspec.Struct, array_like=True):
    """The part of one half message that is in memory; the rest is read from its record.

    `offset`: its queue offset; `op_offset`: the end of the op queue when the half was read or written, so
    that no op record below names it; `checks`: the number of checks so far, the last one at `checked_ms`;
    `is_copy`: it was moved, so its commit record may point to its earlier place.
    """

    offset: QueueOffset
    physical_offset: PhysicalOffset
    size: int
    topic: str
    queue_id: QueueId
    transaction_id: str
    op_offset: QueueOffset
    prepared_ms: int
    immunity_ms: int = 0
    checks: int = 0
    checked_ms: int = 0
    client_id: str = ""
    is_copy: bool = False


def half_record(record: NewRecord, immunity_ms: int) -> NewRecord:
    """The half message of a record that is to be stored in a transaction; the record has a UNIQ_KEY."""
    immunity = str(-(-immunity_ms // 1_000)) if immunity_ms > 0 else None
    half = record.with_properties(
        {
            PROPERTY_TRANSACTION: "true",
            PROPERTY_REAL_TOPIC: record.topic,
            PROPERTY_REAL_QUEUE_ID: str(record.queue_id),
            PROPERTY_TRANSACTION_ID: record.properties[PROPERTY_UNIQ_KEY],
            PROPERTY_PRODUCER_GROUP: record.properties.get(PROPERTY_PRODUCER_GROUP, record.topic),
            PROPERTY_IMMUNITY_SECONDS: immunity or record.properties.get(PROPERTY_IMMUNITY_SECONDS),
        }
    )
    return replace(
        half,
        topic=HALF_TOPIC,
        queue_id=TRANSACTION_QUEUE_ID,
        sys_flag=half.sys_flag & ~SYS_FLAG_TRANSACTION_MASK,
    )


def read_half(message: Message, offset: QueueOffset, op_offset: QueueOffset) -> HalfMessage | None:
    """The half message of a record of the half topic; None if it is not one."""
    properties = message.properties
    topic = properties.get(PROPERTY_REAL_TOPIC)
    transaction_id = properties.get(PROPERTY_UNIQ_KEY) or properties.get(PROPERTY_TRANSACTION_ID)
    queue_id = _number(properties.get(PROPERTY_REAL_QUEUE_ID))
    if not topic or not transaction_id or queue_id is None or queue_id > 0x7FFF_FFFF:
        return None
    seconds = _number(properties.get(PROPERTY_IMMUNITY_SECONDS)) or 0
    checks = _number(properties.get(PROPERTY_CHECK_TIMES)) or 0
    return HalfMessage(
        offset,
        message.physical_offset,
        message.store_size,
        topic,
        QueueId(queue_id),
        transaction_id,
        op_offset,
        message.store_timestamp,
        min(seconds, _IMMUNITY_SECONDS_MAX) * 1_000,
        checks=checks,
        checked_ms=message.store_timestamp if checks else 0,
        is_copy=PROPERTY_CHECK_TIMES in properties or PROPERTY_PREPARED_QUEUE_OFFSET in properties,
    )


def real_message(half: Message) -> Message:
    """The half message as its producer sent it: real topic and queue."""
    properties = dict(half.properties)
    topic, queue_id = properties.pop(PROPERTY_REAL_TOPIC), properties.pop(PROPERTY_REAL_QUEUE_ID)
    return replace(half, topic=topic, queue_id=QueueId(int(queue_id)), properties=properties)


def commit_record(half: Message) -> NewRecord:
    real = real_message(half)
    record = NewRecord.copy_of(half, real.topic, real.queue_id)
    return replace(
        record.with_properties(dict.fromkeys(_OF_THE_HALF_ONLY, None)),
        sys_flag=record.sys_flag | SYS_FLAG_TRANSACTION_COMMIT,
        prepared_transaction_offset=half.physical_offset,
    )


def moved_record(half: Message, checks: int) -> NewRecord:
    """The copy of the half message for the end of its topic."""
    return _checked(half, HALF_TOPIC, checks)


def given_up_record(half: Message, checks: int) -> NewRecord:
    return _checked(half, GIVEN_UP_TOPIC, checks)


def _checked(half: Message, topic: str, checks: int) -> NewRecord:
    record = NewRecord.copy_of(half, topic, TRANSACTION_QUEUE_ID)
    return record.with_properties({PROPERTY_CHECK_TIMES: str(checks), PROPERTY_CRC: None})


def op_records(
    halves: Iterable[HalfMessage], now_ms: EpochMs, withdrawn: Container[int] = frozenset()
) -> Iterator[tuple[NewRecord, list[HalfMessage]]]:
    """Op records that name these halves, each with its halves, in order. Each half in `withdrawn` (queue
    offsets) has a separate record, which names the id that is free again."""
    body = bytearray()
    named: list[HalfMessage] = []
    for half in halves:
        if named and (half.offset in withdrawn or len(body) > OP_BODY_SIZE_MAX - _NUMBER_SIZE_MAX - 1):
            yield _op_record(bytes(body), now_ms), named
            body, named = bytearray(), []
        if half.offset in withdrawn:
            properties = {PROPERTY_WITHDRAWN: half.transaction_id, PROPERTY_WITHDRAWN_TOPIC: half.topic}
            yield _op_record(b"%d," % half.offset, now_ms, properties), [half]
            continue
        body += b"%d," % half.offset
        named.append(half)
    if named:
        yield _op_record(bytes(body), now_ms), named


def _op_record(body: bytes, now_ms: EpochMs, more: Mapping[str, str] = MappingProxyType({})) -> NewRecord:
    properties = {**_OP_PROPERTIES, **more}
    return NewRecord(OP_TOPIC, TRANSACTION_QUEUE_ID, body, properties, born_timestamp=now_ms)


def read_op(message: Message) -> list[int]:
    """The half queue offsets that an op record names; parts that are not numbers are skipped."""
    if message.tags != _OP_TAG:
        return []
    texts = message.body.decode("ascii", "replace").split(",")
    return [number for text in texts if (number := _number(text)) is not None]


def _number(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > _NUMBER_SIZE_MAX:
        return None
    return int(text)
