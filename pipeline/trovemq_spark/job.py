"""The arguments and the result of every job. A job is a function

    run(session, arguments, progress) -> Report

without globals, clock or printing. So it runs in the same way from the command line, a notebook or a
scheduler, on `local[2]` and on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

FINDINGS_MAX: Final = 1000
"""The most findings that a report lists; all are counted."""


class Progress(Protocol):
    """Gets the progress of a job: a bar on a terminal, nothing in a test."""

    def begin(self, what: str, total: int) -> None:
        """Begins a step of `total` parts (0: unknown)."""
        ...

    def advance(self, count: int = 1) -> None: ...


class NoProgress:
    """Ignores the progress."""

    def begin(self, what: str, total: int) -> None:
        pass

    def advance(self, count: int = 1) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault: `file` (relative to the input) and byte `offset` in it; -1: without a place."""

    kind: str
    what: str
    file: str = ""
    offset: int = -1

    def to_json(self) -> dict[str, object]:
        return {"kind": self.kind, "what": self.what, "file": self.file, "offset": self.offset}


@dataclass(slots=True)
class Report:
    """The report of a job. `facts`: counts and names for JSON, in lowerCamelCase; findings make the exit code
    1."""

    job: str
    facts: dict[str, object] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    finding_count: int = 0
    notes: list[str] = field(default_factory=list)
    """Facts that are not faults: an open segment, rows that were left out by request."""

    def found(self, finding: Finding) -> None:
        """Counts the finding, and lists it if there are few."""
        self.finding_count += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def note_missing(
        self, asked: Iterable[str], found: Iterable[str], what: str = "message of topic"
    ) -> None:
        """Notes a requested topic (or whatever `what` says) that does not exist, because its name may be
        misspelt."""
        there = set(found)
        self.notes += [f"no {what} {name} is there" for name in sorted(asked) if name not in there]

    def to_json(self) -> Mapping[str, object]:
        return {
            "job": self.job,
            **self.facts,
            "findingCount": self.finding_count,
            "findings": [finding.to_json() for finding in self.findings],
            "notes": self.notes,
        }
