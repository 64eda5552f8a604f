"""Many records of one buffer as columns.

Invariants: every record of a batch lies wholly within the buffer and does not overlap the next; the columns
are computed once, at their first use, from the buffer as it then is (patch_batch makes a new batch).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.cached import cached_property
from trovemq_proto.records.fields import ROWS_MAX, RecordFields, has_few_records, read_fields, store_timestamp
from trovemq_proto.records.geometry import (
    Geometry,
    measure,
    sliding,
    sliding_rows,
    strided,
    strided_rows,
    uniform_geometry,
)
from trovemq_proto.records.layout import (
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_TIMESTAMP_AT,
    CRC_MASK,
    FLAG_AT,
    HOST_SIZE_EXTRA,
    MAGIC_AT,
    PHYSICAL_OFFSET_AT,
    PREPARED_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECONSUME_TIMES_AT,
    RECORD_SIZE_MIN,
    STORE_TIMESTAMP_AT,
    TOPIC_SIZE_MAX_V2,
)
from trovemq_proto.records.property_scan import PropertyScan, scan_properties
from trovemq_proto.records.uniform_properties import UniformProperties, properties_alike, uniform_properties

Buffer = bytes | bytearray | memoryview
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
_TOTAL_SIZE: Final = Struct(">i")
_ORIGIN: Final = np.zeros(1, np.int64)
_ORIGIN.flags.writeable = False


class QueuePart(NamedTuple):
    """Records of a batch that lie one after the other and have one topic and queue."""

    topic: str
    queue_id: int
    size: int  # records


class RecordColumns:
    """Records of one buffer, in the order of `positions`.

    data: the buffer; positions, sizes: int64[n], record i is data[positions[i]:positions[i] + sizes[i]];
    topic: given when it is known to be the topic of all of them; parts: given when the records are known to
    lie together by queue. The columns are int32[n] or int64[n].
    Raises TroveError BATCH_ILLEGAL from the constructor when a record does not lie within the buffer, and
    from a column when a record is not well formed (never after split, validate_batch or scan_run).
    """

    parts: Sequence[QueuePart] | None = None
    alike: RecordFields | None = None
    """The fields of the first record, if all others are known to have the same sizes, sys flag, queue, names
    of properties and sizes of values, and queue offsets that follow one another (of_uniform)."""
    checked: bool = False
    """Whether the records have passed the rules of their queues (validate.py)."""
    special: bool = True
    """Whether a record may have a property that says something about its kind, or properties of a sector of
    the disk or more. False if that is known not to be so."""

    def __init__(self, data: Buffer, positions: Int64s, sizes: Int64s, topic: str | None = None) -> None:
        self.data: Final = data if isinstance(data, memoryview) else memoryview(data)
        self.positions: Final = positions
        self.__dict__["sizes"] = sizes
        self.topic: Final = topic
        if len(positions) and not _within(positions, sizes, len(data)):
            raise TroveError(errors.BATCH_ILLEGAL, "a record lies outside of the batch's bytes")

    @classmethod
    def split(cls, data: Buffer, *, topic: str | None = None) -> Self:
        """The records that fill `data` exactly, one after the other.

        Raises TroveError BATCH_ILLEGAL when they do not, or when one is not well formed.
        """
        view = data if isinstance(data, memoryview) else memoryview(data)
        rows = few_rows(view)
        if rows is not None:
            return cls.of_rows(view, rows, topic)
        positions, sizes = _split_positions(view)
        batch = cls(view, positions, sizes, topic)
        batch.check_well_formed()
        return batch

    @classmethod
    def of_rows(
        cls,
        data: memoryview,
        rows: list[RecordFields],
        topic: str | None,
        checked: bool = False,
        special: bool = True,
    ) -> Self:
        """A few well-formed records that fill `data`, one after the other."""
        batch = cls.__new__(cls)
        batch.__dict__ = {
            "data": data,
            "positions": _ORIGIN if len(rows) == 1 else np.array([row[0] for row in rows], np.int64),
            "topic": topic,
            "rows": rows,
            "nbytes": len(data),
            "checked": checked,
            "special": special,
        }
        return batch

    @classmethod
    def of_uniform(
        cls, data: memoryview, first: RecordFields, count: int, topic: str | None, *, checked: bool
    ) -> Self:
        """`count` well-formed records that fill `data`, one after the other, are `alike`, and not `special`.
        checked: they have passed the rules of their queue."""
        assert first.position == 0, "the first record begins the buffer"
        assert first.size * count == len(data), "the records fill the buffer"
        batch = cls.__new__(cls)
        batch.__dict__ = {
            "data": data,
            "positions": np.arange(0, len(data), first.size, dtype=np.int64),
            "topic": topic,
            "alike": first,
            "nbytes": len(data),
            "checked": checked,
            "special": False,
        }
        return batch

    def check_well_formed(self) -> None:
        """Raises TroveError BATCH_ILLEGAL when a record's lengths do not add up or its magic is unknown."""
        _ = self.rows if len(self) <= ROWS_MAX else self.geometry

    # --- the records ---

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def sizes(self) -> Int64s:
        """int64[n]: the bytes of each record."""
        if self.alike is not None:
            return np.full(len(self), self.alike.size, np.int64)
        return np.array([row.size for row in self.rows], np.int64)

    @cached_property
    def array(self) -> NDArray[np.uint8]:
        """The buffer as uint8[len(data)]."""
        return np.frombuffer(self.data, np.uint8)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all records together."""
        return int(self.sizes.sum()) if len(self.sizes) > 1 else sum(self.sizes.tolist())

    @property
    def uniform(self) -> bool:
        """Whether all records follow one another and have one size, one sys flag and one layout."""
        return self.geometry.stride > 0

    def record(self, index: int) -> memoryview:
        position = int(self.positions[index])
        return self.data[position : position + int(self.sizes[index])]

    def select(self, indexes: Iterable[int] | Int64s) -> list[memoryview]:
        """The bytes of the records of these indexes, in their order."""
        chosen = np.asarray(indexes if isinstance(indexes, np.ndarray) else list(indexes), np.int64)
        starts = self.positions[chosen]
        return self.slices(starts, starts + self.sizes[chosen])

    def stored_bodies(self) -> list[memoryview]:
        """The bodies as they lie in the records (compressed, perhaps); views of the buffer."""
        return self.slices(self.body_positions, self.body_positions + self.body_sizes)

    def slices(self, starts: Int64s, ends: Int64s) -> list[memoryview]:
        """The bytes from `starts` to `ends` of each record."""
        data = self.data
        return [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    # --- layout ---

    @cached_property
    def rows(self) -> list[RecordFields]:
        """The records' fields, read in plain Python: for small batches."""
        return [self.row(index) for index in range(len(self))]

    @property
    def has_rows(self) -> bool:
        """Whether the fields of each record are known: then plain Python is faster for some more."""
        return "rows" in self.__dict__

    @property
    def by_rows(self) -> bool:
        """Whether plain Python is faster than columns."""
        return "rows" in self.__dict__ or (self.alike is None and len(self.positions) <= ROWS_MAX)

    def row(self, index: int) -> RecordFields:
        """The fields of one record, read in plain Python."""
        position, size = int(self.positions[index]), int(self.sizes[index])
        fields = read_fields(self.data, position, position + size)
        if fields is None or fields.size != size:
            raise _not_well_formed(index, position)
        return fields

    @cached_property
    def geometry(self) -> Geometry:
        if self.alike is not None:
            return uniform_geometry(self.alike, self.positions)
        geometry = measure(self.data, self.positions, self.sizes)
        if geometry.well_formed < len(self):
            raise _not_well_formed(geometry.well_formed, int(self.positions[geometry.well_formed]))
        return geometry

    @property
    def body_positions(self) -> Int64s:
        return self.geometry.body_positions

    @property
    def body_sizes(self) -> Int64s:
        return self.geometry.body_sizes

    @property
    def topic_positions(self) -> Int64s:
        return self.geometry.topic_positions

    @property
    def topic_sizes(self) -> Int64s:
        return self.geometry.topic_sizes

    @property
    def property_positions(self) -> Int64s:
        return self.geometry.property_positions

    @property
    def property_sizes(self) -> Int64s:
        return self.geometry.property_sizes

    # --- header columns ---

    @cached_property
    def magic(self) -> Int32s:
        """Magic codes, signed."""
        return self._int32s(MAGIC_AT)

    @cached_property
    def body_crcs(self) -> Int32s:
        return self._int32s(BODY_CRC_AT)

    @cached_property
    def queue_ids(self) -> Int32s:
        return self._int32s(QUEUE_ID_AT)

    @cached_property
    def flags(self) -> Int32s:
        return self._int32s(FLAG_AT)

    @cached_property
    def queue_offsets(self) -> Int64s:
        return self._int64s(QUEUE_OFFSET_AT)

    @cached_property
    def physical_offsets(self) -> Int64s:
        return self._int64s(PHYSICAL_OFFSET_AT)

    @property
    def sys_flags(self) -> Int32s:
        return self.geometry.sys_flags

    @cached_property
    def born_timestamps(self) -> Int64s:
        return self._int64s(BORN_TIMESTAMP_AT)

    @cached_property
    def born_ports(self) -> Int32s:
        return self._int32s(BORN_HOST_AT + 4 + self.geometry.born_shifts)

    @cached_property
    def store_timestamps(self) -> Int64s:
        if self.has_rows:
            times = [store_timestamp(self.data, row.position, row.sys_flag) for row in self.rows]
            return np.array(times, np.int64)
        return self._int64s(STORE_TIMESTAMP_AT + self.geometry.born_shifts)

    @cached_property
    def reconsume_times(self) -> Int32s:
        return self._int32s(RECONSUME_TIMES_AT + self.header_shifts)

    @cached_property
    def prepared_transaction_offsets(self) -> Int64s:
        return self._int64s(PREPARED_OFFSET_AT + self.header_shifts)

    @cached_property
    def header_shifts(self) -> Int64s:
        """Bytes by which IPv6 hosts move RECONSUMETIMES and the later fields."""
        return self.geometry.born_shifts + HOST_SIZE_EXTRA * (self.sys_flags >> 5 & 1).astype(np.int64)

    def _int32s(self, at: int | Int64s) -> Int32s:
        return self._integers(">i4", at).astype(np.int32)

    def _int64s(self, at: int | Int64s) -> Int64s:
        return self._integers(">i8", at).astype(np.int64)

    def _integers(self, dtype: str, at: int | Int64s) -> NDArray[np.signedinteger]:
        geometry = self.geometry
        if geometry.stride:
            first = int(self.positions[0]) + (at if isinstance(at, int) else int(at[0]))
            return strided(self.data, dtype, first, len(self), geometry.stride)
        if not len(self):
            return np.zeros(0, dtype)
        values: NDArray[np.signedinteger] = sliding(self.data, dtype)[self.positions + at]
        return values

    # --- topics, properties, index ---

    def bytes_at(self, starts: Int64s, width: int) -> NDArray[np.uint8]:
        """uint8[n, width]: `width` bytes of each record from its `starts` on, all within the buffer."""
        stride = self.geometry.stride
        if stride:
            return strided_rows(self.data, int(starts[0]), len(self), width, stride)
        return sliding_rows(self.data, starts, width)

    @cached_property
    def only_topic(self) -> str | None:
        """The topic of all records, or None when they have several."""
        if self.topic is not None or not len(self):
            return self.topic
        names = self.topic_rows
        if names is None or (names != names[0]).any():
            return None
        return bytes(names[0]).decode("utf-8", "replace")

    @cached_property
    def topic_rows(self) -> NDArray[np.uint8] | None:
        """uint8[n, size]: the bytes of the topics; None if they have several sizes, or one that no topic
        has."""
        sizes = self.topic_sizes
        size = int(sizes[0])
        if size > TOPIC_SIZE_MAX_V2 or (sizes != size).any():
            return None
        return self.bytes_at(self.topic_positions, size)

    @cached_property
    def topics(self) -> list[str]:
        """The topic of each record."""
        if self.only_topic is not None or not len(self):
            return [self.only_topic or ""] * len(self)
        rows = self.topic_rows
        if rows is None:
            raw = [*map(bytes, self.slices(self.topic_positions, self.topic_positions + self.topic_sizes))]
        else:
            raw = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}")[:, 0].tolist()
        names = {name: name.decode("utf-8", "replace") for name in set(raw)}
        return [names[name] for name in raw]

    def topic_groups(self) -> list[tuple[str, Int64s]]:
        """(topic, indexes of its records) for each topic, in the order of first appearance."""
        return self._topic_groups

    @cached_property
    def _topic_groups(self) -> list[tuple[str, Int64s]]:
        if not len(self):
            return []
        if self.only_topic is not None:
            return [(self.only_topic, np.arange(len(self)))]
        groups: dict[str, list[Int64s]] = {}
        for size in np.unique(self.topic_sizes).tolist():
            chosen = np.flatnonzero(self.topic_sizes == size)
            names = sliding_rows(self.data, self.topic_positions[chosen], size)
            for name, rows in _rows_by_value(names):
                groups.setdefault(name.decode("utf-8", "replace"), []).append(chosen[rows])
        found = [
            (topic, parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts)))
            for topic, parts in groups.items()
        ]
        return sorted(found, key=lambda group: int(group[1][0]))

    def crcs(self) -> NDArray[np.int32]:
        """The CRCs of the stored bodies, computed; compare with body_crcs."""
        computed = np.fromiter(map(crc32, self.stored_bodies()), np.uint32, len(self))
        return (computed & CRC_MASK).astype(np.int32)

    def over(self, data: Buffer) -> Self:
        """The columns for another buffer with the same records: it must have the same lengths, magics and
        host forms."""
        known = self.__dict__
        view = data if isinstance(data, memoryview) else memoryview(data)
        if self.alike is not None and len(view) == len(self.data):
            batch = self.of_uniform(view, self.alike, len(self), self.topic, checked=self.checked)
        elif self.has_rows and len(view) == len(self.data) == self.nbytes:
            batch = self.of_rows(view, self.rows, self.topic)
        else:
            batch = type(self)(view, self.positions, self.sizes, self.topic)
        for name in ("rows", "geometry", "parts", "checked", "special"):
            if name in known:
                batch.__dict__[name] = known[name]
        return batch

    def head(self, count: int) -> Self:
        """A batch of the first `count` records."""
        if count == len(self):
            return self
        return type(self)(self.data, self.positions[:count], self.sizes[:count], self.topic)

    def well_formed_head(self) -> Self:
        """The records before the first that is not well formed."""
        geometry = measure(self.data, self.positions, self.sizes)
        if geometry.well_formed == len(self):
            self.__dict__["geometry"] = geometry
        return self.head(geometry.well_formed)

    def where(self, chosen: NDArray[np.bool_]) -> Self:
        """A batch of the records for which `chosen`, bool[n], is true."""
        return type(self)(self.data, self.positions[chosen], self.sizes[chosen], self.topic)

    @cached_property
    def uniform_properties(self) -> UniformProperties | None:
        """The layout that nearly all records' properties have, if they have one."""
        if self.alike is not None:
            return properties_alike(self.data, self.alike, len(self))
        return uniform_properties(self.data, self.geometry)

    @cached_property
    def property_bytes(self) -> bytes:
        """All property blocks, one after the other: shows quickly that a name is in none of them."""
        if len(self.positions) == 1:
            row = self.rows[0]
            return bytes(self.data[row.property_position : row.property_position + row.property_size])
        if len(self) <= ROWS_MAX:
            spans = [(row.property_position, row.property_position + row.property_size) for row in self.rows]
            return b"".join([self.data[start:end] for start, end in spans])
        if self.uniform:
            return self.bytes_at(self.property_positions, int(self.property_sizes[0])).tobytes()
        return b"".join(self.slices(self.property_positions, self.property_positions + self.property_sizes))

    @cached_property
    def property_scans(self) -> list[PropertyScan]:
        """All records' properties, found at once."""
        return list(scan_properties(self.data, self.geometry))


def _within(positions: Int64s, sizes: Int64s, length: int) -> bool:
    """Every record lies in [0, length); the single maxima come first so that the sum cannot overflow."""
    if len(positions) == 1:
        position, size = int(positions[0]), int(sizes[0])
        return position >= 0 and size >= 0 and position + size <= length
    return (
        int(positions.min()) >= 0
        and int(sizes.min()) >= 0
        and max(int(positions.max()), int(sizes.max())) <= length
        and int((positions + sizes).max()) <= length
    )


def few_rows(data: memoryview) -> list[RecordFields] | None:
    """The records that fill `data` exactly; None if they do not, or if they are more than ROWS_MAX."""
    if not has_few_records(data):
        return None
    rows: list[RecordFields] = []
    position, length = 0, len(data)
    while position < length:
        fields = read_fields(data, position, length)
        if fields is None:
            return None
        rows.append(fields)
        position += fields.size
    return rows or None


def _split_positions(data: memoryview) -> tuple[Int64s, Int64s]:
    """Follows the TOTALSIZEs. If the first one divides the whole, one strided comparison may be enough."""
    length = len(data)
    size = int.from_bytes(data[:4], signed=True) if length >= RECORD_SIZE_MIN else 0
    if size >= RECORD_SIZE_MIN and length % size == 0:
        count = length // size
        if count == 1 or (strided(data, ">i4", 0, count, size) == size).all():
            return np.arange(0, length, size, dtype=np.int64), np.full(count, size, np.int64)
    sizes: list[int] = []
    position, last = 0, length - RECORD_SIZE_MIN
    total_size = _TOTAL_SIZE.unpack_from
    while position <= last:
        (size,) = total_size(data, position)
        if size < RECORD_SIZE_MIN:
            break
        sizes.append(size)
        position += size
    if position != length:
        raise TroveError(
            errors.BATCH_ILLEGAL,
            f"{len(sizes)} records lead to byte {position} of {length}, expected its end",
        )
    all_sizes = np.array(sizes, np.int64)
    return np.cumsum(all_sizes) - all_sizes, all_sizes


def _not_well_formed(index: int, position: int) -> TroveError:
    return TroveError(
        errors.BATCH_ILLEGAL,
        f"record {index} at byte {position} is not well formed: magic or lengths are wrong",
        record=index,
        position=position,
    )


def _rows_by_value(values: NDArray[np.uint8]) -> Iterator[tuple[bytes, Int64s]]:
    """Each value of uint8[n, size], and which rows have it."""
    if (values == values[0]).all():
        yield values[0].tobytes(), np.arange(len(values))
        return
    values = np.ascontiguousarray(values)
    strings = values.view(f"S{values.shape[1]}")[:, 0]
    _, first, which = np.unique(strings, return_index=True, return_inverse=True)
    order = np.argsort(which, kind="stable")
    begins = np.searchsorted(which[order], np.arange(len(first) + 1)).tolist()
    names = values[first].view(f"V{values.shape[1]}")[:, 0].tolist()
    for name, begin, end in zip(names, begins, begins[1:], strict=False):
        yield name, order[begin:end]
