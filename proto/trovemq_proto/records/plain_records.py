"""Records of one queue in the form of nearly every message: checked and patched without columns.

A record is plain if both of its hosts are IPv4, and nothing of it needs a second look: no compression, no
property that another module decides about, fewer than a sector of properties. Whatever is not plain, and
whatever is to be refused, goes the way of batches (validate.py, patch.py), which gives the reason. So a plain
record is one that validate_batch() takes, that has no mark of a kind (a group, a delivery time, a
priority) and that log/sectors.py takes; patch() writes the same as patch_batch(). A few are read one by one;
more must be uniform (uniform_records.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Final

from zlib_ng.zlib_ng import crc32

from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records.encode import topic_field
from trovemq_proto.records.fields import RecordFields
from trovemq_proto.records.internal_properties import INTERNAL_PREFIX
from trovemq_proto.records.layout import (
    BODY_AT,
    BORN_HOST_AT,
    CRC_MASK,
    CRC_PROPERTY_PREFIX,
    CRC_PROPERTY_SIZE,
    HOST_SIZE_IPV4,
    NAME_END,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQ_KEY,
    QUEUE_OFFSET_AT,
    RECORD_SIZE_MIN,
    STORE_HOST_AT,
    STORE_TIMESTAMP_AT,
    VALUE_END,
    magic_of_topic,
)
from trovemq_proto.records.priorities import PROPERTY_PRIORITY
from trovemq_proto.records.record_crc import DIGITS_AT, looks_like_record_crc, record_crc_property
from trovemq_proto.records.uniform_records import UniformForm, UniformForms, UniformRecords, patch_uniform
from trovemq_proto.records.validate import BORN_TIMESTAMP_MAX, PORT_MAX

PROPERTIES_SIZE_MAX_PLAIN: Final = 511
"""One byte less than a sector of the disk."""

RECORDS_MAX: Final = 32  # of more that are not uniform, columns cost less
UNIFORM_MIN: Final = 8  # fewer cost less one by one

_CHECKED: Final = Struct(">iiii20xiq4xi16xiqi")
"""TOTALSIZE, MAGIC, BODYCRC, QUEUEID, SYSFLAG, BORNTIMESTAMP, the born port, RECONSUMETIMES,
PREPAREDTRANSACTIONOFFSET and the body's length, of a record with IPv4 hosts."""
assert _CHECKED.size == BODY_AT, "all fields before the body"
_SIZES: Final = Struct(">i32xi44xi")  # TOTALSIZE, SYSFLAG and the body's length
assert _SIZES.size == BODY_AT, "the body's length is the last field before it"
_OFFSETS: Final = Struct(">qq")  # QUEUEOFFSET, PHYSICALOFFSET
_HOSTS: Final = Struct(">8sq8s")  # BORNHOST, STORETIMESTAMP, STOREHOST
_STORED: Final = Struct(">q8s")  # STORETIMESTAMP, STOREHOST
assert STORE_TIMESTAMP_AT == BORN_HOST_AT + HOST_SIZE_IPV4, "they are written together"
assert STORE_HOST_AT == STORE_TIMESTAMP_AT + 8, "they are written together"
PlainRecords = list[RecordFields] | UniformRecords
_VALUE_END: Final = bytes([VALUE_END])
_DIGITS: Final = DIGITS_AT - CRC_PROPERTY_SIZE
_BEFORE_CRC: Final = -CRC_PROPERTY_SIZE - 1
_UNIQUE_KEY: Final = PROPERTY_UNIQ_KEY.encode() + bytes([NAME_END])
_INTERNAL: Final = INTERNAL_PREFIX.encode()
_TIMER, _GROUP, _PRIORITY = (
    name.encode() + bytes([NAME_END])
    for name in (PROPERTY_TIMER_DELIVER_MS, PROPERTY_SHARDING_KEY, PROPERTY_PRIORITY)
)
assert all(b"_" in name for name in (_INTERNAL, _TIMER, _GROUP, _PRIORITY)), "see _may_have_marks"
_new_fields: Final = partial(tuple.__new__, RecordFields)
"""Makes RecordFields of a tuple of them, without a Python call per record."""


class PlainForm:
    """The values that every plain record of one queue has.

    append_property_crc: a CRC property at the end of its properties, which patch() fills. uniform_forms:
    shared by forms with the same body_size_max; the forms of many records, of whichever queue.
    """

    __slots__ = (
        *("_append_property_crc", "_body_size_max", "_magic", "_queue_id", "_rest_size"),
        *("_topic_field", "_topic_size", "_uniform", "_uniform_forms"),
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        body_size_max: int,
        *,
        append_property_crc: bool,
        uniform_forms: UniformForms | None = None,
    ) -> None:
        magic = magic_of_topic(topic)
        self._magic: Final = magic - (1 << 32)
        self._queue_id: Final = queue_id
        self._body_size_max: Final = body_size_max
        self._append_property_crc: Final = append_property_crc
        self._topic_field: Final = topic_field(topic, magic)
        self._topic_size: Final = len(topic.encode())
        self._rest_size: Final = BODY_AT + len(self._topic_field) + 2
        self._uniform_forms: Final = UniformForms() if uniform_forms is None else uniform_forms
        self._uniform: UniformForm | None = None  # of the last records of this queue

    def read(self, data: memoryview) -> PlainRecords | None:
        """The plain records that fill `data`; None if something else does, or if more than RECORDS_MAX do
        and are not uniform."""
        total, size = len(data), int.from_bytes(data[:4])  # of all records, and of the first one
        may_be_uniform = self._append_property_crc and 0 < size * UNIFORM_MIN <= total and not total % size
        if may_be_uniform:
            form = self._uniform
            if form is None or form.first.size != size:
                form = self._uniform_forms.get(size, self._topic_size)
            records = self._read_uniform(data, form)
            if records is not None:
                return records
        first = self.read_one(data, 0, total)
        if first is None or size == total:
            return None if first is None else [first]
        if may_be_uniform:
            records = self._read_uniform(data, self._uniform_forms.learn(data, first))
            if records is not None:
                return records
        return self._read_few(data, first)

    def _read_uniform(self, data: memoryview, form: UniformForm | None) -> UniformRecords | None:
        records = None if form is None else form.read(data, self._queue_id, self._topic_field)
        if records is not None:
            self._uniform = form
        return records

    def _read_few(self, data: memoryview, first: RecordFields) -> list[RecordFields] | None:
        end = len(data)
        if first.size * RECORDS_MAX < end:
            return None
        rows, position = [first], first.size
        while position < end:
            row = self.read_one(data, position, end)
            if row is None or len(rows) == RECORDS_MAX or row.size * RECORDS_MAX < end:
                return None
            rows.append(row)
            position += row.size
        return rows

    def read_one(self, data: memoryview, position: int, end: int) -> RecordFields | None:
        """The plain record at `position`; None if something else is there, or if it passes `end`."""
        if end - position < RECORD_SIZE_MIN:
            return None
        (size, magic, crc, queue_id, sys_flag, born_ms, born_port, consumed, prepared, length) = (
            _CHECKED.unpack_from(data, position)
        )
        property_size = size - self._rest_size - length
        if (
            size > end - position
            or magic != self._magic
            or queue_id != self._queue_id
            or sys_flag
            or consumed
            or prepared
            or not 0 <= length <= self._body_size_max
            or not 0 <= property_size <= PROPERTIES_SIZE_MAX_PLAIN
            or not 0 <= born_ms <= BORN_TIMESTAMP_MAX
            or not 0 <= born_port <= PORT_MAX
        ):
            return None
        body = position + BODY_AT
        body_end = body + length
        properties_at = position + size - property_size
        if data[body_end:properties_at] != self._topic_field + property_size.to_bytes(2):
            return None
        properties = bytes(data[properties_at : position + size])
        if not self._takes(properties) or crc32(data[body:body_end]) & CRC_MASK != crc:
            return None
        return self._fields(position, size, length, property_size)

    def read_own(self, data: memoryview, position: int) -> RecordFields | None:
        """read_one() of a record of this queue that its encoder has just made, with a body that is small
        enough and without a property that another module decides about; None if its properties are too
        long, or a host of it is not IPv4."""
        size, sys_flag, length = _SIZES.unpack_from(data, position)
        property_size = size - self._rest_size - length
        if sys_flag or not 0 <= property_size <= PROPERTIES_SIZE_MAX_PLAIN:
            return None
        return self._fields(position, size, length, property_size)

    def _fields(self, position: int, size: int, length: int, property_size: int) -> RecordFields:
        """Of a plain record with these sizes: of all of it, of its body and of its properties."""
        properties_at = position + size - property_size
        topic_at, body = properties_at - 2 - self._topic_size, position + BODY_AT
        return _new_fields(
            (position, size, 0, body, length, topic_at, self._topic_size, properties_at, property_size)
        )

    def _takes(self, properties: bytes) -> bool:
        """Whether a plain record may have this property block."""
        if self._append_property_crc:
            return (
                properties[-1:] == _VALUE_END
                and properties[-CRC_PROPERTY_SIZE:_DIGITS] == CRC_PROPERTY_PREFIX
                and not (_may_have_marks(properties) and _has_marks(properties))
            )
        if _has_marks(properties):
            return False
        if not properties:
            return True
        # The name of the CRC property has only five letters and digits: it looks like none that has nine.
        size = len(properties)
        has_crc = size >= CRC_PROPERTY_SIZE and (
            not properties[-CRC_PROPERTY_SIZE:_DIGITS].isalnum() and looks_like_record_crc(properties, size)
        )
        return properties[-1:] == _VALUE_END and not has_crc


def _has_marks(properties: bytes) -> bool:
    """Whether the block has the name of a property that another module decides about."""
    return _INTERNAL in properties or _TIMER in properties or _GROUP in properties or _PRIORITY in properties


def _may_have_marks(properties: bytes) -> bool:
    """Whether the block, which ends with the CRC property, needs _has_marks(). All these names have a `_`; in
    most blocks only the name of the id, their first one, has one before the CRC property."""
    return (
        not properties.startswith(_UNIQUE_KEY)
        or properties.find(b"_", len(_UNIQUE_KEY), -CRC_PROPERTY_SIZE) >= 0
        or properties[_BEFORE_CRC] != VALUE_END
    )


def patch(
    data: memoryview,
    records: PlainRecords,
    *,
    append_property_crc: bool,
    first_queue_offset: QueueOffset,
    physical_offset: PhysicalOffset,
    store_timestamp: EpochMs,
    store_host: bytes,
    born_host: bytes | None,
) -> None:
    """patch_batch() of plain records (the result of read()), in place. store_host: 8 bytes; born_host: None,
    or one of another form than IPv4: the client's stays."""
    assert len(store_host) == HOST_SIZE_IPV4, "store host of another form"
    assert first_queue_offset >= 0, "queue offsets count from 0"
    if isinstance(records, UniformRecords):
        assert append_property_crc, "they are found where each record has a CRC property"
        patch_uniform(
            data,
            records,
            first_queue_offset=first_queue_offset,
            physical_offset=physical_offset,
            store_timestamp=store_timestamp,
            store_host=store_host,
            born_host=born_host,
        )
        return
    patch_rows(
        data,
        records,
        range(first_queue_offset, first_queue_offset + len(records)),
        append_property_crc=append_property_crc,
        physical_offset=physical_offset,
        store_timestamp=store_timestamp,
        store_host=store_host,
        born_host=born_host,
    )


def patch_rows(
    data: memoryview,
    rows: Sequence[RecordFields],
    queue_offsets: Sequence[int],
    *,
    append_property_crc: bool,
    physical_offset: PhysicalOffset,
    store_timestamp: EpochMs,
    store_host: bytes,
    born_host: bytes | None,
) -> None:
    """patch() of records that have these queue offsets: of several queues, perhaps."""
    assert len(store_host) == HOST_SIZE_IPV4, "store host of another form"
    assert len(queue_offsets) == len(rows), "each record has its queue offset"
    has_form = born_host is not None and len(born_host) == HOST_SIZE_IPV4
    for row, queue_offset in zip(rows, queue_offsets, strict=True):
        at = row.position
        _OFFSETS.pack_into(data, at + QUEUE_OFFSET_AT, queue_offset, physical_offset + at)
        if has_form:
            _HOSTS.pack_into(data, at + BORN_HOST_AT, born_host, store_timestamp, store_host)
        else:
            _STORED.pack_into(data, at + STORE_TIMESTAMP_AT, store_timestamp, store_host)
        if append_property_crc:
            end = at + row.size
            data[end - CRC_PROPERTY_SIZE : end] = record_crc_property(data, at, end)
