"""The fields that the broker fills in when it appends records: offsets, store time, hosts, CRC."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.fields import RecordFields
from trovemq_proto.records.geometry import sliding, strided, strided_rows
from trovemq_proto.records.layout import (
    BORN_HOST_AT,
    CRC_MASK,
    CRC_PROPERTY_SIZE,
    HOST_SIZE_IPV4,
    HOST_SIZE_IPV6,
    PHYSICAL_OFFSET_AT,
    PREPARED_OFFSET_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_AT,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_BORN_HOST_IPV6,
    SYS_FLAG_STORE_HOST_IPV6,
    header_shift,
)
from trovemq_proto.records.record_crc import CRC_VALUE_SIZE, DIGITS_AT, crc_value, has_record_crc
from trovemq_proto.records.record_crcs import crc_digits, fill_record_crcs
from trovemq_proto.records.uniform_records import strided_crcs

_OFFSETS: Final = Struct(">qq")  # QUEUEOFFSET and, after it, PHYSICALOFFSET
assert PHYSICAL_OFFSET_AT == QUEUE_OFFSET_AT + 8, "they are written together"
assert STORE_TIMESTAMP_AT == BORN_HOST_AT + HOST_SIZE_IPV4, "they are written together"
assert STORE_HOST_AT == STORE_TIMESTAMP_AT + 8, "they are written together"


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
    """Fills in a batch in place; `buffer` holds the batch's bytes at the batch's positions.

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
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    stored = store_timestamp.to_bytes(8, signed=True) + store_host
    known = batch.__dict__
    if "rows" in known or batch.by_rows:
        last = first_queue_offset + len(batch.positions)
        offsets = range(first_queue_offset, last) if queue_offsets is None else queue_offsets
        _patch_rows(view, batch, offsets, physical_offset, stored, born_host, seal, append_property_crc)
    else:
        if queue_offsets is None:
            column = np.arange(first_queue_offset, first_queue_offset + len(batch), dtype=np.int64)
        else:
            column = np.array(queue_offsets, np.int64)
        if batch.alike is not None and batch.checked and seal is None:
            _patch_uniform(view, batch.alike, column, physical_offset, stored, born_host, append_property_crc)
        else:
            if seal is not None or not batch.checked:
                _patch_seals(view, batch, seal)
            _patch_columns(view, batch, column, physical_offset, store_timestamp, store_host, born_host)
            if append_property_crc:
                fill_record_crcs(view, batch)
    if view is batch.data and "geometry" not in known and "property_bytes" not in known:
        return batch  # no column of it has been read from the former bytes
    return batch.over(view)


def _patch_rows(
    view: memoryview,
    batch: RecordBatch,
    queue_offsets: Sequence[int],
    physical_offset: PhysicalOffset,
    stored: bytes,
    born_host: bytes | None,
    seal: int | None,
    append_property_crc: bool,
) -> None:
    """stored: the store time, and the store host after it. A client's checked records have no seal; and a CRC
    property, where that is wanted."""
    checked = batch.checked
    sealed = seal is not None or not checked
    form = -1
    for row, queue_offset in zip(batch.rows, queue_offsets, strict=True):
        at, size, sys_flag, _, _, _, _, _, _ = row
        if sys_flag != form:
            form = sys_flag
            hosts_at, hosts_end, hosts = _hosts(sys_flag, stored, born_host)
            assert len(hosts) == hosts_end - hosts_at, "store host of another form"
            assert at + size <= len(view), "the record lies within the buffer"
        end = at + size
        _OFFSETS.pack_into(view, at + QUEUE_OFFSET_AT, queue_offset, physical_offset + at)
        view[at + hosts_at : at + hosts_end] = hosts
        if sealed:
            _patch_seal(view, row, seal)
        if append_property_crc and (checked or has_record_crc(view, row)):
            crc = crc32(view[at : end - CRC_PROPERTY_SIZE]) & CRC_MASK
            view[end - CRC_VALUE_SIZE : end] = crc_value(crc)


def _hosts(sys_flag: int, stored: bytes, born_host: bytes | None) -> tuple[int, int, bytes]:
    """The hosts of a record with this flag: their first position, the one after them, and their bytes."""
    born_size = HOST_SIZE_IPV6 if sys_flag & SYS_FLAG_BORN_HOST_IPV6 else HOST_SIZE_IPV4
    stored_size = 8 + (HOST_SIZE_IPV6 if sys_flag & SYS_FLAG_STORE_HOST_IPV6 else HOST_SIZE_IPV4)
    stored_at = BORN_HOST_AT + born_size
    if born_host is not None and len(born_host) == born_size:
        return BORN_HOST_AT, stored_at + stored_size, born_host + stored
    return stored_at, stored_at + stored_size, stored


def _patch_seal(view: memoryview, row: RecordFields, seal: int | None) -> None:
    at = row.position + PREPARED_OFFSET_AT + header_shift(row.sys_flag)
    if seal is not None or view[at] & 0x80:
        view[at : at + 8] = (seal or 0).to_bytes(8, signed=True)


def _patch_seals(view: memoryview, batch: RecordBatch, seal: int | None) -> None:
    sealed = batch.prepared_transaction_offsets < 0
    if seal is not None:
        sealed[:] = True
    if sealed.any():
        places = batch.positions + PREPARED_OFFSET_AT + batch.header_shifts
        sliding(view, ">i8")[places[sealed]] = seal or 0


def _patch_uniform(
    view: memoryview,
    first: RecordFields,
    queue_offsets: NDArray[np.int64],
    physical_offset: PhysicalOffset,
    stored: bytes,
    born_host: bytes | None,
    append_property_crc: bool,
) -> None:
    """Of checked records that fill the buffer and are like the first one."""
    size, count, total = first.size, len(queue_offsets), len(view)
    strided(view, ">i8", QUEUE_OFFSET_AT, count, size)[:] = queue_offsets
    physical_offsets = np.arange(physical_offset, physical_offset + total, size, dtype=np.int64)
    strided(view, ">i8", PHYSICAL_OFFSET_AT, count, size)[:] = physical_offsets
    at, _, hosts = _hosts(first.sys_flag, stored, born_host)
    strided_rows(view, at, count, len(hosts), size)[:] = np.frombuffer(hosts, np.uint8)
    if append_property_crc:
        covered = size - CRC_PROPERTY_SIZE
        at = covered + DIGITS_AT
        low, middle, high = crc_digits(strided_crcs(view, 0, covered, size))
        strided(view, "<u4", at, count, size)[:] = low
        strided(view, "<u4", at + 4, count, size)[:] = middle
        strided(view, "<u2", at + 8, count, size)[:] = high


def _patch_columns(
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


def host_size(sys_flag: int, flag: int) -> int:
    return HOST_SIZE_IPV6 if sys_flag & flag else HOST_SIZE_IPV4
