"""One turn of deliveries: copies of due messages into their real topics.

Invariants
- Copies of one real queue are appended in the order of the rows.
- Each append is one write of the log: either all its rows have ended, or none has.
- A row ends without a copy only where there is nothing to deliver, or nowhere: its record is gone or damaged,
  or its topic was deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from broker.message_store import MessageStore
from broker.record_writer import NewRecord, RecordWriter
from broker.timers.calendar import Rows
from broker.timers.sources import Sources
from trovemq_proto.errors import TroveError

TURN_BYTES_MAX: Final = 16 << 20
"""Of the records that one turn reads, beyond the first."""
_GROWTH_MAX: Final = 512
"""How much longer than the waiting record its copy may be: a topic and two properties."""


@dataclass(slots=True)
class Turn:
    """What became of the rows, by their index. `error`: why it stopped."""

    ended: list[int] = field(default_factory=list)
    delivered_count: int = 0
    lost_count: int = 0
    dropped_count: int = 0
    error: TroveError | None = None


@dataclass(slots=True)
class _Part:
    """Copies that go into the log in one write."""

    indexes: list[int] = field(default_factory=list)
    records: list[NewRecord] = field(default_factory=list)
    size: int = 0


def deliver(store: MessageStore, writer: RecordWriter, sources: Sources, rows: Rows, now_ms: int) -> Turn:
    """Delivers rows from the first on, as many as a turn takes. Raises nothing that an append raises."""
    turn = Turn()
    for part in _parts(store, sources, rows, now_ms, turn):
        try:
            writer.append(part.records, now_ms)
        except TroveError as error:
            turn.error = error
            break
        turn.ended += part.indexes
        turn.delivered_count += len(part.indexes)
    return turn


def _parts(store: MessageStore, sources: Sources, rows: Rows, now_ms: int, turn: Turn) -> list[_Part]:
    part_size_max = min(store.settings.batch_size_max, store.settings.commit_log_file_size // 2)
    open_parts: dict[tuple[str, int], _Part] = {}
    parts: list[_Part] = []
    left = TURN_BYTES_MAX
    for index, place in enumerate(zip(rows["source"].tolist(), rows["offset"].tolist(), strict=True)):
        if left < 0:
            break
        record = sources.record(*place)
        if record is None:
            turn.ended.append(index)
            turn.lost_count += 1
            continue
        config = store.topics.get(record.waiting.topic)
        if config is None:
            turn.ended.append(index)
            turn.dropped_count += 1
            continue
        queue_id = record.waiting.queue_id % max(1, config.write_queue_count, config.queue_count)
        size = record.size + _GROWTH_MAX
        left -= size
        key = record.waiting.topic, queue_id
        part = open_parts.get(key)
        if part is None or part.size + size > part_size_max:
            part = open_parts[key] = _Part()
            parts.append(part)
        part.indexes.append(index)
        part.records.append(record.delivered(queue_id, now_ms))
        part.size += size
    return parts
