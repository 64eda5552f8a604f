"""A removal of the log's beginning, as the consume queues follow it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class QueueTrim:
    """One removal of the log's beginning, which all queues share. hidden: readers do not find the removed
    records any more; abandoned: nothing is removed. closes: close the removed files that were still open."""

    hidden: bool = False
    abandoned: bool = False
    closes: list[Callable[[], None]] = field(default_factory=list)
