"""Findings of the checks, by kind, file and byte offset, with a limit on how many are kept."""

from __future__ import annotations

from dataclasses import dataclass

from trovemq_spark.job import Finding
from trovemq_store.check.findings import Finding as ScrubFinding
from trovemq_store.check.findings import Findings


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """Something at byte `offset` of `file`. `note`: it is no fault, or recovery repairs it."""

    kind: str
    what: str
    file: str
    offset: int
    note: bool = False

    def finding(self) -> Finding:
        return Finding(self.kind, self.what, self.file, self.offset)

    def __str__(self) -> str:
        return f"{self.kind}: {self.file} at {self.offset}: {self.what}"


class FindingList(Findings):
    """Collects the findings of one task: all are counted, the first 1,000 are kept. It can be used as the
    Findings of trovemq_store.check, whose checks know no kinds: `kind` is that of the next finding."""

    def __init__(self, kind: str = "") -> None:
        super().__init__(self._keep)
        self.kind = kind
        self.kept: list[AuditFinding] = []

    def of(self, kind: str) -> FindingList:
        self.kind = kind
        return self

    def _keep(self, finding: ScrubFinding) -> None:
        self.kept.append(AuditFinding(self.kind, finding.what, finding.file, finding.offset, finding.note))


@dataclass(frozen=True, slots=True)
class Counted:
    """A FindingList as the result of a task."""

    kept: tuple[AuditFinding, ...] = ()
    finding_count: int = 0
    note_count: int = 0

    @classmethod
    def of(cls, found: FindingList) -> Counted:
        return cls(tuple(found.kept), found.finding_count, found.note_count)
