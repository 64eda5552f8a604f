"""Looks a key up in Parquet's bloom filters: which row groups of a file may have it.

A filter is a header (Thrift: the bitset's size, three empty structs) and a bitset of blocks of 32 bytes, each
eight words of 32 bits. The upper half of a value's XXH64 chooses the block, the lower half one bit of each of
its words; all eight are set if the value is in the row group. So a look-up reads 32 bytes per row group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Self

import pyarrow.parquet as pq

from trovemq_spark.archive.entry import FileEntry
from trovemq_spark.archive.parquet_files import BLOOM_COLUMNS
from trovemq_spark.archive.xxhash64 import xxhash64
from trovemq_spark.storage import StoragePath

_BLOCK_SIZE: Final = 32
_SALTS: Final = (
    0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
)  # fmt: skip
_HEADER_SIZE_MAX: Final = 64


class FileFilters:
    """All filters of one file, which is open within `with`."""

    def __init__(self, place: StoragePath, entry: FileEntry) -> None:
        """Raises OSError."""
        files, root = place.arrow()
        self._file = files.open_input_file(f"{root.rstrip('/')}/{entry.file}")
        try:
            self._metadata = pq.read_metadata(self._file)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def row_group_count(self) -> int:
        return int(self._metadata.num_row_groups)

    def groups_with(self, column: str, values: Iterable[str]) -> set[int]:
        """The row groups that may have one of these values (whole values; single keys for `keyList`).

        column: one of BLOOM_COLUMNS. A row group without a filter may have any value. Raises OSError.
        """
        hashes = [xxhash64(value.encode()) for value in values]
        index = _column_index(self._metadata, BLOOM_COLUMNS[column])
        return {
            group
            for group in range(self.row_group_count)
            if _may_have(self._file, self._metadata.row_group(group).column(index), hashes)
        }


def _column_index(metadata: Any, path: str) -> int:
    return next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == path)


def _may_have(file: Any, chunk: Any, hashes: list[int]) -> bool:
    begin, size = chunk.bloom_filter_offset, chunk.bloom_filter_length
    if begin is None or size is None:
        return True
    header = file.read_at(min(size, _HEADER_SIZE_MAX), begin)
    bitset_size = _bitset_size(header)
    bitset = begin + size - bitset_size
    return any(_has_bits(file, bitset, bitset_size // _BLOCK_SIZE, value) for value in hashes)


def _bitset_size(header: bytes) -> int:
    """The first field of the header: a zigzag number, 7 bits per byte."""
    assert header[:1] == b"\x15", "field 1, of 32 bits"
    value = 0
    for i, byte in enumerate(header[1:]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            break
    return value >> 1


def _has_bits(file: Any, bitset: int, block_count: int, value: int) -> bool:
    block = (value >> 32) * block_count >> 32
    words = file.read_at(_BLOCK_SIZE, bitset + block * _BLOCK_SIZE)
    low = value & 0xFFFFFFFF
    for i, salt in enumerate(_SALTS):
        word = int.from_bytes(words[4 * i : 4 * i + 4], "little")
        if not word >> ((low * salt & 0xFFFFFFFF) >> 27) & 1:
            return False
    return True
