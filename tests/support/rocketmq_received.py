"""A message as RocketMQ's protocol delivers it, in the form of the SDK: the oracle of the native protocol."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from trovemq.received import ReceivedMessage
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2


def received_message(message: v2.Message, broker: str) -> ReceivedMessage:
    """The message, whose body is not compressed."""
    system = message.system_properties
    assert system.body_encoding != v2.GZIP
    dead = system.dead_letter_queue if system.HasField("dead_letter_queue") else None
    delivery = system.delivery_timestamp if system.HasField("delivery_timestamp") else None
    return ReceivedMessage(
        topic=message.topic.name,
        body=message.body,
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


def milliseconds(time: Timestamp) -> int:
    """Whole milliseconds since 1970."""
    return time.seconds * 1000 + time.nanos // 1_000_000
