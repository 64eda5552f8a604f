"""How many of the available messages a micro-batch reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)


def share(backlogs: Mapping[_Key, int], limit: int) -> dict[_Key, int]:
    """How much to read of each backlog, `limit` in total: in proportion, and at least 1.

    The sum exceeds the limit only if there are more backlogs than the limit.
    """
    present = {key: size for key, size in backlogs.items() if size > 0}
    total = sum(present.values())
    if total <= limit:
        return present
    space, rest = max(limit - len(present), 0), total - len(present)
    return {key: 1 + (space * (size - 1) // rest if rest else 0) for key, size in present.items()}


@dataclass(slots=True)
class Delay:
    """Whether a micro-batch waits: for `rows_min` rows, but no longer than delay_max_ms after the last one.

    The first one of a run does not wait.
    """

    rows_min: int
    delay_max_ms: int
    clock: Callable[[], float] = time.monotonic
    _last: float | None = None

    def holds(self, rows: int) -> bool:
        """Called with the number of available rows. False: they are read, and the next wait begins."""
        now = self.clock()
        waited_out = self._last is None or (now - self._last) * 1000 >= self.delay_max_ms
        if rows < self.rows_min and not waited_out:
            return True
        self._last = now
        return False
