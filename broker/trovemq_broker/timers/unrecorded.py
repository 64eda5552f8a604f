"""Finds, after a crash, delayed messages that were delivered, and whose events the crash took.

A copy lies in the log before its event. The events of all copies before `recorded_end` are in the log, so
only later records of the real topics are read: each queue from its end back to a record that is older than
the earliest delivery time in question. A copy has the contents of its record. Of several waiting records with
the same contents as many have ended as there are copies.

Invariant: a copy ends one row, and a row whose event is in the log comes before others, so none is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np

from trovemq_broker.timers.calendar import WAITS, Mask, Rows
from trovemq_broker.timers.ended import EndedOffsets
from trovemq_broker.timers.waiting_table import WaitingTable, key_hash
from trovemq_broker.timers.wheel_records import DEQUEUE_MS, ENQUEUE_MS, NOT_COPIED_FLAGS
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records import PROPERTY_UNIQ_KEY, parse_properties
from trovemq_proto.records.check import crc_matches
from trovemq_proto.records.fields import RecordFields, read_fields, store_timestamp
from trovemq_proto.records.layout import HEADERS, PROPERTY_CRC, PROPERTY_REAL_QUEUE_ID, host_bits
from trovemq_proto.records.property_block import terminated, value_of, without
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE, UNITS_STEP, readable_units
from trovemq_store.index.consume_queue import ConsumeQueue

_FLAG, _BORN_MS, _BORN_HOST, _RECONSUME_TIMES = 4, 8, 9, 12
"""Members of an unpacked header."""
_OF_A_COPY: Final = (PROPERTY_CRC, ENQUEUE_MS, DEQUEUE_MS)
"""Properties in which a copy may differ from its record."""


class _Contents(NamedTuple):
    """The same for a record that waited and for its copy, and different for other contents."""

    key_hash: int
    digest: bytes


def unrecorded_rows(
    store: MessageStore, table: WaitingTable, recorded_end: PhysicalOffset, late_ended: EndedOffsets
) -> Rows:
    """Copies of the waiting rows whose messages were delivered. late_ended: rows that have ended by an event
    after recorded_end, which also count as waiting here; they have the first claim to a copy."""
    rows = _rows_until(table, store.last_store_timestamp)
    late = _covered(rows, late_ended)
    rows = rows[np.lexsort((rows["offset"], rows["source"], ~late, rows["topic"]))]
    numbers, begins = np.unique(rows["topic"], return_index=True)
    delivered = [
        _delivered(store, table, table.topics[number], of_topic, recorded_end)
        for number, of_topic in zip(numbers.tolist(), np.split(rows, begins[1:]), strict=False)
    ]
    rows = np.concatenate([rows[:0], *delivered])
    return rows[np.lexsort((rows["offset"], rows["source"]))]


def _delivered(
    store: MessageStore, table: WaitingTable, topic: str, rows: Rows, recorded_end: PhysicalOffset
) -> Rows:
    """The topic's rows whose copies are there; earlier rows come first."""
    since_ms = EpochMs(int(rows["deliver_ms"].min()))
    copies = Counter(_copies(store, topic, recorded_end, since_ms))
    hashes = [contents.key_hash for contents in copies]
    delivered: list[int] = []
    left = copies.total()
    for index in np.flatnonzero(np.isin(rows["key_hash"], hashes)).tolist() if left else ():
        contents = _contents_of_row(store, table, rows[index])
        if contents is not None and copies[contents]:
            copies[contents] -= 1
            left -= 1
            delivered.append(index)
        if not left:
            break  # a backlog of due messages without keys is not read
    return rows[delivered]


def _rows_until(table: WaitingTable, end_ms: EpochMs) -> Rows:
    """The waiting rows that are due by then."""
    blocks = list(table.calendar.blocks())
    rows = [block[(block["state"] == WAITS) & (block["deliver_ms"] <= end_ms)] for block in blocks]
    return np.concatenate(rows) if rows else table.calendar.rows()


def _covered(rows: Rows, ended: EndedOffsets) -> Mask:
    covered = np.zeros(len(rows), np.bool_)
    for source in np.unique(rows["source"]).tolist():
        covered |= (rows["source"] == source) & ended.covers(source, rows["offset"])
    return covered


def _copies(
    store: MessageStore, topic: str, recorded_end: PhysicalOffset, since_ms: EpochMs
) -> Iterator[_Contents]:
    for queue in store.consume_queues.queues(topic):
        for record in _late_records(store, queue, recorded_end, since_ms):
            contents = _contents(record)
            if contents is not None:
                yield contents


def _late_records(
    store: MessageStore, queue: ConsumeQueue, recorded_end: PhysicalOffset, since_ms: EpochMs
) -> Iterator[memoryview]:
    """The queue's records at or after recorded_end, from its end back, up to one that is older than
    since_ms."""
    end = queue.max_offset
    begin = max(queue.min_offset, min(queue.lower_bound(recorded_end), end))
    while begin < end:
        first = QueueOffset(max(begin, end - UNITS_STEP))
        units = readable_units(queue, first, end - first)
        for physical_offset, size in zip(
            units["physical_offset"][::-1].tolist(), units["size"][::-1].tolist(), strict=True
        ):
            record = store.read_or_empty(physical_offset, size if size != BLANK_UNIT_SIZE else 0)
            if read_fields(record, 0, len(record)) is None:
                continue  # a blank, or damaged
            if store_timestamp(record, 0) < since_ms:
                return
            yield record
        end = first


def _contents_of_row(store: MessageStore, table: WaitingTable, row: np.void) -> _Contents | None:
    unit = table.sources.unit(int(row["source"]), int(row["offset"]))
    return None if unit is None else _contents(store.read_or_empty(unit[0], unit[1]))


def _contents(record: memoryview) -> _Contents | None:
    """None if the record is damaged, or neither a delayed message nor a copy of one."""
    data = bytes(record)
    fields = read_fields(data, 0, len(data))
    if fields is None:
        return None
    block = data[fields.property_position :]
    if value_of(block, PROPERTY_REAL_QUEUE_ID) is None or not crc_matches(data, fields):
        return None
    unique_key = parse_properties(block).get(PROPERTY_UNIQ_KEY, "")
    return _Contents(key_hash(unique_key), _digest(data, fields, block))


def _digest(data: bytes, fields: RecordFields, block: bytes) -> bytes:
    header = HEADERS[host_bits(fields.sys_flag)].unpack_from(data)
    parts = (
        data[fields.body_position : fields.body_position + fields.body_size],
        terminated(without(block, _OF_A_COPY)),
        header[_BORN_HOST],
        repr((header[_FLAG], fields.sys_flag & ~NOT_COPIED_FLAGS, header[_BORN_MS])).encode(),
        repr(header[_RECONSUME_TIMES]).encode(),
    )
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(4) + part)
    return digest.digest()
