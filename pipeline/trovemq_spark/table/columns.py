"""Makes the columns of table/schema.py from a RecordBatch, without Spark, and without a loop over messages
where that is possible.
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
from trovemq_proto.records.geometry import sliding
from trovemq_proto.records.layout import (
    BODY_SIZE_MAX_DEFAULT,
    BORN_HOST_AT,
    HOST_SIZE_EXTRA,
    HOST_SIZE_IPV4,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    STORE_HOST_AT,
    SYS_FLAG_COMPRESSED,
)
from trovemq_spark.table.parts import fixed_texts, parts, texts
from trovemq_spark.table.property_columns import property_columns
from trovemq_spark.table.schema import (
    ALL_COLUMNS,
    DAMAGE_COLUMN,
    PROPERTIES_TYPE,
    TIMESTAMP,
    arrow_schema,
)

Int64s = NDArray[np.int64]
_US_PER_MS: Final = 1000
_HEX_DIGITS: Final = np.array([np.frombuffer(b"%02X" % byte, np.uint16)[0] for byte in range(256)])
"""The two digits of each byte, adjacent in memory."""
_MS_MAX: Final = (1 << 63) // _US_PER_MS - 1

Undecodable = Callable[[int, TroveError], None]
"""Called with (index of the record, reason) for a body that cannot be decompressed; its row gets a null
body."""


def arrow_batch(
    batch: RecordBatch,
    names: Sequence[str],
    *,
    broker_name: str | None = None,
    queue_offsets: Int64s | None = None,
    body_size_max: int = BODY_SIZE_MAX_DEFAULT,
    undecodable: Undecodable | None = None,
    inflated: Sequence[bytes | None] | None = None,
) -> pa.RecordBatch:
    """The table's columns `names` of these records, one row per record.

    batch: well-formed records of a buffer below 2 GiB; queue_offsets: int64[n] if the records' own are not
        right; inflated: the bodies of the compressed records, if known. Otherwise a body that cannot be
        decompressed raises TroveError (RECORD_DAMAGED, COMPRESSION_UNSUPPORTED), or `undecodable` is called.
        The column `damage` is null; invalid UTF-8 becomes U+FFFD.
    """
    scans = property_columns(batch) if _has_properties(names) else []
    makers: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: _topics(batch),
        "brokerName": lambda: _constant(broker_name, len(batch)),
        "queueId": lambda: pa.array(batch.queue_ids),
        "queueOffset": lambda: pa.array(batch.queue_offsets if queue_offsets is None else queue_offsets),
        "physicalOffset": lambda: pa.array(batch.physical_offsets),
        "size": lambda: pa.array(batch.sizes.astype(np.int32)),
        "keys": lambda: _joined([scan.values(PROPERTY_KEYS) for scan in scans], pa.string()),
        "tags": lambda: _joined([scan.values(PROPERTY_TAGS) for scan in scans], pa.string()),
        "messageId": lambda: _joined([scan.values(PROPERTY_UNIQ_KEY) for scan in scans], pa.string()),
        "offsetMsgId": lambda: _offset_msg_ids(batch),
        "body": lambda: _bodies(batch, body_size_max, undecodable, inflated),
        "properties": lambda: _joined([scan.maps() for scan in scans], PROPERTIES_TYPE),
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


def _has_properties(names: Sequence[str]) -> bool:
    return not {"keys", "tags", "messageId", "properties"}.isdisjoint(names)


def _joined(parts_made: list[pa.Array], kind: pa.DataType) -> pa.Array:
    if len(parts_made) == 1:
        return parts_made[0]
    return pa.concat_arrays(parts_made) if parts_made else pa.array([], kind)


def _constant(value: str | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if value is None else pa.repeat(pa.scalar(value), count)


def _times(milliseconds: Int64s) -> pa.Array:
    """A time that microseconds cannot represent (an absurd time of a client) becomes the nearest possible
    one."""
    if int(milliseconds.min()) < -_MS_MAX or int(milliseconds.max()) > _MS_MAX:
        milliseconds = np.clip(milliseconds, -_MS_MAX, _MS_MAX)
    return pa.array(milliseconds * _US_PER_MS).view(TIMESTAMP)


def _topics(batch: RecordBatch) -> pa.Array:
    if batch.only_topic is not None:
        return pa.repeat(pa.scalar(batch.only_topic), len(batch))
    starts = batch.topic_positions
    return texts(batch.data, starts, starts + batch.topic_sizes)


# --- bodies, hosts, ids ---------------------------------------------------------------------------------


def _bodies(
    batch: RecordBatch,
    body_size_max: int,
    undecodable: Undecodable | None,
    known: Sequence[bytes | None] | None,
) -> pa.Array:
    starts = batch.body_positions
    stored = parts(batch.data, starts, starts + batch.body_sizes)
    compressed = np.flatnonzero(batch.sys_flags & SYS_FLAG_COMPRESSED)
    if not len(compressed):
        return stored
    inflated: list[bytes | None] = [] if known is None else list(known)
    for index in compressed.tolist() if known is None else ():
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
    """There are few hosts: each is formatted once, and used by its number."""
    numbers, hosts = _numbered(batch, places)
    return pa.array([format_host(host) for host in hosts], pa.string()).take(numbers)


def _numbered(batch: RecordBatch, places: tuple[Int64s, Int64s]) -> tuple[pa.Array, list[bytes]]:
    """(int32[n], the different hosts)."""
    starts, ends = places
    if (ends - starts == HOST_SIZE_IPV4).all():
        hosts = sliding(batch.data, ">i8")[starts]
        if (hosts == hosts[0]).all():
            return pa.array(np.zeros(len(batch), np.int32)), [bytes(batch.data[starts[0] : ends[0]])]
    encoded = parts(batch.data, *places).dictionary_encode()
    return encoded.indices, encoded.dictionary.to_pylist()


def _offset_msg_ids(batch: RecordBatch) -> pa.Array:
    numbers, hosts = _numbered(batch, _store_hosts(batch))
    digits = _HEX_DIGITS[batch.physical_offsets.astype(">i8").view(np.uint8)].view(np.uint8)
    digits = digits.reshape(len(batch), 16)
    if len(hosts) > 1:
        prefixes = pa.array([host.hex().upper() for host in hosts], pa.string()).take(numbers)
        return pc.binary_join_element_wise(prefixes, fixed_texts(digits), "")
    prefix = np.frombuffer(hosts[0].hex().upper().encode(), np.uint8)
    whole = np.empty((len(batch), len(prefix) + 16), np.uint8)
    whole[:, : len(prefix)] = prefix
    whole[:, len(prefix) :] = digits
    return fixed_texts(whole)
