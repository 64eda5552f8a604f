"""Everything that a broker checks in a client's batch before it appends it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.columns import Buffer, QueuePart
from trovemq_proto.records.compression import STREAM_HEAD_SIZE, begins_stream
from trovemq_proto.records.fields import ROWS_MAX, RecordFields, read_fields
from trovemq_proto.records.internal_columns import forbidden_names
from trovemq_proto.records.internal_properties import INTERNAL_PROPERTIES, forbidden_name
from trovemq_proto.records.layout import (
    BORN_HOST_AT,
    COMPRESSION_ZLIB,
    CRC_MASK,
    CRC_PROPERTY_PREFIX,
    CRC_PROPERTY_SIZE,
    HEADERS,
    HOST_SIZE_IPV4,
    HOST_SIZE_IPV6,
    MAGIC_AT,
    PROPERTIES_SIZE_MAX,
    QUEUE_ID_AT,
    SYS_FLAG_AT,
    SYS_FLAG_BORN_HOST_IPV6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_MULTI_TAGS,
    SYS_FLAG_STORE_HOST_IPV6,
    VALUE_END,
    host_bits,
    magic_of_topic,
)
from trovemq_proto.records.record_crc import looks_like_record_crc
from trovemq_proto.records.record_crcs import have_record_crcs, look_like_record_crcs

SYS_FLAGS_ALLOWED: Final = (
    SYS_FLAG_COMPRESSED
    | SYS_FLAG_MULTI_TAGS
    | SYS_FLAG_BORN_HOST_IPV6
    | SYS_FLAG_STORE_HOST_IPV6
    | COMPRESSION_ZLIB
)
"""The bits that a client may set: no transaction bits, no inner batches."""
BORN_TIMESTAMP_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: the last that protobuf's Timestamp, and Spark, have."""
PORT_MAX: Final = 65_535
EXPECTED_KNOWN: Final = 16_384  # queues of which the values are kept: 7 MB at most


def validate_batch(
    data: Buffer,
    *,
    topic: str,
    queue_id: int,
    body_size_max: int,
    store_host_ipv6: bool,
    append_property_crc: bool,
) -> RecordBatch:
    """The records of `data`, each fit to be patched and appended to this queue.

    Raises TroveError BATCH_ILLEGAL, MESSAGE_SIZE_EXCEEDED, PROPERTIES_SIZE_EXCEEDED, PROPERTY_ILLEGAL; never
    anything else.
    """
    batch = _split(data, topic)
    if not len(batch):
        raise TroveError(errors.BATCH_ILLEGAL, "the batch is empty")
    expected = _expected(topic, queue_id, body_size_max, store_host_ipv6, append_property_crc)
    if len(batch) <= ROWS_MAX:
        for index, row in enumerate(batch.rows):
            expected.check(batch.data, index, row)
        return batch
    if expected.all_fit(batch):
        return batch
    unfit = expected.unfit(batch)
    if unfit.any():
        index = int(np.argmax(unfit))
        expected.check(batch.data, index, batch.row(index))
        raise AssertionError(f"record {index} is unfit for no reason")
    return batch


def validate_parts(
    data: Buffer,
    parts: Sequence[QueuePart],
    *,
    body_size_max: int,
    store_host_ipv6: bool,
    append_property_crc: bool,
) -> RecordBatch:
    """validate_batch for records of several queues: those of each part, one part after the other."""
    batch = _split(data, None)
    batch.parts = parts
    if len(batch) != sum(part.size for part in parts):
        raise TroveError(errors.BATCH_ILLEGAL, f"the parts have another number of records than {len(batch)}")
    common = Expected("", 0, body_size_max, store_host_ipv6, append_property_crc)
    if len(batch) > ROWS_MAX and not _unfit_parts(batch, parts, common).any():
        return batch
    indexes = iter(range(len(batch)))
    for topic, queue_id, count in parts:
        expected = _expected(topic, queue_id, body_size_max, store_host_ipv6, append_property_crc)
        for index in islice(indexes, count):
            expected.check(batch.data, index, batch.row(index))
    return batch


def _unfit_parts(batch: RecordBatch, parts: Sequence[QueuePart], common: Expected) -> NDArray[np.bool_]:
    """bool[n]: the records that are unfit for their part. `common`: the values of all parts."""
    counts = [count for _, _, count in parts]
    queue_ids = np.array([queue_id for _, queue_id, _ in parts], np.int32)
    magics = np.array([_magic(topic) for topic, _, _ in parts], np.int32)
    unfit: NDArray[np.bool_] = batch.queue_ids != np.repeat(queue_ids, counts)
    unfit |= batch.magic != np.repeat(magics, counts)
    unfit |= common.unfit_headers(batch)
    if unfit.any():
        return unfit
    starts = batch.topic_positions
    found = iter(batch.slices(starts, starts + batch.topic_sizes))
    names = ((topic.encode(), count) for topic, _, count in parts)
    unfit |= [own != name for name, count in names for own in islice(found, count)]
    return unfit | common.unfit_contents(batch)


@lru_cache(maxsize=4)
def _same_bytes(bits: int) -> NDArray[np.uint8]:
    """uint8[size of the header, host_bits() of which are `bits`]: 255 where all_fit() compares, else 0."""
    same = np.zeros(HEADERS[bits].size, np.uint8)
    host_size = HOST_SIZE_IPV6 if bits & 1 else HOST_SIZE_IPV4
    for begin, size in ((MAGIC_AT, 4), (QUEUE_ID_AT, 4), (SYS_FLAG_AT, 4), (BORN_HOST_AT, host_size)):
        same[begin : begin + size] = 255
    same[-16:-4] = 255  # RECONSUMETIMES, PREPAREDTRANSACTIONOFFSET
    return same


@lru_cache(maxsize=EXPECTED_KNOWN)
def _expected(
    topic: str, queue_id: int, body_size_max: int, store_host_ipv6: bool, append_property_crc: bool
) -> Expected:
    """The values of every record of such a batch. The result never changes for the same arguments."""
    return Expected(topic, queue_id, body_size_max, store_host_ipv6, append_property_crc)


def _magic(topic: str) -> int:
    """The signed magic of the topic's records."""
    return magic_of_topic(topic) - (1 << 32)


def _split(data: Buffer, topic: str | None) -> RecordBatch:
    """RecordBatch.split, with a separate error for properties that are too long for their i16."""
    try:
        return RecordBatch.split(data, topic=topic)
    except TroveError as error:
        position = int(error.fields.get("position", len(data)))
        record = memoryview(data)[position:]
        if read_fields(record, 0, len(record), property_size_max=0xFFFF) is None:
            raise
        raise TroveError(
            errors.PROPERTIES_SIZE_EXCEEDED,
            f"record {error.fields['record']} has more than {PROPERTIES_SIZE_MAX} bytes of properties",
            record=error.fields["record"],
        ) from error


class Expected:
    """The values that each record of a batch must have."""

    __slots__ = ("append_property_crc", "body_size_max", "magic", "queue_id", "store_host_flag", "topic")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        body_size_max: int,
        store_host_ipv6: bool,
        append_property_crc: bool,
    ) -> None:
        self.topic: Final = topic.encode()
        self.magic: Final = _magic(topic)
        self.queue_id: Final = queue_id
        self.body_size_max: Final = body_size_max
        self.store_host_flag: Final = SYS_FLAG_STORE_HOST_IPV6 if store_host_ipv6 else 0
        self.append_property_crc: Final = append_property_crc

    def unfit(self, batch: RecordBatch) -> NDArray[np.bool_]:
        """bool[n]: the records for which check() raises."""
        unfit: NDArray[np.bool_] = batch.topic_sizes != len(self.topic)
        unfit |= batch.magic != self.magic
        unfit |= batch.queue_ids != self.queue_id
        unfit |= self.unfit_headers(batch)
        if unfit.any():
            return unfit  # the following reads need topics of this width
        topics = batch.bytes_at(batch.topic_positions, len(self.topic))
        unfit |= (topics != np.frombuffer(self.topic, np.uint8)).any(axis=1)
        unfit |= self.unfit_contents(batch)
        return unfit

    def unfit_headers(self, batch: RecordBatch) -> NDArray[np.bool_]:
        """bool[n]: the records with header fields that have no record of whatever topic and queue."""
        unfit: NDArray[np.bool_] = batch.body_sizes > self.body_size_max
        own_flags = batch.sys_flags & ~(SYS_FLAGS_ALLOWED & ~SYS_FLAG_STORE_HOST_IPV6)
        unfit |= own_flags != self.store_host_flag
        unfit |= (batch.reconsume_times != 0) | (batch.prepared_transaction_offsets != 0)
        unfit |= (batch.born_timestamps < 0) | (batch.born_timestamps > BORN_TIMESTAMP_MAX)
        unfit |= (batch.born_ports < 0) | (batch.born_ports > PORT_MAX)
        return unfit

    def unfit_contents(self, batch: RecordBatch) -> NDArray[np.bool_]:
        """bool[n]: the records with properties or a body that have no record of whatever topic."""
        unfit = self._unfit_properties(batch)
        unfit |= forbidden_names(batch)
        for index in np.flatnonzero(batch.sys_flags & SYS_FLAG_COMPRESSED).tolist():
            unfit[index] |= not _has_stream(batch.data, batch.row(index))
        unfit |= batch.crcs() != batch.body_crcs
        return unfit

    def all_fit(self, batch: RecordBatch) -> bool:
        """Whether no record is unfit; it may be False for a batch of which that is true.

        Header fields and topic are compared with the first record's, byte by byte: that is checked alone.
        """
        row = batch.row(0)
        if not batch.uniform and (
            (batch.sys_flags != row.sys_flag).any()
            or (batch.topic_sizes != row.topic_size).any()
            or int(batch.body_sizes.max()) > self.body_size_max
        ):
            return False
        heads = batch.bytes_at(batch.positions, row.body_position - row.position)
        topics = batch.bytes_at(batch.topic_positions, row.topic_size)
        if ((heads ^ heads[0]) & _same_bytes(host_bits(row.sys_flag))).any() or (topics != topics[0]).any():
            return False
        try:
            self.check(batch.data, 0, row)
        except TroveError:
            return False
        born = batch.born_timestamps
        if int(born.min()) < 0 or int(born.max()) > BORN_TIMESTAMP_MAX:
            return False
        if self._unfit_properties(batch).any() or forbidden_names(batch).any():
            return False
        if row.sys_flag & SYS_FLAG_COMPRESSED and not all(
            _has_stream(batch.data, batch.row(index)) for index in range(len(batch))
        ):
            return False
        return bool((batch.crcs() == batch.body_crcs).all())

    def _unfit_properties(self, batch: RecordBatch) -> NDArray[np.bool_]:
        ends = batch.property_positions + batch.property_sizes
        unfit: NDArray[np.bool_] = batch.bytes_at(ends - 1, 1)[:, 0] != VALUE_END
        unfit &= batch.property_sizes > 0
        if not self.append_property_crc:
            return unfit | look_like_record_crcs(batch)
        return unfit | ~have_record_crcs(batch)

    def check(self, data: memoryview, index: int, row: RecordFields) -> None:
        """Raises the error of the first fault of this record."""
        header = HEADERS[host_bits(row.sys_flag)].unpack_from(data, row.position)
        _, magic, body_crc, queue_id, _, _, _, _, born_ms, born_host, _, _, consumed, prepared, _ = header
        if row.body_size > self.body_size_max:
            raise TroveError(
                errors.MESSAGE_SIZE_EXCEEDED,
                f"the body of record {index} has {row.body_size} bytes, more than {self.body_size_max}",
                size=row.body_size,
                size_max=self.body_size_max,
                record=index,
            )
        if magic != self.magic:
            raise _illegal(index, "its magic is not that of the topic's length")
        if data[row.topic_position : row.topic_position + row.topic_size] != self.topic:
            raise _illegal(index, f"its topic is not {self.topic.decode()}")
        if queue_id != self.queue_id:
            raise _illegal(index, f"its queue is not {self.queue_id}")
        if row.sys_flag & ~SYS_FLAGS_ALLOWED:
            raise _illegal(index, f"its sys flag {row.sys_flag:#x} has bits that no client may set")
        if row.sys_flag & SYS_FLAG_STORE_HOST_IPV6 != self.store_host_flag:
            raise _illegal(index, "its store host has another form than the broker's address")
        _check_fields(index, consumed, prepared, born_ms, born_host)
        self._check_properties(data, index, row)
        if row.sys_flag & SYS_FLAG_COMPRESSED and not _has_stream(data, row):
            raise _illegal(index, "its sys flag says that the body is compressed, and it is not")
        if body_crc != crc32(data[row.body_position : row.body_position + row.body_size]) & CRC_MASK:
            raise _illegal(index, "its body does not have the CRC that it states")

    def _check_properties(self, data: memoryview, index: int, row: RecordFields) -> None:
        end = row.property_position + row.property_size
        if row.property_size and data[end - 1] != VALUE_END:
            raise _illegal(index, "its property block does not end with 0x02")
        has_space = row.property_size >= CRC_PROPERTY_SIZE
        name = data[end - CRC_PROPERTY_SIZE : end - CRC_PROPERTY_SIZE + len(CRC_PROPERTY_PREFIX)]
        if self.append_property_crc and not (has_space and name == CRC_PROPERTY_PREFIX):
            raise _illegal(index, "its property block needs a CRC property at its end")
        if not self.append_property_crc and has_space and looks_like_record_crc(data, end):
            raise _illegal(index, "its property block may not have a CRC property, or the like, at its end")
        forbidden = forbidden_name(bytes(data[row.property_position : end]))
        if forbidden is not None:
            writer = INTERNAL_PROPERTIES.get(forbidden)
            whose = "reserved" if writer is None else f"written by the {writer.value} only"
            text = f"record {index} cannot be appended: its property {forbidden[:80]!r} is {whose}"
            raise TroveError(errors.PROPERTY_ILLEGAL, text, record=index, name=forbidden[:80])


def _check_fields(index: int, consumed: int, prepared: int, born_ms: int, born_host: bytes) -> None:
    """Fields that no client may write: the broker's own, and values that could not be read again."""
    if consumed:
        raise _illegal(index, "it says that it was delivered before (RECONSUMETIMES is not 0)")
    if prepared:
        raise _illegal(index, "its PREPAREDTRANSACTIONOFFSET is the broker's, and not 0")
    if not 0 <= born_ms <= BORN_TIMESTAMP_MAX:
        raise _illegal(index, f"its born time {born_ms} is not 0 to {BORN_TIMESTAMP_MAX} (epoch ms)")
    port = int.from_bytes(born_host[-4:], signed=True)
    if not 0 <= port <= PORT_MAX:
        raise _illegal(index, f"its born host has the port {port}, which is not 0 to {PORT_MAX}")


def _has_stream(data: memoryview, row: RecordFields) -> bool:
    """Whether the body begins as one that is compressed by the method of the sys flag."""
    size = min(row.body_size, STREAM_HEAD_SIZE)
    return begins_stream(bytes(data[row.body_position : row.body_position + size]), row.sys_flag)


def _illegal(index: int, what: str) -> TroveError:
    return TroveError(errors.BATCH_ILLEGAL, f"record {index} cannot be appended: {what}", record=index)
