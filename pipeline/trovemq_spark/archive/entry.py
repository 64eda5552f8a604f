"""A manifest's entry of one Parquet file.

{
  "file": "_files/0f3a…-00000000001073741824",   below the archive, with `/`
  "rows": 1000, "bytes": 123456,                   of the file
  "topic": "T", "date": "2026-01-31",              of all its rows; null for rows of damage
  "queues": {"0": [5, 104]},                       queue -> [first, last] queue offset
  "physical": [4096, 90112],                       [begin, end) with all its records
  "stored": [1769817600000, 1769817660000],        [first, last] store time, epoch milliseconds
  "source": "broker-a", "segments": [0, 0],        whose log; [first, last] segment by its first offset
  "schemaVersion": 1
}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One committed file. Times are epoch milliseconds; `topic` and `date` are None for rows of damage."""

    file: str
    rows: int
    bytes: int
    topic: str | None
    date: str | None
    queues: Mapping[int, tuple[int, int]]
    physical: tuple[int, int]
    stored: tuple[int, int]
    source: str = ""
    segments: tuple[int, int] = (-1, -1)
    schema_version: int = SCHEMA_VERSION

    @property
    def is_damage(self) -> bool:
        return self.topic is None

    @property
    def queue_offset_min(self) -> int:
        """-1 if no row has an offset."""
        return min((first for first, _ in self.queues.values()), default=-1)

    @property
    def queue_offset_max(self) -> int:
        return max((last for _, last in self.queues.values()), default=-1)

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "rows": self.rows,
            "bytes": self.bytes,
            "topic": self.topic,
            "date": self.date,
            "queues": {str(queue): list(span) for queue, span in sorted(self.queues.items())},
            "physical": list(self.physical),
            "stored": list(self.stored),
            "source": self.source,
            "segments": list(self.segments),
            "schemaVersion": self.schema_version,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> FileEntry:
        """Raises KeyError, TypeError, ValueError if a member is missing or has an illegal value."""
        queues = {int(queue): _pair(span) for queue, span in document["queues"].items()}
        return cls(
            file=str(document["file"]),
            rows=int(document["rows"]),
            bytes=int(document["bytes"]),
            topic=document["topic"],
            date=document["date"],
            queues=queues,
            physical=_pair(document["physical"]),
            stored=_pair(document["stored"]),
            source=str(document["source"]),
            segments=_pair(document["segments"]),
            schema_version=int(document["schemaVersion"]),
        )


def _pair(values: Any) -> tuple[int, int]:
    first, last = values
    return int(first), int(last)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which files to read. None: any. Files are chosen as a whole, so rows that do not match may be among
    them."""

    topics: frozenset[str] | None = None
    queue: int | None = None
    date_from: str | None = None
    date_to: str | None = None
    """Days of UTC, YYYY-MM-DD, both included."""
    stored_from_ms: int | None = None
    stored_to_ms: int | None = None
    """Store time, both included."""
    queue_offset_from: int | None = None
    queue_offset_to: int | None = None
    """Queue offsets, both included; of `queue`, or of any."""
    physical_offset: int | None = None
    damage: bool = False
    """Also the files of damage."""

    def includes(self, entry: FileEntry) -> bool:
        if entry.topic is None or entry.date is None:
            return self.damage
        return (
            (self.topics is None or entry.topic in self.topics)
            and (self.date_from is None or entry.date >= self.date_from)
            and (self.date_to is None or entry.date <= self.date_to)
            and (self.stored_from_ms is None or entry.stored[1] >= self.stored_from_ms)
            and (self.stored_to_ms is None or entry.stored[0] <= self.stored_to_ms)
            and (
                self.physical_offset is None or entry.physical[0] <= self.physical_offset < entry.physical[1]
            )
            and self._includes_queues(entry)
        )

    def _includes_queues(self, entry: FileEntry) -> bool:
        if self.queue is None and self.queue_offset_from is None and self.queue_offset_to is None:
            return True
        spans = [span for queue, span in entry.queues.items() if self.queue is None or queue == self.queue]
        return any(
            (self.queue_offset_from is None or last >= self.queue_offset_from)
            and (self.queue_offset_to is None or first <= self.queue_offset_to)
            for first, last in spans
        )
