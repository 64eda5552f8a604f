"""Converts messages of the v2 protocol to the SDK's own values, and back."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from hashlib import md5
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from trovemq._produce.outgoing import check_message_group, check_priority
from trovemq._produce.unique_keys import next_unique_key
from trovemq.fetched import Buffer
from trovemq.received import ReceivedMessage
from trovemq.send_arguments import Keys
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.properties import message_properties
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

INFLATED_SIZE_MAX: Final = 64 << 20
_ANY_HEADER: Final = 47  # zlib's wbits: a gzip or a zlib header


def received_message(message: v2.Message, broker: str) -> ReceivedMessage:
    """A message from a broker in the form for the program.

    Raises:
        TroveError: RECORD_DAMAGED if the body does not match its digest, or does not inflate.
    """
    system = message.system_properties
    body = message.body
    digest = system.body_digest
    if digest.type == v2.MD5 and md5(body, usedforsecurity=False).hexdigest().upper() != digest.checksum:
        raise TroveError(errors.RECORD_DAMAGED, "the body does not have its digest", id=system.message_id)
    if system.body_encoding == v2.GZIP:
        body = _inflate(body)
    dead = system.dead_letter_queue if system.HasField("dead_letter_queue") else None
    delivery = system.delivery_timestamp if system.HasField("delivery_timestamp") else None
    return ReceivedMessage(
        topic=message.topic.name,
        body=body,
        message_id=system.message_id,
        keys=tuple(system.keys),
        tags=system.tag if system.HasField("tag") else None,
        properties=dict(message.user_properties),
        message_group=system.message_group if system.HasField("message_group") else None,
        priority=system.priority if system.HasField("priority") else None,
        queue_id=system.queue_id,
        queue_offset=system.queue_offset,
        attempt=max(system.delivery_attempt, 1),
        born_timestamp=milliseconds(system.born_timestamp),
        store_timestamp=milliseconds(system.store_timestamp),
        deliver_timestamp=milliseconds(delivery) if delivery is not None else None,
        dead_letter_of=(dead.topic, dead.message_id) if dead is not None else None,
        broker=broker,
        receipt_handle=system.receipt_handle,
    )


def outgoing_message(
    topic: str,
    body: Buffer,
    *,
    keys: Keys = None,
    tag: str | None = None,
    properties: Mapping[str, str] | None = None,
    unique_key: str | None = None,
    message_group: str | None = None,
    priority: int | None = None,
) -> v2.Message:
    """A new message of type NORMAL, FIFO or PRIORITY. Raises TroveError for illegal parts."""
    unique_key = next_unique_key() if unique_key is None else unique_key
    message_properties(unique_key, keys, tag, properties)  # the same checks as in the native protocol
    message = v2.Message(body=bytes(body), user_properties=properties or {})
    message.topic.name = topic
    system = message.system_properties
    system.message_id = unique_key
    system.message_type = v2.NORMAL
    system.body_encoding = v2.IDENTITY
    system.born_timestamp.CopyFrom(timestamp(time.time_ns() // 1_000_000))
    if keys:
        system.keys.extend([keys] if isinstance(keys, str) else keys)
    if tag is not None:
        system.tag = tag
    if message_group is not None:
        system.message_group = check_message_group(message_group)
        system.message_type = v2.FIFO
    if priority is not None:
        system.priority = int(check_priority(priority, message_group))
        system.message_type = v2.PRIORITY
    return message


def mark_delayed(message: v2.Message, deliver_ms: int) -> None:
    """Makes the message invisible until that time."""
    message.system_properties.delivery_timestamp.CopyFrom(timestamp(deliver_ms))
    message.system_properties.message_type = v2.DELAY


def mark_half(message: v2.Message, check_after_ms: int | None) -> None:
    """Makes the message invisible until its transaction is committed."""
    system = message.system_properties
    system.message_type = v2.TRANSACTION
    if check_after_ms is not None:
        system.orphaned_transaction_recovery_duration.CopyFrom(duration(check_after_ms))


def milliseconds(time: Timestamp | Duration) -> int:
    """Whole milliseconds of a time or a duration."""
    return time.seconds * 1000 + time.nanos // 1_000_000


def timestamp(epoch_ms: int) -> Timestamp:
    seconds, rest = divmod(epoch_ms, 1000)
    return Timestamp(seconds=seconds, nanos=rest * 1_000_000)


def duration(milliseconds: int) -> Duration:
    seconds, rest = divmod(milliseconds, 1000)
    return Duration(seconds=seconds, nanos=rest * 1_000_000)


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj(_ANY_HEADER)
    try:
        inflated = inflater.decompress(body, INFLATED_SIZE_MAX + 1)
    except zlib.error as error:
        raise TroveError(errors.RECORD_DAMAGED, f"the compressed body does not inflate: {error}") from error
    if len(inflated) > INFLATED_SIZE_MAX or not inflater.eof:
        raise TroveError(errors.RECORD_DAMAGED, f"the body is cut, or larger than {INFLATED_SIZE_MAX} bytes")
    return inflated
