"""The status of a broker's configuration as values, for metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trovemq_broker.cluster_config.entries import NO_GENERATION, Generation
from trovemq_broker.cluster_config.table import NO_TABLE, Head
from trovemq_broker.cluster_config.take_over import CopyStatus


@dataclass(frozen=True)
class FakeMember:
    broker: str
    version: int
    live: bool


@dataclass(frozen=True)
class FakeStatus:
    state: str
    copy: CopyStatus = field(default_factory=lambda: CopyStatus("a", NO_TABLE, NO_GENERATION))
    members: Sequence[FakeMember] = ()
    unlisted: Sequence[object] = ()
    differing: Sequence[object] = ()
    withheld: Sequence[object] = ()
    dropped: Sequence[object] = ()
    failed: Sequence[object] = ()


@dataclass(frozen=True)
class FakeFigures:
    now: FakeStatus
    changes: int = 0
    changes_waiting: int = 0

    def status(self) -> FakeStatus:
        return self.now


def copy_of(broker: str, number: int, version: int) -> CopyStatus:
    """With a table of that generation and version, which `a` owns."""
    generation = Generation(number, "0123456789abcdef")
    return CopyStatus(broker, Head("c1", "a", generation, version), generation)
