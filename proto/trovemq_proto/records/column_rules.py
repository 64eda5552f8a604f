"""The rules of queue_rules.py for many records at once, of one queue or more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.columns import RecordColumns
from trovemq_proto.records.compression import STREAM_HEAD_SIZE, begins_stream
from trovemq_proto.records.geometry import sliding_rows
from trovemq_proto.records.internal_columns import forbidden_names
from trovemq_proto.records.layout import (
    BORN_HOST_AT,
    HEADERS,
    HOST_SIZE_IPV4,
    HOST_SIZE_IPV6,
    MAGIC_AT,
    QUEUE_ID_AT,
    SYS_FLAG_AT,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_STORE_HOST_IPV6,
    VALUE_END,
)
from trovemq_proto.records.limits import BORN_TIMESTAMP_MAX, PORT_MAX, SYS_FLAGS_ALLOWED
from trovemq_proto.records.queue_rules import QueueRules
from trovemq_proto.records.record_crcs import have_record_crcs, look_like_record_crcs

Bools = NDArray[np.bool_]

HEADS_KNOWN: Final = 1_024  # of queue ids, about 300 KB
_ALL: Final = 0xFFFFFFFF
_FIXED_FLAGS: Final = ~(SYS_FLAGS_ALLOWED & ~SYS_FLAG_STORE_HOST_IPV6) & _ALL
assert PORT_MAX == 0xFFFF, "the upper half of a port's i32 is zero"


def first_unfit(batch: RecordColumns, rules: Sequence[QueueRules], counts: Sequence[int]) -> int | None:
    """The number of a record for which QueueRules.read() raises; None if there is none: the first one with an
    unfit header, or else the first unfit one. rules, counts: of each part of the batch, one after the other;
    they differ in topic and queue only.
    """
    unfit = _unfit_headers(batch, rules, counts)
    if not unfit.any():  # the following reads need topics of the expected sizes
        unfit = _unfit_topics(batch, rules, counts)
        unfit |= _unfit_contents(batch, append_property_crc=rules[0].append_property_crc)
    if not unfit.any():
        return None
    return int(np.argmax(unfit))


def _unfit_headers(batch: RecordColumns, rules: Sequence[QueueRules], counts: Sequence[int]) -> Bools:
    topic_sizes = _of_parts([len(each.topic_bytes) for each in rules], counts)
    unfit: Bools = batch.topic_sizes != topic_sizes
    unfit |= batch.body_sizes > rules[0].body_size_max
    born = batch.born_timestamps
    unfit |= (born < 0) | (born > BORN_TIMESTAMP_MAX)
    host_bits = batch.sys_flags >> 4 & 3
    first = int(host_bits[0])
    if (host_bits == first).all():
        return unfit | _unfit_heads(batch, batch.positions, first, _heads_of_parts(rules, counts, first))
    for bits in np.unique(host_bits).tolist():
        chosen = np.flatnonzero(host_bits == bits)
        heads = _heads_of_parts(rules, counts, bits)
        expected = heads if len(heads) == 1 else heads[chosen]
        unfit[chosen] |= _unfit_heads(batch, batch.positions[chosen], bits, expected)
    return unfit


def _unfit_heads(
    batch: RecordColumns, positions: NDArray[np.int64], host_bits: int, expected: NDArray[np.uint32]
) -> Bools:
    """expected: the fixed bits of each header, or of all of them."""
    size = HEADERS[host_bits].size
    whole = len(positions) == len(batch)
    rows = batch.bytes_at(positions, size) if whole else sliding_rows(batch.data, positions, size)
    heads = np.ascontiguousarray(rows).view(np.uint32) & _fixed_bits(host_bits)
    differ: Bools = (heads != expected).any(axis=1)
    return differ


def _of_parts(values: Sequence[int], counts: Sequence[int]) -> NDArray[np.int64]:
    """The value of each record's part; one value for all of one part."""
    return np.array(values) if len(values) == 1 else np.repeat(values, counts)


def _heads_of_parts(rules: Sequence[QueueRules], counts: Sequence[int], host_bits: int) -> NDArray[np.uint32]:
    """uint32[n or 1, words]: the fixed bits of the headers of a part's records, and zeros."""
    heads = [_fixed_head(each.magic, each.queue_id, each.store_host_flag, host_bits) for each in rules]
    return heads[0] if len(heads) == 1 else np.repeat(np.concatenate(heads), counts, axis=0)


@lru_cache(maxsize=HEADS_KNOWN)
def _fixed_head(magic: int, queue_id: int, store_host_flag: int, host_bits: int) -> NDArray[np.uint32]:
    """uint32[1, words]"""
    head = bytearray(HEADERS[host_bits].size)
    head[MAGIC_AT : MAGIC_AT + 4] = magic.to_bytes(4, signed=True)
    head[QUEUE_ID_AT : QUEUE_ID_AT + 4] = queue_id.to_bytes(4, signed=True)
    head[SYS_FLAG_AT : SYS_FLAG_AT + 4] = store_host_flag.to_bytes(4)
    return np.frombuffer(head, np.uint32)[None, :]


@lru_cache(maxsize=4)
def _fixed_bits(host_bits: int) -> NDArray[np.uint32]:
    """uint32[words]: the bits of a header that all records of a queue have alike."""
    fixed = np.zeros(HEADERS[host_bits].size, np.uint8)
    fixed[MAGIC_AT : MAGIC_AT + 4] = 0xFF
    fixed[QUEUE_ID_AT : QUEUE_ID_AT + 4] = 0xFF
    fixed[SYS_FLAG_AT : SYS_FLAG_AT + 4] = np.frombuffer(_FIXED_FLAGS.to_bytes(4), np.uint8)
    port_at = BORN_HOST_AT + (HOST_SIZE_IPV6 if host_bits & 1 else HOST_SIZE_IPV4) - 4
    fixed[port_at : port_at + 2] = 0xFF
    fixed[-16:-4] = 0xFF  # RECONSUMETIMES, PREPAREDTRANSACTIONOFFSET
    return fixed.view(np.uint32)


def _unfit_topics(batch: RecordColumns, rules: Sequence[QueueRules], counts: Sequence[int]) -> Bools:
    starts = batch.topic_positions
    if len(rules) == 1:
        name = rules[0].topic_bytes
        topics = batch.bytes_at(starts, len(name))
        unfit: Bools = (topics != np.frombuffer(name, np.uint8)).any(axis=1)
        return unfit
    found = iter(batch.slices(starts, starts + batch.topic_sizes))
    names = ((each.topic_bytes, count) for each, count in zip(rules, counts, strict=True))
    return np.array([own != name for name, count in names for own in islice(found, count)], np.bool_)


def _unfit_contents(batch: RecordColumns, *, append_property_crc: bool) -> Bools:
    ends = batch.property_positions + batch.property_sizes
    unfit: Bools = batch.bytes_at(ends - 1, 1)[:, 0] != VALUE_END
    unfit &= batch.property_sizes > 0
    unfit |= ~have_record_crcs(batch) if append_property_crc else look_like_record_crcs(batch)
    unfit |= forbidden_names(batch)
    for index in np.flatnonzero(batch.sys_flags & SYS_FLAG_COMPRESSED).tolist():
        row = batch.row(index)
        body = batch.data[row.body_position : row.body_position + row.body_size]
        unfit[index] |= not begins_stream(bytes(body[:STREAM_HEAD_SIZE]), row.sys_flag)
    unfit |= batch.crcs() != batch.body_crcs
    return unfit
