"""Faults of a store by name, each a function that damages a copy and says how it must be reported.

The copies are of the golden store `rollover` (segments of 64 KiB, queue files of 50 units, index files of 100
slots and 400 items) or of a store by our own engine with the same sizes, whose records carry a CRC of the
whole record. A fault returns the (kind, file, offset) that an audit must name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trovemq_proto.positions import QueueId
from trovemq_spark.log.scan import ScanBounds, scan_segment
from trovemq_spark.log.segments import LogDirectory
from trovemq_store.check import layouts
from trovemq_store.check.layouts import IndexView
from trovemq_store.log.projection import DispatchBatch

SLOTS: Final = 100
ITEMS: Final = 400
UNITS_A_FILE: Final = 50
UNIT_SIZE: Final = 20
SEGMENT_SIZE: Final = 65_536

Place = tuple[str, str, int]
"""(kind, file, offset) as an audit reports it."""


@dataclass(frozen=True, slots=True)
class Where:
    """A record: which queue it is of, and where it and its unit lie."""

    topic: str
    queue_id: QueueId
    queue_offset: int
    physical: int
    size: int
    body_at: int
    topic_at: int
    properties_at: int

    @property
    def file(self) -> str:
        return f"commitlog/{self.physical // SEGMENT_SIZE * SEGMENT_SIZE:020d}"

    @property
    def at(self) -> int:
        return self.physical % SEGMENT_SIZE

    @property
    def unit_file(self) -> str:
        first = self.queue_offset // UNITS_A_FILE * UNITS_A_FILE
        return f"consumequeue/{self.topic}/{self.queue_id}/{first * UNIT_SIZE:020d}"

    @property
    def unit_at(self) -> int:
        return self.queue_offset % UNITS_A_FILE * UNIT_SIZE

    def reported(self, kind: str = "log") -> Place:
        return kind, self.file, self.at

    def unit(self, kind: str) -> Place:
        return kind, self.unit_file, self.unit_at


class DamagedStore:
    """A store to plant faults in. `pick(n)`: the n-th of its records that a fault may be planted in, each of
    a user's topic, in the middle of its queue and of its segment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        log = LogDirectory.open(str(root))
        self.records: list[Where] = []
        for file in log.segments:
            segment = log.open_segment(file)
            bounds = ScanBounds(file.start, file.end, log.known_end, file == log.segments[-1])
            for step in scan_segment(segment, bounds):
                if isinstance(step, DispatchBatch):
                    self.records += _records(step)
        self.end = self.records[-1].physical + self.records[-1].size

    def pick(self, number: int = 0) -> Where:
        ends: dict[tuple[str, int], int] = {}
        for record in self.records:
            ends[record.topic, record.queue_id] = record.queue_offset
        good = [
            record
            for record in self.records[len(self.records) // 4 :]
            if not record.topic.startswith(("rmq_sys_", "%", "SCHEDULE", "RMQ_SYS"))
            and 0 < record.queue_offset < ends[record.topic, record.queue_id] - 2
            and 2_000 < record.at < SEGMENT_SIZE - 8_000
            and 2 < record.queue_offset % UNITS_A_FILE < UNITS_A_FILE - 3
        ]
        return good[37 * number % len(good)]

    def next_in_queue(self, record: Where, step: int = 1) -> Where:
        wanted = (record.topic, record.queue_id, record.queue_offset + step)
        return next(r for r in self.records if (r.topic, r.queue_id, r.queue_offset) == wanted)

    # --- bytes ----------------------------------------------------------------------------------------
    def read(self, file: str, at: int, size: int) -> bytes:
        return (self.root / file).read_bytes()[at : at + size]

    def write(self, file: str, at: int, data: bytes) -> None:
        with (self.root / file).open("r+b") as opened:
            opened.seek(at)
            opened.write(data)

    def flip(self, file: str, at: int, bit: int = 1) -> None:
        self.write(file, at, bytes([self.read(file, at, 1)[0] ^ 1 << bit]))

    # --- index files ----------------------------------------------------------------------------------
    @property
    def index_paths(self) -> list[str]:
        return [f"index/{path.name}" for path in sorted((self.root / "index").iterdir())]

    def index(self, number: int = 1) -> IndexView:
        path = self.index_paths[number]
        return layouts.view_index(path, memoryview((self.root / path).read_bytes()), SLOTS, ITEMS)

    def item_at(self, item: int) -> int:
        return 40 + 4 * SLOTS + 20 * item


def _records(run: DispatchBatch) -> list[Where]:
    batch = run.records
    columns = (
        batch.topics,
        batch.queue_ids.tolist(),
        batch.queue_offsets.tolist(),
        batch.physical_offsets.tolist(),
        batch.sizes.tolist(),
        (batch.body_positions - batch.positions).tolist(),
        (batch.topic_positions - batch.positions).tolist(),
        (batch.property_positions - batch.positions).tolist(),
    )
    return [Where(*row) for row in zip(*columns, strict=True)]


Fault = Callable[[DamagedStore], Place]
FAULTS: Final[dict[str, Fault]] = {}
"""In any store whose index and queues are complete."""
OWN_FAULTS: Final[dict[str, Fault]] = {}
"""In a store of TroveMQ."""


def fault_of(table: dict[str, Fault]) -> Callable[[Fault], Fault]:
    def add(fault: Fault) -> Fault:
        table[fault.__name__] = fault
        return fault

    return add
