"""Reads a queue of few messages as one page. Where there are very many queues, most are as short as that.

To open a file, map it and look for its end costs more than anything else at a start. One page is enough if
the only file of a queue has all its units in its first page, nothing after them, and nothing must be cut.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.files.files import FileSystem, StorageError

PAGE_SIZE: Final = 4096
FIRST_FILE: Final = "0" * 20
_UNIT: Final = Struct(">qiq")
_BLANK_SIZE: Final = 0x7FFFFFFF
_PHYSICAL_MAX: Final = 1 << 63
_ZEROS: Final = bytes(PAGE_SIZE)


class ShortQueue(NamedTuple):
    """Units 0 to count-1, none of them a blank. last: physical offset, size, tags code."""

    unit_count: int
    first_physical: PhysicalOffset
    last: tuple[PhysicalOffset, int, int]


def read_short_queue(
    files: FileSystem,
    directory: str,
    file_size: int,
    trusted_position: PhysicalOffset | None,
    deleted_below: PhysicalOffset,
) -> ShortQueue | None:
    """The queue; None if it is not that short or something must be cut, so that it has to be read in full."""
    if files.list(directory) != [FIRST_FILE]:
        return None
    try:
        head = files.head(f"{directory}/{FIRST_FILE}", PAGE_SIZE)
    except StorageError:
        return None
    if head.size != file_size or not head.is_all:
        return None
    end, count, last = deleted_below, 0, (LOG_ORIGIN, 0, 0)
    for unit in _UNIT.iter_unpack(head.data[: len(head.data) // _UNIT.size * _UNIT.size]):
        physical_offset, size, _ = unit
        if size <= 0 or size == _BLANK_SIZE or physical_offset < end:
            break
        end, count, last = physical_offset + size, count + 1, unit
    rest = head.data[count * _UNIT.size :]
    if not count or rest != _ZEROS[: len(rest)]:
        return None
    limit = _PHYSICAL_MAX if trusted_position is None else trusted_position
    if last[0] >= limit:
        return None
    return ShortQueue(count, _UNIT.unpack_from(head.data)[0], last)
