"""A bad place after the known end: is it the log's end, or damage with more of the log after it?

Bytes there may never have been synced. Then a power cut lost whole sectors of it, which read as zeros (the
rest of a file is zero before it is written): the place is *torn*, and the log ends there. A place that no
zeros explain was written whole and damaged later. It is skipped:
- if a good record, or the blank at the segment's end and a record after it, follows it with no sector lost
  in between;
- if it is a damaged record whose lengths are right, also with nothing after it: its place and its queue
  offset are not assigned twice.

A store that RocketMQ left may have records of an older use of the file after its end: they name their own
positions, and RocketMQ does not zero them. They were stored before the records that overwrote them, so a
record that is older than the last good one does not show that the log continues. Store times of the log may
step back, too: before the first record with an earlier time is written, `trovemq/state.json` says how early
the records after the known end may be (stepMs). A record counts as old if it is earlier than that.
"""

from __future__ import annotations

import errno
from typing import Final

import numpy as np

from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.check import RecordState, check_record
from trovemq_proto.records.fields import store_timestamp
from trovemq_proto.records.layout import BLANK_SIZE, MAGIC_BLANK_BYTES, MAGIC_V1_BYTES, MAGIC_V2_BYTES
from trovemq_store.files.files import StorageError
from trovemq_store.log.readable import PAGE_SIZE, can_read_record, readable_end
from trovemq_store.log.sectors import SECTOR_SIZE, written_until
from trovemq_store.log.segments import Segment

_CHUNK_MIN: Final = 1 << 12
_CHUNK_MAX: Final = 1 << 20
"""Bytes that are examined at a time: at first, and at most."""
_MAGIC_POSITION: Final = 4


def search_from(segment: Segment, physical_offset: PhysicalOffset, state: RecordState) -> PhysicalOffset:
    """Where the next record may begin after the bytes at physical_offset, which are not one."""
    if state is not RecordState.DAMAGED:
        return PhysicalOffset(physical_offset + 1)
    # Its lengths are right, so bytes in its body that look like a record are not one.
    view, position = segment.file.view(), physical_offset - segment.start
    return PhysicalOffset(
        physical_offset + max(1, check_record(view, position, len(view), physical_offset=physical_offset)[1])
    )


def log_continues(
    segment: Segment,
    physical_offset: PhysicalOffset,
    state: RecordState,
    following: Segment | None,
    oldest_ms: int,
) -> bool:
    """Whether the log continues after the bad place at physical_offset; `state`: as check_record found it.

    following: the segment after this one; oldest_ms: records that were stored earlier are of an older use.
    """
    data = np.frombuffer(segment.file.view(), np.uint8)
    position = physical_offset - segment.start
    begin = search_from(segment, physical_offset, state) - segment.start
    # A record that ends with zeros lost its end, even if that is not a whole sector.
    if state is RecordState.DAMAGED and data[begin - 1] and written_until(data, position, begin) == begin:
        return True
    if _begins_with_new(following, oldest_ms) and _is_broken_blank(segment, position):
        return True
    size = _CHUNK_MIN
    while position < len(data):
        end = min(position + size, len(data))
        segment.file.check_readable(position, end)  # unreadable bytes may be a good record
        written = written_until(data, position, end)
        found = find_record(
            segment,
            segment.offset_at(max(position, begin)),
            segment.offset_at(written),
        )
        if found < segment.offset_at(written):
            return store_timestamp(segment.file.view(), found - segment.start) >= oldest_ms
        if _has_blank(segment, max(position, begin), written) and _begins_with_new(following, oldest_ms):
            return True
        if written < end:
            return False
        position, size = end, min(2 * size, _CHUNK_MAX)
    return False


def find_record(
    segment: Segment, physical_offset: PhysicalOffset, end: PhysicalOffset | None = None
) -> PhysicalOffset:
    """Where the first good record begins in [physical_offset, end) that names its own position; else `end`,
    by default the end of the segment."""
    view = segment.file.view()
    data = np.frombuffer(view, dtype=np.uint8)
    end = segment.end if end is None else end
    last = end - segment.start + _MAGIC_POSITION
    chunk = physical_offset - segment.start + _MAGIC_POSITION
    size = _CHUNK_MIN
    while chunk < min(last, len(data)):
        readable = readable_end(segment.file, chunk, min(chunk + size + 3, len(data)))
        if readable <= chunk:
            chunk += PAGE_SIZE - chunk % PAGE_SIZE
            continue
        window = data[chunk : min(chunk + size + 3, readable)]
        hits = (window[:-3] == 0xDA) & (window[1:-2] == 0xA3) & (window[2:-1] == 0x20)
        for hit in np.flatnonzero(hits):
            position = chunk + int(hit) - _MAGIC_POSITION
            if not can_read_record(segment.file, position, len(data)):
                continue
            state, _ = check_record(
                view, position, len(data), physical_offset=segment.start + position, check_crc=True
            )
            if state is RecordState.RECORD:
                return min(segment.offset_at(position), end)
        chunk = min(chunk + size, readable)
        size = min(2 * size, _CHUNK_MAX)
    return end


def _is_broken_blank(segment: Segment, position: int) -> bool:
    """Whether a damaged blank is all that was written in the rest of the segment: not the first bytes of a
    record that lost the others, and not a blank that lost one of its two sectors."""
    view = segment.file.view()
    head = bytes(view[position : position + BLANK_SIZE])
    if _lost_a_sector(head, position, segment.file.size - position):
        return False
    magic = head[_MAGIC_POSITION:].rstrip(b"\x00")
    if not any(head) or any(magic and whole.startswith(magic) for whole in (MAGIC_V1_BYTES, MAGIC_V2_BYTES)):
        return False
    if not magic and int.from_bytes(head[:_MAGIC_POSITION]) != segment.file.size - position:
        return False
    for begin, end in segment.file.written_ranges(position + BLANK_SIZE):
        for chunk in range(begin, end, _CHUNK_MAX):
            segment.file.check_readable(chunk, min(chunk + _CHUNK_MAX, end))
            if np.frombuffer(view[chunk : min(chunk + _CHUNK_MAX, end)], np.uint8).any():
                return False
    return True


def _lost_a_sector(head: bytes, position: int, size: int) -> bool:
    """Whether a blank of `size` bytes lies in two sectors, and its bytes in one of them were lost."""
    boundary = -position % SECTOR_SIZE
    whole = size.to_bytes(_MAGIC_POSITION) + MAGIC_BLANK_BYTES
    parts = (slice(None, boundary), slice(boundary, None))
    return boundary < BLANK_SIZE and any(any(whole[part]) and not any(head[part]) for part in parts)


def _has_blank(segment: Segment, begin: int, end: int) -> bool:
    """Whether a blank that ends the segment begins in [begin, end) of it."""
    window = bytes(segment.file.view()[begin : end + BLANK_SIZE])
    at = window.find(MAGIC_BLANK_BYTES, _MAGIC_POSITION)
    while at >= 0:
        size = int.from_bytes(window[at - _MAGIC_POSITION : at])
        if size == segment.file.size - (begin + at - _MAGIC_POSITION):
            return True
        at = window.find(MAGIC_BLANK_BYTES, at + 1)
    return False


def _begins_with_new(segment: Segment | None, oldest_ms: int) -> bool:
    """Whether the segment begins with a good record that was stored at oldest_ms or later. StorageError."""
    if segment is None:
        return False
    view = segment.file.view()
    if not can_read_record(segment.file, 0, len(view)):
        # It may have good records, which would be lost if the log were cut before it.
        raise StorageError("read", segment.file.path, errno.EIO)
    state, _ = check_record(view, 0, len(view), physical_offset=segment.start)
    return state is RecordState.RECORD and store_timestamp(view, 0) >= oldest_ms
