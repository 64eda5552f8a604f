"""The records of a batch of a Consume stream: where they lie, and which of them are damaged."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.numpy_extra import has_numpy
from trovemq_proto.records.check import crc_matches
from trovemq_proto.records.compression import inflate_body
from trovemq_proto.records.fields import has_few_records, read_fields
from trovemq_proto.records.layout import PHYSICAL_OFFSET_AT, RECORD_SIZE_MIN, SYS_FLAG_COMPRESSED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INFLATED_SIZE_MAX: Final = 64 << 20

_PHYSICAL_OFFSET: Final = Struct(">q")


class RecordSpans:
    """Where the records of a batch lie in its bytes and in the log, and which of them are damaged.

    Attributes:
        starts: Where each record begins; the last item is the end of all.
        inflated: The bodies of compressed records, by number.
    """

    __slots__ = (
        "body_ends",
        "body_starts",
        "compressed",
        "damaged",
        "data",
        "inflated",
        "physical_offsets",
        "starts",
    )

    starts: Sequence[int]
    body_starts: Sequence[int]
    body_ends: Sequence[int]
    physical_offsets: list[int]

    def __init__(self, data: memoryview) -> None:
        """Raises TroveError BATCH_ILLEGAL if the bytes are not records."""
        self.data = data
        self.damaged: set[int] = set()
        self.compressed: set[int] = set()
        self.inflated: dict[int, bytes] = {}
        if has_few_records(data) or not has_numpy() or not self._read_columns():
            self._read_each()

    def __len__(self) -> int:
        return len(self.starts) - 1

    def _read_each(self) -> None:
        data, at, number = self.data, 0, 0
        starts, body_starts, body_ends = [0], list[int](), list[int]()
        self.physical_offsets = []
        while at < len(data):
            size = int.from_bytes(data[at : at + 4])
            if not RECORD_SIZE_MIN <= size <= len(data) - at:
                raise TroveError(errors.BATCH_ILLEGAL, f"no record at byte {at} of {len(data)}")
            self.physical_offsets += _PHYSICAL_OFFSET.unpack_from(data, at + PHYSICAL_OFFSET_AT)
            fields = read_fields(data, at, at + size)
            begin = end = at
            if fields is None or not crc_matches(data, fields):
                self.damaged.add(number)
            else:
                begin, end = fields.body_position, fields.body_position + fields.body_size
                if fields.sys_flag & SYS_FLAG_COMPRESSED:
                    self.compressed.add(number)
            body_starts.append(begin)
            body_ends.append(end)
            at += size
            starts.append(at)
            number += 1
        self.starts, self.body_starts, self.body_ends = starts, body_starts, body_ends

    def _read_columns(self) -> bool:
        """False if a record is not well formed."""
        from trovemq_proto.records import RecordBatch
        from trovemq_proto.records.record_crcs import damaged_records

        try:
            batch = RecordBatch.split(self.data)
        except TroveError:
            return False
        geometry = batch.geometry
        begins, stride = geometry.body_positions, geometry.stride
        self.starts = _numbers(batch.positions, stride, len(self.data))
        self.body_starts = _numbers(begins, stride)
        self.body_ends = _numbers(begins + geometry.body_sizes, stride)
        self.physical_offsets = batch.physical_offsets.tolist()
        self.damaged = set(damaged_records(batch).nonzero()[0].tolist())
        self.compressed = set((batch.sys_flags & SYS_FLAG_COMPRESSED).nonzero()[0].tolist())
        return True

    def inflate(self) -> dict[int, TroveError]:
        """Inflates compressed bodies. Returns the errors of damaged bodies and records, by number."""
        found: dict[int, TroveError] = {}
        for number in sorted(self.damaged | self.compressed):
            if number in self.damaged:
                found[number] = TroveError(
                    errors.RECORD_DAMAGED, "the record is not as it was stored: its CRC is wrong"
                )
                continue
            begin, end = self.body_starts[number], self.body_ends[number]
            fields = read_fields(self.data, self.starts[number], self.starts[number + 1])
            assert fields is not None, "a batch has well-formed records only"
            try:
                body = inflate_body(bytes(self.data[begin:end]), fields.sys_flag, INFLATED_SIZE_MAX)
            except TroveError as error:
                found[number], body = error, b""
            self.inflated[number] = body
        return found


def _numbers(values: NDArray[np.int64], stride: int, *more: int) -> Sequence[int]:
    """The values, and one more if it is given. A stride other than 0 is the distance of all of them."""
    if stride:
        first = int(values[0])
        return range(first, first + stride * (len(values) + len(more)), stride)
    return [*values.tolist(), *more]
