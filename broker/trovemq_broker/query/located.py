"""The fields and the queue offset of a record that was found by its physical offset."""

from __future__ import annotations

from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.fields import RecordFields, read_fields
from trovemq_proto.records.layout import QUEUE_ID_AT, QUEUE_OFFSET_AT
from trovemq_store.index.consume_queues import ConsumeQueues


def fields_of(record: memoryview) -> RecordFields:
    """The fields of a record that the store has returned."""
    fields = read_fields(record, 0, len(record))
    assert fields is not None, "the store returns well-formed records only"
    assert fields.size == len(record), "the store returns one record, and nothing after it"
    return fields


def queue_offset_of(
    consume_queues: ConsumeQueues, record: memoryview, fields: RecordFields, physical_offset: PhysicalOffset
) -> int:
    """The index of the record's unit in its consume queue, which decides; the record's QUEUEOFFSET if it has
    no unit."""
    topic = str(record[fields.topic_position : fields.topic_position + fields.topic_size], "utf-8", "replace")
    stored = int.from_bytes(record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], signed=True)
    queue = consume_queues.get(
        topic, QueueId(int.from_bytes(record[QUEUE_ID_AT : QUEUE_ID_AT + 4], signed=True))
    )
    found = queue.find(physical_offset, QueueOffset(stored)) if queue is not None else None
    return stored if found is None else found
