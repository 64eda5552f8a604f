"""How many of the present messages a micro-batch takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)


def share(backlogs: Mapping[_Key, int], limit: int) -> dict[_Key, int]:
    """Of each backlog how much to take, `limit` together at most: in proportion, and 1 at least.

    The sum passes the limit only where more keys have a backlog than the limit allows.
    """
    present = {key: size for key, size in backlogs.items() if size > 0}
    total = sum(present.values())
    if total <= limit:
        return present
    space, rest = max(limit - len(present), 0), total - len(present)
    return {key: 1 + (space * (size - 1) // rest if rest else 0) for key, size in present.items()}


@dataclass(slots=True)
class Delay:
    """Whether a micro-batch waits: for `rows_min` rows, no longer than delay_max_ms since the last one.

    The first of a run does not wait.
    """

    rows_min: int
    delay_max_ms: int
    clock: Callable[[], float] = time.monotonic
    _last: float | None = None

    def holds(self, rows: int) -> bool:
        """Called with the number of rows that there are now; False: they are taken, and the next wait
        begins."""
        now = self.clock()
        waited_out = self._last is None or (now - self._last) * 1000 >= self.delay_max_ms
        if rows < self.rows_min and not waited_out:
            return True
        self._last = now
        return False
