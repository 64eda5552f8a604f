"""Records as a broker's log has them, without a broker."""

from __future__ import annotations

from trovemq_proto.records import encode_record


def record_at(queue_offset: int, body: bytes = b"hello", topic: str = "orders") -> bytes:
    """One message of queue 0; where it lies follows from its offset."""
    return encode_record(
        topic,
        body,
        queue_offset=queue_offset,
        physical_offset=1_000 * queue_offset,
        store_timestamp=1_700_000_000_000,
        properties={"UNIQ_KEY": f"M{queue_offset}"},
    )
