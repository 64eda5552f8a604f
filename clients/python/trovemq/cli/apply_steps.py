"""The changes that apply makes, or would make."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Step:
    """The change of one topic, group or user on one broker; `run` carries it out."""

    kind: str
    name: str
    broker: str
    change: str  # created, altered, unchanged
    details: tuple[str, ...] = ()
    run: Callable[[], Awaitable[object]] | None = field(default=None, compare=False)

    def fields(self, *, dry_run: bool) -> dict[str, object]:
        return {
            "kind": self.kind,
            "name": self.name,
            "change": self.change,
            "details": list(self.details),
            "broker": self.broker,
            "dryRun": dry_run,
        }
