"""Reads the batches of clients: a few records one by one, more as columns. Only this module chooses.

Both forms accept the same batches and refuse the same ones with the same errors; of several unfit records
of a batch they may name another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.column_rules import first_unfit
from trovemq_proto.records.columns import Buffer, QueuePart
from trovemq_proto.records.fields import ROWS_MAX, RecordFields, has_few_records, read_fields
from trovemq_proto.records.layout import PROPERTIES_SIZE_MAX
from trovemq_proto.records.queue_rules import QueueRules

UNIFORM_MIN: Final = 8
"""Records of one layout that cost less as a matrix of bytes: bench/appends.py, "16 alike"."""
_SIZE: Final = Struct(">I")
PART_ROWS_MAX: Final = 8
"""Records of each queue that cost less as rows, where a batch is of many queues: bench/appends.py, "64 queues
x 2"."""
RULES_KNOWN: Final = 16_384  # queues of which the rules are kept: 15 MB at most


def validate_batch(
    data: Buffer,
    *,
    topic: str,
    queue_id: int,
    body_size_max: int,
    store_host_ipv6: bool,
    append_property_crc: bool,
) -> RecordBatch:
    """read_batch() by the rules of this queue."""
    rules = _rules(topic, queue_id, body_size_max, store_host_ipv6, append_property_crc)
    return read_batch(data if isinstance(data, memoryview) else memoryview(data), rules)


@lru_cache(maxsize=RULES_KNOWN)
def _rules(
    topic: str, queue_id: int, body_size_max: int, store_host_ipv6: bool, append_property_crc: bool
) -> QueueRules:
    return QueueRules(
        topic,
        queue_id,
        body_size_max=body_size_max,
        store_host_ipv6=store_host_ipv6,
        append_property_crc=append_property_crc,
    )


def read_batch(data: memoryview, rules: QueueRules) -> RecordBatch:
    """The records of `data`, each fit to be patched and appended to the queue of these rules.

    Raises TroveError BATCH_ILLEGAL, MESSAGE_SIZE_EXCEEDED, PROPERTIES_SIZE_EXCEEDED, PROPERTY_ILLEGAL; never
    anything else.
    """
    total = len(data)
    (size,) = _SIZE.unpack_from(data) if total > 4 else (0,)  # of the first record
    batch = None
    try:
        if 0 < size * UNIFORM_MIN <= total and not total % size and rules.append_property_crc:
            batch = _read_uniform(data, rules, size)
        if batch is None and (size == total or has_few_records(data)):
            batch = _read_rows(data, rules)
    except TroveError:
        # A record that is not well formed comes first; more than a few are refused as columns are.
        if not 0 < len(_split(data, rules.topic)) <= ROWS_MAX:
            _read_columns(data, rules)
        raise
    return _read_columns(data, rules) if batch is None else batch


def read_parts(data: memoryview, parts: Sequence[QueuePart], rules: Sequence[QueueRules]) -> RecordBatch:
    """The records of several queues, one part after the other; each is fit for the queue of its part's rules.

    Raises TroveError BATCH_ILLEGAL, MESSAGE_SIZE_EXCEEDED, PROPERTIES_SIZE_EXCEEDED, PROPERTY_ILLEGAL; never
    anything else.
    """
    count = sum([part[2] for part in parts])
    if count <= max(ROWS_MAX, len(parts) * PART_ROWS_MAX):
        return _read_rows_of_parts(data, parts, rules)
    batch = _split_parts(data, parts)
    if first_unfit(batch, rules, [part.size for part in parts]) is not None:
        _read_rows_of_parts(data, parts, rules)
        raise AssertionError("a record is unfit for no reason")
    batch.checked = True
    return batch


def _read_uniform(data: memoryview, rules: QueueRules, size: int) -> RecordBatch | None:
    """The records that fill `data`, the first of which has this size; None if they are not uniform."""
    queue_id, topic_field = rules.queue_id, rules.topic_field
    form = rules.uniform_form
    if form is None or form.first.size != size:
        form = rules.uniform_forms.get(size, len(rules.topic_bytes))
    if form is None or not form.fits(data, queue_id, topic_field):
        special: list[int] = []
        first = rules.read(data, 0, len(data), 0, special)
        form = None if special or first.sys_flag else rules.uniform_forms.learn(data, first)
        if form is None or not form.fits(data, queue_id, topic_field):
            return None
    rules.uniform_form = form
    return RecordBatch.of_uniform(data, form.first, len(data) // size, rules.topic, checked=True)


def _read_rows(data: memoryview, rules: QueueRules) -> RecordBatch:
    """The records that fill `data`."""
    rows: list[RecordFields] = []
    special: list[int] = []
    position, end = 0, len(data)
    while position < end or not rows:
        row = rules.read(data, position, end, len(rows), special)
        rows.append(row)
        position += row[1]
    return RecordBatch.of_rows(data, rows, rules.topic, True, bool(special))


def _read_columns(data: memoryview, rules: QueueRules) -> RecordBatch:
    batch = _split(data, rules.topic)
    if not len(batch):
        raise TroveError(errors.BATCH_ILLEGAL, "the batch is empty")
    assert len(batch) > ROWS_MAX, "fewer records are read as rows"
    index = first_unfit(batch, (rules,), (len(batch),))
    if index is not None:
        position = int(batch.positions[index])
        rules.read(data, position, position + int(batch.sizes[index]), index, [])
        raise AssertionError(f"record {index} is unfit for no reason")
    assert batch.nbytes == len(data), "the records fill the buffer"
    batch.checked = True
    return batch


def _read_rows_of_parts(
    data: memoryview, parts: Sequence[QueuePart], rules: Sequence[QueueRules]
) -> RecordBatch:
    rows: list[RecordFields] = []
    special: list[int] = []
    position, end = 0, len(data)
    try:
        for each, (_, _, count) in zip(rules, parts, strict=True):
            for index in range(len(rows), len(rows) + count):
                row = each.read(data, position, end, index, special)
                rows.append(row)
                position += row[1]
    except TroveError:
        _split_parts(data, parts)
        raise
    if position != end:
        _split_parts(data, parts)
    assert position == end, "the records fill the buffer"
    assert len(parts) == len(rules), "each part has its rules"
    batch = RecordBatch.of_rows(data, rows, None, True, bool(special))
    batch.parts = parts
    return batch


def _split_parts(data: memoryview, parts: Sequence[QueuePart]) -> RecordBatch:
    batch = _split(data, None)
    batch.parts = parts
    if len(batch) != sum([part.size for part in parts]):
        raise TroveError(errors.BATCH_ILLEGAL, f"the parts have another number of records than {len(batch)}")
    return batch


def _split(data: memoryview, topic: str | None) -> RecordBatch:
    """The records of `data`. Raises TroveError BATCH_ILLEGAL, and PROPERTIES_SIZE_EXCEEDED where properties
    are too long for their i16."""
    try:
        return RecordBatch.split(data, topic=topic)
    except TroveError as error:
        position = int(error.fields.get("position", len(data)))
        record = data[position:]
        if read_fields(record, 0, len(record), property_size_max=0xFFFF) is None:
            raise
        raise TroveError(
            errors.PROPERTIES_SIZE_EXCEEDED,
            f"record {error.fields['record']} has more than {PROPERTIES_SIZE_MAX} bytes of properties",
            record=error.fields["record"],
        ) from error
