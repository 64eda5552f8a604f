"""Messages of records, in the form for a program that receives them."""

from __future__ import annotations

from trovemq.received import ReceivedMessage
from trovemq_proto.records import PROPERTY_SHARDING_KEY, Message
from trovemq_proto.records.internal_properties import is_reserved
from trovemq_proto.records.priorities import stored_priority


def pulled_message(message: Message, broker: str) -> ReceivedMessage:
    """The message of a record that was not delivered to a group: without a receipt handle, attempt 1."""
    properties = message.properties
    return ReceivedMessage(
        topic=message.topic,
        body=message.body,
        message_id=message.message_id,
        keys=message.keys,
        tags=message.tags,
        properties={name: value for name, value in properties.items() if not is_reserved(name)},
        message_group=properties.get(PROPERTY_SHARDING_KEY),
        priority=stored_priority(properties),
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        attempt=1,
        born_timestamp=message.born_timestamp,
        store_timestamp=message.store_timestamp,
        broker=broker,
        body_error=message.body_error,
    )
