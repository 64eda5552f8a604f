"""The findings of a check: a count of each kind of fault, and the first ones of each."""

from __future__ import annotations

from typing import Final

LOST: Final = "lost"
ALTERED: Final = "altered"
DUPLICATED: Final = "duplicated"
REORDERED: Final = "reordered"
PHANTOM: Final = "phantom"
KINDS: Final = (LOST, ALTERED, DUPLICATED, REORDERED, PHANTOM)
EXAMPLES_MAX: Final = 20  # of each kind

Fault = dict[str, object]


class Findings:
    """Counts and examples.

    Attributes:
        counts: By kind.
        examples: By kind, the first EXAMPLES_MAX.
        expired: Acknowledged messages below their queue's first offset that were allowed to be gone.
        unknown_stored: Stored copies of sends with an unknown outcome.
        unrecorded: Messages that no line names, in a run that was ended from outside.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(KINDS, 0)
        self.examples: dict[str, list[Fault]] = {kind: [] for kind in KINDS}
        self.expired = 0
        self.unknown_stored = 0
        self.unrecorded = 0

    @property
    def wrong(self) -> bool:
        """Whether there is any fault."""
        return any(self.counts.values())

    def add(self, kind: str, **fields: object) -> None:
        """Adds a fault; its fields name the message and describe the fault."""
        self.counts[kind] += 1
        if len(self.examples[kind]) < EXAMPLES_MAX:
            self.examples[kind].append({"kind": kind, **fields})

    def faults(self) -> list[Fault]:
        """Every example, kind after kind."""
        return [fault for kind in KINDS for fault in self.examples[kind]]
