"""The fields that the broker fills in when it appends records: offsets, store time, hosts, CRC."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.fields import ROWS_MAX, RecordFields
from trovemq_proto.records.geometry import sliding
from trovemq_proto.records.layout import (
    BORN_HOST_AT,
    CRC_PROPERTY_SIZE,
    HOST_SIZE_IPV4,
    HOST_SIZE_IPV6,
    PHYSICAL_OFFSET_AT,
    PREPARED_OFFSET_AT,
    QUEUE_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_BORN_HOST_IPV6,
    SYS_FLAG_STORE_HOST_IPV6,
    born_shift,
    header_shift,
)
from trovemq_proto.records.record_crc import has_record_crc, record_crc_property
from trovemq_proto.records.record_crcs import fill_record_crcs

_OFFSETS: Final = Struct(">qq")  # QUEUEOFFSET and, after it, PHYSICALOFFSET
_LONG: Final = Struct(">q")
assert PHYSICAL_OFFSET_AT == QUEUE_OFFSET_AT + 8, "they are written together"


def patch_batch(
    buffer: bytearray | memoryview,
    batch: RecordBatch,
    *,
    first_queue_offset: QueueOffset,
    physical_offset: PhysicalOffset,
    store_timestamp: EpochMs,
    store_host: bytes,
    born_host: bytes | None,
    append_property_crc: bool,
    seal: int | None = None,
    queue_offsets: Sequence[int] | None = None,
) -> RecordBatch:
    """Fills in a validated batch in place; `buffer` holds the batch's bytes at the batch's positions.

    Record i gets the queue offset first_queue_offset + i (queue_offsets[i], if that is given: records of
    several queues) and the physical offset physical_offset + positions[i]; the store host's form must be the
    records' own; born_host is written into those records that have its form, others keep the client's;
    append_property_crc: the records that end with a reserved CRC property get their CRC (validate_batch
    refuses a client's records without one). seal: the PREPAREDTRANSACTIONOFFSET of the records of an atomic
    transaction (run_mark.py); in all others a negative value, which only a seal has, becomes 0.
    Returns the batch over the patched buffer.
    """
    assert len(buffer) == len(batch.data), f"buffer of {len(buffer)} bytes for a batch over {len(batch.data)}"
    assert first_queue_offset >= 0, "queue offsets count from 0"
    view = memoryview(buffer)
    _patch_seals(view, batch, seal)
    if len(batch) <= ROWS_MAX:
        for index, row in enumerate(batch.rows):
            at = physical_offset + row.position
            offset = first_queue_offset + index if queue_offsets is None else queue_offsets[index]
            _patch_record(view, row, offset, at, store_timestamp, store_host, born_host)
            if append_property_crc and has_record_crc(view, row):
                end = row.position + row.size
                view[end - CRC_PROPERTY_SIZE : end] = record_crc_property(view, row.position, end)
    else:
        if queue_offsets is None:
            offsets = np.arange(first_queue_offset, first_queue_offset + len(batch))
        else:
            offsets = np.array(queue_offsets, np.int64)
        _patch_all(view, batch, offsets, physical_offset, store_timestamp, store_host, born_host)
        if append_property_crc:
            fill_record_crcs(view, batch)
    return batch.over(view)


def _patch_seals(view: memoryview, batch: RecordBatch, seal: int | None) -> None:
    if len(batch) <= ROWS_MAX:
        for row in batch.rows:
            at = row.position + PREPARED_OFFSET_AT + header_shift(row.sys_flag)
            if seal is not None or view[at] & 0x80:
                view[at : at + 8] = (seal or 0).to_bytes(8, signed=True)
        return
    sealed = batch.prepared_transaction_offsets < 0
    if seal is not None:
        sealed[:] = True
    if sealed.any():
        places = batch.positions + PREPARED_OFFSET_AT + batch.header_shifts
        sliding(view, ">i8")[places[sealed]] = seal or 0


def _patch_all(
    view: memoryview,
    batch: RecordBatch,
    queue_offsets: NDArray[np.int64],
    physical_offset: PhysicalOffset,
    store_timestamp: EpochMs,
    store_host: bytes,
    born_host: bytes | None,
) -> None:
    positions, sys_flags = batch.positions, batch.sys_flags
    longs = sliding(view, ">i8")
    longs[positions + QUEUE_OFFSET_AT] = queue_offsets
    longs[positions + PHYSICAL_OFFSET_AT] = physical_offset + positions
    if born_host is not None:
        has_form = (sys_flags & SYS_FLAG_BORN_HOST_IPV6 != 0) == (len(born_host) == HOST_SIZE_IPV6)
        _write_host(view, positions[has_form] + BORN_HOST_AT, born_host)
    has_form = (sys_flags & SYS_FLAG_STORE_HOST_IPV6 != 0) == (len(store_host) == HOST_SIZE_IPV6)
    assert len(store_host) in (HOST_SIZE_IPV4, HOST_SIZE_IPV6), f"store host of {len(store_host)} bytes"
    assert has_form.all(), "store host of another form"
    store_timestamps_at = positions + STORE_TIMESTAMP_AT + batch.geometry.born_shifts
    longs[store_timestamps_at] = store_timestamp
    _write_host(view, store_timestamps_at + 8, store_host)


def _write_host(view: memoryview, at: NDArray[np.int64], host: bytes) -> None:
    """Writes the same host at each of these positions, as one or two i64 and, for IPv6, an i32."""
    longs = sliding(view, ">i8")
    longs[at] = int.from_bytes(host[:8], signed=True)
    if len(host) == HOST_SIZE_IPV6:
        longs[at + 8] = int.from_bytes(host[8:16], signed=True)
        sliding(view, ">i4")[at + 16] = int.from_bytes(host[16:], signed=True)


def _patch_record(
    view: memoryview,
    row: RecordFields,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: EpochMs,
    store_host: bytes,
    born_host: bytes | None,
) -> None:
    position = row.position
    assert position + row.size <= len(view), "the record lies within the buffer"
    _OFFSETS.pack_into(view, position + QUEUE_OFFSET_AT, queue_offset, physical_offset)
    if born_host is not None and len(born_host) == host_size(row.sys_flag, SYS_FLAG_BORN_HOST_IPV6):
        view[position + BORN_HOST_AT : position + BORN_HOST_AT + len(born_host)] = born_host
    assert len(store_host) == host_size(row.sys_flag, SYS_FLAG_STORE_HOST_IPV6), "store host of another form"
    at = position + STORE_TIMESTAMP_AT + born_shift(row.sys_flag)
    _LONG.pack_into(view, at, store_timestamp)
    view[at + 8 : at + 8 + len(store_host)] = store_host


def host_size(sys_flag: int, flag: int) -> int:
    return HOST_SIZE_IPV6 if sys_flag & flag else HOST_SIZE_IPV4
