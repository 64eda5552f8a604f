"""Records to Arrow: the columns of table/schema.py made of a RecordBatch, without Spark and without a loop
over messages where there can be none.

Bytes are not copied in Python: a column of parts of the buffer (bodies, topics, property names and values) is
an Arrow array over the buffer itself whose odd elements are the gaps, and one `take` of the even ones copies
them together. Offsets of such an array are 32 bits, so a batch's buffer is below 2 GiB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trovemq_proto.errors import TroveError
from trovemq_proto.records import RecordBatch, format_host
from trovemq_proto.records.compression import inflate_body
from trovemq_proto.records.layout import (
    BODY_SIZE_MAX_DEFAULT,
    BORN_HOST_AT,
    CRC_PROPERTY_PREFIX,
    HOST_SIZE_EXTRA,
    HOST_SIZE_IPV4,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    STORE_HOST_AT,
    SYS_FLAG_COMPRESSED,
)
from trovemq_proto.records.property_scan import PropertyScan, Slices
from trovemq_spark.table.schema import (
    ALL_COLUMNS,
    DAMAGE_COLUMN,
    PROPERTIES_TYPE,
    TIMESTAMP,
    arrow_schema,
)

Int64s = NDArray[np.int64]
_US_PER_MS: Final = 1000
_CRC_NAME: Final = CRC_PROPERTY_PREFIX[:-1]
_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_NIBBLE_SHIFTS: Final = np.arange(60, -4, -4, dtype=np.uint64)
_MS_MAX: Final = (1 << 63) // _US_PER_MS - 1

Undecodable = Callable[[int, TroveError], None]
"""Told (index of the record, why) of a body that cannot be decompressed; its row gets a null body."""


def arrow_batch(
    batch: RecordBatch,
    names: Sequence[str],
    *,
    broker_name: str | None = None,
    queue_offsets: Int64s | None = None,
    body_size_max: int = BODY_SIZE_MAX_DEFAULT,
    undecodable: Undecodable | None = None,
) -> pa.RecordBatch:
    """The table's columns `names` of these records, a row a record.

    batch: well-formed records of a buffer below 2 GiB; queue_offsets: int64[n] where the records' own are not
    right. A body that cannot be decompressed: TroveError (RECORD_DAMAGED, COMPRESSION_UNSUPPORTED), or
    `undecodable` is told. The column `damage` is null; text that is not UTF-8 has U+FFFD in it.
    """
    makers: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: _topics(batch),
        "brokerName": lambda: _constant(broker_name, len(batch)),
        "queueId": lambda: pa.array(batch.queue_ids),
        "queueOffset": lambda: pa.array(batch.queue_offsets if queue_offsets is None else queue_offsets),
        "physicalOffset": lambda: pa.array(batch.physical_offsets),
        "size": lambda: pa.array(batch.sizes.astype(np.int32)),
        "keys": lambda: _property(batch, PROPERTY_KEYS),
        "tags": lambda: _property(batch, PROPERTY_TAGS),
        "uniqueKey": lambda: _property(batch, PROPERTY_UNIQ_KEY),
        "msgId": lambda: _offset_msg_ids(batch),
        "body": lambda: _bodies(batch, body_size_max, undecodable),
        "properties": lambda: _property_maps(batch),
        "bornTimestamp": lambda: _times(batch.born_timestamps),
        "storeTimestamp": lambda: _times(batch.store_timestamps),
        "bornHost": lambda: _hosts(batch, _born_hosts(batch)),
        "storeHost": lambda: _hosts(batch, _store_hosts(batch)),
        "flag": lambda: pa.array(batch.flags),
        "sysFlag": lambda: pa.array(batch.sys_flags.astype(np.int32)),
        "bodyCRC": lambda: pa.array(batch.body_crcs.astype(np.int64) & 0xFFFFFFFF),
        "reconsumeTimes": lambda: pa.array(batch.reconsume_times),
        "preparedTransactionOffset": lambda: pa.array(batch.prepared_transaction_offsets),
        DAMAGE_COLUMN: lambda: pa.nulls(len(batch), pa.string()),
    }
    assert makers.keys() == ALL_COLUMNS.keys(), "every column of the table is made here"
    schema = arrow_schema(names)
    if not len(batch):
        return pa.RecordBatch.from_pylist([], schema=schema)
    return pa.RecordBatch.from_arrays([makers[name]() for name in names], schema=schema)


def _constant(value: str | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if value is None else pa.repeat(pa.scalar(value), count)


def _times(milliseconds: Int64s) -> pa.Array:
    """A time out of the range of microseconds (a client's nonsense) becomes the nearest that is in it."""
    clipped = np.clip(milliseconds, -_MS_MAX, _MS_MAX)
    return pa.array(clipped * _US_PER_MS).view(TIMESTAMP)


def _topics(batch: RecordBatch) -> pa.Array:
    if batch.only_topic is not None:
        return pa.repeat(pa.scalar(batch.only_topic), len(batch))
    starts = batch.topic_positions
    return _texts(memoryview(batch.data), starts, starts + batch.topic_sizes)


# --- parts of a buffer as an array ----------------------------------------------------------------------


def _parts(data: memoryview | bytes, starts: Int64s, ends: Int64s, kind: pa.DataType) -> pa.Array:
    """data[starts[i]:ends[i]] for each i; the parts are in ascending order and do not overlap."""
    count = len(starts)
    if not count:
        return pa.array([], kind)
    first = int(starts[0])
    cuts = np.empty(2 * count, np.int32)
    cuts[0::2] = starts - first
    cuts[1::2] = ends - first
    window = pa.py_buffer(memoryview(data)[first : int(ends[-1])])
    pieces = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(cuts), window])
    return pieces.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _texts(data: memoryview | bytes, starts: Int64s, ends: Int64s) -> pa.Array:
    """_parts as strings; bytes that are no UTF-8 are replaced, as everywhere else."""
    raw = _parts(data, starts, ends, pa.binary())
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in raw.to_pylist()], pa.string())


# --- properties -----------------------------------------------------------------------------------------


def _property(batch: RecordBatch, name: str) -> pa.Array:
    """The value of this property in each record; null where it has none."""
    parts = []
    for scan in batch.property_scans:
        found = scan.find(name.encode())
        values = _texts(scan.joined, found.starts, found.ends)
        places = np.full(scan.count, -1, np.int64)
        places[found.records - scan.first] = np.arange(len(found.records))
        parts.append(values.take(pa.array(places, mask=places < 0)))
    return _joined(parts, pa.string())


def _property_maps(batch: RecordBatch) -> pa.Array:
    return _joined([_scan_maps(scan) for scan in batch.property_scans], PROPERTIES_TYPE)


def _scan_maps(scan: PropertyScan) -> pa.Array:
    names, values = scan.names_and_values()
    kept = ~_are(scan, names.starts, names.ends, _CRC_NAME)
    kept &= _is_last_of_its_name(scan, names.records, names.starts, names.ends)
    if not kept.all():
        names, values = names.where(kept), values.where(kept)
    offsets = np.searchsorted(names.records, scan.first + np.arange(scan.count + 1)).astype(np.int32)
    keys = _texts(scan.joined, names.starts, names.ends)
    items = _texts(scan.joined, values.starts, values.ends)
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items)


def _are(scan: PropertyScan, starts: Int64s, ends: Int64s, name: bytes) -> NDArray[np.bool_]:
    """Whether each slice is this name."""
    same: NDArray[np.bool_] = ends - starts == len(name)
    candidates = np.flatnonzero(same)
    for i, byte in enumerate(name):
        candidates = candidates[scan.flat[starts[candidates] + i] == byte]
    same[:] = False
    same[candidates] = True
    return same


def _is_last_of_its_name(
    scan: PropertyScan, records: Int64s, starts: Int64s, ends: Int64s
) -> NDArray[np.bool_]:
    """False for a property that its record has once more behind it: no key is twice in a map."""
    hashes = scan.hashes(Slices(records, starts, ends)).astype(np.int64)
    marks = (records << 32) | hashes
    if len(np.unique(marks)) == len(marks):
        return np.ones(len(marks), np.bool_)
    last: dict[tuple[int, bytes], int] = {}
    for i, (record, start, end) in enumerate(
        zip(records.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ):
        last[record, scan.joined[start:end]] = i
    kept = np.zeros(len(marks), np.bool_)
    kept[list(last.values())] = True
    return kept


def _joined(parts: list[pa.Array], kind: pa.DataType) -> pa.Array:
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts) if parts else pa.array([], kind)


# --- bodies, hosts, ids ---------------------------------------------------------------------------------


def _bodies(batch: RecordBatch, body_size_max: int, undecodable: Undecodable | None) -> pa.Array:
    starts = batch.body_positions
    stored = _parts(memoryview(batch.data), starts, starts + batch.body_sizes, pa.binary())
    compressed = np.flatnonzero(batch.sys_flags & SYS_FLAG_COMPRESSED)
    if not len(compressed):
        return stored
    inflated: list[bytes | None] = []
    for index in compressed.tolist():
        try:
            inflated.append(inflate_body(stored[index].as_py(), int(batch.sys_flags[index]), body_size_max))
        except TroveError as error:
            if undecodable is None:
                raise
            undecodable(index, error)
            inflated.append(None)
    mask = np.zeros(len(batch), np.bool_)
    mask[compressed] = True
    return pc.replace_with_mask(stored, pa.array(mask), pa.array(inflated, pa.binary()))


def _born_hosts(batch: RecordBatch) -> tuple[Int64s, Int64s]:
    starts = batch.positions + BORN_HOST_AT
    return starts, starts + HOST_SIZE_IPV4 + batch.geometry.born_shifts


def _store_hosts(batch: RecordBatch) -> tuple[Int64s, Int64s]:
    starts = batch.positions + STORE_HOST_AT + batch.geometry.born_shifts
    return starts, starts + HOST_SIZE_IPV4 + HOST_SIZE_EXTRA * (batch.sys_flags >> 5 & 1).astype(np.int64)


def _hosts(batch: RecordBatch, places: tuple[Int64s, Int64s]) -> pa.Array:
    """Hosts are few: each is formatted once, and taken by its number."""
    numbers, hosts = _numbered(batch, places)
    return pa.array([format_host(host) for host in hosts], pa.string()).take(numbers)


def _numbered(batch: RecordBatch, places: tuple[Int64s, Int64s]) -> tuple[pa.Array, list[bytes]]:
    """(int32[n], the different hosts)."""
    encoded = _parts(memoryview(batch.data), *places, pa.binary()).dictionary_encode()
    return encoded.indices, encoded.dictionary.to_pylist()


def _offset_msg_ids(batch: RecordBatch) -> pa.Array:
    numbers, hosts = _numbered(batch, _store_hosts(batch))
    prefixes = pa.array([host.hex().upper() for host in hosts], pa.string()).take(numbers)
    digits = _HEX[batch.physical_offsets.astype(np.uint64)[:, None] >> _NIBBLE_SHIFTS & np.uint64(15)]
    cuts = np.arange(len(batch) + 1, dtype=np.int32) * 16
    offsets = pa.Array.from_buffers(pa.string(), len(batch), [None, pa.py_buffer(cuts), pa.py_buffer(digits)])
    return pc.binary_join_element_wise(prefixes, offsets, "")
