"""Appends bytes of another node's log: the same bytes at the same offset, so that the files become equal.

A run of such bytes is whole records of one segment. It may end with the blank record that ends the segment
(trovemq_store.log.commit_log); the unused rest of the segment, which is zero, travels as a length:

    offset          width  field
         0              n  whole records, each with the physical offset of its place
         n              8  blank record, only where the segment ends; its size is 8 + `unused`
     n + 8         unused  not sent

Invariants
- Everything is checked before anything is written: a refused run has changed nothing, neither a byte nor a
  segment nor the end of the log.
- Of a record its lengths, magic, topic and PHYSICALOFFSET are compared. Its CRC is not: the run's
  sender vouches for the bytes in transit, and a scrub reads the CRCs.
"""

from __future__ import annotations

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.alike import as_alike
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.layout import BLANK_SIZE, MAGIC_BLANK_BYTES
from trovemq_proto.records.scan import few_records_of_log, scan_run
from trovemq_store.log.commit_log import CommitLog


def append_raw(
    log: CommitLog, physical_offset: PhysicalOffset, data: memoryview, unused: int = 0
) -> RecordBatch:
    """Appends the run, and returns its records. unused: bytes of the segment after the blank that ends
    `data`; 0 without one.

    TroveError REPLICA_OFFSET_MISMATCH, REPLICA_BYTES_ILLEGAL, DISK_FULL, CREATE_MAPPED_FILE_FAILED,
    UNKNOWN_ERROR: nothing was appended.
    """
    if physical_offset != log.end:
        raise TroveError(
            errors.REPLICA_OFFSET_MISMATCH,
            f"the bytes are for offset {physical_offset}, and the log ends at {log.end}",
            end=log.end,
        )
    records = as_alike(_checked(data, physical_offset, unused, log.segments.file_size))
    log.write_raw(data, unused)
    return records


def _checked(data: memoryview, physical_offset: PhysicalOffset, unused: int, file_size: int) -> RecordBatch:
    """The run's records. TroveError REPLICA_BYTES_ILLEGAL."""
    space = file_size - physical_offset % file_size
    if not len(data) or unused < 0 or len(data) + unused > space:
        text = f"{len(data)} bytes and {unused} unused ones are no run of the {space} bytes of the segment"
        raise _illegal(text, physical_offset)
    records, end = few_records_of_log(data, physical_offset), len(data)
    if records is None:
        records, end, _ = scan_run(
            data,
            0,
            len(data),
            physical_offset_of_data=physical_offset,
            check_crc=False,
            bytes_max=len(data),
        )
    rest, left = bytes(data[end:]), space - end
    if rest:
        if rest != left.to_bytes(4) + MAGIC_BLANK_BYTES or unused != left - BLANK_SIZE:
            raise _illegal("there is neither a record of that place nor a blank", physical_offset + end)
    elif unused:
        raise _illegal("the rest of a segment is unused only after a blank", physical_offset + end)
    elif left < BLANK_SIZE:
        raise _illegal("a blank has no space after it", physical_offset + end)
    return records


def _illegal(text: str, physical_offset: int) -> TroveError:
    return TroveError(
        errors.REPLICA_BYTES_ILLEGAL, f"at offset {physical_offset}: {text}", physical_offset=physical_offset
    )
