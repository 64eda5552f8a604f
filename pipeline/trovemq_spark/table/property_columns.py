"""The properties of many records as Arrow columns: single properties, and the map of all.

The names of a scan are numbered once (there are few different ones). A value is found by this number, and
adding bits shows records that have a name twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trovemq_proto.records import RecordBatch
from trovemq_proto.records.layout import PROPERTY_CRC, VALUE_END
from trovemq_proto.records.property_scan import PropertyScan, Slices
from trovemq_spark.table.parts import parts, texts
from trovemq_spark.table.regular_properties import RegularProperties, regular_properties
from trovemq_spark.table.schema import PROPERTIES_TYPE

_BITS: Final = 62
Bools = NDArray[np.bool_]


def property_columns(batch: RecordBatch) -> Sequence[PropertyColumns | RegularProperties]:
    """The columns of all records, in the parts that the codec makes."""
    sizes = batch.property_sizes
    ends = batch.property_positions + sizes
    if len(batch) and int(sizes.min()) > 0 and (batch.array[ends - 1] == VALUE_END).all():
        # Every block ends with a mark: a scan needs one copy of the blocks.
        blocks = parts(batch.data, batch.property_positions, ends)
        joined = memoryview(blocks.buffers()[2])
        block_ends = np.cumsum(sizes)
        regular = regular_properties(joined, block_ends)
        if regular is not None:
            return [regular]
        return [PropertyColumns(PropertyScan(joined.tobytes(), block_ends - sizes, 0))]
    return [PropertyColumns(scan) for scan in batch.property_scans]


class PropertyColumns:
    """The columns of one scan's records."""

    def __init__(self, scan: PropertyScan) -> None:
        self._scan: Final = scan
        self._ascii: Final = scan.high_bytes is None
        names, self._values = scan.names_and_values()
        self._records: Final = names.records - scan.first
        numbered = parts(scan.joined, names.starts, names.ends).dictionary_encode()
        self._numbers: Final[NDArray[np.int32]] = numbered.indices.to_numpy()
        self._names: Final[list[bytes]] = numbered.dictionary.to_pylist()

    def values(self, name: str) -> pa.Array:
        """The value of this property in each record (the last of that name); null if it has none."""
        encoded = name.encode()
        if encoded not in self._names:
            return pa.nulls(self._scan.count, pa.string())
        chosen = np.flatnonzero(self._numbers == self._names.index(encoded))
        records, found = self._records[chosen], self._texts(self._values.where(chosen))
        if len(chosen) == self._scan.count and (records == np.arange(len(chosen))).all():
            return found
        places = np.full(self._scan.count, -1, np.int64)
        places[records] = np.arange(len(chosen))
        return found.take(pa.array(places, mask=places < 0))

    def maps(self) -> pa.Array:
        """All properties of each record except the CRC of the record; each name occurs once in a map."""
        kept = self._counting
        values, records, numbers = self._values, self._records, self._numbers
        if not kept.all():
            values, records, numbers = values.where(kept), records[kept], numbers[kept]
        cuts = np.searchsorted(records, np.arange(self._scan.count + 1)).astype(np.int32)
        names = pa.array([name.decode("utf-8", "replace") for name in self._names], pa.string())
        keys = names.take(pa.array(numbers))
        return pa.MapArray.from_arrays(pa.array(cuts), keys, self._texts(values)).cast(PROPERTIES_TYPE)

    def _texts(self, values: Slices) -> pa.Array:
        return texts(self._scan.joined, values.starts, values.ends, ascii_only=self._ascii)

    @cached_property
    def _counting(self) -> Bools:
        """The properties that are in the map."""
        crc = PROPERTY_CRC.encode()
        kept = np.ones(len(self._numbers), np.bool_)
        if crc in self._names:
            kept = self._numbers != self._names.index(crc)
        if self._maybe_twice():
            kept &= self._is_last_of_its_name()
        return kept

    def _maybe_twice(self) -> bool:
        """Whether a record may have a name twice: then the sum of one bit per name differs from their
        union."""
        if not len(self._numbers):
            return False
        if len(self._names) > _BITS or not self._ascii:
            return True
        bits = np.int64(1) << self._numbers.astype(np.int64)
        begins = np.flatnonzero(np.diff(self._records, prepend=-1))
        added, united = np.add.reduceat(bits, begins), np.bitwise_or.reduceat(bits, begins)
        return bool((added != united).any())

    def _is_last_of_its_name(self) -> Bools:
        # Names that differ only in invalid UTF-8 become one name.
        spelled = [name.decode("utf-8", "replace") for name in self._names]
        first_of = {name: number for number, name in reversed(list(enumerate(spelled)))}
        same = np.array([first_of[name] for name in spelled], np.int64)[self._numbers]
        marks = self._records * len(spelled) + same
        last = len(marks) - 1 - np.unique(marks[::-1], return_index=True)[1]
        kept = np.zeros(len(marks), np.bool_)
        kept[last] = True
        return kept
