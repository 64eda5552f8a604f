"""The interface of a projection, which may be deleted and is then rebuilt from the log, and its input.

Invariants of a projection
- `position` is the physical offset up to which every record has been applied; apply() moves it forward.
- apply() is idempotent by physical offset: a record below `position` is never applied twice.
- `synced_position` never passes the position of the last flush(); replay starts there after a crash.
- truncate_to(p) leaves the projection as if the log had ended at p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.batch import RecordBatch


@dataclass(frozen=True, slots=True)
class DispatchBatch:
    """A contiguous run of records in the log, of one segment, in log order.

    `records` holds their bytes and columns; record i lies at physical_offset + records.positions[i].
    `alive[i]` is False for a record of a deleted topic (below the deletion): no projection applies it;
    None means that all are alive. The next batch continues at `end` (after the last record, or at
    the start of the next segment after a blank). A batch without records only moves `position`.
    """

    records: RecordBatch
    physical_offset: PhysicalOffset
    end: PhysicalOffset
    alive: NDArray[np.bool_] | None = None

    def offset_of(self, index: int) -> PhysicalOffset:
        """Where record `index` begins."""
        return PhysicalOffset(self.physical_offset + int(self.records.positions[index]))


class Projection(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def position(self) -> PhysicalOffset:
        """Everything in the log below it has been applied."""
        ...

    @property
    def synced_position(self) -> PhysicalOffset:
        """Everything in the log below it has been applied and is on disk."""
        ...

    def apply(self, batch: DispatchBatch) -> None:
        """Applies the records at or after `position`. Raises StorageError; the same batch may then be applied
        again."""
        ...

    def flush(self) -> None:
        """Syncs the applied records to disk; afterwards synced_position == the position at its start. May be
        called in another thread than apply()."""
        ...

    def truncate_to(self, physical_offset: PhysicalOffset) -> None: ...

    def trim_before(self, physical_offset: PhysicalOffset) -> None:
        """The log now begins at physical_offset: whole files below it may be removed."""
        ...

    def close(self) -> None: ...
