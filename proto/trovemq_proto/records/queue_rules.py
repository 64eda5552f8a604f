"""The rules that a broker checks in each record of one queue, for one record in plain Python.

column_rules.py has the same rules for many records; this module gives the reason of each refusal.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import Final

from zlib_ng.zlib_ng import crc32

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.compression import STREAM_HEAD_SIZE, begins_stream
from trovemq_proto.records.encode import topic_field
from trovemq_proto.records.fields import RecordFields, read_fields
from trovemq_proto.records.internal_properties import (
    INTERNAL_PREFIX,
    INTERNAL_PROPERTIES,
    forbidden_name,
)
from trovemq_proto.records.layout import (
    BODY_AT,
    CRC_MASK,
    CRC_PROPERTY_EMPTY,
    CRC_PROPERTY_PREFIX,
    CRC_PROPERTY_SIZE,
    HOST_SIZE_IPV4,
    HOST_SIZE_IPV6,
    NAME_END,
    PROPERTIES_SIZE_MAX,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQ_KEY,
    RECORD_SIZE_MIN,
    SYS_FLAG_AT,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_STORE_HOST_IPV6,
    VALUE_END,
    magic_of_topic,
)
from trovemq_proto.records.limits import BORN_TIMESTAMP_MAX, PORT_MAX, SYS_FLAGS_ALLOWED
from trovemq_proto.records.priorities import PROPERTY_PRIORITY
from trovemq_proto.records.record_crc import DIGITS_AT, looks_like_record_crc
from trovemq_proto.records.uniform_records import UniformForm, UniformForms

SECTOR_SIZE: Final = 512
"""Bytes of a sector of the disk: of a property block that is shorter no whole sector can be lost."""


def _head(host_bits: int) -> Struct:
    born = (HOST_SIZE_IPV6 if host_bits & 1 else HOST_SIZE_IPV4) - 4
    store = HOST_SIZE_IPV6 if host_bits & 2 else HOST_SIZE_IPV4
    return Struct(f">iiii20xiq{born}xi{8 + store}xiqi")


_HEADS: Final = tuple(map(_head, range(4)))
"""For each host_bits(): TOTALSIZE, MAGIC, BODYCRC, QUEUEID, SYSFLAG, BORNTIMESTAMP, the born port,
RECONSUMETIMES, PREPAREDTRANSACTIONOFFSET and the body's length."""
_HEAD_SIZES: Final = tuple(head.size for head in _HEADS)
assert _HEAD_SIZES[0] == BODY_AT, "all fields before the body"
_HOST_BITS_AT: Final = SYS_FLAG_AT + 3  # the byte of SYSFLAG that has them
_VALUE_END: Final = bytes([VALUE_END])
_DIGITS: Final = DIGITS_AT - CRC_PROPERTY_SIZE
_RESERVED: Final = _VALUE_END + CRC_PROPERTY_EMPTY
_UNIQUE_KEY: Final = PROPERTY_UNIQ_KEY.encode() + bytes([NAME_END])
_UNIQUE_KEY_SIZE: Final = len(_UNIQUE_KEY)
_INTERNAL: Final = INTERNAL_PREFIX.encode()
MARKS: Final = tuple(
    name.encode() + bytes([NAME_END])
    for name in (PROPERTY_TIMER_DELIVER_MS, PROPERTY_PRIORITY, PROPERTY_SHARDING_KEY)
)
"""Names in the property block of a record of another kind than NORMAL."""
_TIMER, _PRIORITY, _GROUP = MARKS
assert all(b"_" in name for name in (_INTERNAL, *MARKS)), "see read()"
_new_fields: Final = partial(tuple.__new__, RecordFields)
"""Makes RecordFields of a tuple of them, without a Python call per record."""


class QueueRules:
    """The values that every record of one queue has.

    append_property_crc: a reserved CRC property at the end of its properties; uniform_forms: shared by the
    queues of a store, whose other rules are the same.
    """

    __slots__ = (
        *("append_property_crc", "body_size_max", "magic", "queue_id", "store_host_flag", "topic"),
        *("topic_bytes", "topic_field", "uniform_form", "uniform_forms", "_field_size", "_name_size"),
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        *,
        body_size_max: int,
        store_host_ipv6: bool,
        append_property_crc: bool,
        uniform_forms: UniformForms | None = None,
    ) -> None:
        magic = magic_of_topic(topic)
        self.topic: Final = topic
        self.topic_bytes: Final = topic.encode()
        self.topic_field: Final = topic_field(topic, magic)
        self._name_size: Final = len(self.topic_bytes)
        self._field_size: Final = len(self.topic_field) + 2  # with the length of the properties
        self.magic: Final = magic - (1 << 32)
        """Signed."""
        self.queue_id: Final = queue_id
        self.body_size_max: Final = body_size_max
        self.store_host_flag: Final = SYS_FLAG_STORE_HOST_IPV6 if store_host_ipv6 else 0
        self.append_property_crc: Final = append_property_crc
        self.uniform_forms: Final = UniformForms() if uniform_forms is None else uniform_forms
        self.uniform_form: UniformForm | None = None
        """The form of the last uniform records of this queue."""

    def read(self, data: memoryview, position: int, end: int, index: int, special: list[int]) -> RecordFields:
        """The record at `position`, which ends at `end` at the latest, after all checks. index: its number in
        the batch, for the error; it is added to `special` if its properties may say something about its kind,
        or have a sector of the disk.

        Raises TroveError BATCH_ILLEGAL, MESSAGE_SIZE_EXCEEDED, PROPERTY_ILLEGAL.
        """
        if end - position < RECORD_SIZE_MIN:
            raise self._unlike(data, position, end, index)
        host_bits = data[position + _HOST_BITS_AT] >> 4 & 3
        head_size = _HEAD_SIZES[host_bits]
        body = position + head_size
        if body > end:
            raise self._unlike(data, position, end, index)
        (size, magic, crc, queue_id, sys_flag, born_ms, born_port, consumed, prepared, length) = _HEADS[
            host_bits
        ].unpack_from(data, position)
        body_end = body + length
        record_end = position + size
        properties_at = body_end + self._field_size
        property_size = record_end - properties_at
        if (
            size > end - position
            or length < 0
            or magic != self.magic
            or not 0 <= property_size <= PROPERTIES_SIZE_MAX
            or data[body_end:properties_at] != self.topic_field + property_size.to_bytes(2)
        ):
            raise self._unlike(data, position, end, index)
        if length > self.body_size_max:
            raise self._too_large(index, length)
        if queue_id != self.queue_id:
            raise illegal(index, f"its queue is not {self.queue_id}")
        if sys_flag != self.store_host_flag:
            self._check_flags(index, sys_flag)
        if consumed:
            raise illegal(index, "it says that it was delivered before (RECONSUMETIMES is not 0)")
        if prepared:
            raise illegal(index, "its PREPAREDTRANSACTIONOFFSET is the broker's, and not 0")
        if not 0 <= born_ms <= BORN_TIMESTAMP_MAX:
            raise illegal(index, f"its born time {born_ms} is not 0 to {BORN_TIMESTAMP_MAX} (epoch ms)")
        if not 0 <= born_port <= PORT_MAX:
            raise illegal(index, f"its born host has the port {born_port}, which is not 0 to {PORT_MAX}")
        block = bytes(data[properties_at:record_end])
        # All names of interest have a `_`; in most blocks only the name of the id, their first one, has one
        # before the reserved CRC property.
        if (
            not block.endswith(_RESERVED)
            or block.find(b"_", _UNIQUE_KEY_SIZE, -CRC_PROPERTY_SIZE) >= 0
            or not block.startswith(_UNIQUE_KEY)
            or property_size >= SECTOR_SIZE
            or not self.append_property_crc
        ) and self._is_special(block, index):
            special.append(index)
        stored = data[body:body_end]
        if sys_flag & SYS_FLAG_COMPRESSED and not begins_stream(bytes(stored[:STREAM_HEAD_SIZE]), sys_flag):
            raise illegal(index, "its sys flag says that the body is compressed, and it is not")
        if crc32(stored) & CRC_MASK != crc:
            raise illegal(index, "its body does not have the CRC that it states")
        name = self._name_size
        at = properties_at - 2 - name
        return _new_fields((position, size, sys_flag, body, length, at, name, properties_at, property_size))

    def _unlike(self, data: memoryview, position: int, end: int, index: int) -> TroveError:
        """The error of a record whose magic, topic or lengths are not those of one of this topic."""
        row = read_fields(data, position, end)
        if row is None:
            return illegal(index, "it is not well formed")
        if row.body_size > self.body_size_max:
            return self._too_large(index, row.body_size)
        if int.from_bytes(data[position + 4 : position + 8], signed=True) != self.magic:
            return illegal(index, "its magic is not that of the topic's length")
        return illegal(index, f"its topic is not {self.topic}")

    def _too_large(self, index: int, size: int) -> TroveError:
        return TroveError(
            errors.MESSAGE_SIZE_EXCEEDED,
            f"the body of record {index} has {size} bytes, more than {self.body_size_max}",
            size=size,
            size_max=self.body_size_max,
            record=index,
        )

    def _check_flags(self, index: int, sys_flag: int) -> None:
        if sys_flag & ~SYS_FLAGS_ALLOWED:
            raise illegal(index, f"its sys flag {sys_flag:#x} has bits that no client may set")
        if sys_flag & SYS_FLAG_STORE_HOST_IPV6 != self.store_host_flag:
            raise illegal(index, "its store host has another form than the broker's address")

    def _is_special(self, block: bytes, index: int) -> bool:
        """Checks a property block. Whether it may say something about the record's kind, or has a sector."""
        if block[-1:] != _VALUE_END and block:
            raise illegal(index, "its property block does not end with 0x02")
        name = block[-CRC_PROPERTY_SIZE:_DIGITS]
        if self.append_property_crc:
            if name != CRC_PROPERTY_PREFIX:
                raise illegal(index, "its property block needs a CRC property at its end")
        # The name of the CRC property has only five letters and digits: it looks like none that has nine.
        elif (
            len(block) >= CRC_PROPERTY_SIZE
            and not name.isalnum()
            and looks_like_record_crc(block, len(block))
        ):
            raise illegal(index, "its property block may not have a CRC property, or the like, at its end")
        if _INTERNAL in block:
            _check_names(block, index)
        return _TIMER in block or _GROUP in block or _PRIORITY in block or len(block) >= SECTOR_SIZE


def _check_names(block: bytes, index: int) -> None:
    forbidden = forbidden_name(block)
    if forbidden is not None:
        writer = INTERNAL_PROPERTIES.get(forbidden)
        whose = "reserved" if writer is None else f"written by the {writer.value} only"
        text = f"record {index} cannot be appended: its property {forbidden[:80]!r} is {whose}"
        raise TroveError(errors.PROPERTY_ILLEGAL, text, record=index, name=forbidden[:80])


def illegal(index: int, what: str) -> TroveError:
    return TroveError(errors.BATCH_ILLEGAL, f"record {index} cannot be appended: {what}", record=index)
