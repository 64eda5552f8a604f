"""How far a file of the log can be read: a bad sector costs the records that lie on it, and no others.

The log is read through its mapping, where a read that fails would end the process (SIGBUS). So each range is
checked before it is read; unreadable pages are reported as ranges. Where nothing is free for the check
(ScarceError), nothing is known of the bytes, and the error goes to the caller.
"""

from __future__ import annotations

from typing import Final

from trovemq_proto.records.layout import MAGIC_BLANK_BYTES
from trovemq_store.files.files import File, UnreadableError

PAGE_SIZE: Final = 4096
HEAD_SIZE: Final = 8


def readable_end(file: File, begin: int, end: int) -> int:
    """`end` if [begin, end) can be read; else where its first unreadable page begins, but at least
    `begin`."""
    if _can_read(file, begin, end):
        return end
    good, bad = begin // PAGE_SIZE, -(-end // PAGE_SIZE)  # pages below `good` can be read
    while bad - good > 1:
        middle = (good + bad) // 2
        if _can_read(file, good * PAGE_SIZE, middle * PAGE_SIZE):
            good = middle
        else:
            bad = middle
    return max(begin, good * PAGE_SIZE)


def run_end(file: File, begin: int, limit: int, run_bytes_max: int) -> int:
    """Where reading from `begin` must stop: after about run_bytes_max bytes, but not within the first record;
    earlier at an unreadable page; at `limit` if there is a blank at `begin`."""
    head_end = min(begin + HEAD_SIZE, limit)
    if readable_end(file, begin, head_end) < head_end:
        return begin
    if bytes(file.view()[begin + 4 : begin + HEAD_SIZE]) == MAGIC_BLANK_BYTES:
        return limit
    want = max(run_bytes_max, stated_size(file, begin, limit))
    return readable_end(file, begin, min(limit, begin + want))


def can_read_record(file: File, position: int, limit: int) -> bool:
    """Whether the record at `position` can be read, by the size that it states. If that passes `limit`, it is
    not a record, and its first eight bytes are enough."""
    if not _can_read(file, position, min(position + HEAD_SIZE, limit)):
        return False
    page_rest = PAGE_SIZE - position % PAGE_SIZE
    size = stated_size(file, position, limit)
    return size <= page_rest or _can_read(file, position + page_rest, position + size)


def stated_size(file: File, position: int, limit: int) -> int:
    """TOTALSIZE at `position`, which can be read; 0 if it is not positive or passes `limit`."""
    size = int.from_bytes(file.view()[position : position + 4], signed=True)
    return size if 0 < size <= limit - position else 0


def _can_read(file: File, begin: int, end: int) -> bool:
    try:
        file.check_readable(begin, end)
    except UnreadableError:
        return False
    return True
