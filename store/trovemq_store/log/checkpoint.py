"""RocketMQ's `checkpoint` file (docs/store-format.md, "Checkpoint"), 4,096 bytes, the rest zero:

    offset  width  field
         0  i64    physicMsgTimestamp: store time of the last record that is on disk
         8  i64    logicsMsgTimestamp: store time of the last record whose consume-queue unit is on disk
        16  i64    indexMsgTimestamp: end time of the last index file that is full and on disk
        24  i64    masterFlushedOffset (replication)
        32  i64    confirmPhyOffset (controller mode)

A RocketMQ that opens our store after a kill scans from min(physic, logics) - 3 s; so the first two are never
later than the last sync. Nor is one later than a record that is not on disk: before store times step back
(trovemq_store.engine.store_time), they are lowered.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.files.files import FileSystem

PATH: Final = "checkpoint"
FILE_SIZE: Final = 4096
_FIELDS: Final = struct.Struct(">5q")
MARGIN_MS: Final = 3000
"""The checkpoint is trusted up to this long before its times, as in RocketMQ."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Times in epoch milliseconds, offsets in bytes of the commit log."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: PhysicalOffset = LOG_ORIGIN

    @property
    def min_timestamp(self) -> int:
        """Records that were stored at this time or before are on disk, with their units."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - MARGIN_MS)

    def advanced(self, *, physic: int = 0, logics: int = 0, index: int = 0) -> Checkpoint:
        """The checkpoint with these times; only limited() moves one back."""
        return replace(
            self,
            physic_msg_timestamp=max(self.physic_msg_timestamp, physic),
            logics_msg_timestamp=max(self.logics_msg_timestamp, logics),
            index_msg_timestamp=max(self.index_msg_timestamp, index),
        )

    def limited(self, time_max: int) -> Checkpoint:
        """The checkpoint with no time later than that: store times step back."""
        return replace(
            self,
            physic_msg_timestamp=min(self.physic_msg_timestamp, time_max),
            logics_msg_timestamp=min(self.logics_msg_timestamp, time_max),
            index_msg_timestamp=min(self.index_msg_timestamp, time_max),
        )

    def pack(self) -> bytes:
        fields = _FIELDS.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_physical_offset,
        )
        return fields.ljust(FILE_SIZE, b"\0")


def load(files: FileSystem) -> Checkpoint:
    """The file's content; all zero if it is missing or too short."""
    if not files.exists(PATH):
        return Checkpoint()
    data = files.read_bytes(PATH)
    return Checkpoint(*_FIELDS.unpack_from(data)) if len(data) >= _FIELDS.size else Checkpoint()


def save(files: FileSystem, checkpoint: Checkpoint) -> None:
    files.write_atomic(PATH, checkpoint.pack())
