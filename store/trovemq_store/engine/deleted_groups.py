"""The groups whose deletion the newest records of tables have: a crash may have kept it from its end."""

from __future__ import annotations

from typing import Final

from trovemq_proto.positions import QUEUE_ORIGIN, PhysicalOffset, QueueOffset
from trovemq_store.engine.appending import StoreAppending
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.topics.table_records import (
    META_QUEUE_ID,
    META_TOPIC,
    decode_table_record,
    deleted_group,
)

RECORDS_MAX: Final = 10_000
"""Records that are read: a tenth of a second. A deletion that waits for its end is among the last ones."""


def last_deleted_groups(store: StoreAppending, count_max: int = RECORDS_MAX) -> dict[str, PhysicalOffset]:
    """Where the newest record of each group's deletion lies, of those among the last records of tables.
    TroveError STORE_NEWER."""
    queue = store.consume_queues.get(META_TOPIC, META_QUEUE_ID)
    if queue is None or not queue.has_units:
        return {}
    begin = QueueOffset(max(queue.max_offset - count_max, QUEUE_ORIGIN))
    found: dict[str, PhysicalOffset] = {}
    for _, message in messages_from(store, META_TOPIC, META_QUEUE_ID, begin):
        try:
            group = deleted_group(decode_table_record(message.body))
        except ValueError:
            continue  # of no form that a broker writes
        if group:
            found[group] = PhysicalOffset(message.physical_offset)
    return found
