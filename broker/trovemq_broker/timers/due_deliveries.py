"""One step of deliveries: copies due messages to their real topics.

Invariants
- Copies of one real queue are appended in the order of the rows.
- Each append is one write of the log: either all its rows have ended, or none has.
- A row ends without a copy only if its record was removed or is damaged, or its topic was deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from trovemq_broker.timers.calendar import Rows
from trovemq_broker.timers.copies import Target, delivered_copy
from trovemq_broker.timers.sources import WHEEL_SOURCE, Sources
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records import RecordBatch
from trovemq_store.engine.copy_failures import OF_THE_RECORD
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import RecordWriter
from trovemq_store.files.fault_points import fault_point

STEP_BYTES_MAX: Final = 4 << 20
"""The most bytes of records that one step reads, beyond the last record."""


@dataclass(slots=True)
class DeliveryOutcome:
    """The outcome of one step. `error`: why it stopped."""

    ended: list[int] = field(default_factory=list)
    """The indexes of the rows that have ended."""
    delivered_count: int = 0
    lost_count: int = 0
    dropped_count: int = 0
    error: TroveError | None = None


@dataclass(slots=True)
class _Part:
    """Copies that are appended in one write."""

    topic: str
    queue_id: QueueId
    indexes: list[int] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    records: list[memoryview] = field(default_factory=list)


def deliver(
    store: MessageStore,
    writer: RecordWriter,
    sources: Sources,
    topics: list[str],
    rows: Rows,
    now_ms: EpochMs,
) -> DeliveryOutcome:
    """Delivers rows from the first on, as many as STEP_BYTES_MAX allows; `topics`: real topics by the numbers
    in the rows. An error of an append is returned in the outcome, not raised."""
    outcome = DeliveryOutcome()
    for part in _parts(store, writer, sources, topics, rows, now_ms, outcome):
        outcome.error = _append(writer, part, now_ms, outcome)
        if outcome.error is not None:
            break
    return outcome


def _append(
    writer: RecordWriter, part: _Part, now_ms: EpochMs, outcome: DeliveryOutcome
) -> TroveError | None:
    """Appends the copies. Returns a refusal that may be temporary. A copy that is refused because of its
    content is left out; the others of its part are then appended one by one."""
    batch = RecordBatch.split(part.data, topic=part.topic)
    try:
        fault_point("timers.before_append")
        writer.append_batch(part.topic, part.queue_id, batch, now_ms)
        fault_point("timers.after_append")
    except TroveError as error:
        if error.spec not in OF_THE_RECORD:
            return error
        if len(batch) == 1:
            writer.copy_failures.note("delayed message", part.records[0], str(error))
            outcome.ended += part.indexes
            outcome.lost_count += 1
            return None
    else:
        outcome.ended += part.indexes
        outcome.delivered_count += len(part.indexes)
        return None
    for place, (index, record) in enumerate(zip(part.indexes, part.records, strict=True)):
        one = _Part(part.topic, part.queue_id, [index], bytearray(batch.record(place)), [record])
        if (refused := _append(writer, one, now_ms, outcome)) is not None:
            return refused
    return None


def _parts(
    store: MessageStore,
    writer: RecordWriter,
    sources: Sources,
    topics: list[str],
    rows: Rows,
    now_ms: EpochMs,
    outcome: DeliveryOutcome,
) -> list[_Part]:
    part_size_max = min(store.settings.batch_size_max, store.settings.commit_log_file_size // 2)
    targets = {number: _target(store, writer, topics[number]) for number in set(rows["topic"].tolist())}
    open_parts: dict[tuple[str, QueueId], _Part] = {}
    parts: list[_Part] = []
    bytes_remaining = STEP_BYTES_MAX
    for index, (number, source, physical_offset, size) in enumerate(_places(sources, rows)):
        if bytes_remaining < 0:
            break
        target = targets[number]
        if target is None:
            outcome.ended.append(index)
            outcome.dropped_count += 1
            continue
        record = store.read_or_empty(physical_offset, size)
        bytes_remaining -= size
        copy = writer.copy_failures.copied(
            "delayed message",
            record,
            partial(
                delivered_copy, record, physical_offset, target, now_ms, annotated=source == WHEEL_SOURCE
            ),
        )
        if copy is None:
            outcome.ended.append(index)
            outcome.lost_count += 1
            continue
        queue_id, data = copy
        key = target.topic, queue_id
        part = open_parts.get(key)
        if part is None or len(part.data) + len(data) > part_size_max:
            part = open_parts[key] = _Part(target.topic, queue_id)
            parts.append(part)
        part.indexes.append(index)
        part.data += data
        part.records.append(record)
    return parts


def _target(store: MessageStore, writer: RecordWriter, topic: str) -> Target | None:
    """The target for messages of the topic; None if the topic was deleted."""
    config = store.topics.get(topic)
    if config is None:
        return None
    queue_count = max(1, config.write_queue_count, config.queue_count)
    return Target.of(topic, queue_count, writer.store_host, store.settings.append_property_crc)


def _places(sources: Sources, rows: Rows) -> Iterator[tuple[int, int, PhysicalOffset, int]]:
    """(number of the topic, source, physical offset, size) of each row."""
    physical = np.zeros(len(rows), np.int64)
    sizes = np.zeros(len(rows), np.int64)
    for source in set(rows["source"].tolist()):
        chosen = rows["source"] == source
        physical[chosen], sizes[chosen] = sources.places(source, rows["offset"][chosen])
    places = map(PhysicalOffset, physical.tolist())
    return zip(rows["topic"].tolist(), rows["source"].tolist(), places, sizes.tolist(), strict=True)
