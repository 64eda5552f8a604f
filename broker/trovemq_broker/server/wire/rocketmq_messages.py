"""Converts stored records to messages of RocketMQ's v2 protocol.

Reading is the hot path of every consumer: the property block is parsed once, and the fields of the generated
message are set one by one (constructors with keywords take three times as long).

The digest is that of the body's bytes as they are sent. The body is inflated, because clients support
different compressions. User properties have none of the store's internal ones.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import md5
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from trovemq_broker.groups.delivery.request import Delivered
from trovemq_broker.server.wire.native_messages import born_host_of
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    encode_offset_msg_id,
    format_host,
    parse_properties,
)
from trovemq_proto.records.compression import inflate_body
from trovemq_proto.records.internal_properties import is_reserved
from trovemq_proto.records.layout import (
    BODY_SIZE_MAX_DEFAULT,
    HEADERS,
    MAGIC_AT,
    MAGIC_V1_BYTES,
    PROPERTY_CRC,
    PROPERTY_DEAD_ID,
    PROPERTY_DEAD_TOPIC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRANSACTION,
    SYS_FLAG_AT,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_MASK,
    host_bits,
)
from trovemq_proto.records.priorities import PROPERTY_PRIORITY, stored_priority
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

PROPERTY_BORN_HOST: Final = "__BORNHOST"
PROPERTY_BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
PROPERTY_TRACE_CONTEXT: Final = "TRACE_CONTEXT"
PROPERTY_TRACEPARENT: Final = "traceparent"  # W3C's, in a user's property; of the same form
PROPERTY_ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"

SYSTEM_TEXT_SIZE_MAX: Final = 1_024  # characters of a born host or a trace context
BORN_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999, the last year of a Timestamp
INFLATION_MAX: Final = 8  # times the size: during the inflation twice as much is in memory
INFLATED_SIZE_MIN: Final = 4_194_304  # bytes that a body may always inflate to: RocketMQ's maxMessageSize

_IDENTITY: Final = v2.IDENTITY
_MD5: Final = v2.MD5

Record = bytes | bytearray | memoryview


def timestamp_ms(timestamp: Timestamp) -> EpochMs:
    """Epoch ms."""
    return EpochMs(timestamp.seconds * 1000 + timestamp.nanos // 1_000_000)


def duration_ms(duration: Duration) -> int:
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def duration(ms: int) -> Duration:
    """Of a number of ms that is not negative."""
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


# --- stored records for consumers -----------------------------------------------------------------------
def received(delivered: Delivered, topic: v2.Resource | None = None) -> bytes:
    """One element of a ReceiveMessage stream, serialised. `topic`: the topic's name for the client, if that
    is not the stored one."""
    response = service_pb2.ReceiveMessageResponse()
    message = response.message
    fill_message(message, delivered.record, delivered.topic, delivered.queue_id, delivered.queue_offset)
    system = message.system_properties
    system.receipt_handle = delivered.receipt_handle
    system.delivery_attempt = delivered.attempt
    if topic is not None:
        message.topic.CopyFrom(topic)
    return response.SerializeToString()


def message_of(record: Record, topic: str, queue_id: QueueId, queue_offset: QueueOffset) -> v2.Message:
    """A message outside of a delivery (for a command to a client, or a pull): without a handle, attempt 1."""
    message = v2.Message()
    fill_message(message, record, topic, queue_id, queue_offset)
    message.system_properties.delivery_attempt = 1
    return message


def inflated_size_max(stored_size: int) -> int:
    """The most bytes to which a stored body is inflated: bounded by its compressed size, because a receive
    may have 32 messages. Text stays far below that; a body beyond it is sent as it is stored."""
    return min(max(INFLATED_SIZE_MIN, INFLATION_MAX * stored_size), BODY_SIZE_MAX_DEFAULT)


def fill_message(
    message: v2.Message, record: Record, topic: str, queue_id: QueueId, queue_offset: QueueOffset
) -> None:
    """Sets all fields from the record, which the store has checked. `topic`, `queue_id` and `queue_offset`
    are those that the consumer is to see."""
    data = bytes(record)
    sys_flag = int.from_bytes(data[SYS_FLAG_AT : SYS_FLAG_AT + 4])
    layout = HEADERS[host_bits(sys_flag)]
    header = layout.unpack_from(data)
    _, _, _, _, _, _, physical_offset, _, born_ms, born_host, store_ms, store_host, reconsume_times, _, _ = (
        header
    )
    body_at, body_size = layout.size, header[-1]
    topic_at = body_at + body_size
    if data[MAGIC_AT : MAGIC_AT + 4] == MAGIC_V1_BYTES:
        properties_at = topic_at + 1 + data[topic_at] + 2
    else:
        properties_at = topic_at + 2 + int.from_bytes(data[topic_at : topic_at + 2]) + 2
    assert properties_at <= len(data), "the store returns well-formed records only"
    properties = parse_properties(data[properties_at:])
    system = message.system_properties
    system.body_encoding = _IDENTITY
    body = data[body_at : body_at + body_size]
    if sys_flag & SYS_FLAG_COMPRESSED:
        try:
            body = inflate_body(body, sys_flag, inflated_size_max(body_size))
        except TroveError:
            # RocketMQ labels every compressed body with GZIP: the client may support the method
            system.body_encoding = v2.GZIP
    message.body = body
    digest = system.body_digest
    digest.type = _MD5
    digest.checksum = md5(body, usedforsecurity=False).hexdigest().upper()
    message.topic.name = topic
    system.queue_id = queue_id
    system.queue_offset = queue_offset
    system.born_host = format_host(born_host)
    system.store_host = format_host(store_host)
    _set_time(system.born_timestamp, born_ms)
    _set_time(system.store_timestamp, store_ms)
    take = properties.pop
    system.message_id = take(PROPERTY_UNIQ_KEY, "") or _other_id(properties, store_host, physical_offset)
    if tag := take(PROPERTY_TAGS, ""):
        system.tag = tag
    if keys := take(PROPERTY_KEYS, ""):
        system.keys.extend(keys.split())
    if len(properties) <= 2:  # most messages have no others: RocketMQ's clients state their host
        take(PROPERTY_CRC, "")
        if host := take(PROPERTY_BORN_HOST, ""):
            system.born_host = host
    system.message_type = _kind(properties, sys_flag)
    if properties:
        _fill_others(message, properties, reconsume_times)


def _fill_others(message: v2.Message, properties: dict[str, str], reconsume_times: int) -> None:
    """Sets the user's properties, and fields that only some messages have."""
    own = message.user_properties
    for name, value in properties.items():
        if not is_reserved(name):
            own[name] = value
    get = properties.get
    system = message.system_properties
    if born_host := get(PROPERTY_BORN_HOST):
        system.born_host = born_host
    if (born_ms := _number(get(PROPERTY_BORN_TIMESTAMP))) is not None:
        _set_time(system.born_timestamp, born_ms)
    if group := get(PROPERTY_SHARDING_KEY):
        system.message_group = group
    if (priority := stored_priority(properties)) is not None:
        system.priority = priority
    if context := get(PROPERTY_TRACE_CONTEXT) or get(PROPERTY_TRACEPARENT):
        system.trace_context = context
    deliver = get(PROPERTY_TIMER_DELIVER_MS)
    if deliver is None and not reconsume_times:  # the time of a retry is that of its redelivery
        deliver = get(PROPERTY_TIMER_OUT_MS)
    if (deliver_ms := _number(deliver)) is not None:
        _set_time(system.delivery_timestamp, deliver_ms)
    if dead_topic := get(PROPERTY_DEAD_TOPIC):
        system.dead_letter_queue.topic = dead_topic
        system.dead_letter_queue.message_id = get(PROPERTY_DEAD_ID, "")


def _other_id(properties: dict[str, str], store_host: bytes, physical_offset: PhysicalOffset) -> str:
    """The id of a message that was sent without one."""
    return properties.get(PROPERTY_ORIGIN_ID) or encode_offset_msg_id(store_host, physical_offset)


def _kind(properties: dict[str, str], sys_flag: int) -> v2.MessageType:
    """The type as which the message was sent."""
    if (
        PROPERTY_TRANSACTION in properties
        or sys_flag & SYS_FLAG_TRANSACTION_MASK == SYS_FLAG_TRANSACTION_COMMIT
    ):
        return v2.TRANSACTION
    if PROPERTY_TIMER_DELIVER_MS in properties or PROPERTY_DELAY in properties:
        return v2.DELAY
    if PROPERTY_SHARDING_KEY in properties:
        return v2.FIFO
    return v2.PRIORITY if PROPERTY_PRIORITY in properties else v2.NORMAL


def _number(text: str | None) -> int | None:
    """A stored number of ms; None for any other text."""
    return int(text) if text and len(text) <= 15 and text.isascii() and text.isdigit() else None


def _set_time(timestamp: Timestamp, epoch_ms: int) -> None:
    timestamp.seconds = seconds = epoch_ms // 1000
    timestamp.nanos = (epoch_ms - seconds * 1000) * 1_000_000


@lru_cache(maxsize=4_096)
def stored_born_ms(born_ms: EpochMs, now_ms: EpochMs) -> EpochMs:
    """The born time that a record has, for the one that its sender states."""
    return born_ms if 0 < born_ms <= BORN_MS_MAX else now_ms


def peer_host(peer: str) -> bytes:
    """The born host of a record for gRPC's name of the peer; zeros if it has no address."""
    return born_host_of(peer) or bytes(8)
