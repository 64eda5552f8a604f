"""The result of a check: findings and notes by file and offset, bounded in number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

REPORTED_MAX: Final = 1000
EACH_MAX: Final = 100
"""The most findings of one kind and place that are reported separately."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something at `offset` (bytes) of `file`. `note`: it is not damage, or recovery repairs it."""

    file: str
    offset: int
    what: str
    note: bool = False

    def __str__(self) -> str:
        return f"{'note' if self.note else 'FOUND'} {self.file} at {self.offset}: {self.what}"

    def to_json(self) -> dict[str, object]:
        return {"file": self.file, "offset": self.offset, "what": self.what, "note": self.note}


class Findings:
    """Reports the first REPORTED_MAX findings and counts all."""

    def __init__(self, report: Callable[[Finding], None]) -> None:
        self._report = report
        self.finding_count = 0
        self.note_count = 0

    def add(self, file: str, offset: int, what: str, *, note: bool = False) -> None:
        if note:
            self.note_count += 1
        else:
            self.finding_count += 1
        if self.finding_count + self.note_count <= REPORTED_MAX:
            self._report(Finding(file, offset, what, note))
